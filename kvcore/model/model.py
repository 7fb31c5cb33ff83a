"""A Model: the memories of its layers, and the facts that engines, plans and screens need beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvcore.formats import KVFormat, kv_format
from kvcore.model.memories import Kind, Memory, NoMemory, SharedCache
from kvcore.model.prediction import NO_PREDICTION, Prediction

Knowledge = Literal["exact", "upper_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts shape of a model, of its most common MoE layer."""

    num_experts: int
    experts_per_token: int
    num_shared_experts: int = 0
    moe_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPart:
    """Parameters of one kind: how many the model has, and how many of them one token uses."""

    name: str
    parameters: int
    active_parameters: int
    formula: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read from a configuration: keys used with their values, keys ignored, defaults taken, notes."""

    keys_used: tuple[tuple[str, str], ...] = ()
    keys_ignored: tuple[str, ...] = ()
    defaults_used: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a user has a model: the path as typed, of a folder, of a configuration alone, or of a GGUF file."""

    path: str
    kind: Literal["folder", "config", "gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What one request makes a model remember, layer by layer, and the facts that others need.

    `layers[i]` holds the memories of layer i: none of them empty, two where a layer keeps two things. `groups` are the
    distinct memories with their counts, `kept` those of them that take any bytes.
    `model_dtype` is the 16-bit (or other) format that the model is served in; `cache_format` the one that the
    checkpoint declares for its cache, or None. `head_dim` is the value width of a query head, `key_head_dim` its key
    width where that differs; a model without attention has 0 heads. Counts of parameters are None where the family's
    shape is not known.
    `checkpoint_format` names the format of most of the stored weights; `stored_bits` are the bits of one weight, scales
    included, by the names of `weights`, for a checkpoint that was quantised (empty: all in that format). `scale_block`
    is the side of the blocks that share an fp8 scale, 0 where there are none; `tower_parameters` are those of the parts
    that read pictures and sound, an estimate, which `weights` leave out, and so are the layers of `prediction`.
    `files` is where it was read from a disk, None for a model with an id or without any file. `built_as` is the
    counterfactual that it is, "" for a model as it was published: nobody has the weights of a counterfactual.
    """

    name: str
    model_type: str
    layers: tuple[tuple[Memory, ...], ...]
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    key_head_dim: int | None = None
    vocab_size: int | None = None
    context_limit: int | None = None
    model_dtype: str = "bf16"
    cache_format: str | None = None
    experts: Experts | None = None
    weights: tuple[WeightPart, ...] = ()
    checkpoint_format: str | None = None
    checkpoint_bytes: int | None = None
    stored_bits: tuple[tuple[str, float], ...] = ()
    scale_block: int = 0
    tower_parameters: int = 0
    prediction: Prediction = NO_PREDICTION
    knowledge: Knowledge = "exact"
    files: Files | None = None
    built_as: str = ""
    reading: Reading = field(default_factory=Reading)
    groups: tuple[tuple[Memory, int], ...] = field(init=False, compare=False)
    kept: tuple[tuple[Memory, int], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        counts: dict[Memory, int] = {}
        for layer in self.layers:
            for memory in layer:
                counts[memory] = counts.get(memory, 0) + 1
        object.__setattr__(self, "groups", tuple(counts.items()))
        # Layers that read another's cache are all different, and cost nothing: the sums leave them out.
        kept = (pair for pair in counts.items() if not isinstance(pair[0], SharedCache | NoMemory))
        object.__setattr__(self, "kept", tuple(kept))

    def __hash__(self) -> int:
        """Of what tells models apart: a hundred layers are too many to hash for every answer that is kept by model."""
        return hash((self.name, self.model_type, self.hidden_size, self.num_attention_heads, len(self.layers)))

    @property
    def total_parameters(self) -> int | None:
        """Parameters of the language model, or None where its shape is not known."""
        return sum(part.parameters for part in self.weights) if self.weights else None

    @property
    def active_parameters(self) -> int | None:
        """Parameters that one token uses, or None where the shape is not known."""
        return sum(part.active_parameters for part in self.weights) if self.weights else None

    @property
    def kinds(self) -> tuple[tuple[Kind, int], ...]:
        """How many memories there are of each kind, in the order of the layers."""
        counts: dict[Kind, int] = {}
        for memory, count in self.groups:
            counts[memory.kind] = counts.get(memory.kind, 0) + count
        return tuple(counts.items())

    def resolve_format(self, name: str = "auto") -> KVFormat:
        """The cache format of a name; `auto` is the one the checkpoint declares, else the model's 16 bits."""
        if name.strip().lower() == "auto":
            return kv_format(self.cache_format or self.model_dtype)
        return kv_format(name)
