"""The sections of the Live screen. Those that move while a job runs are fragments that ask for its events."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from kvcore.scenario.live import PROBE_CHOICES, RACE_CHOICES
from pages.ui import theme, widgets
from pages.ui.live import charts, controls, jobs, machine, words
from pages.ui.live.jobs import PROBE, RACE, RUN, JobResult
from pages.ui.live.plot import BarChart, Plot, soft
from pages.ui.live.progress import CACHE, RECOMPUTE, JobProgress
from pages.ui.text import plain

_CONTAINERS = ("live_top", "live_settings", "live_probe_row", "live_race_row")


def style(colours: theme.Palette) -> None:
    """What this screen adds to static/style.css: rules of its own keys in the theme's colours; once in every run."""
    blue, orange = charts.colour_of(CACHE, colours), charts.colour_of(RECOMPUTE, colours)
    bubble = soft(colours.muted, 12, colours)
    phone = ",".join(f".st-key-{key} [data-testid='stColumn']" for key in _CONTAINERS)
    st.html(f"""<style>
.st-key-numbers [data-testid="stVerticalBlockBorderWrapper"], .st-key-numbers [data-testid="stColumn"]>div>div
  {{border-top:4px solid {blue}}}
.st-key-numbers [data-testid="stColumn"]:nth-child(3)>div>div {{border-top-color:{orange}}}
[data-testid="stStatusWidget"]{{display:none}}
.kv-go{{display:flex;align-items:center;gap:.7rem;font-size:1.0625rem;min-height:2rem;flex-wrap:wrap;
  font-variant-numeric:tabular-nums}}
.kv-go i{{width:12px;height:12px;border-radius:50%;background:{orange};flex:none}}
.kv-go i.still{{background:{colours.muted};animation:none!important}}
.kv-go s{{flex:1;min-width:120px;max-width:420px;height:8px;border-radius:4px;background:{colours.grid};
  overflow:hidden}}
.kv-go s b{{display:block;height:100%;background:{blue}}}
.kv-say{{font-size:1.125rem;line-height:1.5;min-height:11rem;max-height:24rem;overflow-y:auto}}
.kv-say p{{margin:0 0 .6rem;white-space:pre-wrap;overflow-wrap:anywhere}}
.kv-say p.u{{background:{bubble};border-radius:.6rem;padding:.45rem .8rem;width:fit-content;
  max-width:92%;margin-left:auto}}
.kv-say p.m{{border-left:3px solid {blue};padding-left:.8rem}}
.kv-say em{{font-style:normal;color:{blue};font-weight:700}}
.kv-say small{{font-size:.9375rem;color:{colours.muted}}}
.st-key-live_run button,.st-key-live_stop button{{min-height:72px}}
.st-key-live_run button:enabled,.st-key-live_stop button:enabled{{color:{colours.background}}}
.st-key-live_stop button:enabled{{background:{orange};border-color:{orange}}}
.st-key-live_run button p,.st-key-live_stop button p{{font-size:1.25rem;font-weight:600}}
.st-key-numbers [data-testid="stMetricValue"]{{font-variant-numeric:tabular-nums}}
@media (min-width:1200px){{.st-key-numbers [data-testid="stMetricValue"]{{font-size:2.6rem}}}}
@keyframes kv-pulse{{50%{{opacity:.25}}}}
@keyframes kv-blink{{50%{{opacity:0}}}}
@media (prefers-reduced-motion:no-preference){{
  .kv-go i{{animation:kv-pulse 1.2s infinite}}
  .kv-say em{{animation:kv-blink 1s steps(1) infinite}}
}}
@media (max-width:640px){{
  .st-key-live_probe_row [role="toolbar"],.st-key-live_race_row [role="toolbar"]{{flex-wrap:wrap}}
  {phone} {{flex:1 1 100%;min-width:100%;width:100%}}
  .st-key-live_settings [data-testid="stColumn"]:nth-child(n+3)
    {{flex:1 1 calc(50% - 1rem);min-width:calc(50% - 1rem);width:calc(50% - 1rem)}}
}}
</style>""")


def _moving(kinds: tuple[str, ...], draw: Callable[[], None]) -> None:
    """Draw a part, and again four times a second while a job of these kinds is watched."""
    live = jobs.running(*kinds)

    @st.fragment(run_every=jobs.POLL_S if live else None)
    def part() -> None:
        if live:
            jobs.poll()
        if jobs.running(*kinds) != live:
            st.rerun()
        draw()

    part()


