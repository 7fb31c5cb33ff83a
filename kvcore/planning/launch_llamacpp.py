"""`llama-server` and Ollama for a deployment (options: llama.cpp, common/arg.cpp; Ollama, envconfig and Modelfile)."""

from __future__ import annotations

from kvcore.deployment import Deployment, Draft
from kvcore.engines.llamacpp import LLAMACPP
from kvcore.engines.llamacpp.settings import LlamaCppSettings
from kvcore.engines.ollama.engine import OLLAMA, OllamaSettings
from kvcore.model.model import Model
from kvcore.model.weight_formats import weight_format
from kvcore.planning.launch_model import gguf_file
from kvcore.planning.launch_words import Command, other_weights, put, stem, stored_format

OLLAMA_NAME = "kv-plan"


def llamacpp(model: Model, deployment: Deployment, settings: LlamaCppSettings) -> Command:
    """`llama-server` with what differs from its defaults; layers are divided over all GPUs that it sees."""
    path, about = _gguf(model, deployment)
    words = list(LLAMACPP.flags(model, settings))
    words[words.index("--model") + 1] = path
    computed = deployment.max_num_batched_tokens or settings.ubatch_size
    if computed != settings.ubatch_size:
        put(words, "--ubatch-size", None)
        words += ["--ubatch-size", str(computed)]
    if computed > settings.batch_size:
        put(words, "--batch-size", None)
        words += ["--batch-size", str(computed)]
    if deployment.speculative_tokens and not settings.spec_draft_n_max:
        # Nothing is proposed unless a type says how; from the prompt, its own option says how much.
        count = str(deployment.speculative_tokens)
        words += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", count]
    drafted = _drafted(deployment.draft) if deployment.draft is not None else ([], ())
    words += drafted[0]
    if not deployment.prefix_caching:
        words.append("--no-cache-prompt")
    notes = [*about, *drafted[1], *_pool_notes(deployment, "llama.cpp")]
    if deployment.pp > 1:
        notes.append(f"Layers are divided over the {deployment.pp} GPUs that CUDA_VISIBLE_DEVICES leaves.")
    return Command(words=tuple(words), notes=tuple(notes))


def _drafted(draft: Draft) -> tuple[list[str], tuple[str, ...]]:
    """The file's own prediction layers, or a model that proposes."""
    if draft.own:
        return ["--spec-type", "draft-mtp"], ("The GGUF file has to hold the prediction layers; some leave them out.",)
    if (given := gguf_file(draft.model)) is not None:
        return ["--spec-type", "draft-simple", "--model-draft", given], ()
    path = f"./{stem(draft.name)}.gguf"
    return ["--spec-type", "draft-simple", "--model-draft", path], (
        f"{path} stands for a GGUF file of the draft {stem(draft.name)}.",
    )


def ollama(model: Model, deployment: Deployment, settings: OllamaSettings) -> Command:
    """Ollama's environment and server, and a Modelfile with what is set a model: context, batch, layers on GPUs."""
    path, about = _gguf(model, deployment)
    words = list(OLLAMA.flags(model, settings))
    lines = [f"FROM {path}", f"PARAMETER num_ctx {settings.num_ctx}"]
    if not settings.num_batch_is_default:
        lines.append(f"PARAMETER num_batch {settings.server.batch_size}")
    elif deployment.max_num_batched_tokens:
        lines.append(f"PARAMETER num_batch {deployment.max_num_batched_tokens}")
    if settings.server.n_gpu_layers is not None:
        lines.append(f"PARAMETER num_gpu {settings.server.n_gpu_layers}")
    notes = [*about, "The second and third line go to another terminal.", *_pool_notes(deployment, "Ollama")]
    if ahead := deployment.speculative_tokens:
        if deployment.draft is not None and deployment.draft.own:
            lines.append(f"PARAMETER draft_num_predict {ahead}")
            notes.append("The GGUF file has to hold the prediction layers; some leave them out.")
        else:
            notes.append(f"Ollama proposes nothing from the prompt: the {ahead} tokens ahead are not asked for.")
    after = (("ollama", "create", OLLAMA_NAME, "-f", "Modelfile"), ("ollama", "run", OLLAMA_NAME))
    files = (("Modelfile", "\n".join(lines) + "\n"),)
    return Command(words=tuple(words), after=after, files=files, notes=tuple(notes))


def _gguf(model: Model, deployment: Deployment) -> tuple[str, tuple[str, ...]]:
    """(the model's own file, or a file name for the weights in the format that was planned; notes about it)."""
    if (given := gguf_file(model)) is not None and other_weights(model, deployment) is None:
        return given, ()
    wanted = deployment.weight_format or stored_format(model)
    label = stem(weight_format(wanted).name if deployment.weight_format else wanted).upper()
    name = stem(model.name)
    path = f"./{name}.gguf" if name.upper().endswith(label) else f"./{name}-{label}.gguf"
    return path, (f"{path} stands for a GGUF file of this model with {label} weights.",)


def _pool_notes(deployment: Deployment, engine: str) -> tuple[str, ...]:
    notes = []
    if deployment.dp > 1:
        notes.append(f"{engine} starts one replica: start it {deployment.dp} times behind a load balancer.")
    if deployment.kv_bytes is not None or deployment.utilization is not None:
        notes.append(f"{engine} has no option for the memory of its cache: the context and the slots say it.")
    return tuple(notes)
