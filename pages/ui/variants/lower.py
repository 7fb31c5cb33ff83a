"""The lower sections of the Variants screen: what is given up, one model against another, the trend, the lessons."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import streamlit as st

from kvcore.formats import KV_FORMATS, KVFormat
from kvcore.hardware.gpus import capacity_lines
from kvcore.scenario.scenario import DEFAULT_MODEL, MAX_COMPARED, Scenario
from kvcore.scenario.variants import TRENDS, VariantOptions
from kvcore.sizing import bytes_per_token
from kvcore.units import format_bytes
from kvcore.variants import trend as over_time
from kvcore.variants.compare import Comparison, compare
from kvcore.variants.ladder import SHIPPED, Ladder, Rung
from kvcore.variants.levers import CHECK_LABELS, Claim, Lever, QualityResult, lever, lever_of, levers, results
from pages.ui import models, state, theme, widgets
from pages.ui.lines import Line, growth_chart
from pages.ui.models import Chosen, Refusal
from pages.ui.size.sections import CAPACITIES
from pages.ui.size.words import ENGINES
from pages.ui.text import plain
from pages.ui.variants import lessons as variant_lessons
from pages.ui.variants import words
from pages.ui.variants.facts import Facts
from pages.ui.variants.trend import trend_chart

# The model that stands opposite while none is chosen.
_OPPOSITE = ("deepseek-ai/DeepSeek-V3", DEFAULT_MODEL)
# Levers that no variant or format stands for.
_ALONE = ("sparse", "kernels", "paging", "prefix")
_TREND_WORDS = {"share": "share of full multi-head", "bytes": "bytes a token"}


def download(rows: Callable[[], list[dict[str, object]]], name: str, key: str) -> None:
    """A button that saves rows as CSV; they are made when it is pressed."""

    def data() -> bytes:
        import pandas as pd

        from pages.ui.size import sections as made

        return made.csv(pd.DataFrame(rows()))

    st.download_button(
        "Download CSV", data, f"{name}.csv", "text/csv", key=f"csv_{key}", on_click="ignore",
        icon=":material/download:",
    )  # fmt: skip


def prices(found: dict[str, Facts], shown: Ladder, chosen: Rung) -> None:
    """What each lever on the ladder gives up, with sources, and the published results."""
    st.subheader("What each gives up", anchor="prices")
    pulled = _pulled(shown)
    mine = _levers_of(chosen)
    listed = [one for one in levers() if one.id in pulled or one.id in _ALONE]
    rows = [
        [
            (one.name, ", ".join(pulled.get(one.id, [])) or "no variant above: it works beside all of them"),
            *(_cited(claim) for claim in (one.buys, one.quality_risk, one.extra_arithmetic, one.recall)),
            _cited(one.engines) if one.engines else _engines_of(one.id, found),
        ]
        for one in listed
    ]
    at = next((place for place, one in enumerate(listed) if one.id in mine), None)
    columns = (("way", "w"), ("buys", "w"), ("quality", "w"), ("extra arithmetic", "w"), ("distant tokens", "w"),
               ("engines", ""))  # fmt: skip
    st.html(widgets.table("What each way of remembering gives up", columns, rows, chosen=at))
    st.caption("engines: whose rules lay out such a variant above; where none stands for it, who does it.")
    with st.expander("Sources of these statements"):
        st.markdown("\n".join(_sources(one) for one in listed))
        download(
            lambda: [
                {"lever": one.name, "statement": name, "text": claim.text, "source": claim.source}
                for one in listed
                for name, claim in (*zip(_CLAIMS, one.claims, strict=True), *_engine_claims(one))
            ],
            "kv-cache-levers",
            "levers",
        )
    found = [result for one in listed for result in results(one.id) if result.measures == "quality"]
    with st.expander(f"Published results: {len(found)} figures, with their conditions", expanded=False):
        st.caption(
            "What was published, each under its own conditions: they cannot be compared with one another, and none is "
            "of the model above unless it says so. Where a lever has no row, no result was found."
        )
        _published(listed, mine)


_CLAIMS = ("what it does", "buys", "quality", "extra arithmetic", "distant tokens")


def _cited(claim: Claim) -> widgets.Cited:
    return widgets.Cited(text=claim.text, sources=links(claim.source))


def _engines_of(lever_id: str, found: dict[str, Facts]) -> str:
    """The engines that lay out any of a lever's rungs on the ladder."""
    rungs = [one for one in found.values() if lever_id in _levers_of(one.rung)]
    names = dict.fromkeys(name for one in rungs for name in one.engines)
    return ", ".join(ENGINES[name] for name in names) or f"none: {rungs[0].engines_lack}" if rungs else "–"


