"""A Model: the memories of its layers, and the facts that engines, plans and screens need beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from kvcore.formats import KVFormat, kv_format
from kvcore.model.memories import Attention, Indexer, Kind, Latent, Memory, State
from kvcore.model.prediction import NO_PREDICTION, PredictionLayers
from kvcore.model.towers import Tower

Knowledge = Literal["exact", "upper_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts shape of a model, of its most common MoE layer."""

    num_experts: int
    experts_per_token: int
    num_shared_experts: int = 0
    moe_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Columns of one matrix in each kind of feed-forward part: what tensor-parallel ranks divide.

    The most common width where layers differ; 0 where the model has no such part or its width is not stated.
    """

    feed_forward: int = 0
    experts: int = 0
    shared_experts: int = 0


NO_WIDTHS = Widths()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched: the rule's name, by what factor, and how many positions the file states.

    Whether the stated `positions` are those before or after the stretch differs by family; 0 where none are stated.
    """

    kind: str
    factor: float
    positions: int


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
    distinct memories with their counts, `kept` those of them that take any bytes: `attentions` (keys and values of the
    request's own tokens; `has_windows` where some are kept for a window or a chunk only), `latents`, `indexers`,
    `states`, and memories of a source.
    `model_dtype` is the 16-bit (or other) format that the model is served in; `cache_format` the one that the
    checkpoint declares for its cache, or None. `head_dim` is the value width of a query head, `key_head_dim` its key
    width where that differs; a model without attention has 0 heads. Counts of parameters are None where the family's
    shape is not known.
    `checkpoint_format` names the format of most of the stored weights; `stored_bits` are the bits of one weight, scales
    included, by the names of `weights`, for a checkpoint that was quantised (empty: all in that format). `scale_block`
    is the side of the blocks that share an fp8 scale, 0 where there are none.
    `rope` are the different ways in which layers stretch their positions; () where none does. `other_query_heads` names
    the keys that give some layers another number of query heads. `window_of_past`: the sliding windows count the tokens
    before the current one. `state_dtype` is what mamba_ssm_dtype declares for recurrent states, None where it does not.
    `tower` is what reads pictures or sound, None in a model of text; `tower_parameters` are those of all such parts, an
    estimate, which `weights` leave out, and so are the layers of `prediction`. `prediction_keys` are all keys that
    speak of such layers, whatever they say.
    `container` is the kind of file that it was read from; `files` where that is on a disk, None for a model with an id
    or without any file. `built_as` is the counterfactual that it is, "" for a model as it was published: nobody has the
    weights of a counterfactual. `reading` is for people: nothing is computed from it.
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
    widths: Widths = NO_WIDTHS
    rope: tuple[RopeScaling, ...] = ()
    weights: tuple[WeightPart, ...] = ()
    checkpoint_format: str | None = None
    checkpoint_bytes: int | None = None
    stored_bits: tuple[tuple[str, float], ...] = ()
    scale_block: int = 0
    state_dtype: str | None = None
    other_query_heads: tuple[str, ...] = ()
    window_of_past: bool = False
    tower: Tower | None = None
    tower_parameters: int = 0
    prediction: PredictionLayers = NO_PREDICTION
    prediction_keys: tuple[str, ...] = ()
    knowledge: Knowledge = "exact"
    container: Literal["config", "gguf"] = "config"
    files: Files | None = None
    built_as: str = ""
    reading: Reading = field(default_factory=Reading)
    groups: tuple[tuple[Memory, int], ...] = field(init=False, compare=False)
    kept: tuple[tuple[Memory, int], ...] = field(init=False, compare=False)
    attentions: tuple[Attention, ...] = field(init=False, compare=False, repr=False)
    latents: tuple[Latent, ...] = field(init=False, compare=False, repr=False)
    indexers: tuple[Indexer, ...] = field(init=False, compare=False, repr=False)
    states: tuple[State, ...] = field(init=False, compare=False, repr=False)
    has_windows: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        counts: dict[Memory, int] = {}
        for layer in self.layers:
            for memory in layer:
                counts[memory] = counts.get(memory, 0) + 1
        object.__setattr__(self, "groups", tuple(counts.items()))
        # Layers that read another's cache are all different, and cost nothing: the sums leave them out.
        kept = tuple([pair for pair in counts.items() if not pair[0].is_empty])
        object.__setattr__(self, "kept", kept)
        by_class = (("attentions", Attention), ("latents", Latent), ("indexers", Indexer), ("states", State))
        for name, kind in by_class:
            object.__setattr__(self, name, tuple([memory for memory, _ in kept if isinstance(memory, kind)]))
        object.__setattr__(self, "has_windows", any(memory.limit is not None for memory in self.attentions))

    def __hash__(self) -> int:
        """Of what tells models apart: a hundred layers are too many to hash for every answer that is kept by model."""
        return hash((self.name, self.model_type, self.hidden_size, self.num_attention_heads, len(self.layers)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any result must know about the configuration."""
        return self.reading.notes

    def with_notes(self, *notes: str) -> Model:
        """The same model with further notes."""
        return replace(self, reading=replace(self.reading, notes=(*self.reading.notes, *notes)))

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
