"""What a model remembers: memories, the Model, and the readers that make one from a configuration."""

from kvcore.model.memories import (
    KINDS,
    Attention,
    CrossAttention,
    Growth,
    Indexer,
    Kind,
    Latent,
    Memory,
    NoMemory,
    SharedCache,
    State,
    StatePart,
)
from kvcore.model.model import Experts, Model, Reading, WeightPart
from kvcore.model.read import model_from_config, parse_config

__all__ = [
    "KINDS",
    "Attention",
    "CrossAttention",
    "Experts",
    "Growth",
    "Indexer",
    "Kind",
    "Latent",
    "Memory",
    "Model",
    "NoMemory",
    "Reading",
    "SharedCache",
    "State",
    "StatePart",
    "WeightPart",
    "model_from_config",
    "parse_config",
]
