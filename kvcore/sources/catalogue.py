"""The models that come with the project: their configurations, where each is from, and a search over them."""

from __future__ import annotations

import csv
import difflib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from kvcore.errors import ConfigError, ModelError, UnknownLayoutError
from kvcore.model import Attention, Model, model_from_config, parse_config
from kvcore.paths import DATA

_FOLDER = DATA / "models"
_TABLE = "data/models/catalogue.csv"
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMBT]?)", re.IGNORECASE)
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the catalogue: a model's id, its configuration's file, where that is from and how faithful it is.

    `total_parameters` and `active_parameters` are what the publisher states (`34B`), "" where nothing is stated;
    `checkpoint_bytes` is exact, `checkpoint_gib_rounded` (GiB) a rounded published figure, each None where unknown.
    `quantiser_source` says where the weights' format is from (what ModelOpt writes to hf_quant_config.json) where the
    configuration itself does not state it, else "".
    """

    model_id: str
    file: str
    display_name: str
    popular: bool = False
    fidelity: str = ""
    edited: str = ""
    source: str = ""
    path_in_source: str = ""
    revision: str = ""
    retrieved: str = ""
    released: str = ""
    total_parameters: str = ""
    active_parameters: str = ""
    checkpoint_bytes: int | None = None
    checkpoint_gib_rounded: float | None = None
    notes: str = ""
    quantiser_source: str = ""

    @property
    def provenance(self) -> str:
        """Where the configuration is from, in one line: source, revision, date."""
        revision = f" at {self.revision[:12]}" if self.revision else ""
        retrieved = f", retrieved {self.retrieved}" if self.retrieved else ""
        return f"{self.source or 'source not stated'}{revision}{retrieved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a list of models shows of one: its family (`model_type`), its kind of attention, its parameters.

    `total_parameters` is counted from the configuration; where that is not possible it is the publisher's rounded
    statement and `parameters_counted` is False; None where neither is known.
    """

    entry: Entry
    model: Model
    family: str
    attention: str
    total_parameters: int | None
    parameters_counted: bool


@cache
def entries() -> tuple[Entry, ...]:
    """Every row, in the order of the table; ConfigError names a row or a column that is not usable."""
    with (_FOLDER / "catalogue.csv").open(encoding="utf-8", newline="") as stream:
        rows = tuple(_entry(row, number) for number, row in enumerate(csv.DictReader(stream), start=2))
    seen: set[str] = set()
    for entry in rows:
        if entry.model_id.casefold() in seen:
            raise ConfigError(f"{_TABLE}: {entry.model_id} is listed twice")
        seen.add(entry.model_id.casefold())
    return rows


def find(model_id: str) -> Entry | None:
    """The row of that id, compared without regard to case, or None."""
    return _by_id().get(model_id.strip().casefold())


def load(model_id: str) -> Model:
    """The Model of that id, with the row's exact checkpoint bytes and what is to be known about its configuration.

    Raises ModelError, naming the nearest ids, where there is none, and ConfigError where its file is not understood.
    """
    return _load(_known(model_id))


def raw_config(model_id: str) -> dict[str, Any]:
    """The configuration of that id as it is stored, a fresh copy; ModelError where there is none."""
    entry = _known(model_id)
    return parse_config((_FOLDER / "configs" / entry.file).read_text("utf-8"))


def nearest(model_id: str, count: int = 3) -> tuple[str, ...]:
    """Ids that look most like this one: those that contain its last part first, then those spelled alike."""
    wanted = model_id.strip().casefold()[:200]
    tail = wanted.rsplit("/", 1)[-1]
    inside = [entry.model_id for key, entry in _by_id().items() if len(tail) > 2 and tail in key]
    close = [_by_id()[key].model_id for key in difflib.get_close_matches(wanted, _by_id(), count, 0.5)]
    tails: dict[str, str] = {key.rsplit("/", 1)[-1]: entry.model_id for key, entry in _by_id().items()}
    alike = [tails[key] for key in difflib.get_close_matches(tail, tails, count, 0.6)]
    return tuple(dict.fromkeys([*sorted(inside, key=len), *close, *alike]))[:count]


