"""Reports from the field: what engines logged on other people's machines, and what we predict for each.

The records are in data/field/reports.jsonl; data/field/README.md says what each column means. A prediction starts
from the memory that the report itself gives; what is printed to two digits is an interval, and a figure that lies
inside the interval's prediction is exact.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.base import Engine
from kvcore.engines.log import UNLIMITED, Amount, read_amount
from kvcore.engines.registry import engine
from kvcore.errors import EngineError, KVCoreError
from kvcore.formats import KVFormat, kv_format
from kvcore.logs.predict import longest_that_fits, read_back
from kvcore.model import Model, model_from_config, parse_config
from kvcore.model.memories import Indexer, Latent
from kvcore.paths import DATA
from kvcore.units import MIB

_FOLDER = DATA / "field"
CLOSE = 0.005
_ENDS = ("nearest_bytes", "low_bytes", "high_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFamily:
    """An engine as reports name it: one of ours, or a port or a fork `of` one (data/field/engines.csv).

    `plans`: it plans its cache with the same code. `apart`: its reports are counted apart.
    """

    name: str
    label: str
    of: str
    plans: bool = True
    apart: bool = False


@cache
def _forks() -> Mapping[str, EngineFamily]:
    with (_FOLDER / "engines.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: EngineFamily(
                name=row["name"], label=row["label"], of=row["of"], plans=row["plans"] == "yes",
                apart=row["apart"] == "yes",
            )
            for row in csv.DictReader(file)
        }  # fmt: skip


def family(name: str) -> EngineFamily:
    """The engine that reports call so; EngineError for one that is not known."""
    found = _forks().get(name)
    return EngineFamily(name=name, label=engine(name).label, of=engine(name).name) if found is None else found


def apart() -> tuple[EngineFamily, ...]:
    """The forks that are counted apart."""
    return tuple(one for one in _forks().values() if one.apart)


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
class FieldComparison:
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
class EngineShare:
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


def compare(report: Report) -> FieldComparison:
    """The report's main figure beside the prediction; EngineError where it has none that can be predicted."""
    made = family(report.engine)
    if "layout" in report.settings:
        return _from_rows(report, report.model())
    if not made.plans:
        raise EngineError(f"{report.id}: no rules for {report.engine}")
    way = {"memory": _from_memory, "pool": _from_pool, "caches": _from_caches}[engine(made.of).log.states]
    return way(report, report.model())


def concurrency(report: Report) -> FieldComparison | None:
    """The logged maximum concurrency beside the prediction; None where none is logged."""
    stated, made = report.reported.get("concurrency"), family(report.engine)
    if not made.plans or stated is None or report.reported.get("available_kv_gib") is None:
        return None
    low, near, high = (Fraction(one.max_concurrency) for one in _capacities(report, report.model()))
    half = Fraction(1, 200)
    return _comparison(report, "max_concurrency", "requests", float(stated), near, low - half, high + half)


@cache
def compared() -> tuple[FieldComparison, ...]:
    """Every report that can be predicted, tests or not; those that cannot are left out."""
    found = []
    for report in reports():
        try:
            found.append(compare(report))
        except KVCoreError:
            continue
    return tuple(found)


def summary(comparisons: Iterable[FieldComparison] | None = None) -> tuple[EngineShare, ...]:
    """Shares by engine over the usable reports (or those given); what is counted apart is last."""
    if comparisons is None:
        comparisons = [compare(report) for report in usable()]
    by_engine: dict[str, list[FieldComparison]] = {}
    for one in comparisons:
        by_engine.setdefault(one.report.engine, []).append(one)
    names = sorted(by_engine, key=lambda name: (family(name).apart, -len(by_engine[name])))
    return tuple(_share(name, by_engine[name]) for name in names)


def _share(name: str, rows: list[FieldComparison]) -> EngineShare:
    worst = max(rows, key=lambda row: row.error)

    def within(limit: float) -> int:
        return sum(row.error <= limit for row in rows)

    return EngineShare(
        engine=name, total=len(rows), exact=within(0), within_half_percent=within(CLOSE), within_2_percent=within(0.02),
        within_5_percent=within(0.05), worst=worst.report.id, worst_error=worst.error,
    )  # fmt: skip


