"""What a user chose on the Concurrency screen beside the scenario, equal to that screen's further parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from kvcore.deployment import MAX_GPUS, OWN, OWN_HEAD, Deployment, Draft, Split, read_split
from kvcore.engines.registry import engine
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.model.weight_formats import weight_format
from kvcore.planning.sweep import LEVERS
from kvcore.scenario.scenario import HOST_GPUS, Scenario, read_query, write_query
from kvcore.units import GIB, MAX_BATCH, is_whole, parse_bytes, parse_tokens

AUTO = "auto"
USERS = 30
MAX_CURVES = 4
# What the Variants screen and the command call the number of GPUs.
GPUS = "gpus"
# The lever that is drawn where none is named.
CONTEXT = "context"
# The plan of all defaults, kept.
AS_IS = "as-is"
# A plan that is kept for comparison travels in the address of the other one, a brought configuration with it.
MAX_KEPT = 12_000
_CURVE = re.compile(r"[a-z0-9.+/×-]{1,40}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,39}")
_MORE = re.compile(r"[a-z_]{1,40}=[A-Za-z0-9_./+-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyOptions:
    """Every field is named as its parameter in the address; the GPU, the engine and the context are the scenario's.

    `users` are requests at once (0: as many as the scenario says, 30 where that is one). `count` GPUs serve in the
    `split` (`auto`: the first that the engine takes). `have` is a cache pool for each GPU that was read off a log.
    `util` is the engine's share of the memory, `batched` and `seqs` its limits of a step; 0 leaves each to the engine.
    `draft` proposes the `spec` tokens of a step: `mtp`, or a model of the catalogue ("": they are taken from the
    prompt).
    `version` is the engine's release whose rules are meant ("": the newest that is followed), and `more` are further
    options of the engine as `field=value`. Lengths that are expected, in tokens: `prompt`, `answer`, `thinking`, and
    `shared` of the prompt that all requests begin with. Of `people`, `active`
    percent wait for an answer at a time; where each asks `minute` times a minute and an answer takes `seconds`, those
    say how many instead (0: not known). `host` GiB of CPU memory keep what the GPUs have no room for. `curves` are the
    changes that are drawn, `lever` the lever whose values are drawn (`context`: the longest request, with those
    changes beside the plan), `kept` the address's parameters of the plan that stands beside this one.
    """

    users: int = 0
    count: int = HOST_GPUS
    split: str = AUTO
    weights: str = AUTO
    have: str = ""
    util: float = 0.0
    batched: int = 0
    seqs: int = 0
    eager: bool = False
    prefix: bool = True
    spec: int = 0
    draft: str = ""
    version: str = ""
    more: tuple[str, ...] = ()
    prompt: int = 6144
    answer: int = 1024
    thinking: int = 0
    shared: int = 0
    people: int = 300
    active: int = 10
    minute: float = 0.0
    seconds: int = 0
    host: int = 0
    curves: tuple[str, ...] = ()
    lever: str = CONTEXT
    kept: str = ""

    def to_query(self) -> dict[str, str]:
        """The address's parameters: only what differs from the defaults."""
        return write_query(self)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[ConcurrencyOptions, tuple[str, ...]]:
        """(options, messages): every parameter that can be read is taken, and each other one has a message."""
        values, problems = read_query(_with_gpus(query), READERS)
        options = cls(**values)
        if options.split != AUTO and (gpus := read_split(options.split).gpus) != options.count:
            message = f"The address's split was not taken: {options.split} is {gpus:,} GPUs, not {options.count:,}."
            return replace(options, split=AUTO), (*problems, message)
        return options, problems

    def requests(self, scenario: Scenario) -> int:
        """Requests at once that the plan is for."""
        return self.users or usual_users(scenario)


def _with_gpus(query: Mapping[str, str]) -> Mapping[str, str]:
    """A number of GPUs by the name that the command and another screen have for it, where `count` is not named."""
    text = query.get(GPUS, AUTO).strip()
    return {**query, "count": text} if is_whole(text) and int(text) and "count" not in query else query


def usual_users(scenario: Scenario) -> int:
    """Requests at once where none are named: the scenario's, or 30 where it is about one request."""
    return scenario.batch if scenario.batch > 1 else USERS


