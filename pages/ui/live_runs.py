"""Runs that are kept: named, compared, exported, loaded again and replayed."""

from __future__ import annotations

import streamlit as st

from kvcore.errors import LiveError
from kvcore.live import runs
from kvcore.live.runs import RunRecord
from kvcore.units import format_bytes
from pages.ui import html_table, live_look, live_replay, live_state
from pages.ui.live_state import PROBE, RACE, RUN, Result
from pages.ui.plain import plain

MOST_KEPT = 12
UPLOAD_MB = 4
_KEPT = "live_kept"
_KIND_WORDS = {RUN: "run", PROBE: "probe", RACE: "race"}


def kept() -> list[RunRecord]:
    """The runs that this session keeps, the newest last."""
    found: list[RunRecord] = st.session_state.setdefault(_KEPT, [])
    return found


def section() -> None:
    """Keep, compare, export and load."""
    st.subheader("Runs", anchor=False)
    _keep_row()
    records = kept()
    if records:
        st.html(html_table.table("Kept runs", _COLUMNS, [_row(one) for one in records]))
        _chosen_run(records)
    with st.popover("Load a run", type="tertiary", icon=":material/upload_file:", key="live_load_panel"):
        st.file_uploader(
            "A run exported here (.json)", key="live_load", type=["json"], max_upload_size=UPLOAD_MB, on_change=_load
        )
        st.caption("It is read in memory, checked, and never run.")
    if problem := st.session_state.pop("live_run_problem", ""):
        st.error(plain(problem), icon=":material/error:")


def _keep_row() -> None:
    found = [kind for kind in (RUN, PROBE, RACE) if _keepable(live_state.results().get(kind))]
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


def _keepable(result: Result | None) -> bool:
    return result is not None and result.finished and result.record is None and result.story.began


def _keep() -> None:
    keep = st.session_state
    result = live_state.results().get(keep.get("live_keep_kind") or RUN)
    if result is None:
        return
    turns = live_state.turns() if result.job.get("continue_of") else [result]
    name = str(keep.get("live_keep_name") or "").strip() or f"{_KIND_WORDS[result.kind]} {len(kept()) + 1}"
    prompt = str(turns[0].job.get("prompt") or "") if turns else ""
    try:
        record = runs.from_events([event for turn in turns for event in turn.events], name=name, prompt=prompt)
    except LiveError as problem:
        keep["live_run_problem"] = str(problem)
        return
    _add(record)
    keep["live_keep_name"] = ""


def _add(record: RunRecord) -> None:
    st.session_state[_KEPT] = [*kept(), record][-MOST_KEPT:]
    st.session_state["live_kept_one"] = min(len(kept()), MOST_KEPT) - 1


def _load() -> None:
    file = st.session_state.get("live_load")
    if file is None:
        return
    try:
        record = runs.from_json(file.getvalue())
    except LiveError as problem:
        st.session_state["live_run_problem"] = f"{file.name[:80]}: {problem}"
        return
    _add(record)
    live_state.results()[record.kind] = live_replay.whole(record)


_COLUMNS = (("run", "w"), ("model", "w"), ("first token", "n"), ("each token", "n"), ("tokens/s", "n"),
            ("without the cache", "n"), ("cache held", "n"))  # fmt: skip


def _row(record: RunRecord) -> list[str | tuple[str, str]]:
    told = runs.summary(record)
    held = record.bytes
    weights = "" if record.weights == "real" else "random weights, "
    attention = "" if record.attention == "shipped" else f", {live_look.variant_name(record.attention)}"
    tokens = (
        f"{record.prompt_tokens:,} + {told.new_tokens:,} tokens" if record.kind == RUN else _KIND_WORDS[record.kind]
    )
    return [
        (record.name, f"{tokens}, {record.made_at[:16].replace('T', ' ')} UTC"),
        (record.title, f"{weights}{record.weight_format}, cache {record.kv_format}{attention}"),
        _time(told.ttft_s),
        _time(told.token_s),
        "–" if told.decode_tokens_per_s is None else live_look.rate(told.decode_tokens_per_s),
        "–" if told.recompute_ratio is None else live_look.times(told.recompute_ratio),
        "–" if held is None or held.resident is None else format_bytes(held.resident),
    ]


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else live_look.duration(seconds)


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
                  disabled=live_state.running())  # fmt: skip
        st.button("Replay", on_click=_replay, args=(record,), key="live_kept_play", icon=":material/replay:",
                  disabled=live_state.running())  # fmt: skip
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
    import pandas as pd

    from pages.ui import tables

    return tables.csv(pd.DataFrame(runs.to_csv_rows(record)))


def _show(record: RunRecord) -> None:
    live_state.results()[record.kind] = live_replay.whole(record)


def _replay(record: RunRecord) -> None:
    live_state.play(live_replay.playing(record))


def _remove(at: int) -> None:
    st.session_state[_KEPT] = [one for place, one in enumerate(kept()) if place != at]
    st.session_state["live_kept_one"] = None if not kept() else 0
