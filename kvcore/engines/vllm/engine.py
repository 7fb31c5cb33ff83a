"""vLLM's answers: what a request reserves, how many fit, what is logged, and the command that asks for it."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import NOTHING, CachePool, Engine, Fill, split_layers
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Group, Layout, Note
from kvcore.engines.releases import release
from kvcore.engines.vllm.blocks import (
    BlockGroup,
    Spec,
    block_groups,
    block_size,
    layer_specs,
    resolve_format,
    spared_layers,
)
from kvcore.engines.vllm.launch import launch
from kvcore.engines.vllm.log import VLLM_LOG
from kvcore.engines.vllm.overheads import overheads
from kvcore.engines.vllm.packed import counted_blocks, is_packed, is_slotted, packed_groups, slotted_bytes
from kvcore.engines.vllm.settings import (
    ALL_GROUPS_LOGGED,
    CPU_NAMED,
    NULL_BLOCK_LEFT_OUT,
    ONE_LINE_LOGGED,
    OPTIONS,
    V0_CHUNKS_ABOVE,
    VERSION,
    VllmSettings,
    default_utilization,
    has_small_defaults,
    make_settings,
)
from kvcore.errors import EngineError
from kvcore.hardware.gpus import Accelerator
from kvcore.model.memories import State
from kvcore.model.model import Model
from kvcore.model.stored_bits import UP_PROJECTION
from kvcore.model.weight_formats import WeightFormat
from kvcore.ranks.rules import RankRules, Ways
from kvcore.ranks.speculation import speculator
from kvcore.terms import Term
from kvcore.units import GIB

# Logged: Marlin's size on an H100 by 0.10.1 (vllm-project/vllm#23278), Triton's by 0.11.
_TRITON_MXFP4_FROM = (0, 11)


class Vllm(Engine):
    """vLLM 0.33 (and 0.32 on CPU); see kvcore.engines.base.Engine."""

    name = "vllm"
    label = "vLLM"
    versions = f"vLLM {VERSION}; on CPU 0.32; windows, DeepSeek-V4's blocks and log lines as in the release asked for"
    release = VERSION
    vendors = ("NVIDIA", "AMD", "Intel")
    options = OPTIONS
    log = VLLM_LOG
    cache_formats = ("fp8", "turboquant_k8v4", "turboquant_4bit_nc", "nvfp4", "turboquant_k3v4_nc")
    weight_formats = ("fp8", "awq", "nvfp4")
    rules = RankRules(
        dp_attention="replicas",
        context_parallel=True,
        uneven_experts=True,
        padded_experts=("mxfp4",),
        rotary_tables=True,
    )
    share_of = "total"
    memory_tiers = (70, 160)
    admission = (
        "vLLM admits a request when its prompt fits, and preempts the latest when the pool is full: it is then "
        "computed again. max_num_seqs at the worst case rules that out.",
    )
    offload = "--kv-offloading-size"
    overheads_by_stage = True
    overheads = staticmethod(overheads)

    def settings(self, model: Model, asked: Request) -> VllmSettings:
        """See Engine.settings; the longest request is the model's own limit unless said."""
        return make_settings(model, asked)

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """See Ranked.ways.

        Data-parallel replicas always share experts, with expert parallel or without (fused_moe/config.py,
        flatten_tp_across_dp_and_pcp). Shared experts are whole where experts see split sequences: with expert parallel,
        tp and dp all above one (config/parallel.py, use_sequence_parallel_moe). Of latents' up-projections that are
        quantised there are 16-bit copies (v1/attention/backends/mla/common.py).
        """
        tp, dp = deployment.tp, deployment.dp
        # Kernels for mxfp4 want sides that are multiples (quantization/mxfp4.py). Mixtures with other formats have
        # kernels of their own, which pad nothing.
        padded = wanted is not None and wanted.name == "mxfp4" and wanted.bits_of("attention") == 16
        return Ways(
            attention=tp,
            dense=tp,
            shared=1 if deployment.expert_parallel and tp > 1 and dp > 1 else tp,
            head=tp,
            experts=tp * dp if model.experts is not None else tp,
            experts_whole=deployment.expert_parallel,
            vocabulary_pad=64,
            width_pad=_expert_width_pad(deployment) if padded else 1,
            hidden_pad=256 if padded else 1,
            copies_latent=wanted is not None and wanted.bits_of(UP_PROJECTION) < 16,
        )

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """See Ranked.refuses_draft: a draft model has the same vocabulary."""
        draft = None if deployment.draft is None else deployment.draft.model
        if draft is None or draft.prediction.eagle or None in (sizes := (model.vocab_size, draft.vocab_size)):
            return ""
        if sizes[0] == sizes[1]:
            return ""
        return (
            f"the draft's vocabulary of {sizes[1]:,} is not the model's {sizes[0]:,}; it takes another only with "
            "use_heterogeneous_vocab, which is not planned here"
        )

    def pool(self, model: Model, deployment: Deployment, context: int) -> VllmPool:
        """See Engine.pool."""
        return VllmPool(model, deployment, context)

    def share(self, model: Model, deployment: Deployment) -> float:
        """See Engine.share: gpu_memory_utilization."""
        return deployment.utilization or default_utilization(deployment.engine_version)

    def small_defaults(self, gpu: Accelerator, version: str | None) -> bool:
        """See Engine.small_defaults: GPUs that vLLM names."""
        return has_small_defaults(gpu, version)

    def batched_tokens(self, settings: VllmSettings) -> int:
        """See Engine.batched_tokens."""
        return settings.batched_tokens

    def layout(self, model: Model, settings: VllmSettings) -> Layout:
        """How one request of max_model_len tokens is stored on the fullest rank; EngineError for what is refused."""
        settings = _adjusted(model, settings)
        return self.layout_of(model, settings, *self.plan(model, settings))

    def layout_of(
        self, model: Model, settings: VllmSettings, groups: tuple[BlockGroup, ...], block: int | None
    ) -> Layout:
        """The same from what `plan` gave for these settings, whatever max_model_len was then."""
        per_block = max((bytes_ for bytes_ in self.stage_block_bytes(model, settings, groups)), default=0)
        blocks = sum(group.pages(settings) for group in groups)
        shown = tuple(_group(group, settings) for group in groups)
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=resolve_format(model, settings).name,
            max_model_len=settings.max_model_len,
            block_size=block,
            bytes_per_block=per_block,
            blocks_per_request=blocks,
            bytes_per_request=per_block * blocks,
            groups=shown,
            terms=_layout_terms(shown, per_block, blocks, _held(model, settings)),
            remarks=_notes(model, settings, groups),
        )

    def plan(self, model: Model, settings: VllmSettings) -> tuple[tuple[BlockGroup, ...], int | None]:
        """The groups over all pipeline stages, and the block size that vLLM reports: that of attention, unpadded.

        Neither depends on max_model_len. EngineError for what is refused.
        """
        if is_packed(model):
            return packed_groups(model, settings), block_size(model, settings, resolve_format(model, settings))
        placed = layer_specs(model, settings)
        return block_groups(placed, settings), placed[0][0].block_size if placed else None

    def stage_block_bytes(
        self, model: Model, settings: VllmSettings, groups: tuple[BlockGroup, ...]
    ) -> tuple[int, ...]:
        """Bytes of one block on each pipeline stage: the widest group's pages of the layers that the stage has."""
        first, result = 0, []
        slotted = is_slotted(settings) and is_packed(model)
        sizes = list(split_layers(len(model.layers), settings.pipeline_parallel_size))
        # The head that speculates sits behind the last stage's layers.
        sizes[-1] += settings.mtp_layers
        for size in sizes:
            layers = range(first, first + size)
            densely = max((group.bytes_on(layers) for group in groups), default=0)
            result.append(slotted_bytes(groups, layers, settings) if slotted else densely)
            first += size
        return tuple(result)

    def capacity(self, model: Model, settings: VllmSettings, kv_bytes: int) -> Capacity:
        """What fits in `kv_bytes` on every rank; the stage with the largest block decides. EngineError: no cache."""
        layout = self.layout(model, settings)
        if not layout.bytes_per_block:
            raise EngineError(f"{model.name} keeps no cache, so there is no capacity to compute", engine="vllm")
        blocks = kv_bytes // layout.bytes_per_block
        if settings.num_gpu_blocks_override is not None:
            blocks = settings.num_gpu_blocks_override
            kv_bytes = blocks * layout.bytes_per_block
        needed = layout.blocks_per_request or 1
        if is_slotted(settings) and is_packed(model):
            needed = counted_blocks(self.plan(model, settings)[0], settings)
        concurrency = Fraction(blocks, needed)
        tokens = int(concurrency * settings.max_model_len)
        if self.counts_one_group(settings):
            # Until 0.20 the line counted the tokens of one group's share of the blocks.
            tokens = blocks // max(1, len(layout.groups)) * (layout.block_size or 1)
        usable = self._usable(layout, settings, kv_bytes)
        short = layout.bytes_per_request - usable
        lines = _log_lines(tokens, concurrency, settings)
        if short > 0:
            lines = (self._refusal(model, settings, layout, usable),)
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=tokens,
            max_concurrency=concurrency,
            starts=short <= 0,
            blocks=blocks,
            log_lines=lines,
            terms=_capacity_terms(layout, kv_bytes, blocks, needed, tokens, short),
        )

    def counts_one_group(self, settings: VllmSettings) -> bool:
        """Whether the size that this version logs is that of one group's share of the blocks."""
        return release(settings.version) < ALL_GROUPS_LOGGED

    def _usable(self, layout: Layout, settings: VllmSettings, kv_bytes: int) -> int:
        """What one request is checked against at the start."""
        if release(settings.version) < NULL_BLOCK_LEFT_OUT:
            return kv_bytes
        return kv_bytes - (layout.bytes_per_block or 0)

    def estimated_length(self, model: Model, settings: VllmSettings, kv_bytes: int) -> int:
        """The max_model_len that vLLM proposes where `kv_bytes` are too few for the one set; 0 when none fits."""
        return self.longest(model, settings, self._usable(self.layout(model, settings), settings, kv_bytes))

    def longest(self, model: Model, settings: VllmSettings, usable_bytes: int) -> int:
        """The longest max_model_len, up to the one set, whose request fits in `usable_bytes`; 0 when none does."""

        def fits(length: int) -> bool:
            return self.layout(model, replace(settings, max_model_len=length)).bytes_per_request <= usable_bytes

        low, high = 0, settings.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return low

    def _refusal(self, model: Model, settings: VllmSettings, layout: Layout, usable_bytes: int) -> str:
        """The sentence with which vLLM refuses to start (kv_cache_planning.py)."""
        if usable_bytes <= 0:
            return "No available memory for the cache blocks."
        longest = self.longest(model, settings, usable_bytes)
        hint = f" Based on the available memory, the estimated maximum model length is {longest}." if longest else ""
        return (
            f"To serve at least one request with the model's max seq len ({settings.max_model_len}), "
            f"({round(layout.bytes_per_request / GIB, 2)} GiB KV cache is needed, which is larger than the available "
            f"KV cache memory ({round(usable_bytes / GIB, 2)} GiB).{hint}"
        )

    def overhead_steps(self, settings: VllmSettings) -> tuple[int, ...]:
        """See Engine.overhead_steps."""
        return (V0_CHUNKS_ABOVE,) if settings.older_core else ()

    def launch(self, model: Model, deployment: Deployment, settings: VllmSettings) -> Command:
        """See Engine.launch: `vllm serve`."""
        return launch(model, deployment, settings)


