"""Accelerators and links: what memory they have, how fast they are, and how each number is known.

The figures live in data/hardware.csv and data/links.csv, one row each, with their sources; data/HARDWARE.md
explains the columns. A new GPU is one new row. Memory is the one figure that engines run out of, so it is kept
three ways: the vendor's label, what a driver reported, and a safe estimate where no driver's figure is known.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from kvcore.errors import HardwareError, UnitError
from kvcore.paths import DATA
from kvcore.units import GB, GIB, MIB, TIB, format_bytes, parse_bytes

TERA = 10**12
FORMATS = ("bf16", "fp16", "fp8", "int8", "fp4")
_RATE_COLUMNS = {name: f"{name}_dense_{'tops' if name == 'int8' else 'tflops'}" for name in FORMATS}
_LABEL_UNITS = {"GB": GB, "GiB": GIB}

# Bytes for each unit of the label where no driver's figure is known. Each rule is the safe end: no driver total
# in the data lies below it (a driver that keeps ECC in the memory itself shows 15/16 of the label, which is still
# more than the label read as 10**9). macOS lets a GPU have 2/3 of up to 32 GiB and 3/4 of more.
ESTIMATES: Mapping[str, int] = MappingProxyType(
    {"label_as_gb": GB, "metal_2_3": GIB * 2 // 3, "metal_3_4": GIB * 3 // 4}
)

# Bounds of a typed-in accelerator: wide enough for anything sold or announced, narrow enough to catch a wrong unit.
MEMORY_BOUNDS_BYTES = (GIB, 64 * TIB)
BOUNDS: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "memory bandwidth": (1, 200_000, "GB/s, such as 3350"),
        "dense rate": (0.1, 1_000_000, "TFLOPS without sparsity, such as 989.5"),
        "link speed": (0.01, 50_000, "GB/s one way, such as 450"),
        "power": (1, 100_000, "watts, such as 700"),
    }
)

# Spread so that the lines stay apart on a logarithmic axis.
DEFAULT_CAPACITIES = (("rtx-4090", 1), ("h100-sxm", 1), ("h200-sxm", 1), ("mi300x", 1), ("h100-sxm", 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU, TPU, APU or CPU socket. Rates are dense, never sparse; link figures are for the whole device."""

    id: str
    name: str
    vendor: str
    form: str
    hbm_bytes: int
    """The vendor's label as bytes, whatever kind of memory it is."""
    reported_bytes: int | None = None
    """The total that the driver or runtime shows, before any context is created; None where not sourced."""
    estimated_bytes: int | None = None
    """The safe estimate that stands in for `reported_bytes`; None where that is known."""
    bandwidth_bytes_per_s: int
    dense_rates: tuple[tuple[str, float], ...]
    """Pairs of (format, operations a second); see `dense_flops_per_s`."""
    link_name: str | None = None
    link_uni_bytes_per_s: int | None = None
    link_bidir_bytes_per_s: int | None = None
    link_id: str | None = None
    """The row of links.csv with the same figures, which may also know the usable share."""
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    host_link_id: str | None = None
    """The row of links.csv that joins the accelerator to its host's memory."""
    tdp_w: float | None = None
    compute_capability: str | None = None
    """NVIDIA compute capability or AMD gfx name."""
    vllm_small_defaults: str | None = None
    """Releases of vLLM that give it the batch of a smaller device, as version specifiers; see data/HARDWARE.md."""
    release_year: int | None = None
    memory_type: str | None = None
    unified_memory: bool = False
    source: str
    memory_source: str
    check: str
    unverified: tuple[str, ...] = ()
    """Columns of hardware.csv that were filled from general knowledge and not found in a source."""
    retrieved: str = ""
    notes: str = ""

    @property
    def memory_bytes(self) -> int:
        """Bytes to plan with: the reported total if known, else the estimate, else the label itself."""
        known = (self.reported_bytes, self.estimated_bytes, self.hbm_bytes)
        return next(value for value in known if value is not None)

    @property
    def memory_knowledge(self) -> str:
        """`reported` where a driver's total is known, else `estimated`."""
        return "estimated" if self.reported_bytes is None else "reported"

    @property
    def dense_flops_per_s(self) -> dict[str, float]:
        """Dense operations a second by format, only formats that are known; int8 counts integer operations."""
        return dict(self.dense_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way that bytes travel: between GPUs, to the host, over a network, from storage or host memory."""

    id: str
    name: str
    kind: str
    uni_bytes_per_s: int
    """Theoretical, one direction."""
    bidir_bytes_per_s: int | None
    usable_bytes_per_s: int | None
    """Seen in practice, one direction; None where no figure was found."""
    usable_fraction: float | None
    latency_s: float | None
    source: str
    check: str
    unverified: tuple[str, ...]
    """Columns of links.csv that are assumptions or were not found in a source."""
    retrieved: str
    notes: str

    @property
    def bytes_per_s(self) -> int:
        """One-way bytes a second to plan with: the usable figure if known, else the theoretical one."""
        return self.uni_bytes_per_s if self.usable_bytes_per_s is None else self.usable_bytes_per_s

    @property
    def speed_knowledge(self) -> str:
        """`usable` where a practical figure is known, else `theoretical`."""
        return "theoretical" if self.usable_bytes_per_s is None else "usable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLine:
    """A horizontal line on a chart: the memory of `count` accelerators."""

    id: str
    label: str
    bytes: int
    accelerator_id: str
    count: int
    memory_knowledge: str


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of data/hardware.csv, in its order. Raises HardwareError naming a row that is malformed."""
    return tuple(_accelerator(row) for row in _rows(DATA / "hardware.csv"))


@cache
def links() -> tuple[Link, ...]:
    """Every link of data/links.csv, in its order. Raises HardwareError naming a row that is malformed."""
    return tuple(_link(row) for row in _rows(DATA / "links.csv"))


def accelerator(id: str) -> Accelerator:
    """The accelerator of that id, without regard to case. Raises HardwareError that names the nearest ids."""
    known = {item.id: item for item in accelerators()}
    return known[_known_id(id, known, "accelerator", "h100-sxm, mi300x, rtx-4090")]


def link(id: str) -> Link:
    """The link of that id, without regard to case. Raises HardwareError that names the nearest ids."""
    known = {item.id: item for item in links()}
    return known[_known_id(id, known, "link", "pcie5-x16, nvlink4-h100, ib-ndr")]


def custom_accelerator(
    *,
    memory: str,
    bandwidth_gb_per_s: float,
    name: str = "Custom accelerator",
    dense_tflops: Mapping[str, float] | None = None,
    link_uni_gb_per_s: float | None = None,
    host_link_id: str | None = None,
    tdp_w: float | None = None,
) -> Accelerator:
    """An accelerator that a person typed in, with id `custom`; `memory` is text such as `80 GB` or `79.6 GiB`.

    The memory is taken as typed and counts as estimated. GB is 10**9 and bandwidths are GB a second.
    Raises HardwareError for a value that cannot be read or is out of bounds, saying what would be right.
    """
    memory_bytes = _typed_memory(memory)
    uni = None if link_uni_gb_per_s is None else round(_bounded("link speed", link_uni_gb_per_s) * GB)
    return Accelerator(
        id="custom",
        name=name.strip()[:60] or "Custom accelerator",
        vendor="custom",
        form="custom",
        hbm_bytes=memory_bytes,
        estimated_bytes=memory_bytes,
        bandwidth_bytes_per_s=round(_bounded("memory bandwidth", bandwidth_gb_per_s) * GB),
        dense_rates=_typed_rates(dense_tflops or {}),
        link_name=None if uni is None else "typed in",
        link_uni_bytes_per_s=uni,
        link_bidir_bytes_per_s=None if uni is None else 2 * uni,
        host_link_id=None if host_link_id is None else link(host_link_id).id,
        tdp_w=None if tdp_w is None else _bounded("power", tdp_w),
        source="typed in",
        memory_source="typed in",
        check="typed in",
    )


def capacity_lines(choices: Iterable[tuple[str, int]] = DEFAULT_CAPACITIES) -> tuple[CapacityLine, ...]:
    """Lines for a chart from pairs of (accelerator id, how many), smallest first; labels give GiB.

    Raises HardwareError for an unknown id or a count that is not a whole number of at least 1.
    """
    return tuple(sorted((_capacity_line(accelerator(id), count) for id, count in choices), key=lambda line: line.bytes))


def _capacity_line(device: Accelerator, count: int) -> CapacityLine:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise HardwareError(f"count of {device.id}: {count!r} is not a whole number of at least 1, such as 8")
    many = f"{count} \N{MULTIPLICATION SIGN} " if count > 1 else ""
    return CapacityLine(
        id=device.id if count == 1 else f"{count}x-{device.id}",
        label=f"{many}{device.name} ({format_bytes(count * device.memory_bytes, 1)})",
        bytes=count * device.memory_bytes,
        accelerator_id=device.id,
        count=count,
        memory_knowledge=device.memory_knowledge,
    )


class _Row:
    """One line of a data file; every complaint names the file, the line, the id, the column and the value."""

    def __init__(self, path: Path, line: int, cells: Mapping[str, str]) -> None:
        self._where = f"{path.name}, line {line} ({cells.get('id', '')})"
        self._cells = cells

    def maybe(self, column: str) -> str | None:
        if self._cells.get(column) is None:
            raise HardwareError(f"{self._where}: column {column!r} is missing; every row has as many cells as line 1")
        return self._cells[column].strip() or None

    def text(self, column: str) -> str:
        return self.maybe(column) or ""

    def needed(self, column: str) -> str:
        found = self.maybe(column)
        if found is None:
            raise HardwareError(f"{self._where}: column {column!r} is empty, but every row needs it")
        return found

    def number(self, column: str) -> float | None:
        return None if self.maybe(column) is None else self.needed_number(column)

    def needed_number(self, column: str) -> float:
        found = self.needed(column)
        try:
            value = float(found)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= 0:
            raise HardwareError(f"{self._where}: {column} is {found!r}; a positive number or nothing is expected")
        return value

    def scaled(self, column: str, unit: int) -> int | None:
        return None if self.maybe(column) is None else self.needed_scaled(column, unit)

    def needed_scaled(self, column: str, unit: int) -> int:
        return round(self.needed_number(column) * unit)

    def choice(self, column: str, allowed: Iterable[str]) -> str:
        found, known = self.needed(column), tuple(allowed)
        if found not in known:
            raise HardwareError(f"{self._where}: {column} is {found!r}; one of {', '.join(known)} is expected")
        return found

    def names(self, column: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.text(column).split(",") if name.strip())


def _rows(path: Path) -> list[_Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            return [_Row(path, reader.line_num, cells) for cells in reader]
    except OSError as error:
        raise HardwareError(f"{path.name} could not be read ({error.strerror}); it belongs in {path.parent}") from error


def _accelerator(row: _Row) -> Accelerator:
    unit = _LABEL_UNITS[row.choice("memory_label_unit", _LABEL_UNITS)]
    reported = row.scaled("memory_reported_mib", MIB)
    estimated = None
    if reported is None:
        estimated = row.needed_scaled("memory_label", ESTIMATES[row.choice("memory_estimate", ESTIMATES)])
    rates = ((name, row.number(column)) for name, column in _RATE_COLUMNS.items())
    return Accelerator(
        id=row.needed("id"),
        name=row.needed("name"),
        vendor=row.needed("vendor"),
        form=row.needed("form"),
        hbm_bytes=row.needed_scaled("memory_label", unit),
        reported_bytes=reported,
        estimated_bytes=estimated,
        bandwidth_bytes_per_s=row.needed_scaled("bandwidth_gb_per_s", GB),
        dense_rates=tuple((name, rate * TERA) for name, rate in rates if rate is not None),
        link_name=row.maybe("link_name"),
        link_uni_bytes_per_s=row.scaled("link_uni_gb_per_s", GB),
        link_bidir_bytes_per_s=row.scaled("link_bidir_gb_per_s", GB),
        link_id=row.maybe("link_id"),
        pcie_gen=row.scaled("pcie_gen", 1),
        pcie_lanes=row.scaled("pcie_lanes", 1),
        host_link_id=row.maybe("host_link_id"),
        tdp_w=row.number("tdp_w"),
        compute_capability=row.maybe("compute_capability"),
        vllm_small_defaults=row.maybe("vllm_small_defaults"),
        release_year=row.scaled("release_year", 1),
        memory_type=row.maybe("memory_type"),
        unified_memory=row.choice("unified_memory", ("yes", "no")) == "yes",
        source=row.text("source"),
        memory_source=row.text("memory_reported_source") or f"estimate: {row.text('memory_estimate')}",
        check=row.needed("check"),
        unverified=row.names("unverified_fields"),
        retrieved=row.needed("retrieved"),
        notes=row.text("notes"),
    )


def _link(row: _Row) -> Link:
    microseconds = row.number("latency_hint_us")
    return Link(
        id=row.needed("id"),
        name=row.needed("name"),
        kind=row.needed("kind"),
        uni_bytes_per_s=row.needed_scaled("theoretical_uni_gb_per_s", GB),
        bidir_bytes_per_s=row.scaled("theoretical_bidir_gb_per_s", GB),
        usable_bytes_per_s=row.scaled("usable_uni_gb_per_s", GB),
        usable_fraction=row.number("usable_fraction"),
        latency_s=None if microseconds is None else microseconds / 10**6,
        source=row.text("source"),
        check=row.needed("check"),
        unverified=row.names("unverified_fields"),
        retrieved=row.needed("retrieved"),
        notes=row.text("notes"),
    )


def _known_id(id: str, known: Iterable[str], what: str, examples: str) -> str:
    key, ids = id.strip().lower(), tuple(known)
    if key in ids:
        return key
    longer = [name for name in ids if key and name.startswith(key)]
    near = list(dict.fromkeys(longer + difflib.get_close_matches(key[:60], ids, n=4, cutoff=0.5)))[:4]
    hint = f"did you mean {', '.join(near)}?" if near else f"ids look like {examples}"
    raise HardwareError(f"{what}: {id[:60]!r} is not known; {hint}")


def _typed_memory(text: str) -> int:
    try:
        size = parse_bytes(text)
    except UnitError as error:
        raise HardwareError(f"memory: {text[:40]!r} is not a size; write for example 80 GB or 79.6 GiB") from error
    low, high = MEMORY_BOUNDS_BYTES
    if not low <= size <= high:
        raise HardwareError(
            f"memory: {text[:40]!r} is {format_bytes(size)}, outside {format_bytes(low)} … {format_bytes(high)}; "
            "write for example 80 GB or 79.6 GiB"
        )
    return size


def _typed_rates(dense_tflops: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    unknown = [name for name in dense_tflops if name not in FORMATS]
    if unknown:
        raise HardwareError(f"dense rate: format {unknown[0]!r} is not known; use {', '.join(FORMATS)}")
    return tuple((name, _bounded("dense rate", dense_tflops[name]) * TERA) for name in FORMATS if name in dense_tflops)


def _bounded(what: str, value: float) -> float:
    low, high, right = BOUNDS[what]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise HardwareError(f"{what}: {value!r:.40} is outside {low:g} … {high:,} {right}")
    return float(value)
