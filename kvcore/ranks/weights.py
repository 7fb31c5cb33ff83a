"""Bytes of weights on the fullest rank of each pipeline stage, as the engine loads them.

Counted from the shape of the model: attention by head, feed-forward by width, experts by width or whole, embedding
and output head by vocabulary at their ends of the pipeline, small matrices on every rank. Where a checkpoint's own
index was read, the parts are scaled so that together they are its bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from kvcore.deployment import Deployment
from kvcore.engines.base import split_layers
from kvcore.engines.llamacpp.devices import layer_devices
from kvcore.engines.llamacpp.settings import make_settings
from kvcore.engines.sglang.cells import split_stages as sglang_stages
from kvcore.engines.tensorrt_llm.pools import split_stages as tensorrt_stages
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.model.prediction import JOINT, JOINT_BY_COLUMNS
from kvcore.model.stored_bits import UP_PROJECTION
from kvcore.model.weight_formats import WeightFormat, chosen_weight_format, stored_weight_format, weights_bytes
from kvcore.ranks.parts import COPIES, Piece, Ways, is_tied, pieces, prediction_head

# Engines that put whole layers on each GPU; every further GPU is one more stage, however it is asked for.
LAYER_SPLIT = ("llama.cpp", "ollama", "transformers")
# The input layer's table stays in host memory (llama-model.cpp, load_tensors: dev_input is the CPU).
_TABLE_ON_HOST = ("llama.cpp", "ollama")
TOWERS = "vision and audio towers"
ROTARY = "rotary table of stretched positions"
# Logged: Marlin's size on an H100 by 0.10.1 (vllm-project/vllm#23278), Triton's by 0.11.
_TRITON_MXFP4_FROM = (0, 11)
_TIED_HEAD = "output head (a copy of the embedding)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Weights on the fullest GPU of one pipeline stage; `parts` are (kind, bytes) and add up to `bytes`.

    `drafted` is the formula of the part that proposes tokens ahead (speculation.py), which `formula` leaves out.
    """

    stage: int
    bytes: int
    knowledge: Literal["exact", "estimated"]
    parts: tuple[tuple[str, int], ...]
    formula: str
    drafted: str = ""


def rank_weights(model: Model, deployment: Deployment) -> tuple[RankWeights, ...]:
    """One for each pipeline stage (for each GPU where the engine splits by layers); () where nothing is known.

    Exact where a checkpoint's own bytes are known and one GPU loads them; else estimated. Raises EngineError for more
    stages than layers and UnitError for a weight format that is not known.
    """
    stored = weights_bytes(model, _format(model, deployment))
    if stored is None:
        return ()
    ranges = stages(model, deployment)
    if not model.weights:
        return _unshaped(model, deployment, stored.bytes, ranges)
    wanted = chosen_weight_format(model, _format(model, deployment))
    loaded = pieces(model, ways(model, deployment, wanted))
    # llama.cpp and Ollama keep towers in a file of their own (mmproj).
    towers = 0 if deployment.engine in _TABLE_ON_HOST else model.tower_parameters
    rotary = _rotary_table(model) if deployment.engine == "vllm" else 0
    scale, beside = 1.0, 0.0
    if stored.knowledge == "exact":
        counted = sum(sum(piece.whole) * _bits(piece.name, wanted) for piece in loaded) + towers * 16
        beside = _prediction_bits(model, stored.bytes * 8 - counted)
        scale = stored.bytes * 8 / (counted + beside) if counted else scale
    exact = stored.knowledge == "exact" and deployment.replica_gpus == 1 and not beside
    exact = exact and not _leaves_table(deployment)
    found = []
    for stage, layers in enumerate(ranges):
        numbers = _on_stage(model, deployment, loaded, layers, stage, len(ranges))
        parts = {name: int(count * _bits(name, wanted) * scale / 8) for name, count in numbers.items()}
        if rotary:
            parts[ROTARY] = rotary
        if towers and stage == 0:
            parts[TOWERS] = int(towers * 2 * scale / _tower_ranks(deployment))
        if exact:
            # What rounding and padding made of it: the checkpoint's bytes are what is loaded.
            largest = max(parts, key=lambda name: parts[name])
            parts[largest] += stored.bytes - (sum(parts.values()) - rotary)
        found.append(_made(stage, parts, wanted, exact))
    return tuple(found)


def stages(model: Model, deployment: Deployment) -> tuple[range, ...]:
    """The layers of each pipeline stage as the engine splits them; EngineError for more stages than layers."""
    layers = len(model.layers)
    if deployment.engine == "llama.cpp" and {"n_gpu_layers", "tensor_split"} & {name for name, _ in deployment.options}:
        return _by_options(model, deployment)
    if deployment.engine in LAYER_SPLIT:
        return _by_devices(layers, deployment.replica_gpus)
    if deployment.engine == "sglang":
        return sglang_stages(layers, deployment.pp)
    if deployment.engine == "tensorrt-llm":
        return tensorrt_stages(layers, deployment.pp)
    first, found = 0, []
    for size in split_layers(layers, deployment.pp):
        found.append(range(first, first + size))
        first += size
    return tuple(found)


