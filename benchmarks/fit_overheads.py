"""Fit vLLM's overheads on the logged starts of data/field/memory.jsonl: `python -m benchmarks.fit_overheads`.

Prints what each start shows, cross-validates (a start is never judged by a fit that saw another of its source), and
writes data/overheads.json and data/overheads_judged.json; with `--judge` the second alone, with `--check` neither.
data/OVERHEADS.md says where the parts come from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from math import hypot
from statistics import median
from typing import Any

from benchmarks.overhead_fit import PRIOR, Case, cross_validate, fit
from kvcore.deployment import Deployment
from kvcore.engines.releases import release
from kvcore.engines.vllm import VLLM
from kvcore.engines.vllm.memory import GRAPHS_DEDUCTED, SPREAD, Coefficients, OverheadFit, ends_gib, parts_gib, profile
from kvcore.engines.vllm.tower import QWEN_VL, UNSTATED_WEIGHTS, lacks_tower
from kvcore.hardware.gpus import Accelerator, accelerator
from kvcore.model import Model, model_from_config, parse_config
from kvcore.paths import DATA
from kvcore.ranks.weights import rank_weights
from kvcore.sources import catalogue
from kvcore.units import GIB

SOURCE = DATA / "field" / "memory.jsonl"
RESULT = DATA / "overheads.json"
JUDGED = DATA / "overheads_judged.json"
# A card whose identifier is not in the catalogue: nvidia-smi's total is about this much more than what CUDA gives.
_UNLISTED_SHARE = 1.016


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One usable record: its case for the fit, and what a plan is judged by, in GiB."""

    record: dict[str, Any]
    case: Case
    total: float
    available: float
    predicted_weights: float
    logged_weights: float | None

    @property
    def weights_error(self) -> float | None:
        """Predicted over logged weights, less 1, where the checkpoint is as published; else None."""
        if self.logged_weights is None or self.record["weights_note"]:
            return None
        return self.predicted_weights / self.logged_weights - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The available memory of one start beside its prediction by a fit that did not see its source, in GiB."""

    start: Start
    low: float
    best: float
    high: float

    @property
    def error(self) -> float:
        """Predicted less logged, as a share of the GPU's memory."""
        return (self.best - self.start.available) / self.start.total

    @property
    def inside(self) -> bool:
        return self.low - 0.005 <= self.start.available <= self.high + 0.005

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.start.total


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGraphs:
    """One logged estimate for graphs beside its prediction by a fit that did not see its source, in GiB."""

    case: Case
    low: float
    best: float
    high: float

    @property
    def inside(self) -> bool:
        return self.case.graphs is not None and self.low <= self.case.graphs <= self.high


def records() -> list[dict[str, Any]]:
    """Every record of the file."""
    return [json.loads(line) for line in SOURCE.read_text("utf-8").splitlines()]


def starts() -> list[Start]:
    """The usable records, in order."""
    return [_start(record) for record in records() if not record["excluded"]]


def held_back() -> list[Start]:
    """Starts that were collected to judge the rule before they took part in the fit, the unconfirmed ones too."""
    return [_start(record) for record in records() if record.get("held_back") == "verifier"]


def judged_before(found: Sequence[Start]) -> list[Judged]:
    """The starts that were held back, by a fit that saw none of them nor of their sources."""
    kept = held_back()
    groups = {start.case.group for start in kept}
    seen = [start for start in found if not start.record.get("held_back") and start.case.group not in groups]
    rule = fit([start.case for start in seen] + graph_only(new=False))
    return [judge(start, rule) for start in kept]


def judged_half(found: Sequence[Start]) -> list[Judged]:
    """Every second source of a later search, by a fit that saw the other sources only."""
    kept = [start for start in found if start.record.get("held_back") == "judged"]
    groups = {start.case.group for start in kept}
    seen = [start.case for start in found if start.case.group not in groups]
    rule = fit(seen + [case for case in graph_only() if case.group not in groups])
    return [judge(start, rule) for start in kept]


def judged_last(found: Sequence[Start]) -> list[Judged]:
    """The starts of the last search, by a fit that saw none of them, of its graphs, nor of their sources."""
    kept = [start for start in found if start.record.get("held_back") == "last"]
    groups = {record["group"] for record in records() if record.get("held_back") == "last"}
    seen = [start.case for start in found if start.case.group not in groups]
    rule = fit(seen + [case for case in graph_only() if case.group not in groups])
    return [judge(start, rule) for start in kept]


