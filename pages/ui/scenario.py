"""The scenario row: model, tokens, requests, cache format, examples, link. The same on every screen."""

from __future__ import annotations

import streamlit as st

from kvcore.errors import KVCoreError
from kvcore.formats import ELEMENT_FORMATS, KV_FORMATS
from kvcore.model import Model
from kvcore.scenario.concurrency import USERS as USUAL_USERS
from kvcore.scenario.concurrency import ConcurrencyOptions
from kvcore.scenario.fields import choices
from kvcore.scenario.scenario import Scenario
from kvcore.scenario.variants import VariantOptions
from kvcore.sources import catalogue, files
from pages.ui import models, screens, state, widgets
from pages.ui.concurrency import address
from pages.ui.concurrency import examples as plan_examples
from pages.ui.models import OWN, Chosen, Refusal
from pages.ui.size.examples import LESSONS, label
from pages.ui.text import plain, tidy_name
from pages.ui.variants import lessons

TOKENS = ("8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M")
USERS = ("1", "4", "10", "30", "50", "100", "250", "500", "1000")
BATCHES = ("1", "2", "4", "8", "10", "16", "32", "64", "128", "256")
_B = 10**9
SIZES = {"up to 4B": (0, 4 * _B), "4B to 15B": (4 * _B, 15 * _B), "15B to 80B": (15 * _B, 80 * _B),
         "over 80B": (80 * _B, 10**6 * _B)}  # fmt: skip
# Choices that are typed or taken from presets, by their controls' keys.
_TYPED = {
    key: row
    for rows in (
        choices(Scenario),
        choices(VariantOptions),
        {address.key(name): row for name, row in choices(ConcurrencyOptions).items()},
    )
    for key, row in rows.items()
    if row.example
}
FORMAT_WORDS = {
    "fp8_ds_mla": "packed fp8 · latent (MLA) caches only",
    "turboquant_k8v4": "keys 8 bits, values 4",
    "turboquant_4bit_nc": "keys and values 4 bits",
    "turboquant_k3v4_nc": "keys 3 bits, values 4",
    "turboquant_3bit_nc": "keys and values 3 bits",
}


def scenario_row() -> tuple[Chosen, Scenario]:
    """Draw the row; returns the model that is shown and the scenario."""
    if st.session_state["page"] == state.LIVE:
        return _model_row()
    chosen, refusal = _chosen()
    crosses = any(kind == "cross" for kind, _ in chosen.model.kinds)
    with st.container(key="scenario", gap="xsmall"):
        widths = [4.4, 1.5, 1.5, 1.8, 1.8, *([1.8] if crosses else [])]
        picker, tokens, batch, keys, values, *source = st.columns(widths, vertical_alignment="bottom")
        with picker:
            _picker()
        with tokens:
            free("tokens", "Tokens", TOKENS, "Length of one request, prompt and answer together. Type 8192, 8K or 1M.")
        with batch:
            if st.session_state["page"] == state.CONCURRENCY:
                free(
                    address.key("users"), "Users at once", USERS,
                    "Requests that generate at the same moment, each as long as Tokens says. Type any number.",
                )  # fmt: skip
            else:
                free("batch", "Requests", BATCHES, "Requests at once. Each has a cache of its own. Type any number.")
        with keys:
            _key_format(chosen.model)
        with values:
            _value_format(chosen.model)
        for column in source:
            with column:
                _source(chosen.model)
        actions = st.container(horizontal=True, gap="small", vertical_alignment="center")
    now = state.scenario(chosen)
    with actions:
        _examples()
        with st.popover("Your own model", type="tertiary", icon=":material/upload_file:", key="own_panel"):
            panel()
        with st.popover("Filter", type="tertiary", icon=":material/filter_list:", key="filter_panel"):
            _filters()
        with st.popover("Copy link", type="tertiary", icon=":material/link:", key="link_panel"):
            _link(chosen, now)
    if st.session_state["page"] == state.CONCURRENCY:
        # Read here once, so that what cannot be read is said in this run and not beside the next answer.
        screens.screen(state.CONCURRENCY).chosen(now)
    problems(refusal)
    return chosen, now


