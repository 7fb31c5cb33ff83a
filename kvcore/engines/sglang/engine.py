"""SGLang's answers: what a request takes of the pools, how many fit, what is logged, and the command for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import NOTHING, CachePool, Capacity, Engine, Fill, Group, Layout, with_draft
from kvcore.engines.sglang.cells import (
    Stage,
    has_sliding_pool,
    latent_is_packed,
    page_size,
    resolve_dtype,
    split_stages,
    stages,
    stages_with_draft,
)
from kvcore.engines.sglang.lines import log_lines
from kvcore.engines.sglang.memory import mem_fraction_static, reserved_mib
from kvcore.engines.sglang.pools import Need, Sizes, pool_sizes, request_need, window_too_wide
from kvcore.engines.sglang.settings import (
    GPU_DEFAULTS,
    MAMBA_FULL_MEMORY_RATIO,
    OPTIONS,
    SWA_FULL_TOKENS_RATIO,
    VERSION,
    SglangSettings,
    make_settings,
)
from kvcore.model.memories import Attention, Indexer, State
from kvcore.model.model import Model
from kvcore.model.weight_formats import WeightFormat
from kvcore.ranks.rules import RankRules, Ways
from kvcore.ranks.speculation import alone, speculator
from kvcore.terms import Term

# MiB that are kept off for a draft and its graphs where nobody says (server_args.py), by who proposes.
_STANDALONE_MIB, _HEAD_MIB = 6 * 1024, 2 * 1024
# Requests that run at once beside a draft where nobody says (server_args.py).
_RUNNING_WITH_DRAFT = 48


class SGLang(Engine):
    """SGLang 0.5.23; see kvcore.engines.base.Engine."""

    name = "sglang"
    label = "SGLang"
    versions = f"SGLang {VERSION}, applied to 0.4 and 0.5; log lines without a dtype before about 0.5.10"
    release = VERSION
    vendors = ("NVIDIA",)
    options = OPTIONS
    cache_formats = ("fp8", "nvfp4")
    weight_formats = ("fp8", "awq", "nvfp4")
    rules = RankRules(dp_attention="groups", context_parallel=True)
    share_of = "total"
    share_by_gpu = True
    memory_tiers = tuple(row[0] for row in GPU_DEFAULTS[:-1])
    admission = (
        "SGLang admits a request with a part of its max_new_tokens set aside, and retracts one when the pool is "
        "full: it is then computed again. --schedule-conservativeness sets how large that part is.",
    )
    offload = "--enable-hierarchical-cache --hicache-size"

    def settings(self, model: Model, asked: Request) -> SglangSettings:
        """See Engine.settings; the longest request is the model's own limit unless said."""
        return make_settings(model, asked)

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """See Ranked.stages."""
        return split_stages(len(model.layers), deployment.pp)

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """See Ranked.ways.

        With data-parallel attention dense layers stay tensor parallel over all ranks (moe_dense_tp_size and
        enable_dp_lm_head unset), and replicas share experts. Of latents' up-projections there is a transposed copy
        (models/deepseek_v2.py).
        """
        wide = deployment.tp * deployment.dp if deployment.dp_attention else deployment.tp
        return Ways(
            attention=deployment.tp,
            dense=wide,
            shared=wide,
            head=wide,
            experts=wide,
            experts_whole=deployment.expert_parallel,
            vocabulary_pad=64,
            copies_latent=True,
        )

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """See Ranked.refuses_draft: no pipeline beside speculation, except for prefill alone (server_args.py)."""
        if deployment.draft is None:
            return ""
        if deployment.pp > 1:
            return f"it does not speculate over {deployment.pp} pipeline stages"
        if deployment.dp_attention and deployment.draft.standalone:
            return "a draft model of its own does not work with data-parallel attention"
        return ""

    def draft_notes(self, model: Model, deployment: Deployment) -> tuple[str, ...]:
        """See Ranked.draft_notes."""
        if deployment.draft is None or deployment.draft.own:
            return ()
        text = "SGLang sets cache aside for a draft by its number of layers, as if they were the model's"
        return (f"{text}; where the draft's take more, those are counted.",)

    def pool(self, model: Model, deployment: Deployment, context: int) -> SglangPool:
        """See Engine.pool."""
        return SglangPool(model, deployment, context)

    def share(self, model: Model, deployment: Deployment) -> float:
        """See Engine.share: mem_fraction_static, of which more is kept off for a draft and its graphs."""
        settings = self.settings(model, deployment.at(max(1, deployment.context)))
        found = mem_fraction_static(model, settings)
        if deployment.draft is None or settings.mem_fraction_static is not None:
            return found
        more = _STANDALONE_MIB if deployment.draft.standalone else _HEAD_MIB
        kept = reserved_mib(model, settings) + more
        return round((settings.gpu_mib - kept) / settings.gpu_mib, 3)

    def batched_tokens(self, settings: SglangSettings) -> int:
        """See Engine.batched_tokens."""
        return settings.prefill_chunk

    def layout(self, model: Model, settings: SglangSettings) -> Layout:
        """What one request of context_length tokens takes on the fullest rank; EngineError for what is refused."""
        parts = stages(model, settings)
        page, need = page_size(model, settings), request_need(model, settings)
        stage = max(parts, key=lambda part: stage_request_bytes(part, need))
        dtype = resolve_dtype(model, settings)
        cells = [cell for cell in (stage.full, stage.swa) if cell is not None]
        single = cells[0] if len(cells) == 1 else None
        slots = need.tokens if stage.full else need.swa_tokens
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype="fp8_ds_mla" if latent_is_packed(model, settings, dtype) else dtype,
            max_model_len=settings.context_length,
            block_size=page,
            bytes_per_block=page * single.bytes if single else None,
            blocks_per_request=slots // page if single else None,
            bytes_per_request=stage_request_bytes(stage, need),
            fixed_bytes=page * sum(cell.bytes for cell in cells) + stage.state_bytes,
            groups=_groups(stage, need, page),
            terms=_layout_terms(stage, need, page),
            notes=_notes(model, settings),
        )

    def capacity(self, model: Model, settings: SglangSettings, kv_bytes: int) -> Capacity:
        """The pools that `kv_bytes` on every rank make, the tightest stage deciding, and what is logged."""
        parts, page = stages(model, settings), page_size(model, settings)
        need, sizes = request_need(model, settings), pool_sizes(model, settings, parts, page, kv_bytes)
        limits = [Fraction(sizes.running)]
        limits += [Fraction(sizes.full, need.tokens)] if any(part.full for part in parts) else []
        limits += [Fraction(sizes.swa, need.swa_tokens)] if any(part.swa for part in parts) else []
        limits += [Fraction(sizes.state_slots, need.state_slots)] if need.state_slots else []
        starts = sizes.running > 0 and not window_too_wide(model, settings, sizes, page)
        tokens = sizes.tokens * (1 if sizes.swa else settings.dcp_size)
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=tokens,
            max_concurrency=min(limits) if starts else Fraction(0),
            blocks=sizes.tokens // page,
            log_lines=log_lines(model, settings, parts[0], sizes, page, tokens) if starts else (),
            terms=capacity_terms(parts, need, sizes, kv_bytes, tokens, starts),
        )

    def flags(self, model: Model, settings: SglangSettings) -> tuple[str, ...]:
        """The launch command, only what differs from SGLang's defaults."""
        words = ["python", "-m", "sglang.launch_server", "--model-path", model.name]
        words += ["--context-length", str(settings.context_length)]
        dtype = {"bf16": "bf16", "fp8": "fp8_e4m3"}.get(settings.kv_cache_dtype, settings.kv_cache_dtype)
        pairs: tuple[tuple[str, object, object], ...] = (
            ("--tp-size", settings.tp_size, 1),
            ("--pp-size", settings.pp_size, 1),
            ("--dcp-size", settings.dcp_size, 1),
            ("--dp-size", settings.dp_size, 1),
            ("--kv-cache-dtype", dtype, "auto"),
            ("--page-size", settings.page_size, None),
            ("--swa-full-tokens-ratio", settings.swa_full_tokens_ratio, SWA_FULL_TOKENS_RATIO),
            ("--mamba-full-memory-ratio", settings.mamba_full_memory_ratio, MAMBA_FULL_MEMORY_RATIO),
            ("--max-mamba-cache-size", settings.max_mamba_cache_size, None),
            ("--mamba-ssm-dtype", settings.mamba_ssm_dtype, None),
            ("--max-total-tokens", settings.max_total_tokens, None),
            ("--max-running-requests", settings.max_running_requests, None),
            ("--mem-fraction-static", settings.mem_fraction_static, None),
            ("--chunked-prefill-size", settings.chunked_prefill_size, None),
            ("--dsa-decode-backend", settings.dsa_decode_backend, None),
        )
        for flag, value, default in pairs:
            if value != default:
                words += [flag, str(value)]
        for name in ("enable_dp_attention", "disable_hybrid_swa_memory", "disable_radix_cache", "disable_cuda_graph"):
            if getattr(settings, name):
                words.append("--" + name.replace("_", "-"))
        return tuple(words)


