"""What a job asks of the live engine: every key, its type and its bounds, read once at the boundary.

A job is a dictionary `{"job": KIND, "id": n, …}`. Keys that choose the decoder, for every kind but `host`:
    model           id, `hub:` id, or a folder                         default SmolLM2-135M-Instruct
    weights         auto | real | random     auto: real where the model has weights and keeps its own shape
    layers          keep that many layers (random weights only)        default all
    attention       shipped | mha | gqa:G | mqa | mla | mla:R+P | sliding:W
    weight_format   bf16 | fp16 | fp32 | int8 | int4                   default bf16
    kv_format       bf16 | fp16 | fp32 | int8                          default bf16
    block_tokens    tokens in a block of the cache                     default 256
    device          auto | cpu | cuda | mps                            default auto
    threads         CPU threads                                        default as the host measured best
    allow_hub       true: weights may be downloaded                    default false
    max_seconds     time budget of the job                             default and at most the settings' limit
`host`, `load`, `calibrate`:
    remeasure       true: measure the host, or calibrate, again
    batches         (calibrate) requests at once to calibrate for      default [1]
`run`:
    prompt          text; goes through the model's chat template unless chat is false
    messages        [[role, text], …] instead: the whole conversation, its last one the user's
    prompt_tokens   a number instead: that many tokens of a running English text
    new_tokens, batch (that many copies of the prompt), use_cache (true), also_recompute (false), ignore_stop (false)
    temperature (0 = greedy), top_p, seed
    session         a name under which the cache is kept for a next turn
    continue_of     the session to go on with; where it is not kept any more, `messages` are taken in afresh
    calibrate       false: predict from the host's rates where nothing was calibrated yet      default true
`probe`: contexts, modes (["cache", "recompute"]), batch, calibrate
`race`: variants, contexts, batch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvcore.errors import LiveError
from kvcore.live.shape import CACHE_FORMATS
from kvcore.live.shape import WEIGHT_FORMATS as WEIGHT_FORMATS

DEFAULT_PROMPT = "Explain in a few sentences why the sky is blue."
KV_FORMATS = tuple(CACHE_FORMATS)
MODES = ("cache", "recompute")
CONTEXTS = (16, 64, 256, 1024)
RACE_CONTEXTS = (128, 512, 1024)
MAX_CONTEXT = 131_072
MAX_BATCH = 64
MAX_TEXT = 200_000
_ALWAYS = {"job", "id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which decoder a job needs; `model` None is the default one."""

    model: str | None = None
    weights: str = "auto"
    layers: int | None = None
    attention: str = "shipped"
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    block_tokens: int = 256
    device: str = "auto"
    threads: int | None = None
    allow_hub: bool = False
    max_seconds: float | None = None

    def as_variant(self, attention: str) -> Setup:
        """The same with another attention, which has random weights."""
        return replace(self, attention=attention, weights="random")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A generation: one of `messages`, `prompt_tokens` and `prompt` says what goes in."""

    setup: Setup
    prompt: str = DEFAULT_PROMPT
    messages: tuple[tuple[str, str], ...] = ()
    prompt_tokens: int | None = None
    chat: bool = True
    new_tokens: int = 32
    batch: int = 1
    use_cache: bool = True
    also_recompute: bool = False
    ignore_stop: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    session: str | None = None
    continue_of: str | None = None
    calibrate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Time of one token at each of `contexts`, ascending; `variants` of a race, none for its own choice."""

    setup: Setup
    contexts: tuple[int, ...]
    modes: tuple[str, ...] = ("cache",)
    variants: tuple[str, ...] = ()
    batch: int = 1
    calibrate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """Measure the host (again with `remeasure`), or calibrate for each of `batches`."""

    setup: Setup
    remeasure: bool = False
    batches: tuple[int, ...] = (1,)


