"""What llama.cpp makes of each general.architecture of a GGUF file: one table.

Source of every row: llama.cpp as vendored in llama-cpp-python 0.3.36: src/models/*.cpp (load_arch_hparams),
src/llama-model.cpp (load_hparams, create_memory) and src/llama-hparams.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvcore.errors import GGUF, ConfigError
from kvcore.formats import ELEMENT_FORMATS
from kvcore.model.gguf_file import LongArray
from kvcore.model.keys import MAX_LAYERS, Keys
from kvcore.model.memories import (
    Attention,
    CrossAttention,
    Indexer,
    Latent,
    Memory,
    NoMemory,
    SharedCache,
    State,
    StateDesign,
    StatePart,
    StateTensor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What llama.cpp makes of one general.architecture.

    `window` says how `attention.sliding_window` is read: not at all, it must be stated, layers slide only where it is
    stated, they slide unless it is 0, or it is stated and not applied. `period`: layers N, 2N, … are full (0, N, 2N, …
    with `first_full`), 0: all slide, None: the file lists them. `fixed` is a window that no key changes. `recurrent`
    says which layers keep the `state`: all, all beside attention, those without KV heads (of which `no_kv_no_ff` also
    have no feed-forward part), or all but each N-th.
    """

    window: Literal["none", "stated", "optional", "unless_zero", "ignored"] = "none"
    period: int | None = None
    first_full: bool = False
    fixed: int | None = None
    default: int | None = None
    only_with_layers: int | None = None
    law: Literal["sliding", "chunked"] = "sliding"
    shares: Literal["", "stated", "from_20"] = ""
    state: Literal["", "mamba1", "mamba2", "delta", "kda", "linear", "conv", "rwkv"] = ""
    recurrent: Literal["", "all", "both", "no_kv", "no_kv_no_ff", "interval"] = ""
    interval: int = 4
    latent: Literal["", "mla", "either", "decompressed"] = ""
    indexer: Literal["", "all", "listed", "listed_or_glm", "after_dense"] = ""
    extra: Literal["", "cross", "router", "loops"] = ""
    nothing: str = ""


_PLAIN = Architecture()
_ENCODER = Architecture(window="ignored", nothing="encoder layer")
_DIFFUSION = Architecture(nothing="diffusion model: every token is computed anew at each step")
_MLA = Architecture(latent="mla")
_KDA = Architecture(state="kda", recurrent="no_kv", latent="mla")
_LISTED = Architecture(window="stated")
_DELTA = Architecture(state="delta", recurrent="interval")
_RWKV = Architecture(state="rwkv", recurrent="all")

