"""Which layers of a model have which kind of matrices, as far as its memories and its count of MoE layers say."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from kvcore.model.keys import Keys
from kvcore.model.memories import NoMemory, State
from kvcore.model.model import Experts, Model, WeightPart


def forward_layers(model: Model) -> list[int]:
    """1 for layers with a feed-forward part: where a layer does one thing only, those that remember nothing."""
    one_thing = any(isinstance(memory, State) for memory, _ in model.groups)
    nothing = [int(all(isinstance(memory, NoMemory) for memory in layer)) for layer in model.layers]
    return nothing if one_thing and any(nothing) else [1] * len(model.layers)


def sparse_layers(model: Model) -> list[int]:
    """1 for layers with experts. The memories do not say which: a few dense ones are the first, many alternate."""
    layers = forward_layers(model)
    places = [index for index, has in enumerate(layers) if has]
    sparse = model.experts.moe_layers if model.experts else 0
    dense = len(places) - sparse
    if sparse <= 0 or dense <= 0:
        return layers
    kept = set(places[dense:])
    if 4 * dense >= len(places):
        # The n-th of every group, as decoder_sparse_step and its like count them.
        kept = {
            place for at, place in enumerate(places) if (at + 1) * sparse // len(places) > at * sparse // len(places)
        }
    return [int(index in kept) for index in range(len(layers))]


def dense_layers(model: Model) -> list[int]:
    """1 for layers with a plain feed-forward part: those without experts, or all where one is beside the experts."""
    layers = forward_layers(model)
    sparse = sparse_layers(model) if model.experts else [0] * len(model.layers)
    found = [int(has and not other) for has, other in zip(layers, sparse, strict=True)]
    return found if any(found) else layers


@dataclass(slots=True, kw_only=True)
class Tally:
    """Adds up parameters by kind while a reader walks the layers."""

    total: dict[str, int] = field(default_factory=dict)
    active: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, parameters: int, active: int | None = None) -> None:
        """Count `parameters`, of which one token uses `active` (all of them unless said)."""
        self.total[name] = self.total.get(name, 0) + parameters
        self.active[name] = self.active.get(name, 0) + (parameters if active is None else active)

    def parts(self) -> tuple[WeightPart, ...]:
        """The parts that are not empty, in the order in which they were first met."""
        return tuple(
            WeightPart(name=name, parameters=count, active_parameters=self.active[name])
            for name, count in self.total.items()
            if count
        )


def attention_parameters(hidden: int, heads: int, kv_heads: int, head_dim: int, v_head_dim: int) -> int:
    """Query, key, value and output projections."""
    return hidden * (heads * head_dim + kv_heads * (head_dim + v_head_dim) + heads * v_head_dim)


def mla_parameters(
    hidden: int, heads: int, *, q_rank: int | None, kv_rank: int, nope: int, rope: int, value: int
) -> int:
    """Multi-head latent attention: low-rank query (or a full one), latent down, keys and values up, output."""
    query_width = heads * (nope + rope)
    query = hidden * query_width if not q_rank else hidden * q_rank + q_rank * query_width
    return query + hidden * (kv_rank + rope) + kv_rank * heads * (nope + value) + heads * value * hidden


def mamba1_parameters(hidden: int, inner: int, state: int, conv: int, dt_rank: int) -> int:
    """Mamba 1: in, convolution, x and dt projections, A, D, out."""
    return (
        hidden * 2 * inner
        + inner * conv
        + inner * (dt_rank + 2 * state)
        + dt_rank * inner
        + inner * (state + 1)
        + inner * hidden
    )


def mamba2_parameters(hidden: int, inner: int, groups: int, state: int, heads: int, conv: int) -> int:
    """Mamba 2: in (gate, x, B, C, dt), convolution, A, D and dt bias, gated norm, out."""
    wide = inner + 2 * groups * state
    return hidden * (inner + wide + heads) + wide * conv + 3 * heads + inner + inner * hidden


def delta_net_parameters(hidden: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int, conv: int) -> int:
    """Gated delta net: q, k, v, output gate, beta and decay projections, convolution, out."""
    key, value = k_heads * k_dim, v_heads * v_dim
    return hidden * (2 * key + 2 * value + 2 * v_heads) + (2 * key + value) * conv + value * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """The feed-forward layers of a model: which are dense, which are mixtures of experts, and their sizes."""

    hidden: int
    gated: bool
    dense_width: int
    sparse: tuple[bool, ...]
    experts: Experts | None = None
    expert_width: int = 0
    expert_hidden: int = 0
    shared_width: int = 0
    dense_beside_experts: bool = False

    def count(self, tally: Tally, layer: int) -> None:
        """Add layer `layer`'s feed-forward parameters to the tally."""
        matrices = 3 if self.gated else 2
        if not self.sparse[layer] or self.experts is None:
            tally.add("feed-forward", matrices * self.hidden * self.dense_width)
            return
        one = matrices * self.expert_hidden * self.expert_width
        tally.add("experts", self.experts.num_experts * one, self.experts.experts_per_token * one)
        tally.add("shared experts", matrices * self.hidden * self.shared_width)
        tally.add("router", self.hidden * self.experts.num_experts)
        if self.expert_hidden != self.hidden:
            tally.add("latent projections", 2 * self.hidden * self.expert_hidden)
        if self.dense_beside_experts:
            tally.add("feed-forward", matrices * self.hidden * self.dense_width)


