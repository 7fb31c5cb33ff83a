"""What an engine divides when it splits a model, and why it refuses a split: one small rule each, in words.

Sources: vLLM 0.33, config/model.py (heads, experts, decode context parallel), model_executor/layers/linear.py
(KV heads), vocab_parallel_embedding.py, mamba/mamba_mixer2.py, quantization/utils/fp8_utils.py and awq.py (blocks and
groups); SGLang 0.5.23, server_args.py and model_executor/model_runner.py; TensorRT-LLM 1.4, mapping.py and llmapi.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcore.deployment import Deployment
from kvcore.model.memories import Attention, CrossAttention, Latent, State
from kvcore.model.model import Model
from kvcore.ranks.parts import padded
from kvcore.ranks.rules import Ranked, RankRules, Ways

# Widths of a feed-forward layer and of an expert, as configurations name them.
_WIDTHS = ("intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "ffn_hidden_size", "ffn_dim")
_EXPERT_WIDTHS = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
_SHARED_WIDTHS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
# Numbers that share a scale along the side that is split.
_GROUPS = {"awq": 128, "gptq": 128, "awq8": 128, "gptq8": 128, "int4": 32, "nvfp4": 16}


def refusals(model: Model, deployment: Deployment, engine: Ranked) -> Iterator[str]:
    """Every reason against the split by an engine's rules, the plainest first."""
    rules, tp = engine.rules, deployment.tp
    ways = engine.ways(model, deployment)
    if rules.whole_layers:
        yield from _layer_split(engine.name, deployment)
    if deployment.pp > len(model.layers):
        yield f"{deployment.pp:,} pipeline stages are more than the {len(model.layers):,} layers"
    if not rules.whole_layers:
        yield from _experts(engine, model, deployment, ways)
        yield from _data_parallel_attention(engine, model, deployment)
        yield from _heads(model, tp)
        yield from _states(model, tp)
        yield from _vocabulary(model, tp, ways.vocabulary_pad)
        yield from _widths(model, deployment, rules, ways)
    yield from _context_parallel(engine, model, deployment)


def is_latent(model: Model) -> bool:
    """Whether every rank needs the whole of what is kept: multi-head latent attention."""
    return any(isinstance(memory, Latent) for memory, _ in model.groups)


def kv_heads(model: Model) -> tuple[int, ...]:
    """The different numbers of KV heads of the model's layers, fewest first."""
    return tuple(
        sorted({memory.num_kv_heads for memory, _ in model.groups if isinstance(memory, Attention | CrossAttention)})
    )


def _layer_split(name: str, deployment: Deployment) -> Iterator[str]:
    if deployment.tp > 1:
        stages = deployment.tp * deployment.pp
        yield f"{name} gives whole layers to each GPU: ask for pp {stages}, not tp {deployment.tp}"
    if deployment.expert_parallel:
        yield f"{name} has no expert parallel"
    if deployment.dp_attention:
        yield f"{name} has no data-parallel attention"


def _heads(model: Model, tp: int) -> Iterator[str]:
    heads = model.num_attention_heads
    if heads and heads % tp:
        yield f"{heads} attention heads cannot be divided over {tp} ranks"
    if is_latent(model):
        return
    for kv in kv_heads(model):
        if kv % tp and tp % kv:
            yield f"{kv} KV heads cannot be divided over {tp} ranks, nor {tp} ranks over {kv} KV heads"


def _states(model: Model, tp: int) -> Iterator[str]:
    for state in (memory for memory, _ in model.groups if isinstance(memory, State)):
        shapes = {part.name: part.shape for part in state.parts}
        if "rows" in shapes:
            continue  # DeepSeek-V4's unfinished groups, of which every rank has a copy.
        main = shapes.get("state") or shapes.get("convolution") or next(iter(shapes.values()))
        if len(main) == 3 and main[0] % tp:
            yield f"{main[0]} heads of {state.design} cannot be divided over {tp} ranks"
        elif len(main) < 3 and max(main) % tp:
            yield f"{max(main):,} channels of {state.design} cannot be divided over {tp} ranks"
        if len(main) != 3 or "convolution" not in shapes:
            continue
        groups = (shapes["convolution"][0] - main[0] * main[1]) // (2 * main[2])
        if state.design == "Mamba 2" and groups > 1 and groups % tp:
            yield f"{groups} groups of {state.design} cannot be divided over {tp} ranks; only a single group is copied"
        elif state.design == "Gated delta net" and groups % tp:
            yield f"{groups} key heads of {state.design} cannot be divided over {tp} ranks"


def _vocabulary(model: Model, tp: int, multiple: int) -> Iterator[str]:
    """Where it is padded to a multiple, the ranks have to divide that."""
    rows = padded(model.vocab_size or 0, multiple)
    if multiple > 1 and rows % tp:
        yield f"a vocabulary of {rows:,} (padded to a multiple of {multiple}) cannot be divided over {tp} ranks"