# What each general.architecture needs. An architecture that is not here is refused by name.
ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys((
        "llama", "deci", "falcon", "grok", "gpt2", "gptneox", "mpt", "baichuan", "starcoder", "refact", "bloom",
        "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2",
        "phimoe", "plamo", "codeshell", "orion", "internlm2", "minicpm", "gemma", "starcoder2", "xverse", "command-r",
        "dbrx", "olmo", "olmoe", "openelm", "arctic", "deepseek", "chatglm", "glm4", "glm4moe", "bitnet", "jais",
        "jais2", "nemotron", "exaone", "granite", "granitemoe", "chameleon", "bailingmoe", "bailingmoe2", "dots1",
        "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "hy_v3", "smollm3",
        "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm", "pangu-embedded", "mistral3", "paddleocr",
        "llama-embed", "maincoder", "talkie", "hrm_text",
    ), _PLAIN),
    # Windows.
    **dict.fromkeys(("phi3", "deepseek2-ocr"), Architecture(window="ignored")),
    "gemma2": Architecture(window="stated", period=2, default=4096),
    "gemma3": Architecture(window="optional", period=6),
    "gemma3n": Architecture(window="stated", period=5, shares="from_20"),
    "gemma4": Architecture(window="stated", shares="stated"),
    **dict.fromkeys(("gpt-oss", "gptoss"), Architecture(window="stated", period=2)),  # gptoss: Ollama's own files
    "llama4": Architecture(window="unless_zero", period=4, fixed=8192, law="chunked"),
    **dict.fromkeys(("cohere2", "muse-glimmer", "exaone-moe"), Architecture(window="stated", period=4)),
    "cohere2moe": Architecture(window="stated", period=4, first_full=True),
    "exaone4": Architecture(window="stated", period=4, default=4096, only_with_layers=64),
    **dict.fromkeys(("olmo2", "afmoe", "mellum"), Architecture(window="optional", period=4)),
    "laguna": Architecture(window="optional", period=4, first_full=True),
    "smallthinker": Architecture(window="optional", period=4, first_full=True, fixed=4096),
    "plamo3": Architecture(window="optional", period=8),
    **dict.fromkeys(("granite_swa", "maple", "mimo2", "spark2_5", "step35"), _LISTED),
    # Latents and indexers.
    **dict.fromkeys(("deepseek2", "mistral4"), Architecture(latent="either")),
    **dict.fromkeys(("minicpm3", "plm"), Architecture(latent="decompressed")),
    "deepseek32": replace(_MLA, indexer="all"),
    "glm-dsa": replace(_MLA, indexer="listed_or_glm"),
    "hy_v4": replace(_MLA, indexer="listed"),
    "dots3note": replace(_MLA, window="stated", indexer="listed"),
    "minimax-m3": Architecture(indexer="after_dense"),
    # Recurrent states.
    "mamba": Architecture(state="mamba1", recurrent="all"),
    "mamba2": Architecture(state="mamba2", recurrent="all"),
    "jamba": Architecture(state="mamba1", recurrent="no_kv"),
    "falcon-h1": Architecture(state="mamba2", recurrent="both"),
    **dict.fromkeys(("granitehybrid", "plamo2"), Architecture(state="mamba2", recurrent="no_kv")),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), Architecture(state="mamba2", recurrent="no_kv_no_ff")),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _DELTA),
    "minimax-01": Architecture(state="linear", recurrent="interval", interval=8),
    "lfm2": Architecture(state="conv", recurrent="no_kv", window="optional", period=0),
    "lfm2moe": Architecture(state="conv", recurrent="no_kv"),
    **dict.fromkeys(("kimi-linear", "kimi-k3", "bailingmoe3"), _KDA),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), _RWKV),
    # Others.
    "t5": Architecture(extra="cross"),
    "graniteswitch": Architecture(extra="router"),
    "nanbeige": Architecture(extra="loops"),
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
                     "eurobert", "gemma-embedding", "t5encoder"), _ENCODER),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
}  # fmt: skip


_STATE_NOTE = (
    "Recurrent state is counted in 32-bit floats, as llama.cpp keeps it whatever the cache's format; other engines "
    "often keep it in 16 bits."
)
_INDEX_NOTE = "The indexer's keys are counted in 16-bit floats; llama.cpp keeps them in the cache's K format."


