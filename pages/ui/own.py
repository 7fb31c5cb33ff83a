"""Bringing a model that is not in the catalogue, and saying what was not understood."""

from __future__ import annotations

import streamlit as st

from kvcore import sources
from pages.ui import notices, state
from pages.ui.models import Refusal
from pages.ui.plain import plain, tidy_name

UPLOAD_MB = 6
EXAMPLE = '{"model_type": "llama", "num_hidden_layers": 32, …}'


def panel() -> None:
    """The ways to bring a model: paste, upload, Hub."""
    with st.container(width=460):
        paste, upload, hub = st.tabs(["Paste", "Upload", "Hugging Face Hub"])
    with paste:
        st.text_area("A model's config.json", key="pasted", height=180, placeholder=EXAMPLE)
        st.button("Size this model", key="paste_go", on_click=_paste)
    with upload:
        st.file_uploader(
            "config.json or .gguf", key="uploaded", type=["json", "gguf"], max_upload_size=UPLOAD_MB, on_change=_upload
        )
        st.caption(
            f"Up to {UPLOAD_MB} MB. Of a .gguf the beginning is enough: `head -c 6000000 model.gguf > start.gguf`. "
            "It is read in memory and not kept."
        )
    with hub:
        st.text_input("Repository", key="hub_id", placeholder="Qwen/Qwen3-8B")
        st.text_input("Revision", key="hub_revision", placeholder="main")
        st.button("Fetch its config.json", key="hub_go", on_click=_fetch)
        st.caption("Only this button asks the Hub, for the configuration and the size of the weights; never for code.")


def _paste() -> None:
    text = st.session_state.get("pasted") or ""
    state.bring(lambda bound: sources.from_json(text, "", upper_bound=bound))


def _upload() -> None:
    file = st.session_state.get("uploaded")
    if file is not None:
        take_upload(file.name, file.getvalue())


def take_upload(name: str, data: bytes) -> None:
    """Show the model of an uploaded file, or why it was refused."""
    state.bring(lambda bound: sources.from_upload(name, data, upper_bound=bound))


def _fetch() -> None:
    repo, revision = (str(st.session_state.get(key) or "").strip() for key in ("hub_id", "hub_revision"))
    state.bring(lambda bound: sources.from_hub(repo, revision=revision or None, upper_bound=bound), repo)


def problems(refusal: Refusal | None) -> None:
    """Sentences about what could not be taken, and the box of a refused configuration."""
    with notices.place("problems"):
        _problems(refusal)


def _problems(refusal: Refusal | None) -> None:
    messages = [plain(message) for message in dict.fromkeys(st.session_state.pop("problems", []))]
    if messages:
        text = messages[0] if len(messages) == 1 else "\n".join(f"- {message}" for message in messages)
        st.warning(text, icon=":material/info:")
    if refusal is None:
        return
    with st.container(key="refusal", gap="small"):
        st.error(f"**{plain(tidy_name(refusal.name))}**: {plain(refusal.message)}.", icon=":material/error:")
        if refusal.keys and (refusal.bound or refusal.catalogued):
            with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
                st.button("Answer with an upper bound", key="bound_go", on_click=_bound, args=(refusal,))
                st.caption("Every layer counts as full attention: never too small, often too large.", width="content")
        st.caption("Shown below: the last model that was understood.")


def _bound(refusal: Refusal) -> None:
    keep = st.session_state
    if refusal.bound is not None:
        load = refusal.bound
        state.bring(lambda _: load(), "" if refusal.name == "Your configuration" else refusal.name, upper_bound=True)
        return
    keep["bound"] = True
    keep["refusal"] = None
