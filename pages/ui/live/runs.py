"""Runs that are kept: named, compared, exported, loaded again and replayed."""

from __future__ import annotations

import re
from dataclasses import replace

import streamlit as st

from kvcore.errors import LiveError
from kvcore.live import runs
from kvcore.live.runs import MAX_NAME, RunRecord, RunSummary
from kvcore.units import format_bytes
from pages.ui import widgets
from pages.ui.live import compare, controls, jobs, parts, replay, words
from pages.ui.live.jobs import PROBE, RACE, RUN, JobResult
from pages.ui.text import plain
from pages.ui.theme import Palette

MOST_KEPT = 12
UPLOAD_MB = 4
_KEPT = "live_kept"
_KIND_WORDS = {RUN: "run", PROBE: "probe", RACE: "race"}


def kept() -> list[RunRecord]:
    """The runs that this session keeps, the newest last."""
    found: list[RunRecord] = st.session_state.setdefault(_KEPT, [])
    return found


def section(colours: Palette) -> None:
    """Keep, compare, export and load."""
    st.subheader("Runs", anchor=False)
    _keep_row()
    # Above the table and within the page: a panel that floats would cover what a file has changed, and move with it.
    with st.expander("Load a run", icon=":material/upload_file:"):
        st.file_uploader(
            "A run exported here (.json)", key="live_load", type=["json"], max_upload_size=UPLOAD_MB, on_change=_load
        )
        st.caption("It is read in memory, checked, and never run.")
    with widgets.place("runs"):
        if problem := st.session_state.pop("live_run_problem", ""):
            st.error(plain(problem), icon=":material/error:")
        _told()
    records = kept()
    if records:
        st.html(widgets.table("Kept runs", _COLUMNS, [_row(one) for one in records]))
        _chosen_run(records)
        _compare(records, colours)


def _told() -> None:
    """What happened to the last run that was kept or loaded, where it is not what was asked for."""
    found = st.session_state.get("live_run_told")
    if not found:
        return
    text, name, wanted = found
    with st.container(key="live_run_told_box", gap="small"):
        st.info(plain(text), icon=":material/info:")
        if wanted and {name, wanted} <= {one.name for one in kept()}:
            st.button(
                "Replace the earlier one", key="live_replace", on_click=_replace, args=(name, wanted),
                icon=":material/swap_horiz:",
            )  # fmt: skip


def _replace(name: str, wanted: str) -> None:
    """The run `name` takes the place and the name of the earlier one that is called `wanted`."""
    records = kept()
    new = next((one for one in records if one.name == name), None)
    if new is not None:
        named = replace(new, name=wanted)
        st.session_state[_KEPT] = [named if one.name == wanted else one for one in records if one is not new]
        st.session_state["live_kept_one"] = kept().index(named)
    st.session_state["live_run_told"] = None


def _compare(records: list[RunRecord], colours: Palette) -> None:
    """First tokens and times per token of the chosen kept runs, side by side."""
    usable = [one.name for one in records if compare.comparable(one)]
    if len(usable) < 2:
        if usable:
            st.caption("Keep or load another run to see both side by side.")
        return
    keep = st.session_state
    known = keep.get("live_compared_of")
    if known != usable or "live_compared" not in keep:
        # What is new joins what was chosen, up to as many as can be told apart.
        chosen = [one for one in keep.get("live_compared") or [] if one in usable]
        fresh = [one for one in usable if one not in (known or []) or "live_compared" not in keep]
        keep["live_compared"] = [*chosen, *(one for one in fresh if one not in chosen)][-compare.MOST :]
        keep["live_compared_of"] = usable
    with st.container(key="live_compare", gap="small"):
        st.multiselect(
            "Compare", usable, key="live_compared", max_selections=compare.MOST, placeholder="Choose kept runs"
        )
        shown = [one for one in records if one.name in keep["live_compared"]]
        left, right = st.columns([5, 7], gap="large")
        for column, name, title, drawn in (
            (left, "compare_first", compare.first_title(shown), compare.first_tokens(shown, colours)),
            (right, "compare_tokens", compare.tokens_title(shown), compare.tokens(shown, colours)),
        ):
            with column, st.container(gap="xsmall"):
                st.subheader(plain(title), anchor=False)
                if drawn is None:
                    st.caption("Nothing of it was measured in these.")
                else:
                    parts.picture(name, drawn, finished=True)
        if len({replay.where(one)[:-12] for one in shown}) > 1:
            st.caption("These runs were not all made on one machine.")


def _keep_row() -> None:
    found = [kind for kind in (RUN, PROBE, RACE) if _keepable(jobs.results().get(kind))]
    if not found:
        st.caption("Run something, and keep it here under a name to compare it with the next.")
        return
    newest = st.session_state.pop("live_newest", None)
    if newest in found:
        st.session_state["live_keep_kind"] = newest
    with st.container(key="live_keep_row"):
        kind, name, button = st.columns([1.2, 3, 1.2], vertical_alignment="bottom", gap="small")
    with kind:
        st.selectbox("Keep the last", found, key="live_keep_kind", format_func=lambda one: _KIND_WORDS[one])
    with name:
        st.text_input("Name", key="live_keep_name", placeholder="the first try", max_chars=80)
    with button:
        st.button("Keep it", key="live_keep", on_click=_keep, icon=":material/bookmark_add:", width="stretch")


def _keepable(result: JobResult | None) -> bool:
    return result is not None and result.finished and result.record is None and result.progress.began