SGLANG = SGLang()


def stage_request_bytes(stage: Stage, need: Need) -> int:
    """Bytes that one request takes of a stage's pools."""
    full = need.tokens * stage.full.bytes if stage.full else 0
    swa = need.swa_tokens * stage.swa.bytes if stage.swa else 0
    return full + swa + need.state_slots * stage.state_bytes


def _groups(stage: Stage, need: Need, page: int) -> tuple[Group, ...]:
    groups = []
    for kind, cell, tokens in (("full", stage.full, need.tokens), ("sliding", stage.swa, need.swa_tokens)):
        if cell is not None:
            latent = "latent" if cell.v_bytes is None else kind
            groups.append(
                Group(
                    kind=latent,
                    layers=cell.layers,
                    page_bytes=page * cell.bytes // cell.layers,
                    block_size=page,
                    blocks_per_request=tokens // page,
                )
            )
    if stage.state_layers:
        per_layer = stage.state_bytes // stage.state_layers
        groups.append(
            Group(kind="state", layers=stage.state_layers, page_bytes=per_layer, blocks_per_request=need.state_slots)
        )
    return tuple(groups)


def _layout_terms(stage: Stage, need: Need, page: int) -> tuple[Term, ...]:
    terms = []
    rows = (("full pool", stage.full, need.tokens), ("sliding pool", stage.swa, need.swa_tokens))
    for name, cell, tokens in rows:
        if cell is not None:
            value = tokens * cell.bytes
            text = f"{tokens:,} slots (pages of {page}) × {cell.bytes:,} B in {cell.layers} layers = {value:,} B"
            terms.append(Term(name=name, formula=text, value=value, unit="B"))
    if stage.state_layers:
        value = need.state_slots * stage.state_bytes
        text = (
            f"{need.state_slots} slots × ({stage.conv_bytes:,} + {stage.ssm_bytes:,}) B in {stage.state_layers} layers "
            f"= {value:,} B"
        )
        terms.append(Term(name="states", formula=text, value=value, unit="B"))
    total = sum(int(term.value) for term in terms)
    together = " + ".join(f"{term.value:,}" for term in terms)
    terms.append(Term(name="one request", formula=f"{together} = {total:,} B", value=total, unit="B"))
    return tuple(terms)


