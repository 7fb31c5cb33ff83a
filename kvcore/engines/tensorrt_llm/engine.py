"""TensorRT-LLM's answers: what a request claims, how many fit, what is logged, and the command for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import NOTHING, CachePool, Engine, Fill, with_draft
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Group, Layout, Note
from kvcore.engines.tensorrt_llm.launch import CONFIG, cache_config, launch
from kvcore.engines.tensorrt_llm.log import TENSORRT_LLM_LOG
from kvcore.engines.tensorrt_llm.memory import overheads
from kvcore.engines.tensorrt_llm.pools import WindowPool, blocks, resolve_dtype, split_stages, stage_pools
from kvcore.engines.tensorrt_llm.settings import (
    FREE_GPU_MEMORY_FRACTION,
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    OPTIONS,
    VERSION,
    TensorRtLlmSettings,
    make_settings,
)
from kvcore.errors import EngineError
from kvcore.model.memories import Memory, State
from kvcore.model.model import Model
from kvcore.model.weight_formats import WeightFormat
from kvcore.ranks.rules import RankRules, Ways
from kvcore.ranks.speculation import alone, speculator
from kvcore.terms import Term
from kvcore.units import GIB


class TensorRtLlm(Engine):
    """TensorRT-LLM 1.4 with its V1 cache manager; see kvcore.engines.base.Engine."""

    name = "tensorrt-llm"
    label = "TensorRT-LLM"
    versions = f"TensorRT-LLM {VERSION} (public documentation and sources), pytorch backend; tensorrt backend from 0.8"
    release = VERSION
    vendors = ("NVIDIA",)
    options = OPTIONS
    log = TENSORRT_LLM_LOG
    cache_formats = ("fp8", "nvfp4")
    weight_formats = ("fp8", "awq", "nvfp4")
    rules = RankRules(dp_attention="all")
    share_of = "free"
    admission = (
        "TensorRT-LLM's default, GUARANTEED_NO_EVICT, admits a request when its prompt and all of its max_tokens "
        "fit; MAX_UTILIZATION admits more and pauses some.",
    )
    offload = "kv_cache_config.host_cache_size"
    overheads = staticmethod(overheads)

    def settings(self, model: Model, asked: Request) -> TensorRtLlmSettings:
        """See Engine.settings; the longest request is the model's own limit unless said."""
        return make_settings(model, asked)

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """See Ranked.stages."""
        return split_stages(len(model.layers), deployment.pp)

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """See Ranked.ways.

        With data-parallel attention replicas share experts. Of latents' up-projections there is a transposed copy
        (_torch/modules/attention.py, k_b_proj_trans).
        """
        found = super().ways(model, deployment, wanted)
        experts = deployment.tp * deployment.dp if deployment.dp_attention else deployment.tp
        return replace(found, experts=experts, copies_latent=True)

    def pool(self, model: Model, deployment: Deployment, context: int) -> TensorRtLlmPool:
        """See Engine.pool."""
        return TensorRtLlmPool(model, deployment, context)

    def share(self, model: Model, deployment: Deployment) -> float:
        """See Engine.share: free_gpu_memory_fraction."""
        stated = deployment.option("free_gpu_memory_fraction") or deployment.utilization
        return float(stated or FREE_GPU_MEMORY_FRACTION)

    def batched_tokens(self, settings: TensorRtLlmSettings) -> int:
        """See Engine.batched_tokens: max_num_tokens."""
        return MAX_NUM_TOKENS

    def no_sharing(self, model: Model, deployment: Deployment) -> str:
        """See Engine.no_sharing: no blocks are reused where there are states."""
        states = any(isinstance(memory, State) for memory, _ in model.kept)
        text = "TensorRT-LLM reuses no blocks of models with recurrent states: nothing is counted once."
        return text if states and deployment.prefix_caching else ""

    def layout(self, model: Model, settings: TensorRtLlmSettings) -> Layout:
        """What one request of max_seq_len tokens claims on the fullest rank; EngineError for what is refused."""
        pools = max(stage_pools(model, settings), key=lambda stage: _request_bytes(stage, settings))
        size, single = settings.tokens_per_block, pools[0] if len(pools) == 1 else None
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=resolve_dtype(model, settings),
            max_model_len=settings.max_seq_len,
            block_size=size,
            bytes_per_block=size * single.token_bytes if single else None,
            blocks_per_request=single.blocks_needed(settings) if single else None,
            bytes_per_request=_request_bytes(pools, settings),
            groups=tuple(_group(model, pool, settings) for pool in pools),
            terms=_layout_terms(pools, settings),
            remarks=_notes(model, settings),
        )

    def capacity(self, model: Model, settings: TensorRtLlmSettings, kv_bytes: int) -> Capacity:
        """Blocks that `kv_bytes` on every rank make (the fraction already taken), the tightest stage deciding.

        `kv_cache_size_tokens` is that of the longest window's pool. Raises EngineError when not one block fits.
        """
        stages = stage_pools(model, settings)
        if len({tuple(pool.window for pool in pools) for pools in stages}) > 1:
            raise EngineError("the pipeline stages have different windows, which it refuses", engine="tensorrt-llm")
        counts = tuple(map(min, zip(*(blocks(pools, settings, kv_bytes) for pools in stages), strict=True)))
        if not all(counts):
            raise EngineError(f"impossible to fit any sequence in a cache of {kv_bytes:,} B", engine="tensorrt-llm")
        pools = stages[0]
        needs = [pool.blocks_needed(settings) for pool in pools]
        concurrency = min(Fraction(count, need) for count, need in zip(counts, needs, strict=True))
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=counts[-1] * settings.tokens_per_block,
            max_concurrency=concurrency,
            blocks=counts[0] if len(counts) == 1 else None,
            log_lines=_log_lines(pools, counts, settings),
            terms=_capacity_terms(pools, counts, needs, kv_bytes, settings),
        )

    def budget_bytes(self, settings: TensorRtLlmSettings, free_bytes: int) -> int:
        """Memory for the cache: a share of what is free after the weights and the activation profiling run."""
        return int(free_bytes * Fraction(str(settings.free_gpu_memory_fraction)))

    def launch(self, model: Model, deployment: Deployment, settings: TensorRtLlmSettings) -> Command:
        """See Engine.launch: `trtllm-serve`."""
        return launch(model, deployment, settings)


