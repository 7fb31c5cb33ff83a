"""`llama-server` for a deployment (options: llama.cpp, common/arg.cpp)."""

from __future__ import annotations

from kvcore.deployment import Deployment, Draft
from kvcore.engines.command import Command, gguf_file, model_reference, other_weights, stem, stored_format
from kvcore.engines.llamacpp.settings import FIXED, MAX_SLOTS, OPTIONS, LlamaCppSettings
from kvcore.model.model import Model
from kvcore.model.weight_formats import weight_format

HEAD_IN_FILE = "The GGUF file has to hold the prediction layers; some leave them out."


def launch(model: Model, deployment: Deployment, settings: LlamaCppSettings) -> Command:
    """`llama-server` with what differs from its defaults; layers are divided over all GPUs that it sees."""
    path, about = gguf_reference(model, deployment)
    drafted, proposed = ([], ()) if deployment.draft is None else _drafted(deployment.draft)
    words = ["llama-server", "--model", path, "--ctx-size", str(settings.ctx_size), *_options(deployment, settings)]
    if deployment.speculative_tokens and not settings.spec_draft_n_max:
        # Nothing is proposed unless a type says how; from the prompt, its own option says how much.
        count = str(deployment.speculative_tokens)
        words += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", count]
    words += drafted
    if not deployment.prefix_caching:
        words.append("--no-cache-prompt")
    notes = [*about, *proposed, *pool_notes(deployment, "llama.cpp")]
    if deployment.pp > 1:
        notes.append(f"Layers are divided over the {deployment.pp} GPUs that CUDA_VISIBLE_DEVICES leaves.")
    return Command(words=tuple(words), notes=tuple(notes))


def _options(deployment: Deployment, settings: LlamaCppSettings) -> list[str]:
    """llama.cpp's own options that are not its defaults, and the batches that the deployment's tokens a step need."""
    words, default = [], LlamaCppSettings()
    computed = deployment.max_num_batched_tokens or settings.ubatch_size
    batches = {"ubatch_size": computed} if computed != settings.ubatch_size else {}
    if computed > settings.batch_size:
        batches["batch_size"] = computed
    for option in OPTIONS:
        value = getattr(settings, option.field)
        left_out = ("ctx_size", "tool", "tensor_split", *batches)
        if option.field in left_out or value == getattr(default, option.field):
            continue
        if option.kind != "switch":
            words += [option.flag, str(value)]
        elif value:
            words.append(option.flag)
    if settings.tensor_split:
        words += ["--tensor-split", ",".join(f"{share:g}" for share in settings.tensor_split)]
    for field, value in batches.items():
        words += ["--" + field.replace("_", "-"), str(value)]
    return words


def _drafted(draft: Draft) -> tuple[list[str], tuple[str, ...]]:
    """The file's own prediction layers, or a model that proposes."""
    if draft.own:
        return ["--spec-type", "draft-mtp"], (HEAD_IN_FILE,)
    if (given := gguf_file(draft.model)) is not None and draft.weight_format is None:
        return ["--spec-type", "draft-simple", "--model-draft", given], ()
    name = stem(draft.name)
    path, weights = f"./{name}.gguf", ""
    if draft.weight_format is not None:
        path, label = _named(name, draft.weight_format)
        weights = f" with {label} weights"
    note = f"{path} stands for a GGUF file of the draft {name}{weights}."
    return ["--spec-type", "draft-simple", "--model-draft", path], (note,)


def gguf_reference(model: Model, deployment: Deployment) -> tuple[str, tuple[str, ...]]:
    """(the model's own file, or a file name for the weights in the format that was planned; notes about it)."""
    name, notes = model_reference(model.name)
    if (given := gguf_file(model)) is not None and other_weights(model, deployment) is None:
        return given, notes
    wanted = deployment.weight_format or stored_format(model)
    path, label = _named(stem(name), weight_format(wanted).name if deployment.weight_format else wanted)
    return path, (*notes, f"{path} stands for a GGUF file of this model with {label} weights.")


def _named(name: str, wanted: str) -> tuple[str, str]:
    """(a file name for weights in a format, the format as it stands in such names)."""
    label = stem(wanted).upper()
    return (f"./{name}.gguf" if name.upper().endswith(label) else f"./{name}-{label}.gguf"), label


def pool_notes(deployment: Deployment, engine: str) -> tuple[str, ...]:
    """What an engine of slots has no option for: replicas, and memory for its cache."""
    notes = []
    if deployment.dp > 1:
        notes.append(f"{engine} starts one replica: start it {deployment.dp} times behind a load balancer.")
    if deployment.kv_bytes is not None or deployment.utilization is not None:
        notes.append(f"{engine} has no option for the memory of its cache: the context and the slots say it.")
    return tuple(notes)


def slots_for(deployment: Deployment, requests: int) -> int:
    """Slots for so many requests: no more than the engine is asked for, or has."""
    return min(requests, deployment.max_num_seqs or MAX_SLOTS, MAX_SLOTS)


def room_for(deployment: Deployment, requests: int) -> dict[str, int]:
    """llama-server's slots for so many requests, and room for a whole one each, unless the options say it."""
    if FIXED & {option for option, _ in deployment.options}:
        return {}
    slots = slots_for(deployment, requests)
    return {"parallel": slots, "ctx_size": deployment.context * slots}