def board(off: str, colours: theme.Palette) -> None:
    """The run: what is going on, the big numbers, the answer and the time line, the next turn, times and bytes."""

    def draw() -> None:
        _head(colours)
        with st.container(key="live_go_on"):
            _go_on(off)
        _curves(colours)

    _moving((RUN,), draw)


def _head(colours: theme.Palette) -> None:
    result = jobs.results().get(RUN)
    progress = result.progress if result else JobProgress()
    _status(RUN, result)
    waiting = "Nothing has run yet: press Run." if result is None or result.finished else "Getting ready."
    st.caption(words.model_line(progress) or waiting)
    for note in progress.notes:
        st.caption(plain(note))
    widgets.row(words.cards(progress, result is None or result.finished))
    left, right = st.columns([5, 7], gap="large")
    with left, st.container(key="live_answer"):
        st.html(_answer(result))
    with right, st.container(key="live_timeline", gap="xsmall"):
        title = words.timeline_title(progress)
        st.subheader(title, anchor=False)
        drawn = charts.timeline(progress, colours)
        if result is None or drawn is None:
            st.html("<p>The prompt is read first: a wide bar. After it a tick for each token.</p>")
        else:
            picture("timeline", drawn, result.finished)


def _status(kind: str, result: JobResult | None) -> None:
    """A line about what goes on, or how it ended; the same height in both cases."""
    watch = jobs.watched()
    if result is not None and watch is not None and watch.result is result and not result.finished:
        text, share = words.status(result, watch.ticket, watch.stopping)
        bar = "" if share is None else f"<s><b style='width:{max(4, 100 * share):.0f}%'></b></s>"
        st.html(f"<div class='kv-go' role='status'><i></i><span>{escape(text)}</span>{bar}</div>")
    elif result is not None and result.record is None:
        if result.state == "failed":
            st.error(plain(result.message) or "The job failed.", icon=":material/error:")
        elif text := words.ended(result):
            st.html(f"<div class='kv-go' role='status'><i class='still'></i><span>{escape(text)}</span></div>")
    if result is not None and (said := words.recording_words(result)):
        st.caption(f":material/radio_button_checked: {said}")
    if result is not None and (said := words.cut_words(result.progress, race=kind == RACE)):
        st.caption(plain(said))


def _answer(result: JobResult | None) -> str:
    """The conversation, with what is being written at its end."""
    if result is None:
        return "<div class='kv-say'><small>The answer appears here, token by token.</small></div>"
    progress = result.progress
    before = [turn for turn in jobs.turns() if turn is not result] if result.job.get("continue_of") else []
    parts = []
    for turn in before:
        parts.append(
            f"<p class='u'>{escape(controls.asked(turn.job))}</p><p class='m'>{escape(turn.progress.text)}</p>"
        )
    # A recording of a conversation: what was asked stands before each answer where the recording has it.
    questions = [controls.asked(result.job), *result.job.get("later_prompts", ())]
    for at, text in enumerate(progress.earlier):
        asked = f"<p class='u'>{escape(questions[at][:2000])}</p>" if at < len(questions) and questions[at] else ""
        parts.append(f"{asked}<p class='m'>{escape(text)}</p>")
    said = questions[len(progress.earlier)] if len(progress.earlier) < len(questions) else ""
    if not said and result.job.get("prompt_tokens"):
        said = f"{int(result.job['prompt_tokens']):,} tokens of English text"
    if said:
        parts.append(f"<p class='u'>{escape(said[:2000])}</p>")
    cursor = "" if result.finished else "<em>▋</em>"
    parts.append(f"<p class='m'>{escape(progress.text)}{cursor}</p>")
    if progress.random:
        parts.append("<small>Random weights: times and bytes are real, the text means nothing.</small>")
    return f"<div class='kv-say' tabindex='0' role='region' aria-label='The conversation'>{''.join(parts)}</div>"


def _go_on(off: str) -> None:
    """The next turn: only what is new is read, the rest stands in the cache."""
    result = jobs.results().get(RUN)
    progress = result.progress if result else JobProgress()
    told = words.saving(progress, machine.afresh_s(progress)) if result and result.finished else ""
    if told:
        st.success(told, icon=":material/savings:")
    if off or not jobs.turns() or result is None or result.record is not None:
        return
    with st.container(key="live_next"):
        text, button = st.columns([6, 1.2], vertical_alignment="bottom", gap="small")
    with text:
        st.text_input(
            "Go on with the conversation", key="live_on", placeholder="Say it in one sentence.",
            disabled=jobs.running(),
        )  # fmt: skip
    with button:
        st.button(
            "Ask on", key="live_on_go", on_click=controls.go_on, disabled=jobs.running(), width="stretch",
            icon=":material/forum:",
        )  # fmt: skip