def _widths(model: Model, deployment: Deployment, rules: RankRules, ways: Ways) -> Iterator[str]:
    """Feed-forward and experts: their width is divided, and no scale's block or group may be cut."""
    unit, what = _unit(model, deployment)
    padded_experts = (deployment.weight_format or model.checkpoint_format) in rules.padded_experts
    for kind, width, ranks in _divided(model, ways):
        if padded_experts and kind == "experts":
            continue
        if width % ranks:
            yield f"{kind} of width {width:,} cannot be divided over {ranks} ranks"
        elif ranks > 1 and unit > 1 and (width // ranks) % unit:
            help_ = "; expert parallel keeps experts whole" if kind == "experts" else ""
            yield f"{kind} of width {width:,} over {ranks} ranks are {width // ranks:,} wide, which cuts {what}{help_}"


def _divided(model: Model, ways: Ways) -> Iterator[tuple[str, int, int]]:
    """Kinds of matrices with their width and the ranks over which it is split."""
    kinds = {part.name for part in model.weights}
    plain = _stated(model, _WIDTHS)
    if "feed-forward" in kinds and plain:
        yield "feed-forward layers", plain, ways.dense
    if model.experts is None:
        return
    width = _stated(model, _EXPERT_WIDTHS) or plain
    if width and not ways.experts_whole:
        yield "experts", width, ways.experts
    shared = _stated(model, _SHARED_WIDTHS) or width * model.experts.num_shared_experts
    if shared and "shared experts" in kinds:
        yield "shared experts", shared, ways.shared


def _unit(model: Model, deployment: Deployment) -> tuple[int, str]:
    """Numbers that may not be separated, and what they are; 1 where there is nothing of the kind or it is not known."""
    chosen = deployment.weight_format
    name = chosen or model.checkpoint_format or ""
    if name == "fp8":
        # Quantising a 16-bit checkpoint while it is loaded makes one scale a matrix.
        block = model.scale_block if chosen in (None, model.checkpoint_format) else 0
        return (block, f"its fp8 blocks of {block}") if block else (1, "")
    group = _GROUPS.get(name, 1)
    return group, f"{name}'s groups of {group}"


def _stated(model: Model, names: tuple[str, ...]) -> int:
    """A size from the configuration as it was read; 0 where it is not one number."""
    for key, text in model.reading.keys_used:
        if key.rpartition(".")[2] in names and text.isdecimal():
            return int(text)
    return 0


def _experts(engine: Ranked, model: Model, deployment: Deployment, ways: Ways) -> Iterator[str]:
    if not deployment.expert_parallel:
        return
    if model.experts is None:
        yield "the model has no experts, so expert parallel has nothing to divide"
        return
    number, ranks = model.experts.num_experts, ways.experts
    if ranks > number:
        yield f"{number} experts are fewer than the {ranks} ranks that would share them"
    elif number % ranks and not engine.rules.uneven_experts:
        yield f"{engine.name} needs the same number of experts on each rank, and {ranks} do not divide {number}"


def _data_parallel_attention(engine: Ranked, model: Model, deployment: Deployment) -> Iterator[str]:
    if not deployment.dp_attention:
        return
    kind = engine.rules.dp_attention
    if not kind:
        yield f"{engine.name} has no data-parallel attention"
    elif kind == "all" and deployment.tp > 1:
        ranks = deployment.tp * deployment.dp
        yield f"{engine.name} then has attention whole on every rank: ask for tp 1 and dp {ranks}"
    if deployment.dp == 1:
        yield "data-parallel attention needs more than one replica (dp)"
    elif model.experts is None and (kind == "replicas" or not is_latent(model)):
        yield "without experts replicas have nothing to share: data-parallel attention is plain replicas (dp)"


def _context_parallel(engine: Ranked, model: Model, deployment: Deployment) -> Iterator[str]:
    dcp, tp = deployment.dcp, deployment.tp
    if dcp == 1:
        return
    if not engine.rules.context_parallel:
        yield f"{engine.name} has no decode context parallel"
        return
    if tp % dcp:
        yield f"decode context parallel {dcp} does not divide {tp} tensor-parallel ranks, which it splits into groups"
        return
    if is_latent(model):
        return
    for kv in kv_heads(model):
        if tp // kv < dcp:
            copies = max(1, tp // kv)
            times = {1: "once", 2: "twice"}.get(copies, f"{copies} times")
            yield (
                f"decode context parallel {dcp} needs as many copies of every KV head: {tp} ranks hold each of {kv} "
                f"{times}, so it may be at most {copies}"
            )
            return
