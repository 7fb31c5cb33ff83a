"""Where transformers 5.24 keeps something else than kvcore says, and why: one row a difference.

kvcore counts what a model must remember, in the layout of engines that serve it (vLLM where they differ). A row
changes the expectation for the families that it names and for nothing else, and the comparison is exact, so a
difference that goes away makes its family's test fail; a row that changes nothing fails a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kvcore.formats import kv_format
from kvcore.model import Attention, CrossAttention, Indexer, Latent, Memory, Model, State, StatePart
from tests.reference.run import SOURCE_TOKENS, Parts

BF16 = kv_format("bf16")
_ANY: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Place:
    """One memory, or one tensor of a state, in its layer and model, after `tokens` tokens."""

    model: Model
    layer: tuple[Memory, ...]
    piece: Memory | StatePart
    tokens: int


# Bytes that kvcore counts there (after the rows above) → bytes that transformers keeps.
Change: TypeAlias = Callable[[Place, int], int]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`part` of a layer, in the model_types `families` (as kvcore reads them; empty: in all), and not in `never`."""

    name: str
    part: str
    reason: str
    change: Change
    families: frozenset[str] = _ANY
    never: frozenset[str] = _ANY

    def touches(self, part: str, model: Model) -> bool:
        """Whether this row is about that part of that model."""
        named = not self.families or model.model_type in self.families
        return named and part == self.part and model.model_type not in self.never


def _window(memory: Memory | StatePart) -> int | None:
    if isinstance(memory, Attention):
        return memory.limit
    return memory.window if isinstance(memory, Latent) else None


def _one_less(place: Place, size: int) -> int:
    window = _window(place.piece)
    return size if window is None or place.tokens < window else size // window * (window - 1)


def _counter(place: Place, size: int) -> int:
    return 8 if _window(place.piece) is not None else 0


def _one_column_more(place: Place, size: int) -> int:
    columns = place.piece.shape[-1] if isinstance(place.piece, StatePart) else 1
    return size // columns * (columns + 1)


def _fp32(place: Place, size: int) -> int:
    return size // place.piece.element_bytes * 4 if isinstance(place.piece, StatePart) else size


def _bf16_keys(place: Place, size: int) -> int:
    key = place.piece
    return place.tokens // key.tokens_per_entry * key.index_head_dim * 2 if isinstance(key, Indexer) else size


def _one_more(place: Place, size: int) -> int:
    window = _window(place.piece)
    # What transformers itself writes is sliding_window, which already counts the current token.
    if window is None or place.tokens < window or not place.model.window_of_past:
        return size
    return size // (window - 1) * window


def _every_head(place: Place, size: int) -> int:
    heads = place.piece.num_kv_heads if isinstance(place.piece, Attention) else 1
    # One head is the old architecture's multi-query attention, which is not repeated.
    return size // heads * place.model.num_attention_heads if heads > 1 else size


def _every_token(place: Place, size: int) -> int:
    return place.piece.row_bytes(BF16) * place.tokens if isinstance(place.piece, Attention) else size


def _nothing(place: Place, size: int) -> int:
    return 0


def _twice_where_alone(place: Place, size: int) -> int:
    return size * 2 if len(place.layer) == 1 else size


def _rows_of_now(place: Place, size: int) -> int:
    """Rows that are not compressed yet, in bf16; and where windows overlap, half of the last one: bf16 and fp32."""
    compressed = next(memory for memory in place.layer if isinstance(memory, Latent) and memory.tokens_per_entry > 1)
    ratio = compressed.tokens_per_entry
    rows, _, width = place.piece.shape if isinstance(place.piece, StatePart) else (0, 0, 0)
    overlapping = rows // ratio - 1
    waiting = place.tokens % ratio * width * (2 + 2)
    last = ratio * width // 2 * (2 + 4) if overlapping and place.tokens >= ratio else 0
    return waiting + last