def _engine_claims(one: Lever) -> tuple[tuple[str, Claim], ...]:
    return (("engines", one.engines),) if one.engines else ()


def _pulled(shown: Ladder) -> dict[str, list[str]]:
    """The levers on the ladder, each with the names of its rungs."""
    found: dict[str, list[str]] = {}
    for rung in shown.rungs:
        for one in _levers_of(rung):
            found.setdefault(one, []).append(words.label(rung))
    return found


def _levers_of(rung: Rung) -> tuple[str, ...]:
    name = rung.design.partition("@")[0]
    own = () if name != SHIPPED else tuple(_OF_KIND[kind] for kind in words.kinds_of(rung.model) if kind in _OF_KIND)
    return tuple(dict.fromkeys((*own, *lever_of("" if name == SHIPPED else name, rung.kv.name))))


# The lever that a shipped model pulls, by what `words.kinds_of` says of it.
_OF_KIND = {
    "multi-head": "mha", "grouped": "gqa", "multi-query": "mqa", "latent": "mla", "window": "sliding",
    "shared": "share", "hybrid": "hybrid", "recurrent": "linear", "indexer": "sparse",
}  # fmt: skip


def _sources(one: Lever) -> str:
    claims = (*zip(_CLAIMS, one.claims, strict=True), *_engine_claims(one))
    parts = [f"*{name}*: {claim.source}" for name, claim in claims]
    return f"- **{one.name}** · {one.does.text} " + "; ".join(parts)


def _published(listed: list[Lever], mine: tuple[str, ...]) -> None:
    options = [one.id for one in listed if results(one.id)]
    if not options:
        return
    first = next((one for one in mine if one in options), options[0])
    name = st.selectbox(
        "Results about", options, index=options.index(first), key="results_of",
        format_func=lambda one: f"{lever(one).name}: {len(results(one))} figures",
    )  # fmt: skip
    rows = [_result(one) for one in results(name)]
    columns = (("model", "w"), ("measured", "w"), ("without", "n"), ("with", "n"), ("conditions", "w"), ("source", "w"))
    st.html(widgets.table("Published results", columns, rows))
    download(
        lambda: [
            {name: getattr(one, name) for name in ("lever", "model", "comparison", "metric", "baseline", "value",
             "unit", "better", "conditions", "source", "url", "place", "how_checked", "retrieved")}
            for one in results(name)
        ],
        "kv-cache-published-results", "results",
    )  # fmt: skip


def _result(one: QualityResult) -> list[str | tuple[str, str]]:
    mark = "" if one.check == "source" else CHECK_LABELS[one.check]
    better = f"{one.unit}, {one.better} is better"
    return [
        (one.model, one.comparison),
        (one.metric, better),
        "–" if one.baseline is None else f"{one.baseline:g}",
        f"{one.value:g}",
        one.conditions,
        (f"{one.source}, {one.place}", mark),
    ]


def against(chosen: Chosen, scenario: Scenario, options: VariantOptions, colours: theme.Palette) -> None:
    """The model as it ships against others of the catalogue."""
    others = [one for one in scenario.compare if one != chosen.id] or [
        next(one for one in _OPPOSITE if one != chosen.id)
    ]
    found = _comparisons(chosen, scenario, options, others)
    st.subheader(plain(found[0][2].per_token if found else f"{chosen.name} against another model"), anchor="against")
    pick, stored = st.columns([4, 1.4], vertical_alignment="bottom")
    with pick:
        st.multiselect(
            "Against", [one for one in models.labels() if one != chosen.id], key="compare",
            format_func=models.name_of, max_selections=MAX_COMPARED, wrap=True,
            placeholder=f"{models.name_of(others[0])}; choose others",
        )  # fmt: skip
    with stored:
        st.selectbox(
            "Their cache in", ["same", "auto", *KV_FORMATS], key="other",
            format_func=lambda one: {"same": "the same format", "auto": "auto: their own"}.get(one, one),
            help="The format of the other models' caches, where it is not to be the same as above.",
        )  # fmt: skip
    if not found:
        st.info("Neither keeps a cache in this format that could be compared.")
        return
    for at, (_, _, one) in enumerate(found):
        if at:
            st.markdown(f"**{plain(one.per_token)}**")
        st.markdown(plain(one.at_length))
    kv = found[0][1][0]
    lines = [Line(id=chosen.id, name=chosen.name, model=chosen.model, kv=kv, source=scenario.source or None)]
    lines += [Line(id=name, name=line.name, model=line.model, kv=line.kv) for name, (_, line), _ in found]
    drawn = growth_chart(
        lines, tokens=scenario.tokens, batch=1, capacities=capacity_lines(CAPACITIES), colours=colours, mark_bends=True
    )
    if drawn is not None:
        figure, alt = drawn
        st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-against"), alt=alt, key="against_chart")
    cells = [_against_row(lines[0], found[0][2], mine=True)]
    cells += [_against_row(line, one, mine=False) for _, (_, line), one in found]
    columns = (("model", "w"), ("cache", ""), ("a token", "n"), ("at length", "n"), ("against it", "n"))
    st.html(widgets.table(f"At {scenario.tokens:,} tokens, one request", columns, cells, chosen=0))