def hint(model_id: str) -> str:
    """The end of a message about an id that is not known: the nearest ones, or nothing."""
    like = nearest(model_id)
    return f"; nearest: {', '.join(like)}" if like else ""


@cache
def summaries() -> tuple[Summary, ...]:
    """Every model of the catalogue that is understood: popular ones first, then by name."""
    found = []
    for entry in entries():
        try:
            model = _load(entry)
        except UnknownLayoutError:
            continue  # `load` of it says why.
        counted = model.total_parameters
        found.append(
            Summary(
                entry=entry,
                model=model,
                family=model.model_type,
                attention=attention_label(model),
                total_parameters=_stated_count(entry.total_parameters) if counted is None else counted,
                parameters_counted=counted is not None,
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.entry.popular, one.entry.display_name.casefold())))


def search(
    text: str = "",
    family: str | None = None,
    attention: str | None = None,
    min_parameters: int | None = None,
    max_parameters: int | None = None,
) -> tuple[Summary, ...]:
    """Models with every word of `text` in their id, name, family or kind of attention, popular ones first.

    `family` is a model_type, `attention` a part of a label (`MLA`), both without regard to case. A model whose
    number of parameters is not known is left out as soon as a bound is given.
    """
    words = text.casefold().split()
    return tuple(
        one
        for one in summaries()
        if all(word in _haystack(one) for word in words)
        and (family is None or one.family.casefold() == family.casefold())
        and (attention is None or attention.casefold() in one.attention.casefold())
        and (min_parameters is None or (one.total_parameters is not None and one.total_parameters >= min_parameters))
        and (max_parameters is None or (one.total_parameters is not None and one.total_parameters <= max_parameters))
    )


def attention_label(model: Model) -> str:
    """A model's kinds of attention in a few words: `GQA`, `MLA + indexer`, `sliding 5:1 + full`, `encoder`."""
    counts = dict(model.kinds)
    if set(counts) <= {"none"}:
        return "encoder"
    if set(counts) <= {"none", "state"}:
        return "recurrent"
    extras = [f"{counts['shared']} shared"] if "shared" in counts else []
    for kind, word in (("indexer", "indexer"), ("cross", "cross-attention")):
        if kind in counts:
            extras.insert(0, word)
    return " + ".join([_main_label(model, counts), *extras])


def _main_label(model: Model, counts: dict[Any, int]) -> str:
    if "compressed" in counts:
        # The states beside compressed entries are their unfinished groups, not recurrent layers.
        return "compressed MLA" + (" + sliding" if "sliding" in counts else "")
    if "state" in counts:
        order = ("state", "full", "sliding", "chunked", "latent")
        return "hybrid: " + " + ".join(f"{counts[kind]} {kind}" for kind in order if kind in counts)
    for kind in ("sliding", "chunked"):
        if kind in counts:
            return f"{kind} {_ratio(model, counts[kind], counts['full'])} + full" if "full" in counts else kind
    return "MLA" if "latent" in counts else _head_label(model)


def _head_label(model: Model) -> str:
    """MHA, GQA or MQA, by the key-value heads of the layers that have their own."""
    heads = {memory.num_kv_heads for memory, _ in model.groups if isinstance(memory, Attention)}
    if heads == {model.num_attention_heads}:
        return "MHA"
    return "MQA" if heads == {1} else "GQA"


def _ratio(model: Model, limited: int, full: int) -> str:
    """How many limited layers stand between two full ones, `5:1`; their counts where there is no such rhythm.

    Taken from the usual distance of full layers and not from the counts: patterns are cut short at their ends.
    """
    places = [index for index, layer in enumerate(model.layers) if any(memory.kind == "full" for memory in layer)]
    steps = Counter(after - before for before, after in pairwise(places))
    step, times = steps.most_common(1)[0] if steps else (1, 0)
    return f"{step - 1}:1" if step > 1 and 2 * times > steps.total() else f"{limited}:{full}"