TENSORRT_LLM = TensorRtLlm()


def _request_bytes(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings) -> int:
    return sum(pool.blocks_needed(settings) * settings.tokens_per_block * pool.token_bytes for pool in pools)


def _group(model: Model, pool: WindowPool, settings: TensorRtLlmSettings) -> Group:
    return Group(
        kinds=("latent" if model.latents else "sliding" if pool.window < settings.max_seq_len else "full",),
        layers=pool.layers,
        page_bytes=settings.tokens_per_block * pool.token_bytes // pool.layers,
        block_size=settings.tokens_per_block,
        blocks_per_request=pool.blocks_needed(settings),
    )


def _layout_terms(pools: tuple[WindowPool, ...], settings: TensorRtLlmSettings) -> tuple[Term, ...]:
    terms = []
    size = settings.tokens_per_block
    for pool in pools:
        need = pool.blocks_needed(settings)
        value = need * size * pool.token_bytes
        text = f"{need:,} blocks × {size} tokens × {pool.token_bytes:,} B in {pool.layers} layers = {value:,} B"
        terms.append(Term(name=f"window of {pool.window:,}", formula=text, value=value, unit="B"))
    total = _request_bytes(pools, settings)
    together = " + ".join(f"{term.value:,}" for term in terms)
    terms.append(Term(name="one request", formula=f"{together} = {total:,} B", value=total, unit="B"))
    return tuple(terms)


def _capacity_terms(
    pools: tuple[WindowPool, ...],
    counts: tuple[int, ...],
    needs: list[int],
    kv_bytes: int,
    settings: TensorRtLlmSettings,
) -> tuple[Term, ...]:
    size = settings.tokens_per_block
    part = f"{kv_bytes:,} B" if len(pools) == 1 else f"its part of {kv_bytes:,} B"
    terms = []
    for pool, count, need in zip(pools, counts, needs, strict=True):
        text = f"{part} / {pool.token_bytes:,} B a token / {size} tokens: {count:,} blocks, {need:,} a request"
        terms.append(Term(name=f"blocks of window {pool.window:,}", formula=text, value=count, unit="blocks"))
        if count < need:
            fits = count * size
            text = f"max_seq_len and the window of {pool.window:,} are reduced to {fits:,} tokens"
            terms.append(Term(name="reduced", formula=text, value=fits, unit="tokens"))
    return tuple(terms)