VLLM = Vllm()


def _expert_width_pad(deployment: Deployment) -> int:
    """The multiple to which kernels for mxfp4 experts pad their width, of sides of 2880 × 2880 in gpt-oss.

    128 and 256 for Marlin, 256 twice for those of data-centre Blackwells, 64 and 256 for Triton's, which Hoppers have
    since 0.11.
    """
    capability = deployment.gpu.compute_capability or ""
    if capability.startswith("10."):
        return 256
    stated = re.match(r"v?(\d+)\.(\d+)", deployment.engine_version or "")
    recent = stated is None or (int(stated[1]), int(stated[2])) >= _TRITON_MXFP4_FROM
    return 64 if capability.startswith("9.") and recent else 128


def _adjusted(model: Model, settings: VllmSettings) -> VllmSettings:
    """Settings that vLLM changes by itself: on CPU, MLA models prefill whole and cache no prefixes."""
    if settings.is_cpu and model.latents:
        batched = max(settings.max_model_len, settings.batched_tokens)
        return replace(settings, max_num_batched_tokens=batched, enable_prefix_caching=False)
    return settings


def _group(group: BlockGroup, settings: VllmSettings) -> Group:
    first = group.parts[0][0]
    return Group(
        kinds=tuple(dict.fromkeys(spec.kind for spec, _ in group.parts)),
        layers=group.layers,
        page_bytes=first.page_bytes,
        block_size=first.block_size,
        blocks_per_request=group.pages(settings),
    )