_STATES_IN_FP32 = frozenset({
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "olmo_hybrid",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba", "zamba2",
})  # fmt: skip

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        name="a window keeps one token less", part="kv", change=_one_less, never=frozenset({"gpt_neo"}),
        reason="DynamicSlidingWindowLayer keeps W − 1 tokens: with the token being computed they are W "
        "(cache_utils.py). While that token is computed all W are held, which is what kvcore counts.",
    ),
    Difference(
        name="MiMo-V2's window is of the tokens before", part="kv", change=_one_more,
        families=frozenset({"mimo_v2_flash"}),
        reason="MiMoV2FlashConfig reads sliding_window_size 128 as 128 tokens before the current one (129 together), "
        "as SGLang does; vLLM reads 128 together, and so does kvcore.",
    ),
    Difference(
        name="a counter beside each window", part="counter", change=_counter, never=frozenset({"gpt_neo"}),
        reason="DynamicSlidingWindowLayer also holds its window as one 8-byte integer; it is no memory of the past.",
    ),
    Difference(
        name="GPT-Neo keeps what its local layers cannot see", part="kv", change=_every_token,
        families=frozenset({"gpt_neo"}),
        reason="GPTNeoModel masks its local layers but gives them a cache that drops nothing.",
    ),
    Difference(
        name="a convolution keeps one column more", part="convolution", change=_one_column_more,
        never=frozenset({"recurrent_gemma"}),
        reason="LinearAttentionLayer keeps the K inputs of the last output; K − 1 of them are needed for the next one, "
        "and that is what vLLM keeps.",
    ),
    Difference(
        name="recurrent states in fp32", part="state", change=_fp32, families=_STATES_IN_FP32,
        reason="The reference code computes the recurrence in fp32 and keeps its result so. Where the configuration "
        "declares no dtype for the state, kvcore follows vLLM, which keeps the model's 16 bits.",
    ),
    Difference(
        name="indexer keys in bf16", part="indexer", change=_bf16_keys,
        families=frozenset({"deepseek_v32", "deepseek_v4", "glm_moe_dsa"}),
        reason="DynamicIndexedLayer keeps indexer keys in the model's dtype (2 B a number); engines keep 132 B for 128 "
        "numbers: fp8 and a scale.",
    ),
    Difference(
        name="DeepSeek-V4 keeps one latent as key and as value", part="kv", change=_twice_where_alone,
        families=frozenset({"deepseek_v4"}),
        reason="Its key and value are one tensor. The caches of compressed layers know that; a layer with a window "
        "only has the plain cache of two tensors.",
    ),
    *(
        Difference(
            name=f"DeepSeek-V4 buffers of the {part}", part=part, change=_rows_of_now,
            families=frozenset({"deepseek_v4"}),
            reason="DeepseekV4CSACache and DeepseekV4HCACache hold only the rows that wait to be compressed, in bf16, "
            "and the overlap with the last window; vLLM keeps a ring of fp32 rows, which is what kvcore counts.",
        )
        for part in ("compressor", "indexer compressor")
    ),
    Difference(
        name="Falcon's KV heads are repeated before they are kept", part="kv", change=_every_head,
        families=frozenset({"falcon"}),
        reason="FalconAttention broadcasts the KV heads of the new architecture to every query head, then caches them.",
    ),
    Difference(
        name="OpenAI GPT has no cache", part="kv", change=_nothing, families=frozenset({"openai-gpt"}),
        reason="OpenAIGPTModel recomputes everything for every token.",
    ),
)  # fmt: skip


def expected(model: Model, layer: tuple[Memory, ...], tokens: int, used: set[str]) -> Parts:
    """The bytes that transformers should keep of one layer after `tokens` tokens, by part; notes the rows `used`."""
    found: Parts = {}
    for part, piece, size in _pieces(layer, tokens):
        place = Place(model=model, layer=layer, piece=piece, tokens=tokens)
        for row in DIFFERENCES:
            if row.touches(part, model):
                changed = row.change(place, size)
                if changed != size:
                    used.add(row.name)
                size = changed
        if size:
            found[part] = found.get(part, 0) + size
    return found


def _pieces(layer: tuple[Memory, ...], tokens: int) -> list[tuple[str, Memory | StatePart, int]]:
    pieces: list[tuple[str, Memory | StatePart, int]] = []
    for memory in layer:
        if isinstance(memory, State):
            # A compressor's rows are one tensor, named after the compressor.
            pieces += [(memory.design if part.name == "rows" else part.name, part, part.bytes) for part in memory.parts]
            continue
        pieces.append((_part_of(memory), memory, memory.growth(BF16, SOURCE_TOKENS).at(tokens)))
        pieces.append(("counter", memory, 0))
    return pieces


def _part_of(memory: Memory) -> str:
    if isinstance(memory, Indexer):
        return "indexer"
    if isinstance(memory, CrossAttention):
        return "cross"
    return "compressed" if memory.kind == "compressed" else "kv"
