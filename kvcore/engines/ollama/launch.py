"""Ollama for a deployment: its environment, its server and a Modelfile (options: Ollama, envconfig and Modelfile)."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.command import Command
from kvcore.engines.llamacpp.launch import HEAD_IN_FILE, gguf_reference, pool_notes
from kvcore.engines.ollama.settings import OllamaSettings
from kvcore.model.model import Model

# What the model is called on the server.
NAME = "kv-plan"


def launch(model: Model, deployment: Deployment, settings: OllamaSettings) -> Command:
    """Ollama's environment and server, and a Modelfile with what is set a model: context, batch, layers on GPUs."""
    path, about = gguf_reference(model, deployment)
    server = settings.server
    words = [f"OLLAMA_CONTEXT_LENGTH={settings.num_ctx}", f"OLLAMA_NUM_PARALLEL={settings.num_parallel}"]
    if server.cache_type_k != "f16":
        words.append(f"OLLAMA_KV_CACHE_TYPE={server.cache_type_k}")
    if server.flash_attn != "auto":
        words.append(f"OLLAMA_FLASH_ATTENTION={int(server.flash_attn == 'on')}")
    words += ["ollama", "serve"]
    lines = [f"FROM {path}", f"PARAMETER num_ctx {settings.num_ctx}"]
    if not settings.num_batch_is_default:
        lines.append(f"PARAMETER num_batch {server.batch_size}")
    elif deployment.max_num_batched_tokens:
        lines.append(f"PARAMETER num_batch {deployment.max_num_batched_tokens}")
    if server.n_gpu_layers is not None:
        lines.append(f"PARAMETER num_gpu {server.n_gpu_layers}")
    notes = [*about, "The second and third line go to another terminal.", *pool_notes(deployment, "Ollama")]
    if ahead := deployment.speculative_tokens:
        if deployment.draft is not None and deployment.draft.own:
            lines.append(f"PARAMETER draft_num_predict {ahead}")
            notes.append(HEAD_IN_FILE)
        else:
            notes.append(f"Ollama proposes nothing from the prompt: the {ahead} tokens ahead are not asked for.")
    after = (("ollama", "create", NAME, "-f", "Modelfile"), ("ollama", "run", NAME))
    files = (("Modelfile", "\n".join(lines) + "\n"),)
    return Command(words=tuple(words), after=after, files=files, notes=tuple(notes))