def _held(model: Model, settings: VllmSettings) -> str:
    """What one block of the pool holds, in words."""
    if not (is_packed(model) and is_slotted(settings)):
        return "the widest group's pages"
    return "a slot of its size for every page that a group may bring"


def _layout_terms(groups: tuple[Group, ...], per_block: int, blocks: int, held: str) -> tuple[Term, ...]:
    terms = [
        Term(
            name=f"{group.kind} group of {group.layers} layers",
            formula=f"{group.blocks_per_request:,} blocks of {group.block_size:,} tokens",
            value=group.blocks_per_request or 0,
            unit="blocks",
        )
        for group in groups
    ]
    terms.append(
        Term(
            name="one block of the pool",
            formula=f"{held} = {per_block:,} B",
            value=per_block,
            unit="B",
        )
    )
    terms.append(
        Term(
            name="one request",
            formula=f"{blocks:,} blocks × {per_block:,} B = {blocks * per_block:,} B",
            value=blocks * per_block,
            unit="B",
        )
    )
    return tuple(terms)


def _capacity_terms(
    layout: Layout, kv_bytes: int, blocks: int, needed: int, tokens: int, short: int
) -> tuple[Term, ...]:
    concurrency = Fraction(blocks, needed)
    counted = "" if needed == layout.blocks_per_request else " as this line counts them"
    terms = [
        Term(
            name="blocks",
            formula=f"{kv_bytes:,} B // {layout.bytes_per_block:,} B = {blocks:,}",
            value=blocks,
            unit="blocks",
        ),
        Term(
            name="maximum concurrency",
            formula=f"{blocks:,} / {needed:,} blocks a request{counted} = {float(concurrency):.4f}",
            value=float(concurrency),
            unit="requests",
        ),
        Term(name="KV cache size", formula=f"{tokens:,} tokens", value=tokens, unit="tokens"),
    ]
    if short > 0:
        text = f"vLLM refuses to start: {short:,} B short"
        terms.append(Term(id="shortfall", name="shortfall", formula=text, value=short, unit="B"))
    return tuple(terms)