_Pair = tuple[KVFormat, Line]


def _comparisons(
    chosen: Chosen, scenario: Scenario, options: VariantOptions, others: list[str]
) -> list[tuple[str, _Pair, Comparison]]:
    found = []
    kv = models.suited_format(chosen.model, scenario.kv)
    for model_id in others:
        other = models.from_catalogue(model_id)
        if isinstance(other, Refusal):
            st.caption(plain(f"{other.name}: {other.message}."))
            continue
        theirs = models.suited_format(other.model, kv.name if options.other == "same" else options.other)
        line = Line(id=model_id, name=other.name, model=other.model, kv=theirs)
        one = compare(
            chosen.model, other.model, scenario.tokens, kv, theirs, name_a=chosen.name, name_b=other.name,
            source_tokens_a=scenario.source or None,
        )  # fmt: skip
        found.append((model_id, (kv, line), one))
    return found


def _against_row(line: Line, one: Comparison, mine: bool) -> list[str | tuple[str, str]]:
    per_token = one.per_token_a if mine else one.per_token_b
    here = bytes_per_token(line.model, one.tokens, line.kv)
    then = "" if here >= per_token else f"no window full; {format_bytes(here)} here"
    held = one.resident_a if mine else one.resident_b
    factor = Fraction(one.resident_b, one.resident_a) if one.resident_a and one.resident_b else None
    return [
        line.name,
        line.kv.name,
        (format_bytes(float(per_token)), then),
        format_bytes(held),
        "–" if mine else words.times(factor, "×"),
    ]


@lru_cache(maxsize=64)
def _trend(measure: str, highlight: tuple[str, ...], theme_name: str) -> tuple[theme.Chart, str]:
    return trend_chart(
        over_time.points(), measure="share" if measure == "share" else "bytes", highlight=highlight,
        colours=theme.PALETTES[theme_name],
    )  # fmt: skip


def trend(chosen: Chosen, scenario: Scenario, options: VariantOptions) -> None:
    """The catalogue over time."""
    found = over_time.points()
    st.subheader(over_time.headline(found), anchor="trend")
    st.segmented_control(
        "Measure", TRENDS, key="trend", required=True, format_func=lambda one: _TREND_WORDS[one],
        label_visibility="collapsed",
    )  # fmt: skip
    figure, alt = _trend(options.trend, (chosen.id, *scenario.compare), theme.name())
    st.plotly_chart(figure, theme=None, config=theme.chart_config("kv-cache-trend"), alt=alt, key="trend_chart")
    copies = sum(one.copy_of is not None for one in found)
    left = over_time.undated()
    st.caption(
        f"{len(found) - copies} designs of {len(found)} catalogued models with a release date, in 16 bits, over "
        f"{over_time.CONTEXT_TOKENS:,} tokens; re-releases share a mark. Left out for want of a date: {len(left)}. "
        "The catalogue is a selection, not all that was released."
    )
    download(
        lambda: [
            {"model": one.model_id, "released": one.released.isoformat()[: 10 if one.day_known else 7],
             "attention": one.attention, "bytes a token, average": one.average_bytes_per_token,
             "bytes a token while growing": one.growing_bytes_per_token, "share of MHA": one.share_of_mha,
             "parameters": one.parameters, "same design as": one.copy_of or ""}
            for one in found
        ],
        "kv-cache-trend", "trend",
    )  # fmt: skip


def _show(name: str) -> None:
    """Go to a lesson's view, and say so over the page: its answer stands far above the button."""
    lesson = variant_lessons.LESSONS[name]
    state.show(lesson.scenario, lesson.options)
    widgets.note(lesson.title)