def _curves(colours: theme.Palette) -> None:
    result = jobs.results().get(RUN)
    progress = result.progress if result else JobProgress()
    left, right = st.columns(2, gap="large")
    for column, key, title, drawn in (
        (left, "live_latency", words.latency_title(progress), charts.latency(progress, colours)),
        (right, "live_held", words.held_title(progress), charts.held(progress, colours)),
    ):
        with column, st.container(key=key, gap="xsmall"):
            st.subheader(title, anchor=False)
            if result is None or drawn is None:
                st.caption("Appears with the first tokens.")
            else:
                picture(key.removeprefix("live_"), drawn, result.finished)


def picture(name: str, chart: Plot | BarChart, finished: bool) -> None:
    """A chart: as HTML while it moves, and drawn by plotly, which gives it as a file, when it does not any more."""
    if finished:
        config = theme.chart_config(f"kv-live-{name}")
        key = f"live_{name}_{'bars' if isinstance(chart, BarChart) else 'plot'}"
        st.plotly_chart(chart.figure(), theme=None, config=config, alt=chart.alt, key=key)
    else:
        st.html(chart.html)


def probe(off: str, colours: theme.Palette) -> None:
    """Time of a token against the context, with and without the cache."""
    result = jobs.results().get(PROBE)
    st.subheader(words.probe_title(result.progress.probes if result else ()), anchor=False)
    with st.container(key="live_probe_row"):
        pick, button = st.columns([5, 1.4], vertical_alignment="bottom", gap="small")
    with pick:
        st.pills(
            "Contexts", PROBE_CHOICES, key="live_contexts", selection_mode="multi",
            format_func=lambda one: f"{one:,}",
        )  # fmt: skip
    with button:
        controls.stop_or("Probe", "live_probe_go", controls.probe, disabled=bool(off), icon=":material/show_chart:")

    def draw(result: JobResult) -> Plot | None:
        return charts.probe(result.progress, result.job.get("contexts", ()), colours)

    before = (
        "A few steps at each context, with the cache and recomputing everything: seconds up to 1,024 tokens, "
        "a minute or more at 4,096."
    )
    _moving((PROBE,), lambda: _timed_points(PROBE, draw, before))


def _timed_points(kind: str, draw: Callable[[JobResult], Plot | None], before: str) -> None:
    """The chart of a probe or a race and how often its points were timed; `before` is said where there is none yet."""
    result = jobs.results().get(kind)
    _status(kind, result)
    drawn = draw(result) if result else None
    if result is None or drawn is None:
        st.caption(before)
        return
    with st.container(key=f"live_{kind}_chart", gap="xsmall"):
        picture(kind, drawn, result.finished)
        if said := words.repeats(result.progress.probes):
            st.caption(said)


def race(off: str, colours: theme.Palette) -> None:
    """Attention variants against each other, with random weights of the same shape."""
    result = jobs.results().get(RACE)
    shipped = machine.shipped_attention()
    st.subheader(plain(words.race_title(result.progress.probes if result else (), shipped)), anchor=False)
    with st.container(key="live_race_row"):
        pick, contexts, button = st.columns([4, 3, 1.4], vertical_alignment="bottom", gap="small")
    listed, refused = controls.race_choices()
    with pick:
        st.pills("Variants", listed, key="live_variants", selection_mode="multi", format_func=words.variant_name)
    with contexts:
        st.pills(
            "At", RACE_CHOICES, key="live_race_contexts", selection_mode="multi",
            format_func=lambda one: f"{one:,}",
        )  # fmt: skip
    with button:
        controls.stop_or("Race", "live_race_go", controls.race, disabled=bool(off), icon=":material/flag:")
    if refused:
        st.caption(f"Left out, because it cannot be run with this model: {plain(', '.join(refused))}.")

    def draw(result: JobResult) -> Plot | None:
        return charts.race(result.progress, result.job.get("contexts", ()), colours, shipped)

    before = (
        "Each attention with random weights in the live model's shape: what is timed is real, what it writes means "
        "nothing and is not shown."
    )
    _moving((RACE,), lambda: _timed_points(RACE, draw, before))
