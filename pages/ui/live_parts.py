"""The sections of the Live screen. Those that move while a job runs are fragments that ask for its events."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from kvcore.scenario.live import PROBE_CHOICES, RACE_CHOICES
from pages.ui import live_charts, live_controls, live_look, live_machine, live_state, theme, widgets
from pages.ui import live_words as words
from pages.ui.live_lanes import Lanes
from pages.ui.live_plot import Drawn
from pages.ui.live_state import PROBE, RACE, RUN, Result
from pages.ui.live_story import CACHE, RECOMPUTE, Story
from pages.ui.text import plain

_CONTAINERS = ("live_top", "live_settings", "live_probe_row", "live_race_row")


def style(colours: theme.Palette) -> None:
    """The little that this screen adds to the layout; call once in every run."""
    blue, orange = live_look.colour_of(CACHE, colours), live_look.colour_of(RECOMPUTE, colours)
    bubble = live_look.soft(colours.muted, 12, colours)
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
[class*="st-key-live_"][class*="_foot"]{{margin-top:-.6rem}}
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
    live = live_state.running(*kinds)

    @st.fragment(run_every=live_state.POLL_S if live else None)
    def part() -> None:
        if live:
            live_state.poll()
        if live_state.running(*kinds) != live:
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
    result = live_state.results().get(RUN)
    story = result.story if result else Story()
    _status(RUN, result)
    waiting = "Nothing has run yet: press Run." if result is None or result.finished else "Getting ready."
    st.caption(words.model_line(story) or waiting)
    for note in story.notes:
        st.caption(plain(note))
    widgets.row(words.cards(story, result is None or result.finished))
    left, right = st.columns([5, 7], gap="large")
    with left, st.container(key="live_answer"):
        st.html(_answer(result))
    with right, st.container(key="live_timeline", gap="xsmall"):
        title = words.timeline_title(story)
        st.subheader(title, anchor=False)
        drawn = live_charts.timeline(story, colours)
        if result is None or drawn is None:
            st.html("<p>The prompt is read first: a wide bar. After it a tick for each token.</p>")
        else:
            picture("timeline", title, drawn, words.source(result), result.finished)


def _status(kind: str, result: Result | None) -> None:
    """A line about what goes on, or how it ended; the same height in both cases."""
    watch = live_state.watched()
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
    if result is not None and (said := words.cut_words(result.story, race=kind == RACE)):
        st.caption(plain(said))


def _answer(result: Result | None) -> str:
    """The conversation, with what is being written at its end."""
    if result is None:
        return "<div class='kv-say'><small>The answer appears here, token by token.</small></div>"
    story = result.story
    before = [turn for turn in live_state.turns() if turn is not result] if result.job.get("continue_of") else []
    parts = []
    for turn in before:
        parts.append(
            f"<p class='u'>{escape(live_controls.asked(turn.job))}</p><p class='m'>{escape(turn.story.text)}</p>"
        )
    # A recording of a conversation: what was asked stands before each answer where the recording has it.
    questions = [live_controls.asked(result.job), *result.job.get("later_prompts", ())]
    for at, text in enumerate(story.earlier):
        asked = f"<p class='u'>{escape(questions[at][:2000])}</p>" if at < len(questions) and questions[at] else ""
        parts.append(f"{asked}<p class='m'>{escape(text)}</p>")
    said = questions[len(story.earlier)] if len(story.earlier) < len(questions) else ""
    if not said and result.job.get("prompt_tokens"):
        said = f"{int(result.job['prompt_tokens']):,} tokens of English text"
    if said:
        parts.append(f"<p class='u'>{escape(said[:2000])}</p>")
    cursor = "" if result.finished else "<em>▋</em>"
    parts.append(f"<p class='m'>{escape(story.text)}{cursor}</p>")
    if story.random:
        parts.append("<small>Random weights: times and bytes are real, the text means nothing.</small>")
    return f"<div class='kv-say' tabindex='0' role='region' aria-label='The conversation'>{''.join(parts)}</div>"


def _go_on(off: str) -> None:
    """The next turn: only what is new is read, the rest stands in the cache."""
    result = live_state.results().get(RUN)
    story = result.story if result else Story()
    told = words.saving(story, live_machine.afresh_s(story)) if result and result.finished else ""
    if told:
        st.success(told, icon=":material/savings:")
    if off or not live_state.turns() or result is None or result.record is not None:
        return
    with st.container(key="live_next"):
        text, button = st.columns([6, 1.2], vertical_alignment="bottom", gap="small")
    with text:
        st.text_input(
            "Go on with the conversation", key="live_on", placeholder="Say it in one sentence.",
            disabled=live_state.running(),
        )  # fmt: skip
    with button:
        st.button(
            "Ask on", key="live_on_go", on_click=live_controls.go_on, disabled=live_state.running(), width="stretch",
            icon=":material/forum:",
        )  # fmt: skip


def _curves(colours: theme.Palette) -> None:
    result = live_state.results().get(RUN)
    story = result.story if result else Story()
    left, right = st.columns(2, gap="large")
    for column, key, title, drawn in (
        (left, "live_latency", words.latency_title(story), live_charts.latency(story, colours)),
        (right, "live_held", words.held_title(story), live_charts.held(story, colours)),
    ):
        with column, st.container(key=key, gap="xsmall"):
            st.subheader(title, anchor=False)
            if result is None or drawn is None:
                st.caption("Appears with the first tokens.")
            else:
                picture(key.removeprefix("live_"), title, drawn, words.source(result), result.finished)


def picture(name: str, title: str, chart: Drawn | Lanes, source: str, finished: bool) -> None:
    """A chart and its legend, and below it the button that gives it as a file once nothing moves any more."""
    if isinstance(chart, Drawn):
        st.html(chart.legend)
    st.html(chart.html)
    with st.container(horizontal=True, horizontal_alignment="right", key=f"live_{name}_foot"):
        st.download_button(
            "SVG", lambda: chart.svg(title, source).encode(), f"kv-live-{name}.svg", "image/svg+xml",
            key=f"live_{name}_svg", on_click="ignore", type="tertiary", icon=":material/download:",
            disabled=not finished, help="This chart as a file: SVG, from the same figures.",
        )  # fmt: skip


def probe(off: str, colours: theme.Palette) -> None:
    """Time of a token against the context, with and without the cache."""
    result = live_state.results().get(PROBE)
    st.subheader(words.probe_title(result.story.probes if result else ()), anchor=False)
    with st.container(key="live_probe_row"):
        pick, button = st.columns([5, 1.4], vertical_alignment="bottom", gap="small")
    with pick:
        st.pills(
            "Contexts", PROBE_CHOICES, key="live_contexts", selection_mode="multi",
            format_func=lambda one: f"{one:,}",
        )  # fmt: skip
    with button:
        live_controls.stop_or(
            "Probe", "live_probe_go", live_controls.probe, disabled=bool(off), icon=":material/show_chart:"
        )
    _moving((PROBE,), lambda: _probe(colours))


def _probe(colours: theme.Palette) -> None:
    result = live_state.results().get(PROBE)
    _status(PROBE, result)
    drawn = live_charts.probe(result.story, result.job.get("contexts", ()), colours) if result else None
    if result is None or drawn is None:
        st.caption(
            "A few steps at each context, with the cache and recomputing everything: seconds up to 1,024 tokens, "
            "a minute or more at 4,096."
        )
        return
    with st.container(key="live_probe_chart", gap="xsmall"):
        title = words.probe_title(result.story.probes)
        picture("probe", title, drawn, words.source(result), result.finished)
        if said := words.repeats(result.story.probes):
            st.caption(said)


def race(off: str, colours: theme.Palette) -> None:
    """Attention variants against each other, with random weights of the same shape."""
    result = live_state.results().get(RACE)
    shipped = live_machine.shipped_attention()
    st.subheader(plain(words.race_title(result.story.probes if result else (), shipped)), anchor=False)
    with st.container(key="live_race_row"):
        pick, contexts, button = st.columns([4, 3, 1.4], vertical_alignment="bottom", gap="small")
    listed, refused = live_controls.race_choices()
    with pick:
        st.pills("Variants", listed, key="live_variants", selection_mode="multi", format_func=live_look.variant_name)
    with contexts:
        st.pills(
            "At", RACE_CHOICES, key="live_race_contexts", selection_mode="multi",
            format_func=lambda one: f"{one:,}",
        )  # fmt: skip
    with button:
        live_controls.stop_or("Race", "live_race_go", live_controls.race, disabled=bool(off), icon=":material/flag:")
    if refused:
        st.caption(f"Left out, because it cannot be run with this model: {plain(', '.join(refused))}.")
    _moving((RACE,), lambda: _race(colours, shipped))


def _race(colours: theme.Palette, shipped: str) -> None:
    result = live_state.results().get(RACE)
    _status(RACE, result)
    drawn = live_charts.race(result.story, result.job.get("contexts", ()), colours, shipped) if result else None
    if result is None or drawn is None:
        st.caption(
            "Each attention with random weights in the live model's shape: what is timed is real, what it writes means "
            "nothing and is not shown."
        )
        return
    with st.container(key="live_race_chart", gap="xsmall"):
        title = words.race_title(result.story.probes, shipped)
        picture("race", title, drawn, words.source(result), result.finished)
        if said := words.repeats(result.story.probes):
            st.caption(said)