class JobFields:
    """The keys of one job: each is taken once with its type and bounds; LiveError names what was wrong."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job
        self._left = set(job) - _ALWAYS

    def has(self, name: str) -> bool:
        return self._job.get(name) is not None

    def _take(self, name: str) -> Any:
        self._left.discard(name)
        return self._job.get(name)

    def text(self, name: str, default: str | None = None, longest: int = 500) -> str | None:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > longest:
            raise LiveError(f"{name}: a text of at most {longest:,} characters is expected")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise LiveError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise LiveError(f"{name}: true or false is expected, not {str(value)[:40]!r}")
        return value

    def count(self, name: str, default: int, low: int, high: int) -> int:
        value = self.maybe_count(name, low, high)
        return default if value is None else value

    def maybe_count(self, name: str, low: int, high: int) -> int | None:
        value = self._take(name)
        return None if value is None else _count(name, value, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise LiveError(f"{name}: {str(value)[:40]!r} is not a number from {low:g} to {high:g}")
        return float(value)

    def counts(self, name: str, default: tuple[int, ...], low: int, high: int, most: int = 64) -> tuple[int, ...]:
        """Distinct numbers, ascending."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= most:
            raise LiveError(f"{name}: a list of 1 to {most} numbers is expected")
        return tuple(sorted({_count(name, one, low, high) for one in value}))

    def words(self, name: str, default: tuple[str, ...], allowed: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Distinct words, in their order."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= 16:
            raise LiveError(f"{name}: a list of 1 to 16 words is expected")
        for one in value:
            if not isinstance(one, str) or len(one) > 60 or (allowed and one not in allowed):
                known = f"one of {', '.join(allowed)}" if allowed else "a word"
                raise LiveError(f"{name}: {str(one)[:60]!r} is not {known}")
        return tuple(dict.fromkeys(value))

    def messages(self) -> tuple[tuple[str, str], ...]:
        value = self._take("messages")
        if value is None:
            return ()
        pairs = value if isinstance(value, list | tuple) and 1 <= len(value) <= 200 else [None]
        found: list[tuple[str, str]] = []
        for one in pairs:
            if not isinstance(one, list | tuple) or len(one) != 2 or not all(isinstance(part, str) for part in one):
                raise LiveError("messages: a list of 1 to 200 [role, text] pairs is expected")
            if one[0] not in ("system", "user", "assistant"):
                raise LiveError(f"messages: the role {one[0][:40]!r} is not one of system, user, assistant")
            found.append((one[0], one[1]))
        if sum(len(text) for _, text in found) > MAX_TEXT:
            raise LiveError(f"messages: more than {MAX_TEXT:,} characters")
        if found[-1][0] != "user":
            raise LiveError("messages: the last one must be the user's")
        return tuple(found)

    def finish(self) -> None:
        """LiveError where the job has keys that nobody took."""
        if self._left:
            raise LiveError(f"job: unknown keys {', '.join(sorted(str(name)[:40] for name in self._left)[:8])}")


def _count(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise LiveError(f"{name}: {str(value)[:40]!r} is not a whole number from {low:,} to {high:,}")
    return value


def read_setup(fields: JobFields) -> Setup:
    """Which decoder; LiveError names the key that is wrong."""
    return Setup(
        model=fields.text("model"),
        weights=fields.choice("weights", ("auto", "real", "random"), "auto"),
        layers=fields.maybe_count("layers", 1, 1000),
        attention=fields.text("attention", "shipped", 40) or "shipped",
        weight_format=fields.choice("weight_format", WEIGHT_FORMATS, "bf16"),
        kv_format=fields.choice("kv_format", KV_FORMATS, "bf16"),
        block_tokens=fields.count("block_tokens", 256, 1, 65_536),
        device=fields.choice("device", ("auto", "cpu", "cuda", "mps"), "auto"),
        threads=fields.maybe_count("threads", 1, 1024),
        allow_hub=fields.truth("allow_hub", False),
        max_seconds=fields.number("max_seconds", 0.0, 0.0, 1e6) or None,
    )


def read_run(job: Mapping[str, Any]) -> RunOptions:
    """A `run` job; LiveError names the key that is wrong."""
    fields = JobFields(job)
    if sum(fields.has(name) for name in ("prompt", "messages", "prompt_tokens")) > 1 and not fields.has("continue_of"):
        raise LiveError("give one of prompt, messages and prompt_tokens")
    options = RunOptions(
        setup=read_setup(fields),
        prompt=fields.text("prompt", DEFAULT_PROMPT, MAX_TEXT) or "",
        messages=fields.messages(),
        prompt_tokens=fields.maybe_count("prompt_tokens", 1, MAX_CONTEXT),
        chat=fields.truth("chat", True),
        new_tokens=fields.count("new_tokens", 32, 1, MAX_CONTEXT),
        batch=fields.count("batch", 1, 1, MAX_BATCH),
        use_cache=fields.truth("use_cache", True),
        also_recompute=fields.truth("also_recompute", False),
        ignore_stop=fields.truth("ignore_stop", False),
        temperature=fields.number("temperature", 0.0, 0.0, 10.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        seed=fields.count("seed", 0, 0, 2**31),
        session=fields.text("session", longest=100),
        continue_of=fields.text("continue_of", longest=100),
        calibrate=fields.truth("calibrate", True),
    )
    fields.finish()
    if not options.messages and options.prompt_tokens is None and not options.prompt.strip():
        raise LiveError("the prompt is empty; write something, or choose a number of tokens")
    if (options.session or options.continue_of) and options.batch != 1:
        raise LiveError("a conversation is one request; choose batch 1")
    return options


def read_probe(job: Mapping[str, Any]) -> ProbeOptions:
    """A `probe` job."""
    fields = JobFields(job)
    options = ProbeOptions(
        setup=read_setup(fields),
        contexts=fields.counts("contexts", CONTEXTS, 4, MAX_CONTEXT),
        modes=fields.words("modes", MODES, MODES),
        batch=fields.count("batch", 1, 1, MAX_BATCH),
        calibrate=fields.truth("calibrate", True),
    )
    fields.finish()
    return options


def read_race(job: Mapping[str, Any]) -> ProbeOptions:
    """A `race` job."""
    fields = JobFields(job)
    options = ProbeOptions(
        setup=read_setup(fields),
        contexts=fields.counts("contexts", RACE_CONTEXTS, 4, MAX_CONTEXT),
        variants=fields.words("variants", ()),
        batch=fields.count("batch", 1, 1, MAX_BATCH),
    )
    fields.finish()
    return options


def read_calibrate(job: Mapping[str, Any]) -> CalibrateOptions:
    """A `host`, `load` or `calibrate` job."""
    fields = JobFields(job)
    options = CalibrateOptions(
        setup=read_setup(fields),
        remeasure=fields.truth("remeasure", False),
        batches=fields.counts("batches", (1,), 1, MAX_BATCH, most=8),
    )
    fields.finish()
    return options