def _model_row() -> tuple[Chosen, Scenario]:
    """The row of the Live screen, which runs a model of its own: of the scenario only the model, and what it is for."""
    chosen, refusal = _chosen()
    now = state.scenario(chosen)
    with st.container(key="model_row", gap="xsmall"):
        picker, words = st.columns([4.4, 6.6], vertical_alignment="bottom", gap="medium")
        with picker:
            _picker()
        with words:
            st.caption(
                "The model of the other screens, which keep their tokens, requests and formats. Here it only adds its "
                "shape, with random weights, to the choices of **Live model** below."
            )
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            with st.popover("Filter", type="tertiary", icon=":material/filter_list:", key="filter_panel"):
                _filters()
            with st.popover("Copy link", type="tertiary", icon=":material/link:", key="link_panel"):
                _link(chosen, now)
    problems(refusal)
    return chosen, now


def _chosen() -> tuple[Chosen, Refusal | None]:
    """The model to show, and what was refused: after a refusal the last good model stays."""
    keep = st.session_state
    refusal: Refusal | None = keep.get("refusal")
    if keep["model"] == OWN:
        return keep["own"], refusal
    found = models.from_catalogue(keep["model"], bool(keep.get("bound")))
    if isinstance(found, Refusal):
        return keep.get("last_good") or models.default(), found
    keep["last_good"] = found
    return found, refusal


def _picker() -> None:
    keep = st.session_state
    labels = models.labels()
    brought: Chosen | None = keep.get("own")
    options = ([OWN] if brought else []) + _filtered(labels)
    if keep["model"] not in options:
        options.insert(0, keep["model"])

    def shown(option: str) -> str:
        return f"{brought.name} (brought by you)" if option == OWN and brought else labels.get(option, option)

    st.selectbox("Model", options, key="model", format_func=shown, on_change=_model_changed)


def _model_changed() -> None:
    st.session_state["bound"] = False
    st.session_state["refusal"] = None


def _filtered(labels: dict[str, str]) -> list[str]:
    keep = st.session_state
    family, size, kind = keep.get("filter_family"), keep.get("filter_size"), keep.get("filter_kind")
    if not (family or size or kind):
        return list(labels)
    low, high = SIZES[size] if size else (None, None)
    found = catalogue.search(family=family, attention=kind, min_parameters=low, max_parameters=high)
    return [one.entry.model_id for one in found]


def free(key: str, label: str, presets: tuple[str, ...], help_text: str) -> None:
    """A choice of presets that takes any other value too."""
    value = st.session_state[key]
    options = presets if value in presets else (value, *presets)
    st.selectbox(label, options, key=key, accept_new_options=True, help=help_text, on_change=_tidy, args=(key, label))


def _tidy(key: str, label: str) -> None:
    """Show what was typed as it is understood: 8192 becomes 8K."""
    keep = st.session_state
    row = _TYPED[key]
    try:
        keep[key] = row.control(row.read(str(keep[key])))
    except (KVCoreError, ValueError):
        message = f"{label}: {str(keep[key])[:40]!r} is not a number that can be used; write for example {row.example}."
        keep.setdefault("problems", []).append(message)
        keep[key] = row.control(_last_good(key))


def _last_good(key: str) -> int:
    """What a choice was before something was typed that cannot be read."""
    keep = st.session_state
    good = keep.get("good", {}).get(key, _TYPED[key].default)
    return int(good or USUAL_USERS) if key == address.key("users") else int(good)


def _key_format(model: Model) -> None:
    auto = model.resolve_format("auto").name
    declared = "declared by the checkpoint" if model.cache_format else "16 bits"

    def shown(name: str) -> str:
        if name == "auto":
            return f"auto: {auto}"
        return name

    label = "Latent in" if _only_latent(model) else "Keys in"
    st.selectbox(
        label, ["auto", *KV_FORMATS], key="k_format", format_func=shown,
        help=f"Number format of the cache. auto: {auto} ({declared}). fp8_ds_mla exists for latent (MLA) caches only; "
        "the turboquant layouts set keys and values together.",
    )  # fmt: skip


def _value_format(model: Model) -> None:
    keys = st.session_state["k_format"]
    if _only_latent(model) or (keys != "auto" and keys not in ELEMENT_FORMATS):
        latent = _only_latent(model)
        words = "none: one latent" if latent else FORMAT_WORDS.get(keys, "set by the keys")
        why = (
            "A latent holds keys and values in one vector." if latent else "This layout sets keys and values together."
        )
        st.selectbox("Values in", [words], key=f"v_fixed_{keys}_{latent}", help=why)
        return
    st.selectbox(
        "Values in", [state.SAME, *ELEMENT_FORMATS], key="v_format",
        format_func=lambda name: "same as keys" if name == state.SAME else name,
        help="Values can be kept in another format than keys, as in llama.cpp's q8_0 with q4_0.",
    )  # fmt: skip


