"""What vLLM leaves for its cache: a share of the device's memory, less all that a start of it takes.

Sources: vLLM 0.33, v1/worker/utils.py and gpu_worker.py (determine_available_memory): the share of the total, less what
is there already. v1/worker/gpu_model_runner.py (profile_run, _dummy_sampler_run): activations are measured by one step
of `max_num_batched_tokens` tokens and by sampling for `max_num_seqs` sequences. The peak is that of the widest layer or
that of the sampler, whichever is larger: the one is freed before the other begins. What the code determines is a
quantity of the `Profile`; the rule is one coefficient a part, fitted on logged starts, and its doubt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from math import ceil, hypot, sqrt

from kvcore.deployment import Deployment
from kvcore.engines.overheads import RunShape, shape
from kvcore.engines.releases import release
from kvcore.engines.vllm.settings import VERSION, VllmSettings, check_version, default_utilization, make_settings
from kvcore.engines.vllm.tower import kept_tokens
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.model.towers import Tower
from kvcore.paths import DATA
from kvcore.terms import Term
from kvcore.units import GIB

# From this version the estimated CUDA-graph pool is taken off before the cache is sized. vLLM's own line says "default
# since v0.21.0", but releases 0.20.0 and 0.20.2 print that line too (data/field/memory.jsonl), 0.19 does not.
GRAPHS_DEDUCTED = (0, 20)
BYTES_16 = 2
# Room for cached latents of one step (mla_attention.py, determine_chunked_prefill_workspace_size) and for index keys
# (backends/mla/indexer.py, get_max_prefill_buffer_size): 8 requests' tokens up to 64 Ki, 40 requests' index keys.
WORKSPACE_ROWS, WORKSPACE_REQUESTS = 65_536, 8
INDEX_KEY, INDEX_REQUESTS = 132, 40
# Sorting samplers keep several copies of the logits and 64-bit places; replaced by kernels that work in place
# (vLLM pull requests 33538 and 40376).
SORTS_BEFORE = (0, 17)
_PLAIN = ("bf16", "fp16", "fp32")
# Experts compute so many tokens at a time (fused_moe.py, VLLM_FUSED_MOE_CHUNK_SIZE).
EXPERT_CHUNK = 32_768
# From here on what a group of ranks takes is counted whatever it runs over: 1.44 GiB of four GPUs on PCIe in 0.27
# (data/field/memory.jsonl), 0.1 GiB before.
COUNTS_GROUPS_FROM = (0, 20)
# bitsandbytes unpacks a matrix before it multiplies more than one token; the largest are gate and up together.
_UNPACKED = ("bnb4", "bnb8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A dummy run: its shape, tokens, sequences that are sampled for, and the engine's generation.

    `tower`: what reads pictures or sound, None without it. `workspace_rows` and `index_rows`: entries of cached latents
    and index keys that are kept room for beside the step. `graph_units`: layers × CUDA graphs that are captured.
    `seqs_open` and `tokens_open`: the setting was left to a default, which differs between an engine's ways of being
    started (in the older core, tokens do not). `gathered`: tokens of all replicas that come together before the
    experts. `groups`: communicators of this rank (tensor parallel, pipeline, the replicas of a mixture and its
    experts). `linked`: those run over links of their own or are counted in full. `items`: largest pictures (or videos)
    that the tower is profiled with. `kept_tokens`: tokens of pictures that are kept room for. `unpacks`: matrices are
    unpacked to 16 bits. `older`: the older core. `familiar`: of a kind that many logs show. `stepped`: the GPU is large
    enough for defaults above the smallest.
    """

    shape: RunShape
    tower: Tower | None
    tokens: int
    seqs: int
    sorts: bool
    workspace_rows: int
    index_rows: int
    graph_units: int
    gathered: int
    groups: int
    linked: bool
    pipelined: bool
    items: int
    kept_tokens: int
    unpacks: bool
    total_gib: float
    unified: bool
    seqs_open: bool
    tokens_open: bool
    older: bool
    familiar: bool
    stepped: bool

    @property
    def forward_gib(self) -> float:
        """The widest layer and the residual stream, twice: what enters and what leaves.

        Experts see the tokens of all replicas: these come and go as a whole, and are computed in chunks.
        """
        made = self.shape
        dense = self.tokens * (made.layer_width + 2 * made.hidden)
        experts = min(self.gathered, EXPERT_CHUNK) * made.expert_width + self.gathered * 2 * made.hidden
        return max(dense, experts if made.expert_width else 0) * BYTES_16 / GIB

    @property
    def workspace_gib(self) -> float:
        """What is kept beside the step: cached latents expanded for all heads and index keys of 132 B of a latent
        model; what a pipeline stage hands on (two residual rows a token); what the tower made of the pictures."""
        handed = 2 * self.tokens * self.shape.hidden if self.pipelined else 0
        rows = self.workspace_rows * self.shape.latent_row + handed
        return (rows * BYTES_16 + self.index_rows * INDEX_KEY) / GIB

    @property
    def tower_gib(self) -> float:
        """One 16-bit number for each row (patch) of the pictures and each column of the tower."""
        made = self.tower
        return self.items * made.rows * made.hidden * BYTES_16 / GIB if made else 0.0

    @property
    def pictures_gib(self) -> float:
        """What the tower made of the pictures, which is there while the model runs."""
        made = self.tower
        return self.kept_tokens * made.depth * self.shape.hidden * BYTES_16 / GIB if made else 0.0

    @property
    def unpacked_gib(self) -> float:
        """Gate and up of one dense layer in 16 bits, where a 4-bit format is unpacked before it is multiplied."""
        made = self.shape
        return 2 * made.layer_width // 3 * made.hidden * BYTES_16 / GIB if self.unpacks else 0.0

    @property
    def expert_graphs(self) -> bool:
        """Whether the graphs hold experts, whose many small kernels make several times as many nodes."""
        return self.shape.expert_width > 0

    @property
    def graph_gib(self) -> float:
        """One 16-bit number for each layer, captured graph and column."""
        return self.graph_units * self.shape.hidden * BYTES_16 / GIB

    @property
    def hidden_gib(self) -> float:
        """The last hidden states, which are there while the sampler runs."""
        return self.tokens * self.shape.hidden * BYTES_16 / GIB

    @property
    def logits_gib(self) -> float:
        """One byte for each logit of the sampler's dummy run: sequences × vocabulary, whole on every rank."""
        return self.seqs * self.shape.vocabulary / GIB


