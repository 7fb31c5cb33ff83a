"""What an engine's dummy run is made of: tokens, sequences, and what one token keeps alive at the peak of a layer.

vLLM measures its activations by running one step of `max_num_batched_tokens` tokens and sampling for `max_num_seqs`
sequences (v1/worker/gpu_model_runner.py: profile_run, _dummy_sampler_run). The peak is that of the widest layer or that
of the sampler, whichever is larger: the one is freed before the other begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.engines.releases import release
from kvcore.engines.vllm.budget import GRAPHS_DEDUCTED
from kvcore.engines.vllm.settings import VllmSettings
from kvcore.model.memories import Indexer, Latent
from kvcore.model.model import Model
from kvcore.planning.overhead_tower import Tower, kept_tokens, tower
from kvcore.units import GIB

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
class Shape:
    """What one token keeps in 16-bit numbers at the peak of the widest layer on one rank, and what else matters.

    `layer_width`: gate, up and their product in a dense layer (3 × FFN width), or queries, keys and values that a
    latent expands to; `expert_width`: gate, up and product of every expert that a token uses; all but the residual
    stream. `latent_row`: numbers that one cached latent expands to, 0 without one; `sparse`: an indexer chooses what is
    read. `tower`: what reads pictures or sound, None without it.
    """

    hidden: int
    vocabulary: int
    layers: int
    layer_width: int
    expert_width: int
    latent_row: int
    sparse: bool
    tower: Tower | None

    @property
    def widest(self) -> int:
        """The wider of the two kinds of layers."""
        return max(self.layer_width, self.expert_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A dummy run: its shape, tokens, sequences that are sampled for, and the engine's generation.

    `workspace_rows` and `index_rows`: entries of cached latents and index keys that are kept room for beside the step.
    `graph_units`: layers × CUDA graphs that are captured. `seqs_open` and `tokens_open`: the setting was left to a
    default, which differs between an engine's ways of being started (in the older core, tokens do not).
    `gathered`: tokens of all replicas that come together before the experts. `groups`: communicators of this rank
    (tensor parallel, pipeline, the replicas of a mixture and its experts). `linked`: those run over links of their own
    or are counted in full. `items`: largest pictures (or videos) that the tower is profiled with. `kept_tokens`: tokens
    of pictures that are kept room for. `unpacks`: matrices are unpacked to 16 bits. `older`: the older core.
    `familiar`: of a kind that many logs show. `stepped`: the GPU is large enough for defaults above the smallest.
    """

    shape: Shape
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
        made = self.shape.tower
        return self.items * made.rows * made.hidden * BYTES_16 / GIB if made else 0.0

    @property
    def pictures_gib(self) -> float:
        """What the tower made of the pictures, which is there while the model runs."""
        made = self.shape.tower
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


# By identity: a model is too large to be hashed for every question. The model is kept, so that its place stays its own.
_SHAPES: dict[tuple[int, int], tuple[Model, Shape]] = {}
_MOST_SHAPES = 1024


def shape(model: Model, tp: int) -> Shape:
    """The shape on one of `tp` ranks. Widths come from the parameters that the configuration makes: estimates."""
    found = _SHAPES.get((id(model), tp))
    if found is None:
        if len(_SHAPES) >= _MOST_SHAPES:
            _SHAPES.clear()
        found = _SHAPES[(id(model), tp)] = (model, _shape(model, tp))
    return found[1]


def _shape(model: Model, tp: int) -> Shape:
    return Shape(
        hidden=model.hidden_size,
        vocabulary=model.vocab_size or 0,
        layers=len(model.layers),
        layer_width=max(_dense_width(model, tp), _attention_width(model, tp)),
        expert_width=_expert_width(model, tp),
        latent_row=0 if _is_compressed(model) else _attention_width(model, tp) // 2,
        sparse=not _is_compressed(model) and any(isinstance(memory, Indexer) for memory, _ in model.kept),
        tower=tower(model),
    )


def _parameters(model: Model, name: str) -> int:
    return sum(part.parameters for part in model.weights if part.name == name)


def _dense_width(model: Model, tp: int) -> int:
    """Gate, up and product of a dense layer: as many as its parameters over the hidden size."""
    layers = len(model.layers)
    if model.experts is not None and 0 < model.experts.moe_layers < layers:
        layers -= model.experts.moe_layers
    if not layers or not model.hidden_size:
        return 0
    return -(-_parameters(model, "feed-forward") // (layers * model.hidden_size * tp))


def _expert_width(model: Model, tp: int) -> int:
    """A mixture's workspace: for each expert of a token, gate and up (or the output, if wider) and their product.

    vLLM's fused_moe keeps the first and the last of the three in one buffer.
    """
    experts = model.experts
    if experts is None or not experts.moe_layers or not model.hidden_size:
        return 0
    one = _parameters(model, "experts") // (experts.num_experts * experts.moe_layers * model.hidden_size * 3)
    inner = -(-one // tp)
    return experts.experts_per_token * (max(2 * inner, model.hidden_size) + inner)


def _attention_width(model: Model, tp: int) -> int:
    """Queries, keys, values and the result where a latent is expanded to all heads; smaller than a layer elsewhere."""
    if not any(isinstance(memory, Latent) for memory, _ in model.kept):
        return 0
    heads = -(-model.num_attention_heads // tp)
    expanded = 1 if _is_compressed(model) else 2
    return heads * expanded * ((model.key_head_dim or model.head_dim) + model.head_dim)


def _is_compressed(model: Model) -> bool:
    """Whether latents stand for many tokens each (DeepSeek V4): they are read as they are.

    So there are queries and results of all heads but no expanded keys and values, and no room is kept that grows with
    the context: ten starts with 4,096 to 262,144 tokens left the same 32.08 GiB (file 63396953296 and nine others of
    its writer).
    """
    return any(isinstance(memory, Latent) and memory.tokens_per_entry > 1 for memory, _ in model.kept)


def profile(model: Model, deployment: Deployment, stage: int | None = None, made: Shape | None = None) -> Profile:
    """The dummy run of a vLLM server with these options; what is not stated is the version's default.

    Only the last pipeline stage samples; None is the last one. `made` stands in for the model's own shape. Raises
    EngineError as the engine's settings do.
    """
    settings: VllmSettings = engine(deployment.engine).settings(model, deployment)
    version = release(settings.version)
    made = made or shape(model, deployment.tp)
    old, tokens, seqs = settings.older_core, settings.batched_tokens, settings.sequences
    graphs = 0 if deployment.enforce_eager or version < GRAPHS_DEDUCTED else captured_graphs(seqs)
    last = stage is None or stage == deployment.pp - 1
    items = _items(deployment, made.tower, tokens, seqs, old) if made.tower else 0
    if old and made.tower and not made.tower.crosses:
        # The older core chose as many sequences as there is room for largest pictures (worker/model_runner.py).
        seqs = items
    elif settings.chunks_by_itself or not last:
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
        kept_tokens=kept_tokens(made.tower, items, version) if made.tower and stage in (None, 0) else 0,
        unpacks=unpacks,
        total_gib=deployment.gpu.memory_bytes / GIB,
        unified=deployment.gpu.unified_memory,
        seqs_open=settings.max_num_seqs is None,
        tokens_open=not old and settings.max_num_batched_tokens is None,
        older=old,
        stepped=settings.has_larger_defaults,
        familiar=made.tower is None and not together and not (experts and quantised),
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