def expert_ranks(model: Model, deployment: Deployment) -> int:
    """GPUs that share the experts of one layer, in parts or whole.

    vLLM's data-parallel replicas always do, with expert parallel or without (fused_moe/config.py,
    flatten_tp_across_dp_and_pcp); those of SGLang and TensorRT-LLM only with data-parallel attention.
    """
    if deployment.engine in LAYER_SPLIT:
        return 1
    together = model.experts is not None if deployment.engine == "vllm" else deployment.dp_attention
    return deployment.tp * deployment.dp if together else deployment.tp


def dense_ranks(deployment: Deployment) -> int:
    """GPUs over which feed-forward layers and the output head are split: in SGLang all that share attention's batch.

    With data-parallel attention SGLang's dense layers stay tensor parallel over all ranks (moe_dense_tp_size and
    enable_dp_lm_head unset); vLLM and TensorRT-LLM split them over a replica's own.
    """
    wide = deployment.engine == "sglang" and deployment.dp_attention
    return deployment.tp * deployment.dp if wide else deployment.tp


def shared_ranks(deployment: Deployment) -> int:
    """GPUs over which shared experts are split: like dense layers, but whole where vLLM's experts see split sequences.

    That is with expert parallel, tp and dp all above one (config/parallel.py, use_sequence_parallel_moe).
    """
    split = deployment.engine == "vllm" and deployment.expert_parallel and deployment.tp > 1 and deployment.dp > 1
    return 1 if split else dense_ranks(deployment)


def ways(model: Model, deployment: Deployment, wanted: WeightFormat) -> Ways:
    """Over how many ranks the engine splits each kind of matrix in this deployment."""
    if deployment.engine in LAYER_SPLIT:
        return Ways(attention=1, dense=1, shared=1, head=1, experts=1, experts_whole=False)
    # vLLM's kernels for mxfp4 want sides that are multiples (quantization/mxfp4.py): 128 and 256 for Marlin, 256 twice
    # for those of data-centre Blackwells, 64 and 256 for Triton's, which Hoppers have since 0.11. gpt-oss has 2880 ×
    # 2880. Mixtures with other formats have kernels of their own, which pad nothing.
    alone = wanted.name == "mxfp4" and wanted.bits_of("attention") == 16
    padded_experts = deployment.engine == "vllm" and alone
    return Ways(
        attention=deployment.tp,
        dense=dense_ranks(deployment),
        shared=shared_ranks(deployment),
        head=dense_ranks(deployment),
        experts=expert_ranks(model, deployment),
        experts_whole=deployment.expert_parallel,
        vocabulary_pad=64 if deployment.engine in ("vllm", "sglang") else 1,
        width_pad=_expert_width_pad(deployment) if padded_experts else 1,
        hidden_pad=256 if padded_experts else 1,
        # vLLM keeps 16-bit copies of what is quantised (v1/attention/backends/mla/common.py); SGLang and TensorRT-LLM
        # keep transposed copies of all of it (models/deepseek_v2.py; _torch/modules/attention.py, k_b_proj_trans).
        copies_latent=deployment.engine != "vllm" or wanted.bits_of(UP_PROJECTION) < 16,
    )


def _expert_width_pad(deployment: Deployment) -> int:
    """The multiple to which vLLM's kernels for mxfp4 experts pad their width."""
    capability = deployment.gpu.compute_capability or ""
    if capability.startswith("10."):
        return 256
    stated = re.match(r"v?(\d+)\.(\d+)", deployment.engine_version or "")
    recent = stated is None or (int(stated[1]), int(stated[2])) >= _TRITON_MXFP4_FROM
    return 64 if capability.startswith("9.") and recent else 128


def _rotary_table(model: Model) -> int:
    """Bytes of the sines and cosines that vLLM keeps on every rank where positions are stretched linearly.

    Its table then has factor × the model's positions (layers/rotary_embedding/linear_scaling_rope.py), in 16 bits:
    half a GiB in Gemma 3 4B. Tables of other models are some tens of MiB, which logged overheads include.
    """
    facts = {key.rpartition(".")[2]: text for key, text in model.reading.keys_used if "rope" in key}
    for text in facts.values():
        stated = re.search(r'"factor": ([\d.]+)', text)
        if stated and re.search(r'"(rope_type|type)": "linear"', text) and model.context_limit:
            return int(min(float(stated[1]), 1024.0) * model.context_limit * (model.key_head_dim or model.head_dim) * 2)
    return 0


