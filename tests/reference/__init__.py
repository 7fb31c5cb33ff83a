"""What the tests compare kvcore with: runs of transformers' own models, and vLLM's recorded plans."""
