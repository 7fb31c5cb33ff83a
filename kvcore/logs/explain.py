"""What a log says beside what we would have predicted, figure by figure, and the difference in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvcore.engines.releases import release
from kvcore.engines.vllm.budget import GRAPHS_DEDUCTED
from kvcore.errors import KVCoreError
from kvcore.logs.predict import Prediction, is_old, predict, printed
from kvcore.logs.reading import LogReading
from kvcore.logs.values import Amount, Decimals
from kvcore.model.memories import Attention, Indexer, Latent, State
from kvcore.model.model import Model
from kvcore.records import Record

# The figures that a log states and an engine predicts, by the name of the fact.
FIGURES = (
    "blocks", "kv_cache_size_tokens", "max_concurrency", "max_total_num_tokens", "needed_kv",
    "estimated_max_model_len", "attention_block_size", "k_size", "v_size", "kv_size", "conv_state", "ssm_state",
    "full_layer_tokens", "swa_layer_tokens", "block_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Record):
    """One figure: as the log states it, as predicted, the difference (predicted − reported), and the reason.

    `agrees`: some memory that prints as the log does gives exactly what the log states. None: not predicted.
    """

    name: str
    reported: int | float
    predicted: int | float | None
    difference: int | float | None
    agrees: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Every figure of one reading, with what held for all of them; `refused` says why nothing was predicted."""

    reading: LogReading
    model: Model | None
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    refused: str = ""


def explain(reading: LogReading, model: Model | None, *, hint: str = "", guess: bool = True) -> Explanation:
    """The reading's figures beside the predictions for `model`; None where it is not known (`hint` says more).

    With `guess`, settings that the log may have left out are tried where a figure disagrees.

    Never raises: what the engine refuses is the explanation's `refused`, and the figures stand without predictions.
    """
    if model is None:
        text = f"The model {reading.model or '(not named in the log)'} is not known here{hint}; name it to compare."
        return Explanation(reading=reading, model=None, figures=_alone(reading, text), refused=text)
    try:
        prediction = predict(reading, model)
    except KVCoreError as problem:
        return Explanation(reading=reading, model=model, figures=_alone(reading, str(problem)), refused=str(problem))
    figures = _compare(reading, prediction)
    changed = _changed(reading, model) if guess and not all(figure.agrees for figure in figures) else ""
    words = reasons(reading, prediction)
    told = tuple(_told(figure, words, changed) for figure in figures)
    figures = (*told, *_budget(reading))
    return Explanation(
        reading=reading, model=model, figures=figures, notes=(*prediction.notes, *prediction.layout.notes)
    )


def disagreements(reading: LogReading, prediction: Prediction) -> int:
    """How many figures of the reading this prediction does not give."""
    return sum(not figure.agrees for figure in _compare(reading, prediction))


def _changed(reading: LogReading, model: Model) -> str:
    def wrong(changes: dict[str, Any]) -> int | None:
        try:
            return disagreements(reading, predict(reading, model, changes))
        except KVCoreError:
            return None

    return agreeing_change(reading, model, wrong)


def _told(figure: Figure, words: tuple[str, ...], changed: str) -> Figure:
    lead = figure.why
    rest = " ".join((*words, *([] if figure.agrees or not changed else [changed])))
    return Figure(
        name=figure.name, reported=figure.reported, predicted=figure.predicted, difference=figure.difference,
        agrees=figure.agrees, why=f"{lead} {rest}".strip(),
    )  # fmt: skip


def _alone(reading: LogReading, why: str) -> tuple[Figure, ...]:
    """Figures without predictions."""
    stated = [(name, reading.facts[name]) for name in FIGURES if name in reading.facts]
    stated += [(f"cache {index + 1}", cache.size) for index, cache in enumerate(reading.caches)]
    found = (
        Figure(name=name, reported=_number(value), predicted=None, difference=None, agrees=False, why=why)
        for name, value in stated
    )
    return (*found, *_budget(reading))


def _compare(reading: LogReading, prediction: Prediction) -> tuple[Figure, ...]:
    return (*_facts(reading, prediction), *_caches(reading, prediction), *_buffers(reading, prediction))