def judged_graphs(found: Sequence[Start], rules: Mapping[str, OverheadFit]) -> list[JudgedGraphs]:
    """Every logged estimate for graphs, by the fit that saw nothing of its source."""
    cases = [start.case for start in found] + graph_only()
    known = [case for case in cases if case.graphs is not None and case.profile.graph_units]
    return [_judge_graphs(case, rules[case.group]) for case in known]


def _judge_graphs(case: Case, rule: OverheadFit) -> JudgedGraphs:
    parts = parts_gib(rule.coefficients, case.profile, case.utilization)
    doubt = hypot(parts.graphs_doubt, SPREAD["constant"])
    return JudgedGraphs(
        case=case, low=parts.graphs - rule.low * doubt, best=parts.graphs, high=parts.graphs + rule.high * doubt
    )


def graph_only(new: bool = True) -> list[Case]:
    """Starts whose log states the estimate for CUDA graphs with all that it depends on, though the start cannot be
    judged or its version prints the estimate (from 0.17 on) and does not take it off yet."""
    found = []
    for record in records():
        if record["graphs_usable"] and (new or not record.get("held_back")):
            deployment = deployment_of(record)
            if release(record["engine_version"]) < GRAPHS_DEDUCTED:
                deployment = replace(deployment, engine_version=".".join(map(str, GRAPHS_DEDUCTED)))
            made = profile(model_of(record), deployment)
            found.append(
                Case(
                    id=record["id"],
                    group=record["group"],
                    profile=made,
                    utilization=1.0,
                    weights=0.0,
                    weights_estimated=False,
                    overhead=None,
                    with_driver=False,
                    graphs=record["reported"]["cuda_graph_estimated_gib"],
                )
            )
    return found


def model_of(record: dict[str, Any]) -> Model:
    """The model of a record: of the catalogue, of the field reports' own configurations, or written beside it."""
    config = record["config"]
    if isinstance(config, dict):
        return model_from_config(config, record["catalogue_note"])
    if config:
        return model_from_config(parse_config((DATA / "field" / "models" / config).read_text("utf-8")), record["id"])
    return catalogue.load(record["catalogue_id"])


def deployment_of(record: dict[str, Any]) -> Deployment:
    """How the record's server was started."""
    return Deployment(
        gpu=_gpu(record),
        context=record["max_model_len"] or 8192,
        tp=record["tp"],
        pp=record["pp"],
        dp=record.get("dp", 1),
        expert_parallel=record["expert_parallel"],
        engine_version=record["engine_version"],
        weight_format=record["weight_format"],
        utilization=record["utilization"],
        max_num_batched_tokens=record["max_num_batched_tokens"],
        max_num_seqs=record["max_num_seqs"],
        enforce_eager=record["enforce_eager"],
        speculative_tokens=record["speculative_tokens"],
        engine="vllm",
    )


def _gpu(record: dict[str, Any]) -> Accelerator:
    if record["gpu_id"] or "total_gpu_gib" not in record["reported"]:
        # Where only the graphs are read, any card of the smaller defaults will do.
        return accelerator(record["gpu_id"] or "rtx-4090")
    total = round(record["reported"]["total_gpu_gib"] * _UNLISTED_SHARE * GIB)
    capability = str(record["compute_capability"])
    return replace(accelerator("rtx-3090"), id="unlisted", reported_bytes=total, compute_capability=capability)


