"""From a GGUF file to a Model: its memories as llama.cpp keeps them, and its weights from the table of tensors.

The `gguf` library is not needed: gguf_file reads the header, gguf_rules says what each architecture needs, and
gguf_layers makes the memories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from kvcore.errors import GGUF, ConfigError, UnknownLayoutError
from kvcore.model.gguf_file import GGUFHeader, HeaderCutOffError, LongArray, Tensor, gguf_metadata
from kvcore.model.gguf_layers import ARCHITECTURES, GgufFacts, GGUFKeys, read_layers
from kvcore.model.keys import MAX_LAYERS
from kvcore.model.memories import Attention, Memory
from kvcore.model.model import Experts, Knowledge, Model, Reading, WeightPart
from kvcore.model.readers.shape import other_query_heads
from kvcore.model.rope import gguf_rope_scalings

__all__ = ["GGUFHeader", "HeaderCutOffError", "gguf_metadata", "model_from_gguf", "model_from_header"]

# Keys whose names say that they shape the cache. One that is set and that no rule took is not understood.
_SHAPES_THE_CACHE = re.compile(
    r"^(attention|ssm|kda|wkv|shortconv|ple|recurrent)\.|"
    r"^(full_attention_interval|token_shift_count|num_loops|decoder_block_count|sliding_window.*|swa_.*)$"
)
# Keys that match the above and change nothing of what is kept.
_HARMLESS = re.compile(
    r"^attention\.(layer_norm_.*|group_norm_.*|max_alibi_bias|clamp_kqv|causal|q_lora_rank|decay_lora_rank|"
    r"iclr_lora_rank|value_residual_mix_lora_rank|gate_lora_rank|relative_buckets_count|scale|output_scale|"
    r"value_scale|temperature_length|temperature_scale|rope_pattern|output_group_count|output_lora_rank)$"
)
_STATEFUL = re.compile(r"^(ssm|kda|wkv|shortconv|recurrent)\.|recurrent|compress_ratios|token_shift_count")


def model_from_gguf(data: BinaryIO, name: str, *, upper_bound: bool = False) -> Model:
    """The Model that a GGUF file describes, from the seekable file or its first megabytes.

    Raises ConfigError and SourceError as gguf_metadata does, and UnknownLayoutError for an architecture or a key that
    is not understood; with `upper_bound` the latter is answered by full attention in every layer, labelled so.
    """
    return model_from_header(gguf_metadata(data), name, upper_bound=upper_bound)


def model_from_header(header: GGUFHeader, name: str, *, upper_bound: bool = False) -> Model:
    """The Model of a header that was already read; raises as model_from_gguf does."""
    architecture = _architecture(header.metadata)
    keys = _keys(header.metadata, architecture)
    try:
        rule = ARCHITECTURES.get(architecture)
        if rule is None:
            raise UnknownLayoutError(
                f"general.architecture {architecture[:60]!r} is not understood, so its cache cannot be sized; "
                "ask for an upper bound to count every layer as full attention",
                file=GGUF,
                keys=("general.architecture",),
            )
        layers, facts = read_layers(keys, rule)
        _refuse_unknown_keys(keys, architecture)
        return _model(header, keys, name, architecture, layers, facts)
    except UnknownLayoutError as refusal:
        if not upper_bound:
            raise
        return _bound(header, name, architecture, refusal)


def _architecture(metadata: Mapping[str, Any]) -> str:
    architecture, kind = metadata.get("general.architecture"), metadata.get("general.type", "model")
    if architecture == "clip" or kind != "model":
        raise ConfigError(
            f"this file holds {str(kind)[:40]!r} and no language model; give the model's own file", file=GGUF
        )
    if not isinstance(architecture, str) or not architecture:
        part = metadata.get("split.no")
        if isinstance(part, int) and part > 0:
            raise ConfigError(f"this is part {part + 1} of a split model; give the first part", file=GGUF)
        raise ConfigError("general.architecture is missing; expected the name of an architecture", file=GGUF)
    return architecture


def _keys(metadata: Mapping[str, Any], architecture: str) -> GGUFKeys:
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return GGUFKeys(own, path=prefix)


def _refuse_unknown_keys(keys: GGUFKeys, architecture: str) -> None:
    """UnknownLayoutError where a key is set that shapes the cache and that nothing took into account."""
    unknown: dict[str, str] = {}
    for full_name in keys.unused():
        name = full_name.removeprefix(keys.path)
        value = keys.raw[name]
        unset = value in (0, "", ()) or (isinstance(value, tuple) and not any(value))
        if _SHAPES_THE_CACHE.search(name) and not _HARMLESS.match(name) and not unset:
            unknown[full_name] = f"{full_name[:80]} = {_short(value)}"
    if unknown:
        listed = ", ".join([*unknown.values()][:6])
        raise UnknownLayoutError(
            f"{listed}: not understood for architecture {architecture[:60]!r}, and it may change the cache; ask "
            "for an upper bound to count every layer as full attention",
            file=GGUF,
            keys=tuple(unknown),
        )


def _short(value: Any) -> str:
    text = f"list of {len(value)}" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _model(
    header: GGUFHeader,
    keys: GGUFKeys,
    name: str,
    architecture: str,
    layers: tuple[tuple[Memory, ...], ...],
    facts: GgufFacts,
    knowledge: Knowledge = "exact",
) -> Model:
    experts, used = _experts(header, keys, facts.blocks)
    split = header.metadata.get("split.count")
    whole = bool(header.tensors) and not (isinstance(split, int) and split > 1)
    if not whole:
        keys.notes.append("The file holds only a part of the weights (or none): they are not counted.")
    context = keys.optional("context_length", low=0, high=2**40)
    stated_name = header.metadata.get("general.name")
    vocabulary = _vocabulary(header, keys)
    heads, key, value = _query_heads(keys, facts)
    return Model(
        name=name or (stated_name if isinstance(stated_name, str) else "") or architecture,
        model_type=architecture,
        layers=layers,
        hidden_size=facts.width,
        num_attention_heads=heads,
        head_dim=value,
        key_head_dim=key if key != value else None,
        vocab_size=vocabulary,
        context_limit=context or None,
        model_dtype="fp16",
        experts=experts,
        rope=gguf_rope_scalings(keys),
        weights=weight_parts(header.tensors, facts.blocks, experts, used) if whole else (),
        checkpoint_format=header.quantisation,
        checkpoint_bytes=header.weight_bytes if whole else None,
        other_query_heads=other_query_heads(keys, heads),
        container="gguf",
        knowledge=knowledge,
        reading=_reading(header, keys),
    )


def _reading(header: GGUFHeader, keys: GGUFKeys) -> Reading:
    taken = keys.all_used()
    known = {key for key, _ in taken}
    used = [(key, _short(header.metadata[key])) for key in _GENERAL if key in header.metadata]
    ignored = tuple(key for key in header.metadata if key not in known and key not in _GENERAL)
    notes = (
        *keys.all_notes(),
        "auto is 16-bit floats: llama.cpp's default cache format, whatever the weights' format.",
    )
    return Reading(keys_used=(*used, *taken), keys_ignored=ignored, notes=notes)


_GENERAL = ("general.architecture", "general.file_type", "split.count")


def _query_heads(keys: GGUFKeys, facts: GgufFacts) -> tuple[int, int, int]:
    """Query heads (the most of any layer), and the key and value widths of one; 0 where nothing attends."""
    heads = max(facts.heads, default=0)
    if not heads:
        return 0, 0, 0
    if facts.latent:
        return heads, keys.integer("attention.key_length_mla"), keys.integer("attention.value_length_mla")
    return heads, *facts.full


def _vocabulary(header: GGUFHeader, keys: GGUFKeys) -> int | None:
    stated = keys.optional("vocab_size", low=0)
    if stated:
        return stated
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray) and tokens.length:
        return tokens.length
    rows = next((tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"), ())
    return rows[1] if len(rows) == 2 else None


def _experts(header: GGUFHeader, keys: GGUFKeys, blocks: int) -> tuple[Experts | None, list[int]]:
    """The shape of the mixture of experts, and how many experts a token uses in each layer."""
    count = keys.optional("expert_count", low=0, high=2**16) or 0
    used = [min(one, count) for one in keys.per_block("expert_used_count", blocks, 0) or []]
    shared = keys.optional("expert_shared_count", low=0, high=2**16) or 0
    dense = keys.optional("leading_dense_block_count", low=0) or 0
    if count < 2:
        return None, used
    mixed = {found[1] for t in header.tensors if "exps" in t.name and (found := _BLOCK.match(t.name))}
    moe_layers = sum(int(block) < blocks for block in mixed) or max(0, blocks - dense)
    most = max(used, default=0)
    return Experts(num_experts=count, experts_per_token=most, num_shared_experts=shared, moe_layers=moe_layers), used


# What a tensor's name says of its part in the model, first match first; None: no parameter of the model.
_PARTS: tuple[tuple[re.Pattern[str], str | None], ...] = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (r"^rope_(freqs|factors)|\.rope_factors", None),
        (r"_(ch)?exps\b|\.ffn_(gate|down|up)\.\d+\.", "experts"),
        (r"_shexp\b", "shared experts"),
        (r"ffn_gate_inp|exp_probs_b", "router"),
        (r"^per_layer_token_embd", "per-layer embeddings"),
        (r"^(token_embd|position_embd|token_types)\.", "embedding"),
        (r"^output\.", "output head"),
        (r"norm", "norms"),
        (r"indexer", "indexer"),
        (r"\.(ssm_|shortconv|time_mix)", "recurrent layers"),
        (r"\.(attn|cross_attn)", "attention"),
        (r"\.(ffn|channel_mix)", "feed-forward"),
        (r"", "other"),
    )
)
_BLOCK = re.compile(r"^blk\.(\d{1,6})\.")


def weight_parts(
    tensors: tuple[Tensor, ...], blocks: int, experts: Experts | None, used: list[int]
) -> tuple[WeightPart, ...]:
    """Parameters by kind, exact, from the table of tensors; of experts a token uses `used[block]`.

    Blocks from `blocks` on predict further tokens, and one token uses none of them. An embedding that no output head
    stands beside is the head as well.
    """
    total: dict[str, int] = {}
    active: dict[str, int] = {}
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    for tensor in tensors:
        part = next(part for pattern, part in _PARTS if pattern.search(tensor.name))
        if part is None:
            continue
        found = _BLOCK.match(tensor.name)
        block = int(found[1]) if found else 0
        count = one_token = tensor.parameters
        if block >= blocks:
            part, one_token = "multi-token prediction", 0
        elif part == "experts" and experts is not None:
            one_token = count * used[block] // experts.num_experts
        elif part == "per-layer embeddings" or (part == "embedding" and not (tied and "token_embd" in tensor.name)):
            one_token = tensor.shape[0] if tensor.shape else count
        total[part] = total.get(part, 0) + count
        active[part] = active.get(part, 0) + one_token
    return tuple(WeightPart(name=part, parameters=total[part], active_parameters=active[part]) for part in total)


def _bound(header: GGUFHeader, name: str, architecture: str, refusal: UnknownLayoutError) -> Model:
    """Full attention of every query head with the widest keys and values; refuses where a state makes that no bound."""
    keys = _keys(header.metadata, architecture)
    stateful = [key for key, value in keys.raw.items() if _STATEFUL.search(key) and value not in (0, "", ())]
    if stateful:
        raise UnknownLayoutError(
            f"{refusal.reason}. No bound either: {', '.join(stateful[:4])[:200]} may keep a state whose size is not "
            "known",
            file=refusal.file,
            keys=refusal.keys,
        ) from None
    facts, layers = _widest(keys)
    memory = Attention(num_kv_heads=facts.heads[0], head_dim=facts.full[0], v_head_dim=facts.full[1])
    keys.notes.append(f"Upper bound. Not understood: {refusal}.")
    return _model(header, keys, name, architecture, ((memory,),) * layers, facts, "upper_bound")


def _widest(keys: GGUFKeys) -> tuple[GgufFacts, int]:
    """The most heads and the widest keys and values that the file states, and the number of layers."""
    blocks = keys.integer("block_count", high=MAX_LAYERS)
    layers = max(blocks, keys.optional("decoder_block_count", low=0, high=MAX_LAYERS) or 0)
    width = keys.integer("embedding_length", high=2**20)
    counts = [keys.per_block(f"attention.{name}", blocks, 0) or [] for name in ("head_count", "head_count_kv")]
    heads = max(max(counts[0]), max(counts[1]))
    if not 1 <= heads <= 2**14:
        raise ConfigError(f"{keys.path}attention.head_count is {heads:,}; expected 1 … {2**14:,}", file=GGUF)
    names = [key for key in keys.raw if re.match(r"attention\.(key|value)_length", key)]
    widest = max([keys.optional(key, low=0, high=2**20) or 0 for key in names] + [-(-width // heads)])
    both = (widest, widest)
    return GgufFacts(
        blocks=blocks, width=width, heads=[heads], kv_heads=[heads], full=both, swa=both, latent=False
    ), layers