def _facts(reading: LogReading, prediction: Prediction) -> Iterator[Figure]:
    for name in FIGURES:
        reported = reading.facts.get(name)
        if reported is None or (name == "kv_size" and prediction.memory is reported):
            continue
        values = [printed(prediction, name, place) for place in range(len(prediction.capacities))]
        near = values[prediction.nearest]
        if near is None:
            continue
        low, high = min(map(_exact, values)), max(map(_exact, values))
        yield _figure(name, reported, near, low, high, prediction)


def _figure(name: str, reported: Any, near: Any, low: Fraction, high: Fraction, prediction: Prediction) -> Figure:
    step = _half_step(reported) + (_half_step(near) if isinstance(near, Amount | Decimals) else 0)
    stated = _exact(reported)
    agrees = low - step <= stated <= high + step
    shown, printed_near = _number(reported), _number(near)
    return Figure(
        name=name,
        reported=shown,
        predicted=printed_near,
        difference=_difference(shown, printed_near),
        agrees=agrees,
        why=_lead(name, reported, near, low, high, agrees, prediction),
    )


def _lead(
    name: str, reported: Any, near: Any, low: Fraction, high: Fraction, agrees: bool, prediction: Prediction
) -> str:
    memory = prediction.memory
    if memory is not None and low != high:
        place = "lies inside" if agrees else "lies outside"
        return (
            f"{memory.text} is anything from {memory.low_bytes:,} to {memory.high_bytes:,} B, which gives "
            f"{_show(low, name)} … {_show(high, name)}; {_text(reported)} {place}."
        )
    if agrees:
        return f"{_text(reported)} is what is predicted."
    share = (_exact(near) / _exact(reported) - 1) * 100 if _exact(reported) else Fraction(0)
    return f"Predicted {_show(_exact(near), name)}, {float(share):+.2f} % from the reported {_text(reported)}."


def _caches(reading: LogReading, prediction: Prediction) -> Iterator[Figure]:
    """llama.cpp's caches in their order: cells, and the size as it is printed."""
    ours = prediction.readings[prediction.nearest]
    predicted = ours.caches if ours else ()
    for index, cache in enumerate(reading.caches):
        if len(predicted) != len(reading.caches):
            why = f"The log has {len(reading.caches)} caches and {len(predicted)} are predicted."
            yield Figure(name=f"cache {index + 1}", reported=_number(cache.size), predicted=None, difference=None,
                         agrees=False, why=why)  # fmt: skip
            continue
        other = predicted[index]
        name = f"{cache.kind} cache of {cache.layers or other.layers} layers"
        if cache.cells is not None and other.cells is not None:
            same = cache.cells == other.cells
            why = f"{other.cells:,} cells are predicted." if not same else f"{cache.cells:,} cells, as predicted."
            yield Figure(name=f"{name}, cells", reported=cache.cells, predicted=other.cells,
                         difference=other.cells - cache.cells, agrees=same, why=why)  # fmt: skip
        size, agrees = _number(other.size), cache.size.text == other.size.text
        why = f"{cache.size.text} is what is predicted." if agrees else f"Predicted {other.size.text}."
        yield Figure(name=f"{name}, bytes", reported=_number(cache.size), predicted=size,
                     difference=_difference(_number(cache.size), size), agrees=agrees, why=why)  # fmt: skip


def _buffers(reading: LogReading, prediction: Prediction) -> Iterator[Figure]:
    """Ollama's own lines give the cache of each device, and no cells: together they are all caches."""
    ours = prediction.readings[prediction.nearest]
    if reading.engine != "ollama" or reading.caches or not reading.buffers or ours is None:
        return
    sizes = [size for _, size in reading.buffers]
    stated, predicted = sum(s.nearest_bytes for s in sizes), sum(cache.size.nearest_bytes for cache in ours.caches)
    agrees = sum(s.low_bytes for s in sizes) <= predicted <= sum(s.high_bytes for s in sizes)
    together = " + ".join(f"{size.text} on {device}" for device, size in reading.buffers)
    caches = " + ".join(f"{cache.size.text} for {cache.layers} layers" for cache in ours.caches)
    yield Figure(name="kv cache", reported=stated, predicted=predicted, difference=predicted - stated, agrees=agrees,
                 why=f"Reported {together}; predicted {caches}.")  # fmt: skip