def _comparison(
    report: Report, figure: str, unit: str, reported: float, near: Fraction | int, low: Fraction | int,
    high: Fraction | int, note: str = "",
) -> FieldComparison:  # fmt: skip
    notes = (note, report.model_note, report.version_note, report.settings_note, report.explanation)
    return FieldComparison(
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

    values, chosen = dict(report.settings), _engine(report)
    if report.block_size is not None:
        values.setdefault(chosen.log.block_option, report.block_size)
    by_context = chosen.log.context_option is not None
    if chosen.log.context_option is not None:
        values.setdefault(chosen.log.context_option, report.max_model_len)
    asked = Request(
        # Where the length is not stated the figure does not depend on it; any length that fits will do.
        context=None if by_context else report.max_model_len or 4096,
        kv_dtype=report.kv_dtype,
        tp=report.tp,
        pp=report.pp,
        gpu=None if report.gpu_id is None else accelerator(report.gpu_id),
        engine_version=None if by_context else report.engine_version,
        options=as_options(values),
    )
    return chosen.settings(model, asked)


def _engine(report: Report) -> Engine:
    """The engine whose rules plan the report's cache."""
    return engine(family(report.engine).of)


def _capacities(report: Report, model: Model) -> tuple[Any, Any, Any]:
    memory, settings, chosen = _available(report), _settings(report, model), _engine(report)
    sizes = (memory.low_bytes, memory.nearest_bytes, memory.high_bytes)
    low, near, high = (chosen.capacity(model, settings, size) for size in sizes)
    return low, near, high


def _from_memory(report: Report, model: Model) -> FieldComparison:
    """What the logged memory for the cache makes: tokens, blocks, or the longest request that fits."""
    stated = report.reported
    low, near, high = _capacities(report, model)
    if "kv_tokens" in stated:
        figure, tokens = "kv_cache_size_tokens", [one.kv_cache_size_tokens for one in (near, low, high)]
        return _comparison(report, figure, "tokens", stated["kv_tokens"], tokens[0], tokens[1], tokens[2])
    if "gpu_blocks" in stated:
        return _comparison(report, "blocks", "blocks", stated["gpu_blocks"], near.blocks, low.blocks, high.blocks)
    if "est_max_len" in stated:
        settings, sizes = _settings(report, model), (near.kv_bytes, low.kv_bytes, high.kv_bytes)
        lengths = [longest_that_fits(_engine(report), model, settings, one) for one in sizes]
        figure = "estimated_max_model_len"
        return _comparison(report, figure, "tokens", stated["est_max_len"], lengths[0], lengths[1], lengths[2])
    if "concurrency" in stated:
        half = Fraction(1, 200)
        near_c, low_c, high_c = (Fraction(one.max_concurrency) for one in (near, low, high))
        return _comparison(
            report, "max_concurrency", "requests", stated["concurrency"], near_c, low_c - half, high_c + half
        )
    raise EngineError(f"{report.id}: no capacity is reported")


def _from_pool(report: Report, model: Model) -> FieldComparison:
    """Tokens that the logged size of one pool makes: it is what was allocated, padding page included."""
    layout = _engine(report).layout(model, _settings(report, model))
    wanted = "sliding" if "swa_layer_tokens" in report.reported else None
    groups = [group for group in layout.groups if "state" not in group.kinds and wanted in (None, *group.kinds)]
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


def _from_caches(report: Report, model: Model) -> FieldComparison:
    """The cache of as many layers as the report has, or all key-value caches together, as they are printed."""
    said = read_back(_engine(report).capacity(model, _settings(report, model), UNLIMITED))
    caches = [cache for cache in (said.caches if said else ()) if cache.kind == "kv"]
    alike = [
        cache
        for cache in caches
        if cache.layers == report.reported.get("kv_layers") and cache.cells == report.reported.get("cells")
    ]
    sizes = [cache.size for cache in (alike or caches)]
    near, low, high = (Fraction(sum(getattr(size, end) for size in sizes), MIB) for end in _ENDS)
    return _comparison(report, "kv_size", "MiB", _stated(report, "kv_size_mib"), near, low, high)


def _from_rows(report: Report, model: Model) -> FieldComparison:
    """Cells × the rows of every layer, windows kept whole, of a fork whose latents have several layouts."""
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
        if memory.attends and memory.kv_heads:
            total += count * kv.kv_bytes(memory.kv_heads, memory.key_width, memory.value_width)
        elif isinstance(memory, Latent) and (layout != "windows" or memory.window is not None):
            total += count * kv.k.row_bytes(1, memory.width)
            if layout == "latent and transposed":
                # The latent without its rotary part, once more.
                total += count * kv.v.row_bytes(1, memory.kv_lora_rank)
    return total