def _haystack(one: Summary) -> str:
    return f"{one.entry.model_id} {one.entry.display_name} {one.family} {one.attention}".casefold()


@cache
def _by_id() -> dict[str, Entry]:
    return {entry.model_id.casefold(): entry for entry in entries()}


def _known(model_id: str) -> Entry:
    entry = find(model_id)
    if entry is None:
        raise ModelError(f"model {model_id.strip()[:120]!r} is not in the catalogue{hint(model_id)}")
    return entry


@cache
def _load(entry: Entry) -> Model:
    raw = raw_config(entry.model_id)
    if entry.quantiser_source and not raw.get("quantization_config"):
        raw["quantization_config"] = parse_config((_FOLDER / "quantisers" / entry.file).read_text("utf-8"))
    model = model_from_config(raw, entry.model_id)
    reading = replace(model.reading, notes=(*model.reading.notes, *_notes(entry)))
    return replace(model, checkpoint_bytes=entry.checkpoint_bytes, reading=reading)


def _notes(entry: Entry) -> list[str]:
    """What a reader of the result must know about the configuration itself."""
    notes = []
    if entry.fidelity == "transcribed":
        notes.append("Catalogue: transcribed, not a copy of the published file.")
    elif entry.fidelity not in ("", "published"):
        notes.append(f"Catalogue: {entry.fidelity}.")
    if entry.edited:
        notes.append(f"Catalogue: edited: {entry.edited}.")
    if entry.quantiser_source:
        notes.append(f"Catalogue: the format of its weights is not in its config.json: {entry.quantiser_source}.")
    # That it came from a mirror is part of the provenance, which is always shown.
    parts = [part for part in re.split(r";\s+", entry.notes) if part not in ("", "mirror", "mirror (test data)")]
    notes += [f"Catalogue: {part}." for part in parts]
    return notes


def _stated_count(text: str) -> int | None:
    """`34B` as 34 × 10**9; None for anything else."""
    found = _COUNT.fullmatch(text.replace(",", "").strip())
    return round(float(found[1]) * _SCALE[found[2].lower()]) if found else None


def _entry(row: dict[str, Any], line: int) -> Entry:
    """One row, checked; columns that are not known here are left alone."""
    cell = {key: (value or "").strip() for key, value in row.items() if isinstance(value, str | None) and key}
    for column in ("model_id", "file"):
        if not cell.get(column):
            raise ConfigError(f"{_TABLE}, line {line}: {column} is missing")
    if not re.fullmatch(r"[\w.+-]+\.json", cell["file"]):
        raise ConfigError(f"{_TABLE}, line {line}: file is {cell['file']!r}; expected the name of a .json file")
    texts = {name: cell.get(name, "") for name in _TEXTS}
    return Entry(
        model_id=cell["model_id"],
        file=cell["file"],
        display_name=cell.get("display_name") or cell["model_id"].rsplit("/", 1)[-1],
        popular=cell.get("popular", "").casefold() in ("1", "true", "yes"),
        checkpoint_bytes=_number(cell.get("checkpoint_bytes", ""), int, "checkpoint_bytes", line),
        checkpoint_gib_rounded=_number(cell.get("checkpoint_gib_rounded", ""), float, "checkpoint_gib_rounded", line),
        **texts,
    )


_TEXTS = (
    "fidelity", "edited", "source", "path_in_source", "revision", "retrieved", "released", "total_parameters",
    "active_parameters", "notes", "quantiser_source",
)  # fmt: skip


def _number(text: str, as_type: Callable[[str], Any], column: str, line: int) -> Any:
    if not text:
        return None
    try:
        value = as_type(text)
    except ValueError:
        value = 0
    if not value > 0:
        raise ConfigError(f"{_TABLE}, line {line}: {column} is {text!r}; expected a positive number or nothing")
    return value