def _log_lines(tokens: int, concurrency: Fraction, settings: VllmSettings) -> tuple[str, ...]:
    version = release(settings.version)
    device = "CPU" if settings.is_cpu and version >= CPU_NAMED else "GPU"
    size = f"{device} KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {settings.max_model_len:,} tokens per request: {float(concurrency):.2f}x"
    return (f"{size}, {most}",) if version >= ONE_LINE_LOGGED else (size, most)


def _notes(model: Model, settings: VllmSettings, groups: tuple[BlockGroup, ...]) -> tuple[Note, ...]:
    notes = []
    kv = resolve_format(model, settings)
    if spared := spared_layers(model, kv):
        notes.append(
            f"{len(spared)} of {len(model.layers)} layers stay in 16 bits: vLLM never stores the first and the last "
            f"two as {kv.name}."
        )
    if settings.in_flight_tokens and any(spec.kind == "sliding" for group in groups for spec, _ in group.parts):
        notes.append(
            f"Windows also hold the {settings.in_flight_tokens:,} tokens that may be in flight; while decoding, a "
            "request holds fewer blocks than this."
        )
    return tuple(map(Note, notes))


@lru_cache(maxsize=512)
def _planned(model: Model, settings: VllmSettings) -> tuple[tuple[BlockGroup, ...], int | None, tuple[int, ...]]:
    """Groups, block size and bytes of a block on each stage: the same for every length and number of replicas."""
    groups, block = VLLM.plan(model, settings)
    return groups, block, VLLM.stage_block_bytes(model, settings, groups)