def _log_lines(
    pools: tuple[WindowPool, ...], counts: tuple[int, ...], settings: TensorRtLlmSettings
) -> tuple[str, ...]:
    """Messages without their prefixes; the counter of tokens sums all windows (kvCacheManager.cpp, allocatePools)."""
    size, length = settings.tokens_per_block, settings.max_seq_len
    rows = list(zip(pools, counts, strict=True))
    if settings.backend == "tensorrt":
        lines = ["Blocks per window size:"]
        lines += [f"[windowSize={pool.window}] {{.primaryBlocks={n}, .secondayBlocks=0}}" for pool, n in rows]
    elif len(rows) > 1:
        lines = [f"Window size = {pool.window}, primary_blocks: {n}, secondary_blocks: 0" for pool, n in rows]
    else:
        most = min(length, counts[0] * size)
        lines = [
            f"Max KV cache blocks per sequence: {-(-most // size)} [window size={most}], tokens per block={size}, "
            f"primary blocks={counts[0]}, secondary blocks=0, max sequence length={most}"
        ]
    total = sum(n * size * pool.token_bytes for pool, n in rows)
    lines.append(f"Number of tokens per block: {size}.")
    lines.append(
        f"[MemUsageChange] Allocated {total / GIB:.2f} GiB for max tokens in paged KV cache ({sum(counts) * size})."
    )
    return tuple(lines)


def _notes(model: Model, settings: TensorRtLlmSettings) -> tuple[Note, ...]:
    of = f"The rules of TensorRT-LLM {VERSION} and its V1 cache manager"
    rules = Note(f"{of}, without speculation.", kind="rules", with_draft=f"{of}.")
    notes: list[str] = []
    cache = cache_config(settings)
    file = [f"kv_cache_config: {{{', '.join(cache)}}}"] if cache else []
    file += ["enable_attention_dp: true"] if settings.enable_attention_dp else []
    if file:
        notes.append(f"{CONFIG}: {'; '.join(file)}")
    if model.has_windows and not settings.max_attention_window:
        notes.append(
            "Sliding layers keep every token unless max_attention_window names their windows; here that is "
            f"{_pattern(model, settings)}."
        )
    if len(settings.windows) > 1 and len(set(settings.windows)) > 1:
        notes.append("Memory is divided between the windows once, at the start; the pool that is full first decides.")
    if resolve_dtype(model, settings) == "nvfp4" or model.indexers:
        notes.append("The GiB that is logged leaves out or rounds scales and indexer keys; ours counts all bytes.")
    return (rules, *map(Note, notes))


def _pattern(model: Model, settings: TensorRtLlmSettings) -> str:
    """The shortest pattern that repeats to the windows of the model's layers."""
    windows = [_layer_window(layer, settings) for layer in model.layers]
    for length in range(1, len(windows) + 1):
        if all(window == windows[index % length] for index, window in enumerate(windows)):
            return ",".join(map(str, windows[:length]))
    return ""


def _layer_window(layer: tuple[Memory, ...], settings: TensorRtLlmSettings) -> int:
    limits = [memory.window for memory in layer if memory.window is not None]
    return min([settings.max_seq_len, *limits])