def _format(model: Model, deployment: Deployment) -> str | None:
    """The format that is loaded; a checkpoint of 32 bits is served in 16, except by transformers."""
    stored = model.checkpoint_format or model.model_dtype
    if deployment.weight_format is None and stored == "fp32" and deployment.engine != "transformers":
        return model.model_dtype
    return deployment.weight_format


def _prediction_bits(model: Model, over: float) -> float:
    """Bits of prediction layers among a checkpoint's own bytes, which are not loaded with the model.

    `over` is what the checkpoint has more than the model. Some publish the layers with an embedding and an output head
    of their own, some without, and repackagers leave them out: what comes nearest is taken.
    """
    head = prediction_head(model)
    if head is None:
        return 0.0
    wanted = stored_weight_format(head)
    bits = sum(part.parameters * _bits(part.name, wanted) for part in head.weights)
    tables = model.prediction.modules * 2 * (model.vocab_size or 0) * model.hidden_size * 16
    return min((0.0, bits, bits + tables), key=lambda guess: abs(over - guess))


def _bits(name: str, wanted: WeightFormat) -> float:
    # The joint of a prediction module is a plain linear layer in vLLM and left alone by quantisers.
    if name in (COPIES, JOINT, JOINT_BY_COLUMNS):
        return 16
    return wanted.bits_of("embedding" if name == _TIED_HEAD else name)


def _on_stage(
    model: Model, deployment: Deployment, loaded: tuple[Piece, ...], layers: range, stage: int, count: int
) -> dict[str, int]:
    """Parameters by kind on the fullest rank of one stage."""
    first, last = stage == 0, stage == count - 1
    found: dict[str, int] = {}
    for piece in loaded:
        table = piece.name in ("embedding", "per-layer embeddings") and _leaves_table(deployment)
        if piece.place == "layers":
            found[piece.name] = sum(piece.held[layers.start : layers.stop])
        elif (piece.place == "first" and first and not table) or (piece.place == "last" and last):
            found[piece.name] = piece.held[0]
        if piece.name == "embedding" and last and is_tied(model) and (table or not first):
            found[_TIED_HEAD] = piece.held[0]
    return {name: count for name, count in found.items() if count}


def _leaves_table(deployment: Deployment) -> bool:
    return deployment.engine in _TABLE_ON_HOST


def _tower_ranks(deployment: Deployment) -> int:
    """Towers are split like text layers by vLLM and SGLang, whole where an engine does not split matrices."""
    return 1 if deployment.engine in LAYER_SPLIT else deployment.tp


def _by_devices(layers: int, devices: int) -> tuple[range, ...]:
    """Layers of each GPU in llama.cpp's layer split over equal GPUs; the output counts as one layer more."""
    if devices > layers:
        raise EngineError(f"{devices:,} GPUs are more than the {layers:,} layers that can be split over them")
    ends = [min(layers, -(-place * (layers + 1) // devices)) for place in range(devices + 1)]
    return tuple(range(first, last) for first, last in pairwise(ends))


def _by_options(model: Model, deployment: Deployment) -> tuple[range, ...]:
    """The same with the shares and the number of layers that the user chose; layers in host memory are left out."""
    gpus = deployment.replica_gpus
    settings = make_settings(model, replace(deployment, tp=1, pp=gpus))
    places = layer_devices(len(model.layers), settings)
    found = []
    for device in range(gpus):
        own = [layer for layer, place in enumerate(places) if place == f"CUDA{device}"]
        found.append(range(own[0], own[-1] + 1) if own else range(0))
    return tuple(found)


def _unshaped(model: Model, deployment: Deployment, total: int, ranges: tuple[range, ...]) -> tuple[RankWeights, ...]:
    """A checkpoint whose tensors are not understood one by one: by layers, and evenly over the ranks."""
    exact = deployment.replica_gpus == 1 and not _leaves_table(deployment)
    tp = 1 if deployment.engine in LAYER_SPLIT else deployment.tp
    found = []
    for stage, layers in enumerate(ranges):
        size = -(-total * len(layers) // (len(model.layers) * tp))
        text = f"{total:,} B × {len(layers)} of {len(model.layers)} layers / {tp} ranks = {size:,} B"
        found.append(
            RankWeights(
                stage=stage, bytes=size, knowledge="exact" if exact else "estimated", parts=(("checkpoint", size),),
                formula=text,
            )
        )  # fmt: skip
    return tuple(found)


def _made(stage: int, parts: dict[str, int], wanted: WeightFormat, exact: bool) -> RankWeights:
    total = sum(parts.values())
    together = " + ".join(f"{name} {size:,}" for name, size in parts.items())
    return RankWeights(
        stage=stage,
        bytes=total,
        knowledge="exact" if exact else "estimated",
        parts=tuple(parts.items()),
        formula=f"{wanted.label or wanted.name}: {together} = {total:,} B",
    )