def deployment(scenario: Scenario, options: ConcurrencyOptions, split: Split) -> Deployment:
    """What the planner is asked: the scenario on these GPUs in this split.

    Options in `more` that the engine does not have are left out. Raises UnitError or HardwareError for what cannot be.
    """
    found = Deployment(
        gpu=accelerator(scenario.gpu),
        context=max(1, scenario.tokens),
        engine=scenario.engine,
        engine_version=options.version or None,
        kv_dtype=scenario.kv,
        weight_format=None if options.weights == AUTO else options.weights,
        utilization=options.util or None,
        max_num_batched_tokens=options.batched or None,
        max_num_seqs=options.seqs or None,
        enforce_eager=options.eager,
        prefix_caching=options.prefix,
        speculative_tokens=options.spec,
        draft=read_draft(options.draft) if options.spec else None,
        kv_bytes=parse_bytes(options.have) if options.have else None,
        options=_typed(scenario.engine, options.more),
    )
    return found.on(split)


def taken(
    scenario: Scenario, options: ConcurrencyOptions, changed: Deployment, users: int | None = None
) -> tuple[Scenario, ConcurrencyOptions]:
    """Both as they would have to be chosen for a deployment (and so many users): `deployment` gives it back."""
    scenario = replace(scenario, gpu=changed.gpu.id, tokens=changed.context, engine=changed.engine, kv=changed.kv_dtype)
    have = changed.kv_bytes
    options = replace(
        options,
        users=options.users if users is None else users,
        count=changed.gpus,
        split=changed.split.text,
        weights=changed.weight_format or AUTO,
        have="" if have is None else f"{have // GIB} GiB" if have % GIB == 0 else f"{have} B",
        util=changed.utilization or 0.0,
        batched=changed.max_num_batched_tokens or 0,
        seqs=changed.max_num_seqs or 0,
        eager=changed.enforce_eager,
        prefix=changed.prefix_caching,
        spec=changed.speculative_tokens,
        draft="" if changed.draft is None else changed.draft.text,
        version=changed.engine_version or "",
        more=tuple(f"{name}={_word(value)}" for name, value in changed.options),
    )
    return scenario, options


def keep(scenario: Scenario, options: ConcurrencyOptions) -> str:
    """A plan as one text for the address of another; `kept` is its inverse. UnitError where it is too long."""
    text = urlencode(scenario.to_query() | replace(options, kept="", curves=(), lever=CONTEXT).to_query(), safe="/,:@")
    if len(text) > MAX_KEPT:
        raise UnitError("this plan is too long to travel in an address; its configuration is too large")
    return text or AS_IS


def kept(text: str) -> tuple[Scenario, ConcurrencyOptions]:
    """The plan that `keep` wrote; what cannot be read of it has its default."""
    query = dict(parse_qsl(text[:MAX_KEPT], max_num_fields=60))
    options = ConcurrencyOptions.from_query({name: value for name, value in query.items() if name != "kept"})[0]
    return Scenario.from_query(query)[0], options