class TensorRtLlmPool(CachePool):
    """See CachePool. The smallest stage decides for all."""

    sequences_name = "max_batch_size"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: TensorRtLlmSettings = TENSORRT_LLM.settings(model, deployment.at(context))
        self.sequences = deployment.max_num_seqs or MAX_BATCH_SIZE
        self._at: dict[int, TensorRtLlmSettings] = {}
        self._stages: dict[tuple[int, ...], tuple[tuple[WindowPool, ...], ...]] = {}
        # What is refused is refused here, and not at the first length.
        found = self._pools(self.settings)
        self.draft = speculator(model, deployment)
        # Bytes a token of the draft's, on the last stage.
        self.drafted = 0 if self.draft is None else self._draft_token(self.draft, deployment, context, found)

    def _draft_token(
        self, draft: Model, deployment: Deployment, context: int, found: tuple[tuple[WindowPool, ...], ...]
    ) -> int:
        own = stage_pools(draft, TENSORRT_LLM.settings(draft, alone(draft, deployment, TENSORRT_LLM.rules).at(context)))
        if any(len(pools) > 1 for pools in (*found, *own)):
            raise EngineError(
                "how windows share the memory with a draft's cache is not followed here", engine="tensorrt-llm"
            )
        return sum(pool.token_bytes for pools in own for pool in pools)

    def _for(self, context: int) -> TensorRtLlmSettings:
        """The settings for requests of that length; kept for the ends of a range."""
        found = self._at.get(context)
        if found is None:
            found = self._at[context] = replace(self.settings, max_seq_len=context)
        return found

    def _target(self, kv_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """What is left of the pools for the model: both have as many tokens (pyexecutor/_util.py, cal_max_tokens)."""
        if not self.drafted:
            return kv_bytes
        each = self._pools(self.settings)[-1][0].token_bytes
        return (*kv_bytes[:-1], kv_bytes[-1] * each // (each + self.drafted))

    def _pools(self, settings: TensorRtLlmSettings) -> tuple[tuple[WindowPool, ...], ...]:
        """The pools of every stage. Only their windows depend on the length, and only up to the longest of them."""
        key = settings.windows
        if len(key) == 1:
            # One window as long as a request: what a token takes does not change.
            known = self._stages.get(())
            if known is None:
                known = self._stages[()] = self._checked(settings)
            return tuple(tuple(replace(pool, window=key[0]) for pool in pools) for pools in known)
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._checked(settings)
        return found

    def _checked(self, settings: TensorRtLlmSettings) -> tuple[tuple[WindowPool, ...], ...]:
        found = stage_pools(self.model, settings)
        if len({tuple(pool.window for pool in pools) for pools in found}) > 1:
            raise EngineError("the pipeline stages have different windows, which it refuses", engine="tensorrt-llm")
        return found

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill."""
        if min(kv_bytes) <= 0:
            return NOTHING
        settings = self._for(context)
        stages = self._pools(settings)
        sizes = self._target(kv_bytes)
        made = (blocks(pools, settings, size) for pools, size in zip(stages, sizes, strict=True))
        counts = tuple(map(min, zip(*made, strict=True)))
        if not all(counts):
            return NOTHING
        needs = (pool.blocks_needed(settings) for pool in stages[0])
        concurrency = min(Fraction(count, need) for count, need in zip(counts, needs, strict=True))
        return Fill(concurrency=concurrency, requests=int(concurrency), tokens=counts[-1] * settings.tokens_per_block)

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes."""
        settings = self._for(context)
        size = settings.tokens_per_block
        stages = self._pools(settings)
        last = len(stages) - 1
        return tuple(
            sum(
                pool.blocks_needed(settings) * size * (pool.token_bytes + (self.drafted if stage == last else 0))
                for pool in pools
            )
            for stage, pools in enumerate(stages)
        )

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout; the same for any number of requests."""
        settings = self._for(context)
        found = TENSORRT_LLM.layout(self.model, settings)
        if self.draft is None:
            return found
        tokens = self._pools(settings)[-1][0].blocks_needed(settings) * settings.tokens_per_block
        return with_draft(found, self.draft, tokens * self.drafted)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms."""
        settings = self._for(context)
        stages = self._pools(settings)
        terms = []
        if self.drafted:
            each = stages[-1][0].token_bytes
            text = f"{kv_bytes[-1]:,} B × {each:,} / ({each:,} + {self.drafted:,} B a token of the draft)"
            own = self._target(kv_bytes)[-1]
            terms.append(Term(name="the model's part of the pool", formula=f"{text} = {own:,} B", value=own, unit="B"))
        for number, (pools, size) in enumerate(zip(stages, self._target(kv_bytes), strict=True)):
            where = f", stage {number}" if len(stages) > 1 else ""
            for pool, count in zip(pools, blocks(pools, settings, max(0, size)), strict=True):
                part = f"{size:,} B" if len(pools) == 1 else f"its part of {size:,} B"
                text = (
                    f"{part} / {pool.token_bytes:,} B a token / {settings.tokens_per_block} tokens = {count:,} blocks"
                )
                text += f", {pool.blocks_needed(settings):,} a request"
                terms.append(Term(name=f"window of {pool.window:,}{where}", formula=text, value=count, unit="blocks"))
        return tuple(terms)
