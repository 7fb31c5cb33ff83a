"""Bytes of weights on the fullest rank of each pipeline stage, as the engine loads them.

Counted from the shape of the model: attention by head, feed-forward by width, experts by width or whole, embedding
and output head by vocabulary at their ends of the pipeline, small matrices on every rank. Where a checkpoint's own
index was read, the parts are scaled so that together they are its bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.model.model import Model
from kvcore.model.prediction import JOINT, JOINT_BY_COLUMNS
from kvcore.model.weight_formats import WeightFormat, chosen_weight_format, stored_weight_format, weights_bytes
from kvcore.ranks.parts import COPIES, Piece, is_tied, pieces, prediction_head
from kvcore.ranks.rules import Ranked, RankRules

TOWERS = "vision and audio towers"
ROTARY = "rotary table of stretched positions"
_TIED_HEAD = "output head (a copy of the embedding)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Weights on the fullest GPU of one pipeline stage; `parts` are (kind, bytes) and add up to `bytes`.

    `drafted` is the formula of the part that proposes tokens ahead (speculation.py), which `formula` leaves out.
    """

    stage: int
    bytes: int
    knowledge: Literal["exact", "estimated"]
    parts: tuple[tuple[str, int], ...]
    formula: str
    drafted: str = ""


def rank_weights(model: Model, deployment: Deployment, engine: Ranked) -> tuple[RankWeights, ...]:
    """One for each pipeline stage (for each GPU where the engine splits by layers); () where nothing is known.

    Exact where a checkpoint's own bytes are known and one GPU loads them; else estimated. Raises EngineError for more
    stages than layers and UnitError for a weight format that is not known.
    """
    rules, served = engine.rules, _served(model, deployment, engine.rules)
    stored = weights_bytes(model, served)
    if stored is None:
        return ()
    ranges = engine.stages(model, deployment)
    if not model.weights:
        ranks = engine.ways(model, deployment).attention
        return _unshaped(model, deployment, rules, stored.bytes, ranges, ranks)
    wanted = chosen_weight_format(model, served)
    ways = engine.ways(model, deployment, wanted)
    loaded = pieces(model, ways)
    towers = 0 if rules.table_on_host else model.tower_parameters
    rotary = _rotary_table(model) if rules.rotary_tables else 0
    scale, beside = 1.0, 0.0
    if stored.knowledge == "exact":
        counted = sum(sum(piece.whole) * _bits(piece.name, wanted) for piece in loaded) + towers * 16
        beside = _prediction_bits(model, stored.bytes * 8 - counted)
        scale = stored.bytes * 8 / (counted + beside) if counted else scale
    exact = stored.knowledge == "exact" and deployment.replica_gpus == 1 and not beside
    exact = exact and not rules.table_on_host
    found = []
    for stage, layers in enumerate(ranges):
        numbers = _on_stage(model, rules, loaded, layers, stage, len(ranges))
        parts = {name: int(count * _bits(name, wanted) * scale / 8) for name, count in numbers.items()}
        if rotary:
            parts[ROTARY] = rotary
        if towers and stage == 0:
            # Split like text layers.
            parts[TOWERS] = int(towers * 2 * scale / ways.attention)
        if exact:
            # What rounding and padding made of it: the checkpoint's bytes are what is loaded.
            largest = max(parts, key=lambda name: parts[name])
            parts[largest] += stored.bytes - (sum(parts.values()) - rotary)
        found.append(_made(stage, parts, wanted, exact))
    return tuple(found)


def _rotary_table(model: Model) -> int:
    """Bytes of the sines and cosines that vLLM keeps on every rank where positions are stretched linearly.

    Its table then has factor × the model's positions (layers/rotary_embedding/linear_scaling_rope.py), in 16 bits:
    half a GiB in Gemma 3 4B. Tables of other models are some tens of MiB, which logged overheads include.
    """
    facts = {key.rpartition(".")[2]: text for key, text in model.reading.keys_used if "rope" in key}
    for text in facts.values():
        stated = re.search(r'"factor": ([\d.]+)', text)
        if stated and re.search(r'"(rope_type|type)": "linear"', text) and model.context_limit:
            return int(min(float(stated[1]), 1024.0) * model.context_limit * (model.key_head_dim or model.head_dim) * 2)
    return 0


