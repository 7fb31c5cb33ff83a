"""What a user chose on the Concurrency screen beside the scenario, equal to that screen's further parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from kvcore.deployment import OWN, OWN_HEAD, Deployment, Draft, Split, read_split
from kvcore.engines.registry import engine
from kvcore.errors import UnitError
from kvcore.hardware.gpus import accelerator
from kvcore.hardware.systems import HOST_GPUS, MAX_GPUS
from kvcore.model.weight_formats import weight_format
from kvcore.planning.sweep import LEVERS
from kvcore.scenario.fields import (
    AUTO,
    Choices,
    choice,
    choices,
    either,
    matching,
    number,
    one_of,
    read_query,
    several,
    switch,
    weights_format,
    whole,
)
from kvcore.scenario.scenario import Scenario
from kvcore.units import GIB, MAX_BATCH, format_tokens, is_whole, parse_bytes, parse_tokens

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
_MORE = matching(r"[a-z_]{1,40}=[A-Za-z0-9_./+-]{1,60}", "an option such as swa_full=1")
_CURVE = matching(r"[a-z0-9.+/×-]{1,40}", "the name of a change such as fp8-cache")
_LENGTH: dict[str, Any] = {"control": format_tokens, "example": "2048, 4K or 0"}


def _unnamed(value: float) -> float | None:
    """A number as its control holds it: empty for 0, which stands for none that was named."""
    return value or None


def _read_have(text: str) -> str:
    plain = text.strip()
    # Half of those who read it off a log write the bare number of GiB that stands there.
    number = plain.replace(",", "").replace(".", "", 1)
    plain = f"{plain} GiB" if number.isascii() and number.isdigit() else plain
    if plain and not 0 < parse_bytes(plain) < 2**60:
        raise UnitError(f"memory for the cache: {text[:20]!r} is not more than 0 B, such as 40 GiB")
    return plain


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
    known = {*choices(Scenario), *choices(ConcurrencyOptions)} - {"kept"}
    if problems or not known.issuperset(query):
        raise UnitError(plan)
    return text


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyOptions(Choices):
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

    users: int = choice(0, whole("users", 0, MAX_BATCH), control=str, example="30")
    count: int = choice(HOST_GPUS, whole("GPUs", 1, MAX_GPUS), control=str, example="8")
    split: str = choice(AUTO, either({AUTO: AUTO}, lambda given: read_split(given).text))
    weights: str = choice(AUTO, weights_format)
    have: str = choice("", _read_have)
    util: float = choice(0.0, number("share of the memory", 0, 1, auto=True), control=_unnamed)
    batched: int = choice(0, whole("tokens of a step", 1, 10**7, auto=True), control=_unnamed)
    seqs: int = choice(0, whole("requests of a step", 1, MAX_BATCH, auto=True), control=_unnamed)
    eager: bool = choice(False, switch)
    prefix: bool = choice(True, switch)
    spec: int = choice(0, whole("speculative tokens", 0, 64))
    draft: str = choice("", _read_draft)
    version: str = choice("", matching(r"(?:[A-Za-z0-9][A-Za-z0-9.+_-]{0,39})?", "a release such as 0.11.0"))
    more: tuple[str, ...] = choice((), either({"": ()}, several(_MORE, 12, "options")))
    prompt: int = choice(6144, parse_tokens, **_LENGTH)
    answer: int = choice(1024, parse_tokens, **_LENGTH)
    thinking: int = choice(0, parse_tokens, **_LENGTH)
    shared: int = choice(0, parse_tokens, **_LENGTH)
    people: int = choice(300, whole("people", 1, 10**7), control=str, example="300")
    active: int = choice(10, whole("active share", 1, 100))
    minute: float = choice(0.0, number("requests a minute", 0, 10**4), control=_unnamed)
    seconds: int = choice(0, whole("seconds of a request", 0, 10**6), control=_unnamed)
    host: int = choice(0, whole("CPU memory in GiB", 0, 10**6))
    curves: tuple[str, ...] = choice((), either({"": ()}, several(_CURVE, MAX_CURVES, "changes")))
    lever: str = choice(CONTEXT, one_of("lever", (CONTEXT, *LEVERS)))
    kept: str = choice("", _read_kept)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[ConcurrencyOptions, tuple[str, ...]]:
        """(options, messages): every parameter that can be read is taken, and each other one has a message."""
        options, problems = read_query(cls, _with_gpus(query))
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