class GGUFKeys(Keys):
    """The keys of one architecture, named without its prefix; errors name the key in full."""

    file = GGUF

    def per_block(self, name: str, blocks: int, default: int | None = None) -> list[int] | None:
        """One whole number a block, from a list or from one number for all; None where absent and no default."""
        value = self.get(name)
        if value is None:
            return None if default is None else [default] * blocks
        if isinstance(value, LongArray) or (isinstance(value, tuple) and len(value) < blocks):
            raise ConfigError(
                f"{self._where(name)} has {self._shown(value)} entries; expected one for {blocks} layers",
                file=self.file,
            )
        entries = value[:blocks] if isinstance(value, tuple) else (value,) * blocks
        return [self.check(int(one) if isinstance(one, bool) else one, (name,), 0, 2**24) for one in entries]

    @staticmethod
    def _shown(value: Any) -> str:
        return str(value) if isinstance(value, LongArray) else str(len(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """What a file says of its layers, before any rule is applied; widths are (key, value)."""

    blocks: int
    width: int
    heads: list[int]
    kv_heads: list[int]
    full: tuple[int, int]
    swa: tuple[int, int]
    latent: bool
    slides: list[bool] = field(default_factory=list)
    window: int | None = None


_NOTHING = NoMemory(reason="no attention in this layer")
Stack = list[tuple[Memory, ...]]


def read_layers(keys: GGUFKeys, rule: Architecture) -> tuple[tuple[tuple[Memory, ...], ...], GgufFacts]:
    """The memories of each layer, and what they were made from."""
    facts = _windows(keys, rule, _facts(keys, rule))
    if rule.nothing:
        return ((NoMemory(reason=rule.nothing),),) * facts.blocks, facts
    slots = _slots(keys, rule, facts)
    state = STATES[rule.state](keys, facts) if rule.state and {"state", "both"} & set(slots) else None
    if rule.state:
        keys.know(*_SSM_KEYS)
    stack: Stack = []
    for layer, slot in enumerate(slots):
        kept: tuple[Memory, ...] = (_attention(keys, rule, facts, layer),) if slot in ("attend", "both") else ()
        if state is not None and slot in ("state", "both"):
            kept = (*kept, state)
        stack.append(kept or (_NOTHING,))
    if state is not None:
        keys.notes.append(_STATE_NOTE)
    stack = _share(keys, rule, facts, stack)
    stack = _add_indexers(keys, rule, facts, stack)
    return tuple(EXTRAS[rule.extra](keys, facts, stack)), facts


def _facts(keys: GGUFKeys, rule: Architecture) -> GgufFacts:
    blocks = keys.integer("block_count", high=MAX_LAYERS)
    predicted = keys.optional("nextn_predict_layers", low=0, high=MAX_LAYERS) or 0
    if predicted:
        keys.notes.append(
            f"The last {predicted} of {blocks} blocks predict further tokens and keep no cache unless used."
        )
    if predicted >= blocks:
        raise ConfigError(f"{keys.path}nextn_predict_layers is {predicted}, of only {blocks} blocks", file=GGUF)
    blocks -= predicted
    width = keys.integer("embedding_length", high=2**20)
    heads, kv_heads = _heads(keys, rule, blocks)
    own = _own_width(keys, width, next((count for count in heads if count), 0))
    full = tuple(keys.optional(f"attention.{side}_length", high=2**20) or own for side in ("key", "value"))
    swa = full
    if rule.window != "none":
        stated = [keys.optional(f"attention.{side}_length_swa", high=2**20) for side in ("key", "value")]
        swa = tuple(one or other for one, other in zip(stated, full, strict=True))
    return GgufFacts(
        blocks=blocks, width=width, heads=heads, kv_heads=kv_heads, full=(full[0], full[1]), swa=(swa[0], swa[1]),
        latent=_uses_latent(keys, rule),
    )  # fmt: skip


def _heads(keys: GGUFKeys, rule: Architecture, blocks: int) -> tuple[list[int], list[int]]:
    """Query and KV heads of each layer; ConfigError where a key is missing that says which layers attend."""
    needed = [] if rule.recurrent == "all" or rule.nothing else ["attention.head_count"]
    needed += ["attention.head_count_kv"] if rule.recurrent.startswith("no_kv") else []
    for name in needed:
        if not keys.stated(name):
            raise ConfigError(
                f"{keys.path}{name} is missing; expected a whole number, or one for each layer", file=GGUF
            )
    heads = keys.per_block("attention.head_count", blocks, 0) or []
    kv_heads = keys.per_block("attention.head_count_kv", blocks) or heads
    for query, kv in set(zip(heads, kv_heads, strict=True)):
        if max(query, kv) > 2**14 or (kv and query % kv) or kv > query:
            raise ConfigError(
                f"{keys.path}attention.head_count_kv is {kv}, which does not divide {query} heads", file=GGUF
            )
    if needed and not any(heads):
        raise ConfigError(f"{keys.path}attention.head_count is 0; expected the number of heads", file=GGUF)
    return heads, kv_heads


def _own_width(keys: GGUFKeys, width: int, heads: int) -> int:
    """Width / heads, for a file that states no widths; 0 for a model without heads."""
    if not heads or (keys.stated("attention.key_length") and keys.stated("attention.value_length")):
        return 0
    if width % heads:
        raise ConfigError(
            f"{keys.path}embedding_length {width:,} is not divisible by {heads:,} heads, and "
            "attention.key_length or value_length is missing",
            file=GGUF,
        )
    return width // heads


def _uses_latent(keys: GGUFKeys, rule: Architecture) -> bool:
    """Whether the cache holds latents: the file then has MLA's own tensors and says the widths of its real heads."""
    if not rule.latent:
        return False
    widths = [keys.optional(f"attention.{side}_length_mla", low=0) or 0 for side in ("key", "value")]
    keys.know("attention.kv_lora_rank", "attention.key_length_mla_swa", "attention.value_length_mla_swa")
    if bool(widths[0]) != bool(widths[1]) or (rule.latent == "mla" and not widths[0]):
        raise ConfigError(f"{keys.path}attention.key_length_mla and value_length_mla must both be stated", file=GGUF)
    if not widths[0] and keys.stated("attention.kv_lora_rank"):
        keys.notes.append(
            "This file has no MLA tensors: llama.cpp keeps the keys and values of all heads, not latents."
        )
    return bool(widths[0])


def _windows(keys: GGUFKeys, rule: Architecture, facts: GgufFacts) -> GgufFacts:
    """The same facts with the layers that slide and their window."""
    full = replace(facts, slides=[False] * facts.blocks)
    if rule.window == "none":
        return full
    stated = keys.optional("attention.sliding_window", low=0, high=2**40)
    keys.know("attention.sliding_window_pattern")
    if rule.window == "ignored" or rule.only_with_layers not in (None, facts.blocks):
        if stated and not rule.nothing:
            keys.notes.append(f"attention.sliding_window is {stated:,}, but llama.cpp keeps every token of this model.")
        return full
    if (rule.window == "optional" and not stated) or (rule.window == "unless_zero" and stated == 0):
        return full
    chunk = keys.optional("attention.chunk_size", high=2**40) if rule.law == "chunked" else None
    window = chunk or rule.fixed or stated or rule.default
    if not window:
        raise ConfigError(f"{keys.path}attention.sliding_window is {stated}; expected a window of tokens", file=GGUF)
    if rule.fixed and window != (stated or window):
        keys.notes.append(f"llama.cpp uses a window of {window:,} for this architecture; the file states {stated:,}.")
    return replace(facts, slides=_pattern(keys, rule, facts.blocks), window=window)


def _pattern(keys: GGUFKeys, rule: Architecture, blocks: int) -> list[bool]:
    """Which layers slide, as listed by the file or by a period."""
    name = "attention.sliding_window_pattern"
    value = keys.get(name)
    if isinstance(value, tuple | LongArray):
        return [bool(entry) for entry in keys.per_block(name, blocks) or []]
    period = rule.period if value is None else keys.check(value, (name,), 0, MAX_LAYERS)
    if period is None:
        raise ConfigError(f"{keys.path}{name} is missing; expected one entry for each of {blocks} layers", file=GGUF)
    if period == 0:
        return [True] * blocks
    return [layer % period != (0 if rule.first_full else period - 1) for layer in range(blocks)]


def _slots(keys: GGUFKeys, rule: Architecture, facts: GgufFacts) -> list[str]:
    """What each layer does: attend, keep a state, both, or nothing."""
    if rule.recurrent in ("all", "both"):
        return [{"all": "state", "both": "both"}[rule.recurrent]] * facts.blocks
    if rule.recurrent == "interval":
        period = keys.integer("full_attention_interval", default=rule.interval)
        listed = keys.per_block("attention.recurrent_layers", facts.blocks)
        recurrent = listed or [int((layer + 1) % period != 0) for layer in range(facts.blocks)]
        return ["state" if one else "attend" for one in recurrent]
    without = "state" if rule.recurrent else ""
    slots = ["attend" if kv else without for kv in facts.kv_heads]
    if rule.recurrent == "no_kv_no_ff":
        feed_forward = keys.per_block("feed_forward_length", facts.blocks, 0) or []
        slots = ["" if wide else slot for slot, wide in zip(slots, feed_forward, strict=True)]
    return slots


def _attention(keys: GGUFKeys, rule: Architecture, facts: GgufFacts, layer: int) -> Memory:
    """The keys and values, or the latent, of one layer."""
    kv_heads, slides = facts.kv_heads[layer], facts.slides[layer]
    key, value = facts.swa if slides else facts.full
    if not kv_heads or not key:
        raise ConfigError(f"{keys.path}attention.head_count is missing or 0, but layer {layer} attends", file=GGUF)
    limit = facts.window if slides else None
    if not facts.latent:
        law = rule.law if slides else "full"
        return Attention(num_kv_heads=kv_heads, head_dim=key, v_head_dim=value, limit=limit, law=law)
    if kv_heads != 1:
        raise ConfigError(f"{keys.path}attention.head_count_kv is {kv_heads}; a latent has one head", file=GGUF)
    rank = keys.integer("attention.kv_lora_rank", high=2**16)
    if slides:
        rank = keys.integer("attention.kv_lora_rank_swa", default=rank, high=2**16)
    if rank > key:
        raise ConfigError(f"{keys.path}attention.kv_lora_rank {rank} is wider than key_length {key}", file=GGUF)
    # fp8_ds_mla: 512 fp8 numbers, four 4-byte scales, 64 bf16 numbers (vLLM 0.33, mla_attention.py).
    packed = 656 if (rank, key - rank) == (512, 64) and not slides else None
    return Latent(kv_lora_rank=rank, qk_rope_head_dim=key - rank, window=limit, packed_bytes=packed)


_SSM_NAMES = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count", "dt_b_c_rms")
_SSM_KEYS = tuple(f"ssm.{name}" for name in _SSM_NAMES)


def _parts(design: StateDesign, conv: tuple[int, int], *state: int) -> State:
    """A state in 32-bit floats: a convolution's last columns, and what recurs."""
    parts = [StatePart(name=StateTensor.CONVOLUTION, shape=conv, element_bytes=4)] if conv[1] > 0 else []
    parts += [StatePart(name=StateTensor.STATE, shape=state, element_bytes=4)] if state else []
    return State(design=design, parts=tuple(parts))


def _ssm(design: StateDesign, grouped: bool) -> Callable[[GGUFKeys, GgufFacts], State]:
    """Mamba and gated delta nets: d_state numbers a channel; the convolution also runs over the groups' B and C."""

    def read(keys: GGUFKeys, facts: GgufFacts) -> State:
        inner, state = keys.integer("ssm.inner_size"), keys.integer("ssm.state_size", high=2**16)
        groups = keys.integer("ssm.group_count", low=0, high=2**14) if grouped else 0
        kernel = keys.integer("ssm.conv_kernel", low=0, high=1024)
        return _parts(design, (inner + 2 * groups * state, kernel - 1), inner, state)

    return read


def _kda(keys: GGUFKeys, facts: GgufFacts) -> State:
    heads, width = max(facts.heads), keys.integer("kda.head_dim", high=2**14)
    keys.know("kda.safe_gate", "kda.gate_lower_bound")
    kernel = keys.integer("ssm.conv_kernel", low=0, high=1024) or 4
    return _parts(StateDesign.KIMI_DELTA, (3 * heads * width, kernel - 1), heads, width, width)


def _linear(keys: GGUFKeys, facts: GgufFacts) -> State:
    return _parts(StateDesign.LINEAR, (0, 0), max(facts.heads), facts.full[0], facts.full[0])


def _conv(keys: GGUFKeys, facts: GgufFacts) -> State:
    return _parts(StateDesign.SHORT_CONVOLUTION, (facts.width, keys.integer("shortconv.l_cache", high=1024) - 1))


def _rwkv(keys: GGUFKeys, facts: GgufFacts) -> State:
    head, shifts = keys.integer("wkv.head_size", high=2**14), keys.integer("token_shift_count", default=2, high=64)
    shape = (facts.width // head, head, head) if facts.width % head == 0 else (facts.width, head)
    shifted = StatePart(name=StateTensor.SHIFTED_TOKENS, shape=(shifts, facts.width), element_bytes=4)
    wkv = StatePart(name=StateTensor.WKV, shape=shape, element_bytes=4)
    return State(design=StateDesign.RWKV, parts=(shifted, wkv))


STATES: dict[str, Callable[[GGUFKeys, GgufFacts], State]] = {
    "mamba1": _ssm(StateDesign.MAMBA_1, False),
    "mamba2": _ssm(StateDesign.MAMBA_2, True),
    "delta": _ssm(StateDesign.GATED_DELTA_NET, True),
    "kda": _kda,
    "linear": _linear,
    "conv": _conv,
    "rwkv": _rwkv,
}


def _share(keys: GGUFKeys, rule: Architecture, facts: GgufFacts, stack: Stack) -> Stack:
    """Let the last layers read the last cache of their kind before them (Gemma 3n and 4)."""
    if not rule.shares:
        return stack
    default = max(0, facts.blocks - 20) if rule.shares == "from_20" else 0
    shared = keys.integer("attention.shared_kv_layers", default=default, low=0, high=MAX_LAYERS)
    first = facts.blocks - shared
    if shared and first < 2:
        raise ConfigError(
            f"{keys.path}attention.shared_kv_layers is {shared}, of only {facts.blocks} layers", file=GGUF
        )
    tail: Stack = [(SharedCache(owner=first - (2 if slides else 1)),) for slides in facts.slides[first:]]
    return stack[:first] + tail


def _add_indexers(keys: GGUFKeys, rule: Architecture, facts: GgufFacts, stack: Stack) -> Stack:
    """Add the key of a sparse-attention indexer to the layers that have one of their own."""
    names = [f"attention.indexer.{key}" for key in ("head_count", "top_k", "block_size", "local_blocks")]
    if not rule.indexer:
        return stack
    keys.know(*names)
    if rule.indexer == "listed" and not keys.get("attention.indexer.top_k"):
        return stack
    width = keys.integer("attention.indexer.key_length", high=2**16)
    heads, top, block = (
        keys.optional(f"attention.indexer.{key}", low=0, high=2**40) for key in ("head_count", "top_k", "block_size")
    )
    # MiniMax-M3 chooses blocks of tokens, the others single tokens.
    index = Indexer(
        index_head_dim=width,
        stored_as=ELEMENT_FORMATS["fp16"],
        index_topk=(top or 0) * (block or 1) or None,
        index_heads=heads or None,
    )
    keys.notes.append(_INDEX_NOTE)
    owns = _indexer_layers(keys, rule, facts)
    return [(*kept, index) if own and kept[0].kind != "state" else kept for kept, own in zip(stack, owns, strict=True)]


def _indexer_layers(keys: GGUFKeys, rule: Architecture, facts: GgufFacts) -> list[bool]:
    blocks = facts.blocks
    if rule.indexer == "all":
        return [True] * blocks
    if rule.indexer == "after_dense":
        dense = keys.integer("leading_dense_block_count", default=0, low=0)
        return [layer >= dense for layer in range(blocks)]
    listed = keys.per_block("attention.indexer.types", blocks)
    if listed is not None:
        return [bool(entry) for entry in listed]
    if rule.indexer == "listed":
        raise ConfigError(f"{keys.path}attention.indexer.types is missing; expected an entry for each layer", file=GGUF)
    # GLM-5.2, known by its context of 2**20, has an indexer in layers 0, 1, 2, 6, 10, …; before it every layer has.
    before = keys.integer("context_length", high=2**40) < 2**20
    return [before or layer < 2 or layer % 4 == 2 for layer in range(blocks)]


def _no_extra(keys: GGUFKeys, facts: GgufFacts, stack: Stack) -> Stack:
    return stack


def _cross(keys: GGUFKeys, facts: GgufFacts, stack: Stack) -> Stack:
    """T5: the decoder's layers, which also look at the encoder's output."""
    layers = keys.integer("decoder_block_count", default=facts.blocks, high=MAX_LAYERS)
    source = keys.integer("context_length", high=2**40)
    keys.notes.append(
        f"{source:,} encoder tokens are assumed unless said otherwise. llama.cpp does not keep their keys and values."
    )
    cross = CrossAttention(num_kv_heads=facts.kv_heads[0], head_dim=facts.full[0], source_tokens=source)
    return [(stack[0][0], cross)] * layers


def _router(keys: GGUFKeys, facts: GgufFacts, stack: Stack) -> Stack:
    """Granite Switch: one more layer of a single head, which holds the choice of adapter for each token."""
    return [*stack, (Attention(num_kv_heads=1, head_dim=facts.full[0], v_head_dim=facts.full[1]),)]


def _loops(keys: GGUFKeys, facts: GgufFacts, stack: Stack) -> Stack:
    """Nanbeige: the same weights are run through several times, each time with a cache of its own."""
    return stack * keys.integer("num_loops", default=1, high=MAX_LAYERS // facts.blocks)


EXTRAS: dict[str, Callable[[GGUFKeys, GgufFacts, Stack], Stack]] = {
    "": _no_extra, "cross": _cross, "router": _router, "loops": _loops,
}  # fmt: skip
