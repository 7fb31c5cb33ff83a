"""transformers 5.24: tensors that each layer of a cache really holds; no pool, no pages.

settings.py is what a user may set, layers.py what a layer holds, engine.py the answers.
"""

from kvcore.engines.transformers.engine import TRANSFORMERS, Transformers
from kvcore.engines.transformers.settings import TransformersSettings

__all__ = ["TRANSFORMERS", "Transformers", "TransformersSettings"]