def _start(record: dict[str, Any]) -> Start:
    model, deployment, logged = model_of(record), deployment_of(record), record["reported"]
    # A tower that the catalogue's model of the same layers does not have.
    reads = model.tower or (replace(QWEN_VL, stated=False) if record["multimodal"] else None)
    made = profile(model, deployment, reads=reads)
    weights = rank_weights(model, deployment, VLLM)[0]
    stated = logged.get("total_gpu_gib")
    total = stated or deployment.gpu.memory_bytes / GIB
    published = not record["weights_note"]
    predicted = weights.bytes / GIB
    if made.tower and lacks_tower(made.tower, weights):
        predicted += UNSTATED_WEIGHTS.best
    held = predicted if published else logged["weights_gib"]
    driver = deployment.gpu.memory_bytes / GIB - stated if stated and record["gpu_id"] else None
    # What the log says was loaded tells more about the other parts than what was predicted.
    loaded = logged.get("weights_gib") or held
    case = Case(
        id=record["id"],
        group=record["group"],
        profile=made,
        utilization=record["utilization"],
        weights=held,
        weights_estimated=published,
        overhead=total * record["utilization"] - loaded - logged["available_kv_gib"],
        with_driver=stated is None,
        activation=logged.get("activation_gib"),
        non_torch=logged.get("non_torch_gib"),
        graphs=logged.get("cuda_graph_estimated_gib"),
        driver=driver,
    )
    return Start(
        record=record,
        case=case,
        total=total,
        available=logged["available_kv_gib"],
        predicted_weights=predicted,
        logged_weights=logged.get("weights_gib"),
    )


def judge(start: Start, rule: OverheadFit) -> Judged:
    """What the fit leaves for the cache, with predicted weights wherever the checkpoint is as published."""
    case = start.case
    parts = parts_gib(rule.coefficients, case.profile, case.utilization, case.with_driver)
    low, high = ends_gib(rule, parts, case.profile, case.weights if case.weights_estimated else 0.0)
    left = start.total * case.utilization - case.weights
    return Judged(start=start, low=left - high, best=left - parts.total, high=left - low)


def validated(found: Sequence[Start]) -> Mapping[str, OverheadFit]:
    """For each source, the fit that saw nothing of it."""
    return cross_validate([start.case for start in found] + graph_only())


def digest(found: Sequence[Start]) -> str:
    """A hash of what `validated` depends on: logged numbers, predicted weights, and parts by unfitted coefficients."""
    numbers: list[float | str | None] = [*astuple(PRIOR), *SPREAD.values()]
    for case in [start.case for start in found] + graph_only():
        parts = parts_gib(PRIOR, case.profile, case.utilization, case.with_driver)
        logged = (case.weights, case.overhead, case.activation, case.non_torch, case.graphs, case.driver)
        numbers += [case.group, *logged, *astuple(parts)]
    # Six digits: sums may come out otherwise in the last ones on another processor.
    text = " ".join(f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers)
    return hashlib.sha256(text.encode()).hexdigest()


def write_validated(found: Sequence[Start], rules: Mapping[str, OverheadFit]) -> None:
    """data/overheads_judged.json: what `validated` returned, which takes a while, and the hash of its inputs."""
    result = {
        "made_by": "python -m benchmarks.fit_overheads, from data/field/memory.jsonl",
        "inputs": digest(found),
        "fits": {source: _rounded(asdict(rule)) for source, rule in rules.items()},
    }
    JUDGED.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def _rounded(numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else float(f"{value:.6g}") for name, value in numbers.items()
    }


def stored() -> tuple[str, Mapping[str, OverheadFit]]:
    """What data/overheads_judged.json holds: the hash of its inputs, and the fit for each source."""
    held = json.loads(JUDGED.read_text("utf-8"))
    return held["inputs"], {
        source: OverheadFit(coefficients=Coefficients(**rule["coefficients"]), low=rule["low"], high=rule["high"])
        for source, rule in held["fits"].items()
    }


def judged(found: Sequence[Start], rules: Mapping[str, OverheadFit]) -> list[Judged]:
    """Every start, by the fit that saw nothing of its source."""
    return [judge(start, rules[start.case.group]) for start in found]


def summary(rows: Sequence[Judged]) -> dict[str, float]:
    """What is asked of the fit: errors and widths as shares of the GPU's memory, weights as shares of themselves."""
    weights = [abs(row.start.weights_error) for row in rows if row.start.weights_error is not None]
    return {
        "starts": len(rows),
        "sources": len({row.start.case.group for row in rows}),
        "median_error": median(abs(row.error) for row in rows),
        "largest_error": max(abs(row.error) for row in rows),
        "inside": sum(row.inside for row in rows) / len(rows),
        "median_width": median(row.width for row in rows),
        "weights_compared": len(weights),
        "weights_median_error": median(weights),
        "weights_within_2_percent": sum(error <= 0.02 for error in weights) / len(weights),
    }