def capacity_terms(
    parts: tuple[Stage, ...], need: Need, sizes: Sizes, kv_bytes: int, tokens: int, starts: bool
) -> tuple[Term, ...]:
    """The steps from a budget to the pools that it makes."""
    terms = []
    slot = max(part.state_bytes for part in parts)
    if slot:
        taken = (sizes.state_slots + 1) * slot
        text = f"({sizes.state_slots:,} slots + 1 padding) × {slot:,} B = {taken:,} B"
        terms.append(Term(name="pool of states", formula=text, value=taken, unit="B"))
    if any(part.full for part in parts):
        text = f"{sizes.full:,} slots, {need.tokens:,} a request"
        terms.append(Term(name="full pool", formula=text, value=sizes.full, unit="tokens"))
    if any(part.swa for part in parts):
        text = f"{sizes.swa:,} slots, {need.swa_tokens:,} a request"
        terms.append(Term(name="sliding pool", formula=text, value=sizes.swa, unit="tokens"))
    text = f"{sizes.running:,} requests at once"
    terms.append(Term(name="running requests", formula=text, value=sizes.running, unit="requests"))
    terms.append(Term(name="max_total_num_tokens", formula=f"{tokens:,} tokens", value=tokens, unit="tokens"))
    if not starts:
        text = f"SGLang refuses to start: {kv_bytes:,} B make no pool that serves a request"
        terms.append(Term(name="not enough memory", formula=text, value=kv_bytes, unit="B"))
    return tuple(terms)