def _keep() -> None:
    keep = st.session_state
    result = jobs.results().get(keep.get("live_keep_kind") or RUN)
    if result is None:
        return
    turns = jobs.turns() if result.job.get("continue_of") else [result]
    name = str(keep.get("live_keep_name") or "").strip() or f"{_KIND_WORDS[result.kind]} {len(kept()) + 1}"
    prompt, *later = [controls.asked(turn.job) for turn in turns] or [""]
    try:
        record = runs.from_events(
            [event for turn in turns for event in turn.events],
            name=name,
            prompt=prompt,
            later_prompts=later,
            kind=result.kind,
        )
    except LiveError as problem:
        keep["live_run_problem"] = str(problem)
        return
    _add(record)
    keep["live_keep_name"] = ""


def _add(record: RunRecord) -> RunRecord:
    """Keep a run under a name of its own; says so where that is another one than it had, or an old run has to go."""
    keep, told = st.session_state, []
    taken = {one.name for one in kept()}
    named = record
    if record.name in taken:
        named = replace(record, name=unlike(record.name, taken))
        told.append(f"A run called {record.name} is kept already, so this one is called {named.name}.")
    if len(kept()) >= MOST_KEPT:
        told.append(f"{MOST_KEPT} runs are kept at most: {kept()[0].name} had to go.")
    keep[_KEPT] = [*kept(), named][-MOST_KEPT:]
    keep["live_kept_one"] = len(kept()) - 1
    keep["live_run_told"] = (" ".join(told), named.name, record.name if named is not record else "") if told else None
    return named


def unlike(name: str, taken: set[str]) -> str:
    """The name with the first number from 2 that nobody has, in place of the number that it may have."""
    base = re.sub(r" \(\d{1,4}\)$", "", name)[: MAX_NAME - 8]
    return next(made for number in range(2, 10_000) if (made := f"{base} ({number})") not in taken)


def _load() -> None:
    file = st.session_state.get("live_load")
    if file is None:
        return
    st.session_state["live_run_told"] = None
    try:
        record = runs.from_json(file.getvalue())
    except LiveError as problem:
        st.session_state["live_run_problem"] = f"{file.name[:80]}: {problem}"
        return
    record = _add(record)
    jobs.results()[record.kind] = replay.whole(record)


_COLUMNS = (("run", "w"), ("model", "w"), ("first token", "n"), ("each token", "n"), ("tokens/s", "n"),
            ("without the cache", "n"), ("cache held", "n"))  # fmt: skip


def _row(record: RunRecord) -> list[str | tuple[str, str]]:
    told = runs.summary(record)
    held = record.bytes
    weights = "" if record.weights == "real" else "random weights, "
    attention = "" if record.attention == "shipped" else f", {words.variant_name(record.attention)}"
    tokens = _tokens(record, told) if record.kind == RUN else _KIND_WORDS[record.kind]
    return [
        (record.name, f"{tokens}, {record.made_at[:16].replace('T', ' ')} UTC"),
        (record.title, f"{weights}{record.weight_format}, cache {record.kv_format}{attention}"),
        _time(told.ttft_s),
        _time(told.token_s),
        "–" if told.decode_tokens_per_s is None else words.rate(told.decode_tokens_per_s),
        "–" if told.recompute_ratio is None else words.times(told.recompute_ratio),
        "–" if held is None or held.resident is None else format_bytes(held.resident),
    ]


def _tokens(record: RunRecord, told: RunSummary) -> str:
    """How many tokens went in, turn by turn, and how many came out."""
    prompts = " + ".join(f"{one:,}" for one in told.turn_tokens or (record.prompt_tokens,))
    if told.turns < 2:
        return f"{prompts} + {told.new_tokens:,} tokens"
    return (
        f"{told.turns} turns: {prompts} prompt tokens and {told.new_tokens:,} new; {told.saved_tokens:,} not read again"
    )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else words.duration(seconds)


def _chosen_run(records: list[RunRecord]) -> None:
    at = st.session_state.get("live_kept_one")
    if at is not None and not 0 <= at < len(records):
        st.session_state["live_kept_one"] = len(records) - 1
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="live_kept_row"):
        at = st.selectbox(
            "Kept run", range(len(records)), key="live_kept_one", format_func=lambda one: records[one].name, width=280
        )
        record = records[at]
        st.button("Show", on_click=_show, args=(record,), key="live_kept_show", icon=":material/visibility:",
                  disabled=jobs.running())  # fmt: skip
        st.button("Replay", on_click=_replay, args=(record,), key="live_kept_play", icon=":material/replay:",
                  disabled=jobs.running())  # fmt: skip
        st.download_button(
            "JSON", lambda: runs.to_json(record).encode(), f"{_file(record)}.json", "application/json",
            key="live_json", on_click="ignore", icon=":material/download:",
        )  # fmt: skip
        st.download_button(
            "CSV", lambda: _csv(record), f"{_file(record)}.csv", "text/csv", key="live_csv", on_click="ignore",
            icon=":material/download:",
        )  # fmt: skip
        st.button("Remove", on_click=_remove, args=(at,), key="live_kept_drop", type="tertiary")


def _file(record: RunRecord) -> str:
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in record.name.lower())
    return f"kv-live-{plain.strip('-')[:60] or 'run'}"


def _csv(record: RunRecord) -> bytes:
    return runs.to_csv(record).encode()


def _show(record: RunRecord) -> None:
    jobs.results()[record.kind] = replay.whole(record)


def _replay(record: RunRecord) -> None:
    jobs.play(replay.playing(record))


def _remove(at: int) -> None:
    st.session_state[_KEPT] = [one for place, one in enumerate(kept()) if place != at]
    st.session_state["live_kept_one"] = None if not kept() else 0
    st.session_state["live_run_told"] = None