def _word(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _typed(name: str, more: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """Further options as the engine's settings want them."""
    kinds = {option.field: option.kind for option in engine(name).options}
    readers: dict[str, Callable[[str], Any]] = {
        "integer": int, "fraction": float, "switch": lambda text: text not in ("0", "False"), "text": str,
    }  # fmt: skip
    found = {}
    for pair in more:
        field, _, value = pair.partition("=")
        if field not in kinds:
            continue
        try:
            found[field] = readers[kinds[field]](value)
        except ValueError:
            what = {"integer": "a whole number"}.get(kinds[field], f"a {kinds[field]}")
            raise UnitError(f"{field}: {value!r} is not {what}") from None
    return tuple(sorted(found.items()))


def _whole(what: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        plain = text.strip().replace(",", "")
        if not (plain.isascii() and plain.isdigit() and len(plain) < 10 and low <= int(plain) <= high):
            raise UnitError(f"{what}: {text[:20]!r} is not a whole number within {low:,} … {high:,}")
        return int(plain)

    return read


def _number(what: str, high: int) -> Callable[[str], float]:
    def read(text: str) -> float:
        plain = text.strip()
        if not re.fullmatch(r"[0-9]{0,6}\.?[0-9]{1,17}", plain, re.ASCII) or not 0 <= float(plain) <= high:
            raise UnitError(f"{what}: {text[:20]!r} is not a number within 0 … {high:,}, such as 0.92")
        return float(plain)

    return read


def _or_auto(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A number of the engine's, where `auto` and 0 both leave it to the engine."""
    return lambda text: read("0" if text.strip().lower() == AUTO else text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise UnitError(f"{text[:20]!r} is not 0 or 1")
    return text == "1"


def _read_split(text: str) -> str:
    return AUTO if text.strip().lower() == AUTO else read_split(text).text


def _read_have(text: str) -> str:
    plain = text.strip()
    # Half of those who read it off a log write the bare number of GiB that stands there.
    number = plain.replace(",", "").replace(".", "", 1)
    plain = f"{plain} GiB" if number.isascii() and number.isdigit() else plain
    if plain and not 0 < parse_bytes(plain) < 2**60:
        raise UnitError(f"memory for the cache: {text[:20]!r} is not more than 0 B, such as 40 GiB")
    return plain


def _read_version(text: str) -> str:
    plain = text.strip()
    if plain and not _VERSION.fullmatch(plain):
        raise UnitError(f"engine version: {text[:20]!r} is not a release such as 0.11.0")
    return plain


def _read_more(text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part for part in text.split(",") if part))
    if len(parts) > 12 or not all(_MORE.fullmatch(part) for part in parts):
        raise UnitError(f"{text[:40]!r} are not options such as swa_full=1")
    return parts


def _read_curves(text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part for part in text.split(",") if part))
    if len(parts) > MAX_CURVES or not all(_CURVE.fullmatch(part) for part in parts):
        raise UnitError(f"{text[:40]!r} are not at most {MAX_CURVES} names such as fp8-cache")
    return parts


def _read_kept(text: str) -> str:
    plan = f"{text[:20]!r} is not a plan"
    if len(text) > MAX_KEPT:
        raise UnitError(f"{plan}: it is too long")
    if text == AS_IS:
        return text
    try:
        query = dict(parse_qsl(text, strict_parsing=True, max_num_fields=60))
    except ValueError:
        raise UnitError(plan) from None
    problems = (*Scenario.from_query(query)[1], *ConcurrencyOptions.from_query(query)[1])
    known = {field.name for field in fields(Scenario)} | set(READERS) - {"kept"}
    if problems or not known.issuperset(query):
        raise UnitError(plan)
    return text


def _read_lever(text: str) -> str:
    plain = text.strip().lower()
    if plain != CONTEXT and plain not in LEVERS:
        raise UnitError(f"lever: {text[:20]!r} is not one of {', '.join((CONTEXT, *LEVERS))}")
    return plain


def read_draft(text: str) -> Draft | None:
    """Who proposes tokens, as `Draft.text` spells it, of the catalogue; None for "", the prompt itself.

    UnitError for anything else: an address names no files and fetches nothing.
    """
    plain = text.strip()
    if plain.lower() == OWN:
        return OWN_HEAD
    return _catalogued(plain) if plain else None


@lru_cache(maxsize=64)
def _catalogued(text: str) -> Draft:
    from kvcore.sources import catalogue

    name, at, wanted = text.partition("@")
    entry = catalogue.find(name)
    if entry is None:
        raise UnitError(f"draft: {name[:80]!r} is not {OWN} and not in the catalogue{catalogue.hint(name)}")
    found = weight_format(wanted).name if at else None
    return Draft(name=entry.model_id, model=catalogue.load(entry.model_id), weight_format=found)


def _read_draft(text: str) -> str:
    found = read_draft(text)
    return "" if found is None else found.text


def _read_weights(text: str) -> str:
    return AUTO if text.strip().lower() == AUTO else weight_format(text).name


READERS: dict[str, Callable[[str], Any]] = {
    "users": _whole("users", 0, MAX_BATCH),
    "count": _whole("GPUs", 1, MAX_GPUS),
    "split": _read_split,
    "weights": _read_weights,
    "have": _read_have,
    "util": _or_auto(_number("share of the memory", 1)),
    "batched": _or_auto(_whole("tokens of a step", 0, 10**7)),
    "seqs": _or_auto(_whole("requests of a step", 0, MAX_BATCH)),
    "eager": _switch,
    "prefix": _switch,
    "spec": _whole("speculative tokens", 0, 64),
    "draft": _read_draft,
    "version": _read_version,
    "more": _read_more,
    "prompt": parse_tokens,
    "answer": parse_tokens,
    "thinking": parse_tokens,
    "shared": parse_tokens,
    "people": _whole("people", 1, 10**7),
    "active": _whole("active share", 1, 100),
    "minute": _number("requests a minute", 10**4),
    "seconds": _whole("seconds of a request", 0, 10**6),
    "host": _whole("CPU memory in GiB", 0, 10**6),
    "curves": _read_curves,
    "lever": _read_lever,
    "kept": _read_kept,
}
