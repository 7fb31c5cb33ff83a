"""Named lessons of the Variants screen: one click each, with the sentence that the view shows, computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kvcore.formats import KVFormat
from kvcore.model import Model
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.sizing import bytes_per_token, resident_bytes, state_bytes
from kvcore.sources import catalogue
from kvcore.units import GB, GIB, format_bytes
from kvcore.variants.ladder import SHIPPED, build
from pages.ui.size.claims import DEEPSEEK_67B, DEEPSEEK_V2, LLAMA_13B, LLAMA_70B, MISTRAL_7B

_K = 1024
_HEADS = ("mha", "gqa:32", "gqa:16", "gqa:8", "gqa:4", "gqa:2", "mqa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A view with its title; `words` computes the sentence that it shows from the view."""

    title: str
    scenario: Scenario
    options: VariantOptions
    words: Callable[[View], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A lesson's model, and sizes of any design of it at any length in the view's cache format."""

    model: Model
    scenario: Scenario

    def built(self, design: str) -> tuple[Model, KVFormat]:
        return build(self.model, design, self.scenario.kv)

    def held(self, design: str = SHIPPED, thousands: int = 0) -> str:
        """Resident bytes of one request, of the view's length or of so many times 1,024 tokens."""
        return format_bytes(self.bytes(design, thousands))

    def bytes(self, design: str = SHIPPED, thousands: int = 0) -> int:
        made, kv = self.built(design)
        return resident_bytes(made, thousands * _K or self.scenario.tokens, kv)

    def a_token(self, design: str = SHIPPED) -> int:
        made, kv = self.built(design)
        return bytes_per_token(made, 0, kv)

    def states(self) -> str:
        return format_bytes(state_bytes(*self.built(SHIPPED)))


def _a_token_of(model_id: str) -> int:
    model = catalogue.load(model_id)
    return bytes_per_token(model, 0, model.resolve_format("bf16"))


def _mha_words(view: View) -> str:
    held, four = view.bytes("mha"), 4 * 80 * GB
    return (
        f"With keys and values for all 64 heads a token would take {format_bytes(view.a_token('mha'))}, and one "
        f"conversation of {view.scenario.tokens:,} tokens {format_bytes(held)}: more than four 80 GB accelerators "
        f"hold together ({format_bytes(four, 0)}). As it ships it takes {view.held()}."
    )


def _mqa_words(view: View) -> str:
    mqa = view.bytes("mqa")
    return (
        f"At 8K a 70B with full multi-head attention holds {view.held('mha')} before its weights are loaded; with one "
        f"KV head for all 64 query heads {mqa / GIB:.2f} GiB ({format_bytes(mqa)}), a {view.bytes('mha') // mqa}-fold "
        f"cut. Llama 3.3 shares each KV head among eight: {view.held()}."
    )


def _13b_words(view: View) -> str:
    return (
        f"Llama 2 13B keeps every head: {view.held(thousands=8)} at 8K and {view.held(thousands=16)} at 16K, for each "
        f"conversation; the larger figure is often quoted for 8,000 tokens. With 8 KV heads for its 40 it "
        f"would be {view.held('gqa:8', 16)} at 16K."
    )


def _v3_words(view: View) -> str:
    own, other = view.a_token(), _a_token_of(LLAMA_70B)
    return (
        f"61 layers × (512 + 64) × 2 bytes: DeepSeek-V3 keeps {own:,} bytes a token ({format_bytes(own, 0)}), "
        f"{own / other:.0%} of the {format_bytes(other)} of Llama 3.3 70B and so under a quarter, with 671B "
        "parameters instead of 70B."
    )


def _v2_words(view: View) -> str:
    dense, v2 = _a_token_of(DEEPSEEK_67B), view.model
    same, six = (1 - bytes_per_token(v2, 0, v2.resolve_format(name)) / dense for name in ("bf16", "int6"))
    return (
        f"From DeepSeek 67B to V2 the latent alone saves {same:.1%} a token; stored in 6 bits a number, as its paper "
        f"did, {six:.1%}. The paper also reports 5.76 times the generation throughput, which a smaller cache allows "
        "and does not cause alone."
    )


def _kimi_words(view: View) -> str:
    own = view.a_token()
    return (
        f"Kimi K2 carries DeepSeek's latent of 512 with 64 for position in 61 layers: {own:,} bytes a token, the same "
        f"as DeepSeek-V3's {_a_token_of('deepseek-ai/DeepSeek-V3'):,}, for a model of a trillion parameters."
    )


def _window_words(view: View) -> str:
    return (
        f"Mistral 7B v0.1 looks back 4,096 tokens: {view.held(thousands=4)} there and still {view.held()} at 32K. "
        f"Without the window, as v0.2 and v0.3 ship, it would be {view.held('gqa:8')}. What is older is reached "
        "only through the layers in between."
    )


def _7b_words(view: View) -> str:
    steps = ", ".join(view.held(thousands=size) for size in (8, 16, 32, 64))
    return (
        f"A 7B with 8 KV heads keeps {format_bytes(view.a_token())} a token: {steps} at 8K, 16K, 32K and 64K, before "
        "its weights are counted. Doubling the context doubles the cache, with no plateau."
    )


def _next_words(view: View) -> str:
    share = view.bytes("gqa:2") / view.bytes()
    return (
        f"Qwen3-Next keeps attention in 12 of 48 layers and a state in the others: {view.held()} at 32K, of which the "
        f"states are {view.states()} whatever the length. With attention in all layers it would hold {share:.1f}× as "
        f"much, {view.held('gqa:2')}."
    )


def _nemotron_words(view: View) -> str:
    counts = dict(view.model.kinds)
    layers = counts["full"] + counts["state"]
    return (
        f"Nemotron-H 56B remembers in {layers} of its {len(view.model.layers)} layers: {counts['full']} attend, "
        f"{counts['state']} keep a Mamba-2 state. At 128K that is {view.held()}, of which {view.states()} never grow; "
        f"with attention of 8 KV heads in all {layers} it would be {view.held('gqa:8')}."
    )


def _gemma_words(view: View) -> str:
    whole = view.bytes() / view.bytes("gqa:16")
    return (
        f"Gemma 3 27B has five windows of 1,024 tokens to each full layer: {view.held()} at 128K, {whole:.0%} of the "
        f"{view.held('gqa:16')} that full attention in all 62 layers would hold."
    )


def _lesson(title: str, words: Callable[[View], str], *, model: str = LLAMA_70B, tokens: int = 32 * _K,
            compare: str = "", kv: str = "auto", **options: object) -> Lesson:  # fmt: skip
    scenario = Scenario(model=model, tokens=tokens, compare=(compare,) if compare else (), kv=kv)
    return Lesson(title=title, scenario=scenario, options=VariantOptions(**options), words=words)  # type: ignore[arg-type]


LESSONS: dict[str, Lesson] = {
    "mha-70b": _lesson(
        "A 70B with every head", _mha_words, tokens=128 * _K, design="mha", designs=("mha", "gqa:16", "mla", "mqa")
    ),
    "mqa-70b": _lesson("From MHA to MQA", _mqa_words, tokens=8 * _K, design="mqa", designs=_HEADS),
    "mha-13b": _lesson(
        "A 13B that keeps every head", _13b_words, model=LLAMA_13B, tokens=16 * _K, designs=("gqa:8", "gqa:4", "mqa")
    ),
    "latent": _lesson("One latent a token", _v3_words, model="deepseek-ai/DeepSeek-V3", compare=LLAMA_70B),
    "latent-6-bit": _lesson(
        "DeepSeek 67B to V2", _v2_words, model=DEEPSEEK_V2, compare=DEEPSEEK_67B, kv="int6", other="bf16",
        designs=("mha", "gqa:8", "mqa", "shipped@bf16", "shipped@fp8"),
    ),
    "kimi-k2": _lesson(
        "The latent elsewhere: Kimi K2", _kimi_words, model="moonshotai/Kimi-K2-Instruct", tokens=128 * _K,
        compare="deepseek-ai/DeepSeek-V3",
    ),
    "window": _lesson(
        "A window that fills", _window_words, model="mistralai/Mistral-7B-v0.1",
        designs=("mha", "gqa:8", "sliding:1024", "sliding:4096/4", "mqa"),
    ),
    "7b-growth": _lesson(
        "A 7B from 8K to 64K", _7b_words, model=MISTRAL_7B, tokens=64 * _K,
        designs=("mha", "mqa", "mla", "sliding:4096", "shipped@fp8"),
    ),
    "qwen3-next": _lesson(
        "Three states to one attention", _next_words, model="Qwen/Qwen3-Next-80B-A3B-Instruct",
        compare="Qwen/Qwen3-32B",
        designs=("mha", "gqa:2", "hybrid:8:gdn", "hybrid:2:gdn", "linear:gdn"),
    ),
    "nemotron-h": _lesson(
        "Attention in one layer of many", _nemotron_words, model="nvidia/Nemotron-H-56B-Base-8K", tokens=128 * _K,
        compare=LLAMA_70B, designs=("mha", "gqa:8", "mqa", "hybrid:4:mamba2", "linear:mamba2"),
    ),
    "gemma-3": _lesson(
        "Five windows to one", _gemma_words, model="google/gemma-3-27b-it", tokens=128 * _K,
        compare="google/gemma-2-27b",
        designs=("mha", "gqa:16", "sliding:1024/2", "sliding:1024/3", "sliding:1024/12", "sliding:1024"),
    ),
}  # fmt: skip


def title(name: str) -> str:
    """The title of a lesson."""
    return LESSONS[name].title


@cache
def sentence(name: str) -> str:
    """What the view of the lesson of that name shows, with its figures."""
    lesson = LESSONS[name]
    return lesson.words(View(model=catalogue.load(lesson.scenario.model), scenario=lesson.scenario))


def shown(scenario: Scenario, options: VariantOptions) -> str | None:
    """The name of the lesson whose view this is, whatever the server that is meant; None for any other view."""
    for name, lesson in LESSONS.items():
        same = all(
            getattr(scenario, field) == getattr(lesson.scenario, field)
            for field in ("model", "config", "tokens", "batch", "kv", "compare", "source")
        )
        if same and (options.designs, options.design) == (lesson.options.designs, lesson.options.design):
            return name
    return None
