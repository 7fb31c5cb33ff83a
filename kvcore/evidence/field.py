"""Reports from the field: what engines logged on other people's machines, and what we predict for each.

The records are in data/field/reports.jsonl; data/field/README.md says what each column means. A prediction starts
from the memory that the report itself gives; what is printed to two digits is an interval, and a figure that lies
inside the interval's prediction is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.registry import engine
from kvcore.engines.vllm.engine import VLLM
from kvcore.errors import EngineError, KVCoreError
from kvcore.formats import KVFormat, kv_format
from kvcore.logs.reading import read_log
from kvcore.logs.values import Amount, read_amount
from kvcore.model import Model, model_from_config, parse_config
from kvcore.model.memories import Attention, Indexer, Latent
from kvcore.paths import DATA
from kvcore.units import MIB

_FOLDER = DATA / "field"
FORK = "ik_llama.cpp"
# vLLM itself, and its ports to other devices, which plan their cache with the same code.
_VLLM = ("vllm", "vllm-ascend", "vllm-tpu", "vllm-xpu")
# How the engines that make their cache by a given context call it.
_LLAMACPP = {"llama.cpp": "ctx_size", "ollama": "num_ctx"}
_BLOCK_NAMES = {"tensorrt-llm": "tokens_per_block", "sglang": "page_size"}
CLOSE = 0.005
_UNLIMITED = 2**60
_ENDS = ("nearest_bytes", "low_bytes", "high_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report. `reported` are the log's figures; `settings` the engine's options as the source states them.

    `test`: its model is stated and its arithmetic is accounted for. `explanation` says why a figure is not met.
    """

    id: str
    engine: str
    engine_version: str | None
    version_note: str
    model_id: str
    catalogue_id: str | None
    config: str | None
    model_note: str
    model_inferred: bool
    unidentified: str
    kv_dtype: str
    weight_quant: str | None
    tp: int
    pp: int
    dp: int
    block_size: int | None
    max_model_len: int | None
    gpu: str | None
    gpu_id: str | None
    gpu_mem_util: float | None
    settings: Mapping[str, Any]
    settings_note: str
    reported: Mapping[str, Any]
    test: bool
    verdict: str
    explanation: str
    quote: str
    source: str
    url: str | None
    date: str | None
    retrieved: str

    @property
    def identified(self) -> bool:
        """Whether the model is known: by the source's own statement, and with a configuration that is at hand.

        `unidentified` says what of it is not known.
        """
        return not (self.model_inferred or self.unidentified) and bool(self.catalogue_id or self.config)

    def model(self) -> Model:
        """The model; EngineError where it is not identified."""
        if self.config is not None:
            return model_from_config(parse_config((_FOLDER / "models" / self.config).read_text("utf-8")), self.model_id)
        if self.catalogue_id is None:
            raise EngineError(f"{self.id}: the model {self.model_id!r} is not identified")
        from kvcore.sources import catalogue

        return catalogue.load(self.catalogue_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of a report: reported, predicted (for the nearest memory), and the interval that rounding leaves.

    `error` is 0 inside the interval, else the distance to its nearest end as a share of what was reported.
    """

    report: Report
    figure: str
    unit: str
    reported: float
    predicted: float
    low: float
    high: float
    note: str = ""

    @property
    def error(self) -> float:
        if self.low <= self.reported <= self.high:
            return 0.0
        end = self.low if self.reported < self.low else self.high
        return abs(end - self.reported) / abs(self.reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many reports of one engine come out exactly, within 0.5 %, 2 % and 5 %, of how many."""

    engine: str
    total: int
    exact: int
    within_half_percent: int
    within_2_percent: int
    within_5_percent: int
    worst: str
    worst_error: float


@cache
def reports() -> tuple[Report, ...]:
    """Every report, in the order of the file."""
    lines = (_FOLDER / "reports.jsonl").read_text("utf-8").splitlines()
    return tuple(Report(**json.loads(line)) for line in lines)


def usable() -> tuple[Report, ...]:
    """Reports that are tests: the model is identified, and the source's figures are accounted for."""
    return tuple(report for report in reports() if report.test and report.identified)


def prediction(report: Report) -> tuple[float, float, str]:
    """(predicted, reported, note) for the report's main figure; EngineError where none can be predicted."""
    found = compare(report)
    return found.predicted, found.reported, found.note


def compare(report: Report) -> Comparison:
    """The report's main figure beside the prediction; EngineError where it has none that can be predicted."""
    way = _WAYS.get(report.engine)
    if way is None:
        raise EngineError(f"{report.id}: no rules for {report.engine}")
    return way(report, report.model())


def concurrency(report: Report) -> Comparison | None:
    """The logged maximum concurrency of a vLLM report beside the prediction; None where none is logged."""
    stated = report.reported.get("concurrency")
    if report.engine not in _VLLM or stated is None or report.reported.get("available_kv_gib") is None:
        return None
    low, near, high = (Fraction(one.max_concurrency) for one in _vllm_capacities(report, report.model()))
    half = Fraction(1, 200)
    return _comparison(report, "max_concurrency", "requests", float(stated), near, low - half, high + half)


@cache
def compared() -> tuple[Comparison, ...]:
    """Every report that can be predicted, tests or not; those that cannot are left out."""
    found = []
    for report in reports():
        try:
            found.append(compare(report))
        except KVCoreError:
            continue
    return tuple(found)


def summary(comparisons: Iterable[Comparison] | None = None) -> tuple[Share, ...]:
    """Shares by engine over the usable reports (or those given); the fork ik_llama.cpp is counted apart, last."""
    if comparisons is None:
        comparisons = [compare(report) for report in usable()]
    by_engine: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by_engine.setdefault(one.report.engine, []).append(one)
    names = sorted(by_engine, key=lambda name: (name == FORK, -len(by_engine[name])))
    return tuple(_share(name, by_engine[name]) for name in names)


def _share(name: str, rows: list[Comparison]) -> Share:
    worst = max(rows, key=lambda row: row.error)

    def within(limit: float) -> int:
        return sum(row.error <= limit for row in rows)

    return Share(
        engine=name, total=len(rows), exact=within(0), within_half_percent=within(CLOSE), within_2_percent=within(0.02),
        within_5_percent=within(0.05), worst=worst.report.id, worst_error=worst.error,
    )  # fmt: skip


def _comparison(
    report: Report, figure: str, unit: str, reported: float, near: Fraction | int, low: Fraction | int,
    high: Fraction | int, note: str = "",
) -> Comparison:  # fmt: skip
    notes = (note, report.model_note, report.version_note, report.settings_note, report.explanation)
    return Comparison(
        report=report, figure=figure, unit=unit, reported=reported, predicted=float(near), low=float(low),
        high=float(high), note=" ".join(text if text.endswith(".") else f"{text}." for text in notes if text),
    )  # fmt: skip


def _stated(report: Report, name: str) -> float:
    value: float | None = report.reported.get(name)
    if value is None:
        raise EngineError(f"{report.id}: {name} is not reported")
    return value


def _printed_gib(value: float) -> Amount:
    """A figure in GiB as engines print it: to two digits, unless the report has more."""
    text = f"{value:.2f}" if round(value, 2) == value else str(value)
    return read_amount(f"{text} GiB")


def _available(report: Report) -> Amount:
    value = _stated(report, "available_kv_gib")
    if value <= 0:
        raise EngineError(f"{report.id}: there was no memory for the cache")
    return _printed_gib(value)


def _settings(report: Report, model: Model) -> Any:
    from kvcore.hardware.gpus import accelerator

    values = dict(report.settings)
    if report.block_size is not None:
        values.setdefault(_BLOCK_NAMES.get(report.engine, "block_size"), report.block_size)
    if report.engine in _LLAMACPP:
        values.setdefault(_LLAMACPP[report.engine], report.max_model_len)
    asked = Request(
        # Where the length is not stated the figure does not depend on it; any length that fits will do.
        context=None if report.engine in _LLAMACPP else report.max_model_len or 4096,
        kv_dtype=report.kv_dtype,
        tp=report.tp,
        pp=report.pp,
        gpu=None if report.gpu_id is None else accelerator(report.gpu_id),
        engine_version=None if report.engine in _LLAMACPP else report.engine_version,
        options=as_options(values),
    )
    return engine("vllm" if report.engine in _VLLM else report.engine).settings(model, asked)


def _vllm_capacities(report: Report, model: Model) -> tuple[Any, Any, Any]:
    memory, settings, chosen = _available(report), _settings(report, model), engine("vllm")
    sizes = (memory.low_bytes, memory.nearest_bytes, memory.high_bytes)
    low, near, high = (chosen.capacity(model, settings, size) for size in sizes)
    return low, near, high


def _vllm(report: Report, model: Model) -> Comparison:
    stated = report.reported
    low, near, high = _vllm_capacities(report, model)
    if "kv_tokens" in stated:
        figure, tokens = "kv_cache_size_tokens", [one.kv_cache_size_tokens for one in (near, low, high)]
        return _comparison(report, figure, "tokens", stated["kv_tokens"], tokens[0], tokens[1], tokens[2])
    if "gpu_blocks" in stated:
        return _comparison(report, "blocks", "blocks", stated["gpu_blocks"], near.blocks, low.blocks, high.blocks)
    if "est_max_len" in stated:
        settings, sizes = _settings(report, model), (near.kv_bytes, low.kv_bytes, high.kv_bytes)
        figure, lengths = "estimated_max_model_len", [VLLM.estimated_length(model, settings, one) for one in sizes]
        return _comparison(report, figure, "tokens", stated["est_max_len"], lengths[0], lengths[1], lengths[2])
    if "concurrency" in stated:
        half = Fraction(1, 200)
        near_c, low_c, high_c = (Fraction(one.max_concurrency) for one in (near, low, high))
        return _comparison(
            report, "max_concurrency", "requests", stated["concurrency"], near_c, low_c - half, high_c + half
        )
    raise EngineError(f"{report.id}: no capacity is reported")


def _tensorrt_llm(report: Report, model: Model) -> Comparison:
    memory, settings, chosen = _available(report), _settings(report, model), engine("tensorrt-llm")
    sizes = (memory.nearest_bytes, memory.low_bytes, memory.high_bytes)
    near, low, high = (chosen.capacity(model, settings, size).kv_cache_size_tokens for size in sizes)
    return _comparison(report, "kv_cache_size_tokens", "tokens", _stated(report, "kv_tokens"), near, low, high)


def _sglang(report: Report, model: Model) -> Comparison:
    """Tokens that the logged size of one pool makes: SGLang prints what it allocated, padding page included."""
    settings, chosen = _settings(report, model), engine("sglang")
    layout = chosen.layout(model, settings)
    wanted = "sliding" if "swa_layer_tokens" in report.reported else None
    groups = [group for group in layout.groups if group.kind != "state" and (wanted is None or group.kind == wanted)]
    page = layout.block_size or 1
    per_token = Fraction(sum(group.page_bytes * group.layers for group in groups[:1]), page)
    note = ""
    indexers = sum(memory.entry_bytes() * count for memory, count in model.kept if isinstance(memory, Indexer))
    if indexers:
        per_token -= indexers
        note = "The version that was logged left the indexer's keys out of the size."
    halves = [name for name in ("k_gib", "v_gib") if name in report.reported] or ["available_kv_gib"]
    parts = [_printed_gib(_stated(report, name)) for name in halves]
    sizes = [sum(getattr(part, end) for part in parts) for end in _ENDS]
    near, low, high = (Fraction(size) / per_token - page for size in sizes)
    return _comparison(report, "kv_cache_size_tokens", "tokens", _stated(report, "kv_tokens"), near, low, high, note)


def _llamacpp(report: Report, model: Model) -> Comparison:
    """The cache of as many layers as the report has, or all key-value caches together, as llama.cpp prints it."""
    if "layout" in report.settings:
        return _rows(report, model)
    settings, chosen = _settings(report, model), engine(report.engine)
    lines = chosen.capacity(model, settings, _UNLIMITED).log_lines
    caches = [cache for reading in read_log("\n".join(lines)) for cache in reading.caches if cache.kind == "kv"]
    alike = [
        cache
        for cache in caches
        if cache.layers == report.reported.get("kv_layers") and cache.cells == report.reported.get("cells")
    ]
    sizes = [cache.size for cache in (alike or caches)]
    near, low, high = (Fraction(sum(getattr(size, end) for size in sizes), MIB) for end in _ENDS)
    return _comparison(report, "kv_size", "MiB", _stated(report, "kv_size_mib"), near, low, high)


def _rows(report: Report, model: Model) -> Comparison:
    """Cells × the rows of every layer, windows kept whole: ik_llama.cpp, whose latents have several layouts."""
    kv = kv_format(report.kv_dtype)
    cells = int(_stated(report, "cells") * report.settings.get("sequences", 1))
    size = cells * _row_bytes(model, kv, report.settings.get("layout", "latent"))
    half = Fraction(1, 200)
    mib = Fraction(size, MIB)
    return _comparison(report, "kv_size", "MiB", _stated(report, "kv_size_mib"), mib, mib - half, mib + half)


def _row_bytes(model: Model, kv: KVFormat, layout: str) -> int:
    if layout == "heads":
        from kvcore.variants.variants import variant

        model = variant(model, "mha")
    total = 0
    for memory, count in model.kept:
        if isinstance(memory, Attention):
            total += count * kv.kv_bytes(memory.num_kv_heads, memory.head_dim, memory.v_head_dim)
        elif isinstance(memory, Latent) and (layout != "windows" or memory.window is not None):
            total += count * kv.k.row_bytes(1, memory.width)
            if layout == "latent and transposed":
                # The latent without its rotary part, once more.
                total += count * kv.v.row_bytes(1, memory.kv_lora_rank)
    return total


_WAYS: Mapping[str, Callable[[Report, Model], Comparison]] = {
    **dict.fromkeys(_VLLM, _vllm),
    "tensorrt-llm": _tensorrt_llm,
    "sglang": _sglang,
    **dict.fromkeys(_LLAMACPP, _llamacpp),
    FORK: _rows,
}