def _budget(reading: LogReading) -> tuple[Figure, ...]:
    """The memory for the cache as the log's own parts give it: share of the device, less what is used."""
    total, available = reading.amount("total"), reading.amount("available_kv")
    share = reading.facts.get("gpu_memory_utilization")
    used = reading.amount("consumed") or reading.amount("weights")
    parts = [part for part in (used, reading.amount("activation")) if part]
    if reading.amount("consumed") is None and (outside := reading.amount("non_torch")):
        parts.append(outside)
    if total is None or available is None or not isinstance(share, Decimals) or len(parts) < 2:
        return ()
    left = total.nearest_bytes * share.value - sum(part.nearest_bytes for part in parts)
    slack = (
        total.nearest_bytes * share.half_step
        + _half_step(total)
        + sum(_half_step(part) for part in parts)
        + _half_step(available)
    )
    agrees = abs(left - available.nearest_bytes) <= slack
    taken = " − ".join(part.text for part in parts)
    why = (
        f"{total.text} × {share.text} − {taken} leaves {float(left) / 2**30:.2f} GiB; the log says {available.text}, "
        f"{'within' if agrees else 'beyond'} the {float(slack) / 2**30:.2f} GiB that the printed digits leave open."
    )
    if not agrees and (graph := reading.amount("graph_estimate")):
        why += f" From 0.21 on the estimated CUDA-graph pool of {graph.text} is taken off too."
    found = Figure(name="available_kv", reported=available.nearest_bytes, predicted=round(left),
                   difference=round(left) - available.nearest_bytes, agrees=agrees, why=why)  # fmt: skip
    return (found,)


def _exact(value: Any) -> Fraction:
    if isinstance(value, Amount):
        return Fraction(value.nearest_bytes)
    return value.value if isinstance(value, Decimals) else Fraction(value)


def _half_step(value: Any) -> Fraction:
    if isinstance(value, Amount):
        return Fraction(value.high_bytes - value.low_bytes + 1, 2)
    return value.half_step if isinstance(value, Decimals) else Fraction(0)


def _number(value: Any) -> int | float:
    exact = _exact(value)
    return exact.numerator if exact.denominator == 1 else float(exact)


def _difference(reported: int | float, predicted: int | float) -> int | float:
    if isinstance(reported, int) and isinstance(predicted, int):
        return predicted - reported
    return round(predicted - reported, 6)


def _show(value: Fraction, name: str) -> str:
    return f"{float(value):,.2f}" if name == "max_concurrency" else f"{int(value):,}"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


_BLOCK_SIZES = (16, 32, 64, 128, 256)


def agreeing_change(reading: LogReading, model: Model, wrong: Callable[[dict[str, Any]], int | None]) -> str:
    """The first single setting with which no figure disagrees, in words; else an empty text.

    `wrong` counts the figures that disagree under a change, None where the engine refuses it.
    """
    for changes, words in _candidates(reading, model):
        if wrong(changes) == 0:
            return f"It would come out exactly with {words}."
    return ""


def _candidates(reading: LogReading, model: Model) -> list[tuple[dict[str, Any], str]]:
    kept = [memory for memory, _ in model.kept]
    states = any(isinstance(memory, State) for memory in kept)
    windows = any(isinstance(memory, Attention) and memory.limit is not None for memory in kept)
    now = reading.facts.get("kv_dtype")
    tries: list[tuple[dict[str, Any], str]] = [
        ({"kv_dtype": name}, f"a cache in {name}") for name in ("fp8", "bf16") if name != now
    ]
    if reading.engine != "vllm":
        return tries
    tries += [({"block_size": size}, f"blocks of {size} tokens") for size in _BLOCK_SIZES]
    if states:
        tries.append(({"enable_prefix_caching": False}, "prefix caching off"))
    if windows:
        tries.append(({"disable_hybrid_kv_cache_manager": True}, "the hybrid cache manager off"))
        tries += [({"max_num_batched_tokens": size}, f"max_num_batched_tokens {size:,}") for size in
                  (2048, 4096, 8192, 16_384, 32_768)]  # fmt: skip
        tries.append(({"async_scheduling": "disabled"}, "asynchronous scheduling off"))
    tries.append(({"mtp_layers": 1, "num_speculative_tokens": 1}, "one MTP layer that proposes one token"))
    tries += [({"tensor_parallel_size": size}, f"tensor parallel {size}") for size in (2, 4, 8)]
    return tries


