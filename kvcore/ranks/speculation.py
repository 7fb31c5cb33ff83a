"""Speculative decoding in a plan: who proposes, what the engine refuses, and the weights on each rank.

Sources. vLLM 0.32: config/speculative.py (hf_config_override, create_draft_parallel_config: the draft has the target's
tensor-parallel size and no pipeline, so it is whole on the last stage), v1/spec_decode/draft_model.py (equal sizes of
vocabulary; nothing is shared), llm_base_proposer.py (a head shares embedding and output head, but not the embedding
of another pipeline stage). SGLang 0.5.23: server_args.py (no pipeline beside speculation, except for prefill alone),
eagle_worker (NEXTN shares embedding and head). TensorRT-LLM 1.4: modeling_speculative.py. llama.cpp: common/arg.cpp
(--model-draft).
"""

from __future__ import annotations

from dataclasses import replace

from kvcore.deployment import OWN_HEAD, Deployment, Draft
from kvcore.errors import PlanError
from kvcore.model.memories import Attention
from kvcore.model.model import Model, WeightPart
from kvcore.model.prediction import JOINT
from kvcore.model.weight_formats import stored_weight_format, weight_format
from kvcore.ranks.parts import no_head, prediction_head
from kvcore.ranks.rules import Ranked, RankRules
from kvcore.ranks.weights import RankWeights, rank_weights

HEAD_WEIGHTS, DRAFT_WEIGHTS = "prediction layers", "draft model"
# Kinds of a GGUF file's table that are there already (model/gguf.py).
_IN_FILE = "multi-token prediction"
# Formats into which a checkpoint is converted whole, or while it is loaded; other quantisers leave the module alone.
_CONVERTED_WHOLE = ("fp8", "fp32", "bf16", "fp16")


def proposer(deployment: Deployment) -> Draft | None:
    """Who proposes with weights of its own: the stated draft, or a head where vLLM's `mtp_layers` asks for one."""
    if deployment.draft is not None:
        return deployment.draft
    return OWN_HEAD if dict(deployment.options).get("mtp_layers") else None


def speculator(model: Model, deployment: Deployment) -> Model | None:
    """The proposer as a model: its layers' caches are counted beside the model's; None where there is none."""
    chosen = proposer(deployment)
    if chosen is None:
        return None
    return prediction_head(model) if chosen.model is None else chosen.model


def alone(model: Model, deployment: Deployment, rules: RankRules) -> Deployment:
    """The deployment of the speculator `model` by itself: on one stage, with its own formats, nothing ahead of it.

    Its cache has the model's format where it is the model's own head in an engine that splits matrices.
    """
    chosen = proposer(deployment)
    head = chosen is not None and chosen.own and not rules.whole_layers
    return replace(
        deployment,
        pp=deployment.pp if rules.whole_layers else 1,
        kv_dtype=deployment.kv_dtype if head else "auto",
        expert_parallel=deployment.expert_parallel and model.experts is not None,
        weight_format=_format(model, deployment, rules, chosen),
        speculative_tokens=0,
        draft=None,
        options=(),
    )


def refused(model: Model, deployment: Deployment, engine: Ranked) -> str:
    """Why the engine cannot speculate so, in a sentence without its full stop; "" where it can, or nothing is asked."""
    chosen, name = deployment.draft, engine.name
    if chosen is None:
        return ""
    if reason := engine.refuses_draft(model, deployment):
        return f"{name}: {reason}"
    draft = chosen.model
    if draft is None:
        missing = no_head(model)
        return f"{name}: {missing}" if missing else ""
    if draft.prediction.eagle and engine.rules.whole_layers:
        return f"{name}: EAGLE heads such as {draft.name} are not followed here"
    if draft.knowledge != "exact":
        return f"{name}: what the draft {draft.name} keeps is not understood exactly, and would be mixed with what is"
    reason = next(engine.refusals(draft, alone(draft, deployment, engine.rules)), "")
    return f"{name}: as a draft, {draft.name}: {reason}" if reason else ""


def with_speculator(
    loaded: tuple[RankWeights, ...], model: Model, deployment: Deployment, engine: Ranked
) -> tuple[RankWeights, ...]:
    """The weights of each stage with the proposer's among them, as a part of its own.

    Raises PlanError where the proposer's parameters are not known.
    """
    extra = speculator(model, deployment)
    if extra is None or not loaded:
        return loaded
    chosen = proposer(deployment)
    own = chosen is not None and chosen.own
    if own and any(part.name == _IN_FILE for part in model.weights):
        return loaded
    whole_layers = engine.rules.whole_layers
    shaped = extra
    if not own:
        shaped = as_loaded(extra, deployment)
    elif not whole_layers:
        shaped = _with_tables(extra, model, deployment)
    place = alone(extra, deployment, engine.rules)
    # A head's tensors lie with the last layer, whoever splits by layers.
    found = rank_weights(shaped, replace(place, tp=1, pp=1) if own and whole_layers else place, engine)
    if not found:
        raise PlanError(f"{extra.name}: how much the draft's weights take is not known from its configuration")
    name = HEAD_WEIGHTS if own else DRAFT_WEIGHTS
    # One stage: the last; as many as the model's where layers are split over GPUs.
    first = len(loaded) - len(found)
    return tuple(
        weights if index < first else _added(weights, name, found[index - first])
        for index, weights in enumerate(loaded)
    )


