"""What an engine's dummy run is made of: tokens, sequences, and what one token keeps alive at the peak of a layer.

vLLM measures its activations by running one step of `max_num_batched_tokens` tokens and sampling for `max_num_seqs`
sequences (v1/worker/gpu_model_runner.py: profile_run, _dummy_sampler_run). The peak is that of the widest layer or that
of the sampler, whichever is larger: the one is freed before the other begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from kvcore.hardware import Accelerator
from kvcore.model.memories import Indexer, Latent
from kvcore.model.model import Model
from kvcore.plan.deployment import Deployment
from kvcore.units import GIB

BYTES_16 = 2
# Room for cached latents of one step (mla_attention.py, determine_chunked_prefill_workspace_size) and for index keys
# (backends/mla/indexer.py, get_max_prefill_buffer_size): 8 requests' tokens up to 64 Ki, 40 requests' index keys.
WORKSPACE_ROWS, WORKSPACE_REQUESTS = 65_536, 8
INDEX_KEY, INDEX_REQUESTS = 132, 40
# Sorting samplers keep several copies of the logits and 64-bit places; replaced by kernels that work in place
# (vLLM pull requests 33538 and 40376).
SORTS_BEFORE = (0, 17)
# From this version vLLM has its second engine core ("V1") by default, and by it alone from 0.11.
V1_FROM, V1_ONLY_FROM = (0, 8), (0, 11)
# An 80 GB card's 1,024 sequences by default (engine/arg_utils.py); before, 256 everywhere.
MANY_SEQS_FROM = (0, 9)
LARGEST_DEFAULTS_FROM = (0, 27)
# The note that vLLM prints says 0.21; the log of a 0.20.2 (data/field/memory.jsonl, fs-56816929356) has it too.
GRAPHS_DEDUCTED_FROM = (0, 20)
NEWEST = (0, 33)
# The older core switched chunked prefill on by itself for longer contexts than this (engine/arg_utils.py).
V0_CHUNKS_ABOVE = 32_768
_TOWERS = ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one token keeps in 16-bit numbers at the peak of the widest layer on one rank, and what else matters.

    `layer_width`: gate, up and their product in a dense layer (3 × FFN width), the same for every expert that a token
    uses in a mixture, or queries, keys and values that a latent expands to; all but the residual stream.
    `latent_row`: numbers that one cached latent expands to, 0 without one; `sparse`: an indexer chooses what is read.
    """

    hidden: int
    vocabulary: int
    layers: int
    layer_width: int
    latent_row: int
    sparse: bool
    multimodal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A dummy run: its shape, tokens, sequences that are sampled for, and the engine's generation.

    `workspace_rows` and `index_rows`: entries of cached latents and index keys that are kept room for beside the step.
    `graph_units`: layers × CUDA graphs that are captured. `seqs_open` and `tokens_open`: the setting was left to a
    default, which differs between an engine's ways of being started (in the older core, tokens do not).
    """

    shape: Shape
    tokens: int
    seqs: int
    sorts: bool
    workspace_rows: int
    index_rows: int
    graph_units: int
    ranks: int
    total_gib: float
    unified: bool
    seqs_open: bool
    tokens_open: bool

    @property
    def forward_gib(self) -> float:
        """The widest layer and the residual stream, twice: what enters and what leaves."""
        return self.tokens * (self.shape.layer_width + 2 * self.shape.hidden) * BYTES_16 / GIB

    @property
    def workspace_gib(self) -> float:
        """What a latent model keeps beside the step: cached latents expanded for all heads, index keys of 132 B."""
        return (self.workspace_rows * self.shape.latent_row * BYTES_16 + self.index_rows * INDEX_KEY) / GIB

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
        layer_width=max(_dense_width(model, tp), _expert_width(model, tp), _attention_width(model, tp)),
        latent_row=_attention_width(model, tp) // 2,
        sparse=any(isinstance(memory, Indexer) for memory, _ in model.kept),
        multimodal=any(name.endswith(_TOWERS) for name in model.reading.keys_ignored),
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
    return heads * 2 * ((model.key_head_dim or model.head_dim) + model.head_dim)


@lru_cache(maxsize=256)
def version_of(text: str | None) -> tuple[int, int]:
    """(major, minor) of a version; the newest that is followed where none is stated."""
    found = re.match(r"v?(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else NEWEST


def _is_old_gpu(gpu: Accelerator) -> bool:
    """Before Ampere (compute capability 8.0), which the newer core did not serve at first."""
    try:
        return float(gpu.compute_capability or "9") < 8
    except ValueError:
        return False


def is_v0(deployment: Deployment) -> bool:
    """Whether vLLM's older core runs: by version, and in between for old GPUs and bitsandbytes' formats."""
    version = version_of(deployment.engine_version)
    if version < V1_FROM:
        return True
    return version < V1_ONLY_FROM and (_is_old_gpu(deployment.gpu) or deployment.weight_format == "bnb4")


def profile(model: Model, deployment: Deployment, stage: int | None = None) -> Profile:
    """The dummy run of a vLLM server with these options; what is not stated is the version's default.

    Only the last pipeline stage samples; None is the last one.
    """
    version = version_of(deployment.engine_version)
    old = is_v0(deployment)
    tokens, seqs = (_v0_defaults if old else _v1_defaults)(deployment, version)
    graphs = 0 if deployment.enforce_eager or version < GRAPHS_DEDUCTED_FROM else captured_graphs(seqs)
    made = shape(model, deployment.tp)
    last = stage is None or stage == deployment.pp - 1
    return Profile(
        shape=made,
        tokens=tokens,
        # Where the older core chose to prefill in chunks by itself, its dummy run sampled for nobody.
        seqs=0 if (old and chunks_by_itself(deployment)) or not last else min(seqs, tokens),
        sorts=version < SORTS_BEFORE,
        workspace_rows=min(WORKSPACE_ROWS, WORKSPACE_REQUESTS * deployment.context) if made.latent_row else 0,
        index_rows=INDEX_REQUESTS * deployment.context if made.sparse else 0,
        graph_units=graphs * -(-made.layers // deployment.pp),
        ranks=deployment.tp,
        total_gib=deployment.gpu.memory_bytes / GIB,
        unified=deployment.gpu.unified_memory,
        seqs_open=deployment.max_num_seqs is None,
        tokens_open=not old and deployment.max_num_batched_tokens is None,
    )


def chunks_by_itself(deployment: Deployment) -> bool:
    """Whether the older core switched chunked prefill on, which it did for long contexts only."""
    return deployment.max_num_batched_tokens is None and deployment.context > V0_CHUNKS_ABOVE


def _v0_defaults(deployment: Deployment, version: tuple[int, int]) -> tuple[int, int]:
    chunk = 512 if version < (0, 6) else 2048
    default = chunk if chunks_by_itself(deployment) else max(deployment.context, 2048)
    return deployment.max_num_batched_tokens or default, deployment.max_num_seqs or 256


def _v1_defaults(deployment: Deployment, version: tuple[int, int]) -> tuple[int, int]:
    gpu = deployment.gpu
    # Unified memory (GB10, Jetson) is served with the smaller defaults.
    large = gpu.memory_bytes >= 70 * GIB and "a100" not in gpu.id and not gpu.unified_memory
    largest = gpu.memory_bytes >= 160 * GIB and version >= LARGEST_DEFAULTS_FROM
    tokens = 16_384 if largest else 8192 if large else 2048
    seqs = 1024 if large and version >= MANY_SEQS_FROM else 256
    seqs = deployment.max_num_seqs or seqs
    return deployment.max_num_batched_tokens or min(tokens, seqs * max(1, deployment.context)), seqs


def captured_graphs(seqs: int) -> int:
    """CUDA graphs: sizes up to twice the sequences for steps with prefill, up to the sequences for decoding.

    Sizes are 1, 2, 4, every 8 up to 256 and every 16 up to 512 (config/vllm.py, cudagraph_capture_sizes).
    """
    return _sizes(min(512, 2 * seqs)) + _sizes(min(512, seqs))


def _sizes(largest: int) -> int:
    small = sum(size <= largest for size in (1, 2, 4))
    return small + min(largest, 256) // 8 + max(0, (largest - 256) // 16)
