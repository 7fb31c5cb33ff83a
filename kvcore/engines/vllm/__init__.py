"""vLLM 0.33: blocks of one pool, shared by groups of layers.

settings.py is what a user may set and every release's defaults, blocks.py a layer's page and how layers share blocks,
packed.py those of DeepSeek-V4, memory.py what a start takes beside weights and cache (overheads.py in parts), tower.py
what reads pictures, engine.py the answers.
"""

from kvcore.engines.vllm.engine import VLLM
from kvcore.engines.vllm.settings import VllmSettings

__all__ = ["VLLM", "VllmSettings"]
