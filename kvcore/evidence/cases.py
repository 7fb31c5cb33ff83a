"""Every recorded case in data/ as one row: what an engine said, what we predict for it, and where it is from.

Three kinds of evidence: plans that an engine's own code made and engines that were really run on a CPU (data/engines),
and start-up logs that people published (data/field).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.log import UNLIMITED
from kvcore.engines.registry import engine
from kvcore.errors import KVCoreError
from kvcore.evidence import field
from kvcore.evidence.runs import Recording, Records, recordings, records, release
from kvcore.logs.predict import read_back
from kvcore.logs.reading import read_log
from kvcore.model import model_from_config
from kvcore.sources import catalogue
from kvcore.units import GIB, MIB

PLANNED, RUN, PUBLISHED = "planned by the engine's own code", "really run on a CPU", "published log"
EVIDENCE = (PUBLISHED, RUN, PLANNED)
LIMITS = (0.005, 0.02, 0.05)
_COMPARED = {
    "kv_cache_size_tokens": "token capacity",
    "blocks": "blocks of the cache",
    "estimated_max_model_len": "longest request that fits",
    "max_concurrency": "requests at once",
    "kv_size": "size of the cache",
}
# What a report that cannot be predicted states, the most telling figure first: (name, compared, unit).
_STATED = (
    ("kv_tokens", "token capacity", "tokens"), ("gpu_blocks", "blocks of the cache", "blocks"),
    ("est_max_len", "longest request that fits", "tokens"), ("kv_size_mib", "size of the cache", "MiB"),
    ("concurrency", "requests at once", "requests"),
)  # fmt: skip
_VERDICTS = {
    "memory_split_or_text_only": "The source gives this figure in prose, or without all that it depends on.",
    "partly_or_unexplained": "The source leaves part of its figures unexplained.",
    "reporter_number_inconsistent": "The source's own numbers do not agree with each other.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One figure that an engine stated, beside ours.

    `reported` and `predicted` are in `unit` (None: no such figure, for example where the engine refused). `error` is
    the distance of the prediction from what was reported, as a share of it, beyond what the log's rounded memory
    leaves open: 0 where some memory that prints alike gives exactly this figure, None where nothing is predicted.
    `counted`: it belongs to the denominators; if not, `note` says why. `apart`: of a fork whose reports were selected
    by agreement. `family` is the model_type, "" where the model is not known.
    """

    id: str
    evidence: str
    engine: str
    engine_version: str
    family: str
    model: str
    settings: str
    compared: str
    unit: str
    reported: float | None
    predicted: float | None
    error: float | None
    counted: bool
    apart: bool
    note: str
    source: str
    url: str

    @property
    def difference(self) -> float | None:
        """(predicted − reported) / reported, for the nearest memory; None where one of them is missing."""
        if self.predicted is None or not self.reported:
            return None
        return (self.predicted - self.reported) / self.reported

    def within(self, limit: float) -> bool:
        """Whether the prediction is at most this share away, the log's rounding allowed for."""
        return self.error is not None and self.error <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Counted cases of one engine and kind of evidence: how many, and how many come out within each limit."""

    evidence: str
    engine: str
    apart: bool
    total: int
    exact: int
    within_half_percent: int
    within_2_percent: int
    within_5_percent: int
    worst: Case


@cache
def cases() -> tuple[Case, ...]:
    """Every recorded case: published logs, then runs, then plans, each in the order of its file."""
    sizes = (_sizes(file, row) for file in records() if file.states == "caches" for row in file.rows())
    plans = (_plan(file, row) for file in records() if file.states == "plan" for row in file.rows())
    return (*_published(), *(_run(one) for one in recordings()), *sizes, *plans)


def recorded_engines(evidence: str) -> tuple[str, ...]:
    """The engines whose records are of that kind: runs, or plans of their own code."""
    found = {RUN: ("start", "caches"), PLANNED: ("plan",)}.get(evidence, ())
    return tuple(dict.fromkeys(file.engine for file in records() if file.states in found))


def summary(rows: Iterable[Case]) -> tuple[Shares, ...]:
    """Shares of the counted rows by evidence and engine: the largest first in each evidence, what is apart last."""
    found: dict[tuple[str, str], list[Case]] = {}
    for row in rows:
        if row.counted:
            found.setdefault((row.evidence, row.engine), []).append(row)

    def place(key: tuple[str, str]) -> tuple[bool, int, int]:
        return (found[key][0].apart, EVIDENCE.index(key[0]), -len(found[key]))

    return tuple(_shares(found[key]) for key in sorted(found, key=place))


def _shares(rows: list[Case]) -> Shares:
    half, two, five = (sum(row.within(limit) for row in rows) for limit in LIMITS)
    return Shares(
        evidence=rows[0].evidence, engine=rows[0].engine, apart=rows[0].apart, total=len(rows),
        exact=sum(row.within(0) for row in rows), within_half_percent=half, within_2_percent=two,
        within_5_percent=five, worst=max(rows, key=lambda row: row.error or 0),
    )  # fmt: skip


def worst(rows: Iterable[Case], limit: float = LIMITS[0]) -> tuple[Case, ...]:
    """The rows that are predicted and further away than the limit, the worst first."""
    found = [row for row in rows if row.error is not None and row.error > limit]
    return tuple(sorted(found, key=lambda row: -(row.error or 0)))


def _published() -> tuple[Case, ...]:
    # Nothing is predicted where no cache of the report's kind comes out.
    compared = {one.report.id: one for one in field.compared() if one.predicted}
    return tuple(_report(report, compared.get(report.id)) for report in field.reports())


def _report(report: field.Report, found: field.FieldComparison | None) -> Case:
    counted = report.test and report.identified and found is not None
    figure, unit, stated = _stated(report)
    if found is not None:
        figure, unit, stated = _COMPARED[found.figure], found.unit, found.reported
    notes = (found.note if found else "", "" if counted else _why_not(report))
    return Case(
        id=report.id,
        evidence=PUBLISHED,
        engine=report.engine,
        engine_version=report.engine_version or "",
        family=_family(report),
        model=report.model_id,
        settings=_settings_of(report),
        compared=figure,
        unit=unit,
        reported=stated,
        predicted=found.predicted if found else None,
        error=found.error if found else None,
        counted=counted,
        apart=field.family(report.engine).apart,
        note=" ".join(note[0].upper() + note[1:] for note in notes if note),
        source=report.source,
        url=report.url or "",
    )


def _stated(report: field.Report) -> tuple[str, str, float | None]:
    for name, figure, unit in _STATED:
        if name in report.reported:
            return figure, unit, float(report.reported[name])
    return "no capacity is stated", "", None


def _family(report: field.Report) -> str:
    try:
        return report.model().model_type
    except KVCoreError:
        return ""


def _settings_of(report: field.Report) -> str:
    length = None if report.max_model_len is None else f"{report.max_model_len:,} tokens"
    ranks = [f"{name} {count}" for name, count in (("TP", report.tp), ("PP", report.pp)) if count > 1]
    return ", ".join(part for part in (f"cache {report.kv_dtype}", *ranks, length, report.gpu) if part)


def _why_not(report: field.Report) -> str:
    """Why a report is not counted, as a sentence."""
    if report.model_inferred:
        return "Not counted: the source does not name the model; it was inferred from sizes."
    if report.unidentified:
        return f"Not counted: {report.unidentified}."
    if not report.identified:
        return "Not counted: the model's configuration is not at hand."
    return "Not counted: " + _lower(_VERDICTS.get(report.verdict, "The source states too little to predict it."))


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _run(record: Recording) -> Case:
    """One start: its token capacity, or what its refusal says."""
    figure, unit, stated, ours, step, note = _run_figures(record)
    shrunk = " Run with all its layers and heads; its other sizes were made small." if record.made_small else ""
    return Case(
        id=record.name,
        evidence=RUN,
        engine=record.engine,
        engine_version=record.version,
        family=record.model().model_type,
        model=record.model_name,
        settings=" ".join(record.flags),
        compared=figure,
        unit=unit,
        reported=stated,
        predicted=ours,
        error=_error(stated, ours, step),
        counted=True,
        apart=False,
        note=note + shrunk,
        source=record.source,
        url="",
    )


def _run_figures(record: Recording) -> tuple[str, str, float | None, float | None, float, str]:
    """(compared, unit, reported, predicted, half a printed step, note) of a run that started, or that refused."""
    if record.status != "exit 1":
        capacity = record.predicted()
        exact = record.concurrency_exact or None
        same = capacity.blocks == record.num_blocks and (
            exact is None or float(exact) == float(Fraction(capacity.max_concurrency))
        )
        note = "Its blocks and its concurrency are met too." if same else "Its blocks or its concurrency differ."
        return "token capacity", "tokens", record.kv_tokens, capacity.kv_cache_size_tokens, 0, note
    facts = next(iter(read_log("\n".join(record.log_lines)))).facts
    try:
        model, settings = record.model(), record.settings()
        layout = engine(record.engine).layout(model, settings)
    except KVCoreError as problem:
        return "refusal", "", None, None, 0, _sentence(f"The engine refused to start, as predicted: {problem}")
    if "estimated_max_model_len" in facts:
        said = read_back(record.predicted())
        note = "The engine refused to start, as predicted, and named this length."
        ours = said.whole("estimated_max_model_len") if said else None
        return _COMPARED["estimated_max_model_len"], "tokens", facts["estimated_max_model_len"], ours, 0, note
    needed = facts["needed_kv"]
    half = (needed.high_bytes - needed.low_bytes + 1) / 2 / GIB
    note = "The engine refused to start, as predicted, and named the memory it needs, to two digits."
    return (
        "GiB a request needs",
        "GiB",
        round(needed.nearest_bytes / GIB, 2),
        layout.bytes_per_request / GIB,
        half,
        note,
    )


def _error(stated: float | None, ours: float | None, half_step: float = 0) -> float:
    """The distance beyond the printed digits as a share of what was stated; 0 where both refused."""
    if stated is None and ours is None:
        return 0.0
    if stated is None or ours is None:
        return 1.0
    return max(0.0, abs(ours - stated) - half_step) / abs(stated)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _sizes(file: Records, row: Mapping[str, Any]) -> Case:
    """One run that states its caches: the size of all of them together."""
    chosen, model = engine(file.engine), catalogue.load(row["model_id"])
    settings = chosen.settings(model, Request(platform="cpu", options=as_options(row["settings"])))
    reading = read_back(chosen.capacity(model, settings, UNLIMITED))
    ours = sum(cache.size.nearest_bytes for cache in (reading.caches if reading else ())) / MIB
    stated = sum(size["mib"] for size in row["sizes"])
    count = len(row["sizes"])
    made = " The file holds the published layers, heads and window with other sizes made small."
    return Case(
        id=row["name"],
        evidence=RUN,
        engine=file.engine,
        engine_version=release(row),
        family=model.model_type,
        model=model.name,
        settings=" ".join(row["args"]),
        compared=_COMPARED["kv_size"],
        unit="MiB",
        reported=stated,
        predicted=round(ours, 2),
        error=_error(stated, round(ours, 2), 1e-9),
        counted=True,
        apart=False,
        note=(f"{count} caches together." * (count > 1) + made * row["made_small"]).strip(),
        source=file.source,
        url="",
    )


def _plan(file: Records, row: Mapping[str, Any]) -> Case:
    """One plan of an engine's own code: bytes of a request; its block and its groups are compared too.

    The code was given the model from its config.json alone, without the quantiser's file beside it.
    """
    model, chosen = model_from_config(catalogue.raw_config(row["model"]), row["model"]), engine(file.engine)
    asked = Request(
        context=row["max_model_len"], kv_dtype=row["asked_kv_dtype"], tp=row["tp"], engine_version=file.version,
        options=as_options(row["settings"]),
    )  # fmt: skip
    layout = chosen.layout(model, chosen.settings(model, asked))
    pairs = [
        (row["bytes_per_request"], layout.bytes_per_request),
        (row["bytes_per_block"], layout.bytes_per_block),
        (row["block_size"], layout.block_size),
    ]
    ours = sorted((group.layers, group.blocks_per_request, group.block_size) for group in layout.groups)
    alike = ours == sorted(tuple(group) for group in row["groups"]) and all(one == two for one, two in pairs[1:])
    return Case(
        id=f"{row['model']} {row['tag']}",
        evidence=PLANNED,
        engine=file.engine,
        engine_version=file.version,
        family=model.model_type,
        model=row["model"],
        settings=f"cache {row['kv_dtype']}, TP {row['tp']}, {row['max_model_len']:,} tokens"
        + ("" if row["prefix_caching"] else ", no prefix caching"),
        compared="bytes a request",
        unit="bytes",
        reported=row["bytes_per_request"],
        predicted=layout.bytes_per_request,
        error=max(_error(stated, made) for stated, made in pairs),
        counted=True,
        apart=False,
        note=f"Its block size, bytes a block and groups {'are met too' if alike else 'differ'}.",
        source=file.source,
        url="",
    )