class VllmPool(CachePool):
    """See CachePool. All ranks make as many blocks as the one that can make the fewest."""

    sequences_name = "max_num_seqs"
    # What the pool divides into is one request more: the null block is missing to the last of them.
    held_back = "one block that is never handed out"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: VllmSettings = VLLM.settings(model, deployment.at(context))
        # Groups and pages do not depend on the length, only how many pages of each a request claims.
        self.groups, self.block, self.block_bytes = _planned(
            model, replace(self.settings, max_model_len=1, max_num_seqs=None)
        )
        draft = speculator(model, deployment)
        if draft is not None:
            self.groups = _groups_with_draft(model, draft, self.settings, self.block)
            # Its layers lie behind the last stage's.
            self.settings = replace(self.settings, mtp_layers=len(draft.layers))
            self.block_bytes = VLLM.stage_block_bytes(model, self.settings, self.groups)
        self.keeps_cache = any(self.block_bytes)
        most = self.settings.sequences
        self.sequences = most
        self._at: dict[int, tuple[VllmSettings, int]] = {}
        if most > self.settings.batched_tokens:
            raise EngineError(
                f"max_num_batched_tokens {self.settings.batched_tokens:,} is less than max_num_seqs "
                f"{most:,}; each request computes at least one token a step",
                engine="vllm",
            )

    def needed(self, context: int) -> int:
        """Blocks that one request claims."""
        return self._for(context)[1]

    def _for(self, context: int) -> tuple[VllmSettings, int]:
        """The settings for requests of that length, and the blocks that one claims; kept for the ends of a range."""
        found = self._at.get(context)
        if found is None:
            settings = replace(self.settings, max_model_len=context)
            found = self._at[context] = settings, sum(group.pages(settings) for group in self.groups)
        return found

    def blocks(self, kv_bytes: tuple[int, ...]) -> int:
        """Blocks of the pool, the smallest of all stages."""
        if self.settings.num_gpu_blocks_override is not None:
            return self.settings.num_gpu_blocks_override
        pairs = zip(kv_bytes, self.block_bytes, strict=True)
        return min(max(0, pool) // size for pool, size in pairs if size)

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill. vLLM divides all blocks in its log, and hands out all but one (the null block).

        So requests that can all be full at once are those of one block less: one needs its blocks and one more.
        """
        blocks, needed = self.blocks(kv_bytes), self.needed(context)
        if not blocks:
            return NOTHING
        concurrency = Fraction(blocks, needed)
        tokens = int(concurrency * context)
        if VLLM.counts_one_group(self.settings):
            tokens = blocks // max(1, len(self.groups)) * (self.block or 1)
        return Fill(concurrency=concurrency, requests=(blocks - 1) // needed, tokens=tokens)

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See CachePool.count."""
        blocks = self.blocks(kv_bytes)
        return (blocks - 1) // self.needed(context) if blocks else 0

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes."""
        needed = self.needed(context)
        return tuple(needed * size for size in self.block_bytes)

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See CachePool.tightest: the stage that makes the fewest blocks."""
        stages = [stage for stage, size in enumerate(self.block_bytes) if size]
        return min(stages, key=lambda stage: kv_bytes[stage] // self.block_bytes[stage])

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout; the same for any number of requests."""
        return VLLM.layout_of(self.model, self._for(context)[0], self.groups, self.block)

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms."""
        blocks, needed = self.blocks(kv_bytes), self.needed(context)
        stage = self.tightest(context, kv_bytes)
        text = f"{kv_bytes[stage]:,} B // {self.block_bytes[stage]:,} B a block = {blocks:,}"
        if self.settings.num_gpu_blocks_override is not None:
            text = f"num_gpu_blocks_override = {blocks:,}"
        ratio = f"{blocks:,} / {needed:,} blocks a request = {blocks / needed:.4f}"
        terms = [
            Term(name="blocks", formula=text, value=blocks, unit="blocks", knowledge="exact"),
            Term(name="requests a replica", formula=ratio, value=blocks / needed, unit="requests"),
        ]
        if blocks <= needed:
            text = f"vLLM keeps one block back and refuses to start: {blocks:,} − 1 blocks are fewer than {needed:,}"
            terms.append(Term(name="shortfall", formula=text, value=needed + 1 - blocks, unit="blocks"))
        else:
            whole = (blocks - 1) // needed
            text = f"vLLM never hands out one block: ({blocks:,} − 1) // {needed:,} = {whole:,} are full at once"
            terms.append(Term(name="whole requests a replica", formula=text, value=whole, unit="requests"))
        return tuple(terms)


def _groups_with_draft(model: Model, draft: Model, settings: VllmSettings, block: int | None) -> tuple[BlockGroup, ...]:
    """The groups of both: the draft's layers are in those of the one pool, with the model's block size.

    That is one for both (cache_config.block_size). EngineError for what vLLM refuses, and for pages that are not
    followed together.
    """
    plain = replace(settings, mtp_layers=0)
    if is_packed(model) or is_packed(draft):
        if draft.model_type != model.model_type:
            raise EngineError(
                f"how pages of {model.name} are packed beside a draft's is not followed here", engine="vllm"
            )
        return packed_groups(replace(model, layers=(*model.layers, *draft.layers)), plain)
    if any(isinstance(memory, State) for memory, _ in draft.kept):
        raise EngineError(f"the states of a draft such as {draft.name} are not followed here", engine="vllm")
    placed: dict[Spec, list[int]] = {spec: list(layers) for spec, layers in layer_specs(model, plain)}
    for spec, layers in layer_specs(draft, replace(plain, block_size=block)):
        placed.setdefault(spec, []).extend(len(model.layers) + layer for layer in layers)
    try:
        return block_groups(tuple((spec, tuple(layers)) for spec, layers in placed.items()), plain)
    except EngineError as problem:
        raise EngineError(f"{problem.reason} (with the draft {draft.name})", engine=problem.engine) from None