def _only_latent(model: Model) -> bool:
    """Whether nothing in the model keeps keys and values as such."""
    kinds = {kind for kind, _ in model.kinds}
    return "compressed" in kinds or ("latent" in kinds and not kinds & {"full", "sliding", "chunked"})


def _source(model: Model) -> None:
    largest = max(getattr(memory, "source_tokens", 0) for memory, _ in model.groups)
    st.text_input(
        "Source tokens", key="source", placeholder=f"{largest:,} at most",
        help="Encoder output or image tokens that cross-attention keeps, whatever is generated. Empty: the most there "
        f"can be, {largest:,}.",
    )  # fmt: skip


def _filters() -> None:
    found = catalogue.summaries()
    families, kinds = sorted({one.family for one in found}), sorted({one.attention for one in found})
    st.selectbox("Family", families, index=None, key="filter_family", placeholder="any")
    st.selectbox("Size", list(SIZES), index=None, key="filter_size", placeholder="any")
    st.selectbox("Attention", kinds, index=None, key="filter_kind", placeholder="any")
    st.caption(f"{len(_filtered(models.labels()))} of {len(models.labels())} models in the list.")


def _link(chosen: Chosen, now: Scenario) -> None:
    if chosen.config is None:
        st.markdown(
            "This model does not fit into a link: whoever opens it also needs the file, else the default is shown."
        )
    else:
        st.markdown("This address opens exactly this view.")
    st.code(state.link(now), language=None, wrap_lines=True)


def _examples() -> None:
    """Views worth seeing on the page that is open."""
    if st.session_state["page"] == state.VARIANTS:
        st.menu_button(
            "Lessons", list(lessons.LESSONS), key="lessons", format_func=lessons.title,
            on_click=_open_lesson, type="tertiary", icon=":material/school:",
        )  # fmt: skip
        return
    if st.session_state["page"] == state.CONCURRENCY:
        st.menu_button(
            "Examples", list(plan_examples.EXAMPLES), key="plan_examples", format_func=plan_examples.title,
            on_click=plan_examples.open_chosen, type="tertiary", icon=":material/school:",
        )  # fmt: skip
        return
    st.menu_button(
        "Examples", list(LESSONS), key="examples", format_func=label, on_click=_open_example, type="tertiary",
        icon=":material/school:",
    )  # fmt: skip


def _open_example() -> None:
    name = st.session_state["examples"]
    if name in LESSONS:
        state.show(LESSONS[name])


def _open_lesson() -> None:
    lesson = lessons.LESSONS.get(st.session_state["lessons"])
    if lesson is not None:
        state.show(lesson.scenario, lesson.options)


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
    state.bring(lambda bound: files.from_json(text, "", upper_bound=bound))


def _upload() -> None:
    file = st.session_state.get("uploaded")
    if file is not None:
        take_upload(file.name, file.getvalue())


def take_upload(name: str, data: bytes) -> None:
    """Show the model of an uploaded file, or why it was refused."""
    state.bring(lambda bound: files.from_upload(name, data, upper_bound=bound))


def _fetch() -> None:
    repo, revision = (str(st.session_state.get(key) or "").strip() for key in ("hub_id", "hub_revision"))
    state.bring(lambda bound: files.from_hub(repo, revision=revision or None, upper_bound=bound), repo)


def problems(refusal: Refusal | None) -> None:
    """Sentences about what could not be taken, and the box of a refused configuration."""
    with widgets.place("problems"):
        _problems(refusal)


def _problems(refusal: Refusal | None) -> None:
    messages = [plain(message) for message in dict.fromkeys(st.session_state.pop("problems", []))]
    if messages:
        text = messages[0] if len(messages) == 1 else "\n".join(f"- {message}" for message in messages)
        st.warning(text, icon=":material/info:")
    if refusal is None:
        return
    with st.container(key="refusal", gap="small"):
        name = tidy_name(refusal.name or "Your configuration")
        st.error(f"**{plain(name)}**: {plain(refusal.message)}.", icon=":material/error:")
        if refusal.keys and (refusal.bound or refusal.catalogued):
            with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
                st.button("Answer with an upper bound", key="bound_go", on_click=_bound, args=(refusal,))
                st.caption("Every layer counts as full attention: never too small, often too large.", width="content")
        st.caption("Shown below: the last model that was understood.")


def _bound(refusal: Refusal) -> None:
    keep = st.session_state
    if refusal.bound is not None:
        load = refusal.bound
        state.bring(lambda _: load(), refusal.name, upper_bound=True)
        return
    keep["bound"] = True
    keep["refusal"] = None