def lessons() -> None:
    """The named lessons, one click each."""
    st.subheader("Lessons", anchor="lessons")
    st.caption("Each shows its view at the top of this page.")
    listed = list(variant_lessons.LESSONS.items())
    for start in range(0, len(listed), 3):
        for column, (name, lesson) in zip(st.columns(3, gap="large"), listed[start : start + 3], strict=False):
            with column:
                st.markdown(f"**{lesson.title}**\n\n{variant_lessons.sentence(name)}")
                st.button(
                    f"Show: {lesson.title}", key=f"lesson_{name}", type="tertiary", icon=":material/school:",
                    on_click=_show, args=(name,),
                )  # fmt: skip


_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_PULL = re.compile(r"^([\w.-]+/[\w.-]+) pull request (\d+)$")
_VLLM = "https://github.com/vllm-project/vllm/blob/"
_TRT = "https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/features/kvcache.html"
# Short name and address by how a source begins; None where the text itself is the answer.
_KNOWN: tuple[tuple[str, str, str | None], ...] = (
    ("by definition", "by definition", None),
    ("no published measurement", "no measurement found", None),
    ("our rules", "our rules for engines", None),
    ("vLLM documentation, Quantized KV Cache", "vLLM docs",
     _VLLM + "0609ba15df1dc858647954fefd6512b394bdb283/docs/features/quantization/quantized_kvcache.md"),
    ("vLLM documentation, Automatic Prefix Caching", "vLLM docs",
     "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching/"),
    ("vLLM documentation, Attention Backend", "vLLM docs", "https://docs.vllm.ai/en/latest/design/attention_backends/"),
    ("vLLM, quantization/turboquant", "vLLM source",
     _VLLM + "1471680b24719d9d3b2fe1235878196142af89cc/vllm/model_executor/layers/quantization/turboquant/config.py"),
    ("vLLM blog", "vLLM blog", None),
    ("SGLang documentation, Quantized KV Cache", "SGLang docs",
     "https://github.com/sgl-project/sglang/blob/03cd2ec4af85b66be8ef025238bc73c165416bdb/docs/advanced_features/"
     "quantized_kv_cache.md"),
    ("SGLang documentation, Attention Backend", "SGLang docs",
     "https://docs.sglang.io/advanced_features/attention_backend.html"),
    ("TensorRT-LLM documentation, KV Cache System", "TensorRT-LLM docs", _TRT),
    ("TensorRT-LLM documentation, gpt_attention", "TensorRT-LLM docs",
     "https://raw.githubusercontent.com/NVIDIA/TensorRT-LLM/release/0.5.0/docs/source/gpt_attention.md"),
    ("transformers documentation, Attention backends", "transformers docs",
     "https://huggingface.co/docs/transformers/v5.12.0/attention_interface.md"),
    ("DeepSeek-V3.2-Exp, README", "DeepSeek-V3.2-Exp",
     "https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/3b99a5350d260b7c2a357e82362305509e2d0724/README.md"),
    ("docs/long_bench.md of jy-yuan/KIVI", "KIVI results",
     "https://github.com/jy-yuan/KIVI/blob/876b4d2d08e3b1d5f70d0969c299d8c7c42ddfb6/docs/long_bench.md"),
)  # fmt: skip
# Titles that are long beside a cell, by how they begin.
_SHORT = {
    "Efficient Streaming Language Models": "Attention sinks",
    "An Empirical Study of Mamba": "Mamba study",
    "Gemma 3 Technical Report": "Gemma 3",
    "Fast Transformer Decoding": "Shazeer 2019",
}


def links(source: str) -> tuple[tuple[str, str], ...]:
    """(short name, address) of every publication that a source names, each once; the address is empty without one."""
    return tuple(dict.fromkeys(_link(one.strip()) for one in source.split(";") if one.strip()))


def _link(one: str) -> tuple[str, str]:
    for begins, name, address in _KNOWN:
        if one.startswith(begins):
            return name, address or ""
    pull = _PULL.match(one)
    if pull:
        return f"{pull[1].rpartition('/')[2]} #{pull[2]}", f"https://github.com/{pull[1]}/pull/{pull[2]}"
    name = next((short for begins, short in _SHORT.items() if one.startswith(begins)), one.partition(",")[0])
    paper = _ARXIV.search(one)
    return name, f"https://arxiv.org/abs/{paper[1]}" if paper else ""