def _served(model: Model, deployment: Deployment, rules: RankRules) -> str | None:
    """The format that is loaded; a checkpoint of 32 bits is served in 16, unless the engine keeps it."""
    stored = model.checkpoint_format or model.model_dtype
    if deployment.weight_format is None and stored == "fp32" and not rules.keeps_32_bits:
        return model.model_dtype
    return deployment.weight_format


def _prediction_bits(model: Model, over: float) -> float:
    """Bits of prediction layers among a checkpoint's own bytes, which are not loaded with the model.

    `over` is what the checkpoint has more than the model. Some publish the layers with an embedding and an output head
    of their own, some without, and repackagers leave them out: what comes nearest is taken.
    """
    head = prediction_head(model)
    if head is None:
        return 0.0
    wanted = stored_weight_format(head)
    bits = sum(part.parameters * _bits(part.name, wanted) for part in head.weights)
    tables = model.prediction.modules * 2 * (model.vocab_size or 0) * model.hidden_size * 16
    return min((0.0, bits, bits + tables), key=lambda guess: abs(over - guess))


def _bits(name: str, wanted: WeightFormat) -> float:
    # The joint of a prediction module is a plain linear layer in vLLM and left alone by quantisers.
    if name in (COPIES, JOINT, JOINT_BY_COLUMNS):
        return 16
    return wanted.bits_of("embedding" if name == _TIED_HEAD else name)


def _on_stage(
    model: Model, rules: RankRules, loaded: tuple[Piece, ...], layers: range, stage: int, count: int
) -> dict[str, int]:
    """Parameters by kind on the fullest rank of one stage."""
    first, last = stage == 0, stage == count - 1
    found: dict[str, int] = {}
    for piece in loaded:
        table = piece.name in ("embedding", "per-layer embeddings") and rules.table_on_host
        if piece.place == "layers":
            found[piece.name] = sum(piece.held[layers.start : layers.stop])
        elif (piece.place == "first" and first and not table) or (piece.place == "last" and last):
            found[piece.name] = piece.held[0]
        if piece.name == "embedding" and last and is_tied(model) and (table or not first):
            found[_TIED_HEAD] = piece.held[0]
    return {name: count for name, count in found.items() if count}


def _unshaped(
    model: Model, deployment: Deployment, rules: RankRules, total: int, ranges: tuple[range, ...], tp: int
) -> tuple[RankWeights, ...]:
    """A checkpoint whose tensors are not understood one by one: by layers, and evenly over the ranks."""
    exact = deployment.replica_gpus == 1 and not rules.table_on_host
    found = []
    for stage, layers in enumerate(ranges):
        size = -(-total * len(layers) // (len(model.layers) * tp))
        text = f"{total:,} B × {len(layers)} of {len(model.layers)} layers / {tp} ranks = {size:,} B"
        found.append(
            RankWeights(
                stage=stage, bytes=size, knowledge="exact" if exact else "estimated", parts=(("checkpoint", size),),
                formula=text,
            )
        )  # fmt: skip
    return tuple(found)


def _made(stage: int, parts: dict[str, int], wanted: WeightFormat, exact: bool) -> RankWeights:
    total = sum(parts.values())
    together = " + ".join(f"{name} {size:,}" for name, size in parts.items())
    return RankWeights(
        stage=stage,
        bytes=total,
        knowledge="exact" if exact else "estimated",
        parts=tuple(parts.items()),
        formula=f"{wanted.label or wanted.name}: {together} = {total:,} B",
    )
