"""This machine as it was measured, what binds a step on it, and how the predictions are made."""

from __future__ import annotations

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.live.host import Host
from kvcore.live.roofline import Calibration, what_binds
from kvcore.units import format_bytes
from pages.ui import widgets
from pages.ui.live import controls, jobs
from pages.ui.live.jobs import PROBE, RACE, RUN
from pages.ui.live.progress import JobProgress
from pages.ui.text import plain


def calibration(progress: JobProgress) -> Calibration | None:
    """The calibration that a run used, or None."""
    if not progress.calibration:
        return None
    try:
        return Calibration.from_dict(progress.calibration)
    except KVCoreError:
        return None


def afresh_s(progress: JobProgress) -> float | None:
    """Seconds that reading the whole conversation anew would take, as predicted; None where that is not known."""
    first, known = progress.cache.prefill, calibration(progress)
    if first is None or known is None:
        return None
    return known.predict_prefill_s(first.reused + first.tokens)


def shipped_attention() -> str:
    """How the model of the last race attends as it ships, where that is known."""
    for kind in (RACE, RUN):
        result = jobs.results().get(kind)
        if result is not None and (name := result.progress.ready.get("model")):
            shape = controls.supported(str(name))
            if shape is not None:
                heads, groups = shape.num_heads, shape.num_kv_heads
                return "MHA" if heads == groups else "MQA" if groups == 1 else f"GQA {heads}:{groups}"
    return ""


def section(off: str) -> None:
    """Figures of the machine, folded."""
    told = [one.progress for kind in (RUN, PROBE, RACE, jobs.MACHINE) if (one := jobs.results().get(kind))]
    progress = next((one for one in told if one.host), None)
    with st.expander("The machine, as measured, and what binds"):
        if progress is None:
            st.markdown("Not measured yet: the first run measures it, once, in a few seconds.")
        else:
            for line in binds(told[0] if told[0].host else progress):
                st.markdown(plain(line))
            st.html(widgets.table("The machine", (("measured", "w"), ("", "n")), _rows(progress)))
        controls.stop_or(
            "Measure again", "live_measure", controls.measure_again, disabled=bool(off), icon=":material/speed:"
        )


def _rows(progress: JobProgress) -> list[list[str | tuple[str, str]]]:
    host = progress.host
    rows: list[list[str | tuple[str, str]]] = [
        ["Device", f"{host.get('device_name') or host.get('device')}"],
        ["Memory", format_bytes(host.get("memory_bytes") or 0)],
        ["Threads, by the best measured median", f"{host.get('threads')}"],
        ["Read bandwidth", f"{(host.get('read_bandwidth_bytes_per_s') or 0) / 1e9:.3g} GB/s"],
    ]
    rows += [
        [f"Weights read in a step of one token, {name}", f"{value / 1e9:.3g} GB/s"]
        for name, value in (host.get("gemv_bytes_per_s") or {}).items()
    ]
    rows += [
        [f"Products of matrices, {name}", f"{value / 1e9:,.0f} GFLOP/s"]
        for name, value in (host.get("matrix_flops_per_s") or {}).items()
    ]
    return [*rows, ["Measured", f"{host.get('measured_at')}, torch {host.get('torch_version')}"]]


def binds(progress: JobProgress) -> list[str]:
    """What share of the measured bandwidth a step reaches, and what that means."""
    each, host, ready = progress.cache.median_s, progress.host, progress.ready
    band = host.get("read_bandwidth_bytes_per_s")
    held = progress.cache.held
    if not each or not band or not ready.get("weight_bytes"):
        return []
    read = int(ready["weight_bytes"]) + (held.resident if held else 0)
    try:
        said = what_binds(
            Host.from_dict(host), bytes_read=read, seconds=each, weight_format=str(ready.get("weight_format")),
            layers=int(ready.get("layers") or 0) or None,
        )  # fmt: skip
    except KVCoreError:
        return []
    return [said]


def how() -> None:
    """How the predicted figures are made."""
    with st.expander("How it is computed"):
        st.markdown(
            "- **Predicted bytes**: the same `kvcore` code as on the Size screen, fed with the live model's own shape. "
            "Measured bytes come from the tensors: their storage (reserved) and their filled rows (resident).\n"
            "- **Reserved** is whole blocks of 256 tokens for every request, so it grows in steps.\n"
            "- **Predicted times**: calibrated on this machine and model. Decode is a + b × context through two "
            "points for each number of requests; prefill is a + b × tokens + c × tokens² through three.\n"
            "- **First token** is the time of the prefill: the whole prompt at once. **Each token** is the median of "
            "the steps after it, measured one by one.\n"
            "- **Without the cache** the whole conversation goes through the model again for every token."
        )
