"""What a layer must keep about the past, as data that answers for itself.

One class for each way to remember. A memory says how it grows, what its bytes are made of, which part of it a rank
holds, what a step makes of it, and what it is called; engines add what a page of it looks like. Every memory grows in
one of three ways, and `Growth` holds all three: a line, a line that stops (a window), a constant. So a curve, a sum
over layers or a sweep is arithmetic on a handful of integers, never a loop over tokens.
"""

from kvcore.model.memories.attention import PAIR, Attention, CrossAttention, KeysAndValues
from kvcore.model.memories.base import (
    KINDS,
    Access,
    Factor,
    Growth,
    Heads,
    Kind,
    LayerPlan,
    Memory,
    MemoryWork,
    Projections,
)
from kvcore.model.memories.latent import INDEXER_FP8, Indexer, Latent
from kvcore.model.memories.nothing import NoMemory, SharedCache
from kvcore.model.memories.state import State, StateDesign, StatePart, StateTensor

__all__ = [
    "INDEXER_FP8",
    "KINDS",
    "PAIR",
    "Access",
    "Attention",
    "CrossAttention",
    "Factor",
    "Growth",
    "Heads",
    "Indexer",
    "KeysAndValues",
    "Kind",
    "Latent",
    "LayerPlan",
    "Memory",
    "MemoryWork",
    "NoMemory",
    "Projections",
    "SharedCache",
    "State",
    "StateDesign",
    "StatePart",
    "StateTensor",
]
