"""What one of several tensor-parallel ranks holds of a model's memories.

Keys and values are split by head, and a rank never holds less than one KV head; a latent and an index key belong to
all heads, so every rank holds a copy; states are split by head, whole heads only.
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.errors import UnitError
from kvcore.formats import KVFormat
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.sizing import resident_bytes


def on_rank(model: Model, ranks: int) -> Model:
    """The model as the fullest of `ranks` ranks remembers it, without an engine's rounding; weights are left out.

    Heads that do not divide evenly leave one more on some ranks. Raises UnitError for a number of ranks out of range.
    """
    if not 1 <= ranks <= MAX_GPUS:
        raise UnitError(f"ranks: {ranks:,} is not within 1 … {MAX_GPUS:,}")
    if ranks == 1:
        return model
    made = {memory: memory.on_rank(ranks) for memory, _ in model.groups}
    return replace(
        model,
        layers=tuple(tuple(made[memory] for memory in layer) for layer in model.layers),
        num_attention_heads=-(-model.num_attention_heads // ranks),
        weights=(),
        checkpoint_bytes=None,
    )


def rank_bytes(model: Model, tokens: int, kv: KVFormat, ranks: int, source_tokens: int | None = None) -> int:
    """Bytes that one request of `tokens` tokens takes on the fullest of `ranks` ranks.

    Raises UnitError for a number of ranks out of range or a format that does not suit the model.
    """
    return resident_bytes(on_rank(model, ranks), tokens, kv, 1, source_tokens)