def _added(weights: RankWeights, name: str, extra: RankWeights) -> RankWeights:
    if not extra.bytes:
        return weights
    return RankWeights(
        stage=weights.stage,
        bytes=weights.bytes + extra.bytes,
        knowledge="estimated",
        parts=(*weights.parts, (name, extra.bytes)),
        formula=weights.formula,
        drafted=extra.formula,
    )


def speculator_bytes(weights: RankWeights) -> tuple[str, int]:
    """(name, bytes) of the proposer's part of these weights; ("", 0) where it has none on this stage."""
    return next((part for part in weights.parts if part[0] in (HEAD_WEIGHTS, DRAFT_WEIGHTS)), ("", 0))


def as_loaded(draft: Model, deployment: Deployment) -> Model:
    """A draft as it is loaded: whole, but an EAGLE head takes the model's embedding (and EAGLE-1 its output head).

    It has a joint of its own, and EAGLE-3's first layer attends from the token and the hidden state side by side
    (vLLM 0.32, llama_eagle.py and llama_eagle3.py). On another pipeline stage than the model's embedding it has one.
    """
    said = draft.prediction
    if not said.eagle:
        return draft
    hidden, kept = draft.hidden_size, {part.name: part.parameters for part in draft.weights}
    if deployment.pp == 1:
        kept.pop("embedding", None)
    rows = said.vocabulary or draft.vocab_size or 0
    if said.eagle == 3:
        attention = next((memory for memory, _ in draft.kept if isinstance(memory, Attention)), None)
        if attention is not None:
            widths = draft.num_attention_heads * attention.head_dim
            widths += attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)
            kept["attention"] = kept.get("attention", 0) + hidden * widths
        kept["output head"] = rows * hidden
        kept[JOINT] = said.features * (said.target_hidden or hidden) * hidden
    else:
        kept.pop("output head", None)
        kept[JOINT] = 2 * hidden * hidden
    parts = tuple(WeightPart(name=name, parameters=count, active_parameters=count) for name, count in kept.items())
    return replace(draft, weights=parts, vocab_size=rows or draft.vocab_size, checkpoint_bytes=None)


def _with_tables(head: Model, model: Model, deployment: Deployment) -> Model:
    """A head on another pipeline stage than the embedding has a table of its own."""
    if deployment.pp == 1 or not model.vocab_size:
        return head
    rows = model.vocab_size * model.hidden_size
    table = WeightPart(name="embedding", parameters=rows, active_parameters=model.hidden_size)
    return replace(head, weights=(*head.weights, table))


def _format(extra: Model, deployment: Deployment, rules: RankRules, chosen: Draft | None) -> str | None:
    """The format of the proposer's weights: a draft's own; a head's is the model's where that converts all of it."""
    if chosen is None or not chosen.own:
        return None if chosen is None else chosen.weight_format
    wanted = deployment.weight_format
    if wanted is None or wanted == stored_weight_format(extra).name:
        return None
    name = weight_format(wanted).name
    return name if name in _CONVERTED_WHOLE or rules.whole_layers else extra.model_dtype


def notes(model: Model, deployment: Deployment, engine: Ranked) -> tuple[str, ...]:
    """What is to know about who proposes, or about a head that is there and is not used."""
    chosen = proposer(deployment)
    if chosen is not None and deployment.draft is None and prediction_head(model) is None:
        return (f"The weights of the prediction layers are not among the weights: {no_head(model)}.",)
    if chosen is not None:
        return engine.draft_notes(model, deployment)
    found = []
    if deployment.speculative_tokens:
        found.append("Tokens are proposed from the prompt (n-gram): that has no weights and no cache of its own.")
    if (head := prediction_head(model)) is not None and not engine.rules.whole_layers:
        count, size = model.prediction.modules, f"{(head.total_parameters or 0) / 1e9:.2f} billion parameters"
        modules = f"a prediction module of {size}" if count == 1 else f"{count} prediction modules of {size} together"
        found.append(f"The checkpoint has {modules}, which would propose tokens ahead; not used here, so not loaded.")
    return tuple(found)