def read_feed_forward(
    keys: Keys,
    layers: int,
    hidden: int,
    *,
    gated: bool,
    default_width: int = 0,
    shared_default: int = 0,
    stated_width_is: int = 1,
) -> FeedForward:
    """The feed-forward shape from a configuration; raises ConfigError for sizes that cannot be.

    `shared_default` experts are shared where the file does not say; the stated width is `stated_width_is` times the
    width of one matrix (2 in Qwen's first generation).
    """
    # ChatGLM's first generation is the one that names its width so, and it has no gate.
    gated = gated and not keys.stated("inner_hidden_size")
    nested = keys.child("ffn_config")
    if nested is not None:
        keys = nested
    num_experts = _first(keys, "n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    per_token = _first(
        keys, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k",
        "top_k_experts", "moe_k", default=1,
    )  # fmt: skip
    width = _first(keys, "intermediate_size", "ffn_hidden_size", "n_inner", "inner_hidden_size", "ffn_dim",
                   "ff_intermediate_size", default=default_width) // stated_width_is  # fmt: skip
    if num_experts <= 1:
        return FeedForward(hidden=hidden, gated=gated, dense_width=width, sparse=(False,) * layers)
    expert_width = _first(
        keys, "moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", default=width
    )
    keys.know("mlp_only_layers")
    sparse = _sparse_layers(keys, layers)
    shared = _first(keys, "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts",
                    default=shared_default)  # fmt: skip
    shared_width = _first(
        keys, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "shared_intermediate_size", default=0,
    )  # fmt: skip
    dense_width = _first(keys, "intermediate_size_mlp", "dense_intermediate_size", default=width)
    return FeedForward(
        hidden=hidden,
        gated=gated,
        dense_width=dense_width,
        sparse=sparse,
        experts=Experts(
            num_experts=num_experts,
            experts_per_token=min(per_token, num_experts),
            num_shared_experts=shared or (1 if shared_width else 0),
            moe_layers=sum(sparse),
        ),
        expert_width=expert_width,
        expert_hidden=_first(keys, "moe_latent_size", "routed_expert_hidden_size", default=hidden),
        shared_width=shared_width or shared * expert_width,
    )


def _first(keys: Keys, *names: str, default: int = 0) -> int:
    """The first of these sizes, the most common entry where it is a list with one a layer."""
    value = keys.get(*names)
    if isinstance(value, list) and value:
        sizes = Counter(entry for entry in value if isinstance(entry, int))
        value = sizes.most_common(1)[0][0] if sizes else value
    return default if value is None else keys.check(value, names, 0, 2**24)


def _sparse_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers are mixtures of experts."""
    types = keys.get("mlp_layer_types")
    if isinstance(types, list) and len(types) >= layers:
        return tuple(kind != "dense" for kind in types[:layers])
    frequency = keys.get("moe_layer_freq")
    if isinstance(frequency, list) and len(frequency) >= layers:
        return tuple(bool(entry) for entry in frequency[:layers])
    first_dense = _first(
        keys, "first_k_dense_replace", "moe_layer_num_skipped", "num_dense_layers", "moe_layer_start_index", default=0
    )
    step = (
        _first(
            keys,
            "decoder_sparse_step",
            "interleave_moe_layer_step",
            "expert_layer_period",
            "moe_layer_interval",
            default=1,
        )
        or 1
    )
    offset = _first(keys, "expert_layer_offset", default=step - 1)
    listed = keys.get("mlp_only_layers")
    dense = {entry for entry in listed if isinstance(entry, int)} if isinstance(listed, list) else set()
    moe_layers = keys.get("moe_layers")
    if isinstance(moe_layers, list) and moe_layers and all(isinstance(entry, int) for entry in moe_layers):
        return tuple(layer in moe_layers for layer in range(layers))
    return tuple(
        layer >= first_dense and layer % step == offset % step and layer not in dense for layer in range(layers)
    )


# Embedding and reward models, which end before the output head.
_HEADLESS = re.compile(r"ForSequenceClassification$|^(Llama|Mistral|Qwen2|Qwen3)Model$")


def count_embeddings(keys: Keys, tally: Tally, hidden: int, tied_by_default: bool) -> int | None:
    """Add the embedding and, unless it is tied, the output head; returns the vocabulary size, None where unstated."""
    vocabulary = keys.optional("vocab_size", "padded_vocab_size", "num_embeddings")
    if vocabulary is None:
        return None
    tally.add("embedding", vocabulary * hidden, hidden)
    names = keys.raw.get("architectures")
    if isinstance(names, list) and names and _HEADLESS.search(str(names[0])):
        keys.know("tie_word_embeddings")
    elif not keys.flag("tie_word_embeddings", tied_by_default):
        tally.add("output head", vocabulary * hidden)
    else:
        # A tied head is no further parameter, but one token multiplies by it.
        tally.active["embedding"] = vocabulary * hidden
    return vocabulary