def reasons(reading: LogReading, prediction: Prediction) -> tuple[str, ...]:
    """What holds for every figure of this reading, each a whole sentence."""
    if reading.engine == "vllm":
        return tuple(_vllm(reading, prediction))
    if reading.engine == "sglang":
        return tuple(_sglang(reading, prediction))
    if reading.engine == "tensorrt-llm":
        terms = prediction.capacities[prediction.nearest].terms
        return tuple(f"{term.formula}." for term in terms[:3])
    return tuple(f"{term.name}: {term.formula}." for term in prediction.layout.terms[: len(reading.caches)])


def _vllm(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    layout = prediction.layout
    groups = layout.groups
    if layout.bytes_per_block and layout.block_size:
        yield f"One block of the pool is {layout.bytes_per_block:,} B."
    if len(groups) > 1:
        needs = " + ".join(f"{group.blocks_per_request:,}" for group in groups)
        total = layout.blocks_per_request
        yield f"{len(groups)} groups of layers share it; a request needs {needs} = {total:,} blocks."
        widest = max(group.layers for group in groups)
        padding = sum(widest - group.layers for group in groups)
        # A packed pool has pages of several sizes and no padding.
        if padding and len({group.page_bytes for group in groups}) == 1:
            yield f"Groups are padded to {widest} layers: {padding} padding layers hold nothing."
    elif layout.blocks_per_request:
        yield f"A request of {layout.max_model_len:,} tokens needs {layout.blocks_per_request:,} blocks."
    if len(groups) > 1 and "kv_cache_size_tokens" in reading.facts:
        yield _meaning(layout.engine_version, len(groups))
    yield from _ranks(reading, prediction)
    if (graph := reading.amount("graph_estimate")) and release(layout.engine_version) >= GRAPHS_DEDUCTED:
        yield f"The estimated CUDA-graph pool of {graph.text} was taken off before the cache was sized."


def _meaning(version: str, groups: int) -> str:
    if is_old(version):
        return f"vLLM {version} prints the tokens of one group's share: blocks // {groups} × the block size."
    return f"vLLM {version} prints concurrency × max_model_len as tokens, so the number depends on the length."


def _ranks(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    stated = {rank: facts["available_kv"] for rank, facts in reading.ranks.items() if "available_kv" in facts}
    if len({amount.text for amount in stated.values()}) > 1:
        rank = min(stated, key=lambda name: stated[name].nearest_bytes)
        yield f"The ranks have different memory; the tightest, {rank} with {stated[rank].text}, decides for all."
    tp = reading.whole("tensor_parallel_size") or 1
    if tp == 1:
        return
    kept = [memory for memory, _ in prediction.model.kept]
    if any(isinstance(memory, Latent | Indexer) for memory in kept):
        yield f"The latent cache is copied to each of the {tp} tensor-parallel ranks, not divided."
    heads = {memory.num_kv_heads for memory in kept if isinstance(memory, Attention)}
    if heads and max(heads) < tp:
        yield f"{max(heads)} KV heads on {tp} ranks: each rank keeps one head, so heads are copied."


def _sglang(reading: LogReading, prediction: Prediction) -> Iterator[str]:
    for group in prediction.layout.groups:
        if group.block_size:
            per_token = group.page_bytes // group.block_size
            yield f"{group.layers} {group.kind} layers × {per_token:,} B a token and layer; SGLang's GB are GiB."
    tokens = reading.whole("kv_cache_size_tokens")
    if tokens:
        yield f"Buffers hold one padding page beside the {tokens:,} tokens."