def _held(rows: Sequence[Judged]) -> dict[str, int]:
    return {
        "starts": len(rows),
        "inside": sum(row.inside for row in rows),
        "above_the_safe_end": sum(row.start.available >= row.low - 0.005 for row in rows),
    }


def write(
    rule: OverheadFit, rows: Sequence[Judged], before: Sequence[Judged], half: Sequence[Judged], last: Sequence[Judged]
) -> None:
    """data/overheads.json: coefficients, ends, and the cross-validated residuals."""
    result = {
        "made_by": "python -m benchmarks.fit_overheads, from data/field/memory.jsonl",
        "coefficients": {name: round(value, 4) for name, value in asdict(rule.coefficients).items()},
        "spread": SPREAD,
        "low": round(rule.low, 3),
        "high": round(rule.high, 3),
        "cross_validated": {name: round(value, 4) for name, value in summary(rows).items()},
        "held_back": _held(before),
        "judged_half": _held(half),
        "judged_last": _held(last),
        "residuals": [
            {
                "id": row.start.case.id,
                "source": row.start.case.group,
                "logged_gib": row.start.available,
                "low_gib": round(row.low, 2),
                "best_gib": round(row.best, 2),
                "high_gib": round(row.high, 2),
                "share_of_gpu": round(row.error, 4),
            }
            for row in rows
        ],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def show(rows: Sequence[Judged]) -> None:
    """One line a start; `!` where it lies outside, `!!` where it lies below the safe end."""
    print(
        f"{'start':30} {'version':12} {'logged':>7} {'low':>7} {'best':>7} {'high':>7} {'off':>7} {'width':>6}  weights"
    )
    for row in rows:
        weights = row.start.weights_error
        mark = "" if row.inside else " !!" if row.start.available < row.low else " !"
        print(
            f"{row.start.case.id[:30]:30} {row.start.record['engine_version']:12} {row.start.available:7.2f} "
            f"{row.low:7.2f} {row.best:7.2f} {row.high:7.2f} {row.error:+7.1%} {row.width:6.1%} "
            f"{'logged' if weights is None else f'{weights:+.1%}'}{mark}"
        )


def main() -> None:
    """Fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="print only")
    parser.add_argument("--judge", action="store_true", help=f"write {JUDGED.name} alone")
    arguments = parser.parse_args()
    found = starts()
    rules = validated(found)
    rows = judged(found, rules)
    show(rows)
    before = judged_before(found)
    print("\nHeld back, by a fit that saw none of them:")
    show(before)
    half = judged_half(found)
    print("\nHalf of the sources of a later search, by a fit that saw the other half:")
    show(half)
    last = judged_last(found)
    print("\nThe last search, by a fit that saw none of it nor of its sources:")
    show(last)
    graphs = judged_graphs(found, rules)
    print("\nGraphs that were logged, by the fit that saw nothing of their source:")
    for one in graphs:
        mark = "" if one.inside else " !"
        print(f"{one.case.id[:30]:30} {one.case.graphs:7.2f} {one.low:7.2f} {one.best:7.2f} {one.high:7.2f}{mark}")
    print("\nLeft out:")
    for record in records():
        if record["excluded"]:
            print(f"  {record['id']}: {record['excluded']}")
    rule = fit([start.case for start in found] + graph_only())
    print("\nCoefficients:", {name: round(value, 3) for name, value in asdict(rule.coefficients).items()})
    print(f"Ends: {rule.low:.2f} spreads below, {rule.high:.2f} above")
    print("Cross-validated:", {name: round(value, 4) for name, value in summary(rows).items()})
    print(
        f"Held back: {sum(row.inside for row in before)} of {len(before)} inside, "
        f"{sum(row.start.available >= row.low - 0.005 for row in before)} not below the safe end; "
        f"of the half {sum(row.inside for row in half)} of {len(half)} inside; "
        f"of the last search {sum(row.inside for row in last)} of {len(last)}; "
        f"of the graphs {sum(one.inside for one in graphs)} of {len(graphs)}"
    )
    print("The last search:", {name: round(value, 4) for name, value in summary(last).items()})
    if arguments.check:
        return
    write_validated(found, rules)
    if not arguments.judge:
        write(rule, rows, before, half, last)


if __name__ == "__main__":
    main()