def _notes(model: Model, settings: SglangSettings) -> tuple[str, ...]:
    notes = [f"The rules of SGLang {VERSION} on CUDA, without speculation; buffers have one padding page more."]
    kept = [memory for memory, _ in model.kept]
    windows = any(isinstance(memory, Attention) and memory.limit is not None for memory in kept)
    if windows and not has_sliding_pool(model, settings):
        notes.append("SGLang has no sliding pool for this architecture: every layer has slots for every token.")
    if windows and has_sliding_pool(model, settings):
        ratio = settings.swa_full_tokens_ratio
        notes.append(f"The sliding pool has {ratio:g} slots for each slot of the full pool, whatever the window.")
    if any(isinstance(memory, State) for memory in kept):
        notes.append("Slots of states also hold those of cached prefixes; a request may run with fewer than counted.")
    if any(isinstance(memory, Indexer) for memory in kept) and settings.version != VERSION:
        notes.append("Older versions left the indexer's keys out of the size that they log.")
    if settings.kv_cache_dtype == "auto" and model.cache_format == "fp8":
        notes.append("auto takes the fp8 that ModelOpt declares; for other quantisers SGLang keeps 16 bits.")
    return tuple(notes)


class SglangPool(CachePool):
    """See CachePool.

    What is free is the least over all ranks, pipeline stages included (get_available_gpu_memory, distributed), so the
    smallest pool meets the widest stage. How many may run depends on the pools, and is part of the concurrency.
    """

    sequences_name = "max_running_requests"
    held_back = ""

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        few = (
            {"max_running_requests": _RUNNING_WITH_DRAFT}
            if deployment.draft and deployment.max_num_seqs is None
            else {}
        )
        self.settings: SglangSettings = SGLANG.settings(model, deployment.at(context).unless_stated(few))
        plain = self.stages = stages(model, self.settings)
        self.draft = speculator(model, deployment)
        if self.draft is not None:
            own = SGLANG.settings(self.draft, alone(self.draft, deployment, SGLANG.rules).at(context))
            self.stages = stages_with_draft(plain, self.draft, self.settings.dcp_size, own)
        self.plain = plain
        self.page = page_size(model, self.settings)
        self.keeps_cache = True
        self._needs: dict[int, tuple[SglangSettings, Need]] = {}
        asked = self.settings.max_running_requests
        self.sequences: int | None = None if asked is None else max(1, asked // self.settings.attention_dp)

    def _for(self, context: int) -> tuple[SglangSettings, Need]:
        """The settings for requests of that length, and what one needs; kept for the ends of a range."""
        found = self._needs.get(context)
        if found is None:
            settings = replace(self.settings, context_length=context)
            found = self._needs[context] = settings, request_need(self.model, settings)
        return found

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill."""
        least = min(kv_bytes)
        if least <= 0:
            return NOTHING
        settings, need = self._for(context)
        sizes = pool_sizes(self.model, settings, self.stages, self.page, least)
        if sizes.running <= 0 or window_too_wide(self.model, settings, sizes, self.page):
            return NOTHING
        limits: list[Fraction] = []
        limits += [Fraction(sizes.full, need.tokens)] if any(part.full for part in self.stages) else []
        limits += [Fraction(sizes.swa, need.swa_tokens)] if any(part.swa for part in self.stages) else []
        limits += [Fraction(sizes.state_slots, need.state_slots)] if need.state_slots else []
        tokens = sizes.tokens * (1 if sizes.swa else settings.dcp_size)
        by_memory = min(limits)
        concurrency = min(by_memory, Fraction(sizes.running))
        return Fill(
            concurrency=concurrency, requests=int(concurrency), tokens=tokens, by_sequences=concurrency < by_memory
        )

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See CachePool.count."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See CachePool.holds."""
        return self.fill(context, kv_bytes).requests >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes."""
        _, need = self._for(context)
        return tuple(stage_request_bytes(stage, need) for stage in self.stages)

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See CachePool.tightest: the widest stage, for all have the pool of the smallest."""
        sizes = self.request_bytes(context)
        return max(range(len(sizes)), key=lambda stage: sizes[stage])

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout; the same for any number of requests."""
        found = SGLANG.layout(self.model, replace(self.settings, context_length=context))
        if self.draft is None:
            return found
        need = self._for(context)[1]
        pairs = zip(self.stages, self.plain, strict=True)
        more = max(stage_request_bytes(stage, need) - stage_request_bytes(plain, need) for stage, plain in pairs)
        return with_draft(found, self.draft, more)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms: the engine's own."""
        least = max(0, min(kv_bytes))
        settings, need = self._for(context)
        sizes = pool_sizes(self.model, settings, self.stages, self.page, least)
        starts = sizes.running > 0 and not window_too_wide(self.model, settings, sizes, self.page)
        return capacity_terms(self.stages, need, sizes, least, sizes.tokens, starts)