def profile(
    model: Model,
    deployment: Deployment,
    stage: int | None = None,
    *,
    settings: VllmSettings | None = None,
    reads: Tower | None = None,
) -> Profile:
    """The dummy run of a vLLM server with these options; what is not stated is the release's default.

    Only the last pipeline stage samples; None is the last one. `settings` are the deployment's, for a request of any
    length; `reads` stands in for the model's own tower. Raises EngineError as the engine's settings do.
    """
    if settings is None:
        settings = make_settings(model, deployment)
    version = release(settings.version)
    made, pictures = shape(model, deployment.tp), reads or model.tower
    old, (tokens, seqs, chunked) = settings.older_core, settings.batch(deployment.context)
    graphs = 0 if deployment.enforce_eager or version < GRAPHS_DEDUCTED else captured_graphs(seqs)
    last = stage is None or stage == deployment.pp - 1
    items = _items(deployment, pictures, tokens, seqs, old) if pictures else 0
    if old and pictures and not pictures.crosses:
        # The older core chose as many sequences as there is room for largest pictures (worker/model_runner.py).
        seqs = items
    elif chunked or not last:
        # Where it chose to prefill in chunks by itself, its dummy run sampled for nobody.
        seqs = 0
    experts = model.experts is not None
    together = experts and deployment.dp > 1
    # The replicas of a mixture talk as replicas, and with expert parallelism as experts too.
    groups = (deployment.tp > 1) + (deployment.pp > 1) + together * (1 + deployment.expert_parallel)
    quantised = (deployment.weight_format or model.checkpoint_format or model.model_dtype) not in _PLAIN
    unpacks = (deployment.weight_format or model.checkpoint_format) in _UNPACKED
    return Profile(
        shape=made,
        tower=pictures,
        tokens=tokens,
        seqs=min(seqs, tokens) if last else 0,
        sorts=version < SORTS_BEFORE,
        workspace_rows=min(WORKSPACE_ROWS, WORKSPACE_REQUESTS * deployment.context) if made.latent_row else 0,
        index_rows=INDEX_REQUESTS * deployment.context if made.sparse else 0,
        graph_units=graphs * -(-made.layers // deployment.pp),
        gathered=tokens * (deployment.dp if together else 1),
        groups=groups,
        linked=groups > 0 and (deployment.gpu.link_name is not None or version >= COUNTS_GROUPS_FROM),
        pipelined=deployment.pp > 1,
        items=items if stage in (None, 0) else 0,
        kept_tokens=kept_tokens(pictures, items, version) if pictures and stage in (None, 0) else 0,
        unpacks=unpacks,
        total_gib=deployment.gpu.memory_bytes / GIB,
        unified=deployment.gpu.unified_memory,
        seqs_open=settings.max_num_seqs is None,
        tokens_open=not old and settings.max_num_batched_tokens is None,
        older=old,
        stepped=settings.has_larger_defaults,
        familiar=pictures is None and not together and not (experts and quantised),
    )


def _items(deployment: Deployment, made: Tower, tokens: int, seqs: int, old: bool) -> int:
    """Largest pictures of the profiling run: one a sequence for cross attention, as many as the step holds for others.

    The newer core takes no step for smaller than one of them (v1/core/encoder_cache_manager.py: compute_mm_encoder_
    budget; multimodal/encoder_budget.py), and no more than the prompts of all sequences can have.
    """
    if old and made.crosses:
        return seqs
    fitting = max(1, tokens // made.tokens)
    return min(fitting, seqs) if old else min(fitting, seqs * max(1, deployment.context // made.tokens))


def captured_graphs(seqs: int) -> int:
    """CUDA graphs: sizes up to twice the sequences for steps with prefill, up to the sequences for decoding.

    Sizes are 1, 2, 4, every 8 up to 256 and every 16 up to 512 (config/vllm.py, cudagraph_capture_sizes).
    """
    return _sizes(min(512, 2 * seqs)) + _sizes(min(512, seqs))


def _sizes(largest: int) -> int:
    small = sum(size <= largest for size in (1, 2, 4))
    return small + min(largest, 256) // 8 + max(0, (largest - 256) // 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """One number a part.

    `forward`: × what the widest layer keeps. `sorting`, `sampling`: bytes for each logit of the sampler's dummy run,
    before and since vLLM 0.17. `context`: GiB outside torch. `collective`: GiB more for each group of ranks; `linked`:
    GiB more of a group over links of their own, or of a version that counts all that such a group takes. `graph_pool`:
    GiB of the graphs' pool, `expert_pool` more of a mixture's; `graph_nodes`: MiB for each layer and captured graph,
    whatever its width, `expert_nodes` more of a mixture's; `graphs`: 16-bit numbers for each layer, captured graph and
    column. `encoder`: 16-bit numbers that a tower keeps alive for each patch and column. `unified`: GiB that a machine
    with unified memory loses beside. `driver`, `driver_share`: GiB and share of a GPU's memory that nvidia-smi reports
    and CUDA does not give.
    """

    forward: float
    sorting: float
    sampling: float
    context: float
    collective: float
    linked: float
    graph_pool: float
    expert_pool: float
    graph_nodes: float
    expert_nodes: float
    graphs: float
    encoder: float
    unified: float
    driver: float
    driver_share: float


# How far each part may be off: shares of the part, and what is off whatever the parts are. `encoder` is a share of the
# tower's own peak, as far as that stands out; `unfamiliar` a share of the memory for kinds of models and splits of
# which there are few logs (towers, replicas of a mixture, quantised mixtures). `sampling` is a share of what samplers
# without sorting take: 10 to 27 B a logit, by the kernel that is at hand; `unpacked` of the matrices that a 4-bit
# format unpacks. `linked` is in GiB: logs show 0.5 to 2.1 GiB for groups over links of their own. `graphs` and, of
# mixtures, `expert_graphs`: so far off that the ends hold 14 of 15 estimates that dense models logged and all of
# mixtures, each judged by a fit that had not seen its source, and one that is twice as large with another kernel.
SPREAD = {
    "activation": 0.06, "sampling": 0.25, "unpacked": 0.75, "collective": 0.8, "linked": 0.5, "graphs": 0.4,
    "expert_graphs": 0.5, "encoder": 0.2, "unified": 1.0, "driver": 0.4, "weights": 0.01, "total": 0.003,
    "constant": 0.16, "unfamiliar": 0.015,
}  # fmt: skip


# No end lies further off than so many spreads.
_MOST_SPREADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Best guesses in GiB on one GPU. `lower_peak` and `higher_peak`: the activation peak where settings that were
    left open have the other usual value; `activation_doubt`: one unit of doubt about it, as `graphs_doubt`. `encoder`:
    what a tower takes beyond that peak, with `encoder_doubt`."""

    activation: float
    activation_doubt: float
    lower_peak: float
    higher_peak: float
    context: float
    collective: float
    graphs: float
    graphs_doubt: float
    encoder: float
    encoder_doubt: float
    unified: float
    driver: float

    @property
    def total(self) -> float:
        """All parts together, with the driver's."""
        inside = self.activation + self.context + self.collective + self.graphs
        return inside + self.encoder + self.unified + self.driver


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadFit:
    """Coefficients, and how many spreads the true value lies below and above the best guess at most."""

    coefficients: Coefficients
    low: float
    high: float


def activation_gib(rule: Coefficients, profile: Profile, tokens: int | None = None, seqs: int | None = None) -> float:
    """The peak: the widest layer, or the sampler beside the last hidden states. A latent's room comes on top.

    `tokens` and `seqs` stand in for the profile's own.
    """
    scale = 1.0 if tokens is None else tokens / profile.tokens
    sampled = 1.0 if seqs is None or not profile.seqs else seqs / profile.seqs
    per_logit = rule.sorting if profile.sorts else rule.sampling
    sampler = per_logit * profile.logits_gib * sampled + profile.hidden_gib * scale
    layer = rule.forward * (profile.forward_gib * scale + profile.unpacked_gib)
    return max(layer, sampler) + profile.workspace_gib


def graph_terms(profile: Profile) -> dict[str, float]:
    """What each coefficient of the graphs is multiplied by, in GiB; empty where none are captured or taken off.

    vLLM captures the two largest graphs of each kind and takes the second for all others (gpu_model_runner.py,
    profile_cudagraph_memory): a pool for the largest, and for each graph the nodes of all layers, which CUDA keeps
    whatever their width, and results of each layer. Ranks are no factor: each keeps nodes for its own kernels.
    """
    if not profile.graph_units:
        return {}
    nodes = profile.graph_units / 1024
    terms = {"graph_pool": 1.0, "graph_nodes": nodes, "graphs": profile.graph_gib}
    return terms | {"expert_pool": 1.0, "expert_nodes": nodes} if profile.expert_graphs else terms


def graphs_gib(rule: Coefficients, profile: Profile) -> float:
    """The graphs that are taken off before the cache is sized."""
    return sum(float(getattr(rule, name)) * factor for name, factor in graph_terms(profile).items())


def tower_peak_gib(rule: Coefficients, profile: Profile) -> float:
    """What the tower itself holds at its peak, which is over before the language model runs."""
    made = profile.tower
    return (rule.encoder + made.outputs) * profile.tower_gib if made else 0.0


def fewer_seqs(seqs: int) -> int:
    """The other usual number of sequences where none is stated: 256 instead of 1,024, else half as many."""
    return 256 if seqs > 256 else seqs // 2


def parts_gib(rule: Coefficients, profile: Profile, utilization: float, with_driver: bool = True) -> Parts:
    """Every part in GiB; without the driver's where the memory is what CUDA itself gives."""
    peak = activation_gib(rule, profile)
    driver = 0.0
    if with_driver and not profile.unified:
        driver = utilization * (rule.driver + rule.driver_share * profile.total_gib)
    alone = peak - profile.workspace_gib
    graphs = graphs_gib(rule, profile)
    tower = tower_peak_gib(rule, profile)
    encoder = max(profile.pictures_gib, tower - alone) if tower else 0.0
    # How far the tower may stand out further. Its share shrinks by less than the peak grows, whatever the ends are.
    higher = (1 + _MOST_SPREADS * SPREAD["encoder"]) * tower - alone - encoder
    return Parts(
        activation=peak,
        # The larger of both, so that a larger peak is never in less doubt.
        activation_doubt=max(
            SPREAD["activation"] * peak,
            0.0 if profile.sorts else SPREAD["sampling"] * rule.sampling * profile.logits_gib,
        )
        + SPREAD["unpacked"] * profile.unpacked_gib,
        lower_peak=activation_gib(rule, profile, seqs=fewer_seqs(profile.seqs)) if profile.seqs_open else peak,
        higher_peak=activation_gib(rule, profile, tokens=2 * profile.tokens) if profile.tokens_open else peak,
        context=rule.context,
        collective=rule.collective * profile.groups + (rule.linked if profile.linked else 0.0),
        graphs=graphs,
        graphs_doubt=SPREAD["expert_graphs" if profile.expert_graphs else "graphs"] * graphs,
        encoder=encoder,
        encoder_doubt=max(0.0, higher) / _MOST_SPREADS + SPREAD["encoder"] * profile.pictures_gib,
        unified=rule.unified if profile.unified else 0.0,
        driver=driver,
    )


def spread_gib(parts: Parts, profile: Profile, estimated_weights_gib: float) -> float:
    """One unit of doubt about the total: what the parts may be off, as independent."""
    return sqrt(
        sum((SPREAD[name] * getattr(parts, name)) ** 2 for name in ("collective", "unified", "driver"))
        + parts.activation_doubt**2
        + parts.graphs_doubt**2
        + parts.encoder_doubt**2
        + (SPREAD["linked"] if profile.linked else 0.0) ** 2
        + (0.0 if profile.familiar else SPREAD["unfamiliar"] * profile.total_gib) ** 2
        + (SPREAD["weights"] * estimated_weights_gib) ** 2
        + (SPREAD["total"] * profile.total_gib) ** 2
        + SPREAD["constant"] ** 2
    )


def ends_gib(rule: OverheadFit, parts: Parts, profile: Profile, estimated_weights_gib: float) -> tuple[float, float]:
    """Low and high of the total: so many spreads off, and as far as settings that were left open may move it."""
    spread = spread_gib(parts, profile, estimated_weights_gib)
    below = hypot(rule.low * spread, parts.activation - parts.lower_peak)
    above = hypot(rule.high * spread, parts.higher_peak - parts.activation)
    return max(0.0, parts.total - below), parts.total + above


@cache
def fitted() -> OverheadFit:
    """The rule as it was fitted: coefficients, and how many spreads the ends lie off."""
    found = json.loads((DATA / "overheads.json").read_text("utf-8"))
    return OverheadFit(coefficients=Coefficients(**found["coefficients"]), low=found["low"], high=found["high"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMemory:
    """The memory that is left for the cache on one device, in bytes, and how it came about."""

    kv_bytes: int
    terms: tuple[Term, ...]


def pool(
    *,
    total_bytes: int,
    weights_bytes: int,
    non_torch_bytes: int,
    activation_peak_bytes: int,
    cuda_graph_bytes: int = 0,
    utilization: float | None = None,
    version: str = VERSION,
) -> CacheMemory:
    """What `gpu_memory_utilization` leaves: the share of the total (not of what is free), less what is used.

    No share is the release's own. Versions before 0.20 did not deduct the CUDA graphs. Raises EngineError when nothing
    is left, as vLLM does.
    """
    utilization = default_utilization(version) if utilization is None else utilization
    if not 0 < utilization <= 1:
        raise EngineError(f"gpu_memory_utilization {utilization} is not within 0 … 1", engine="vllm")
    share = ceil(total_bytes * utilization)
    graphs = cuda_graph_bytes if release(check_version(version)) >= GRAPHS_DEDUCTED else 0
    left = share - weights_bytes - non_torch_bytes - activation_peak_bytes - graphs
    terms = [
        Term(name="share of the device", formula=f"{total_bytes:,} B × {utilization:g}", value=share, unit="B"),
        Term(name="weights", formula=f"− {weights_bytes:,} B", value=weights_bytes, unit="B"),
        Term(name="outside torch", formula=f"− {non_torch_bytes:,} B", value=non_torch_bytes, unit="B"),
        Term(name="activation peak", formula=f"− {activation_peak_bytes:,} B", value=activation_peak_bytes, unit="B"),
    ]
    if graphs:
        terms.append(Term(name="CUDA graphs", formula=f"− {graphs:,} B, estimated", value=graphs, unit="B"))
    if left <= 0:
        raise EngineError(
            "no available memory for the cache blocks; raise gpu_memory_utilization or use more GPUs", engine="vllm"
        )
    terms.append(Term(name="left for the cache", formula=f"{left:,} B", value=left, unit="B"))
    return CacheMemory(kv_bytes=left, terms=tuple(terms))
