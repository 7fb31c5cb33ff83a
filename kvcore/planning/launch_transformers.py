"""transformers for a deployment: a few lines of Python, since its cache is made by each call of generate."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.transformers import TRANSFORMERS
from kvcore.engines.transformers.settings import TransformersSettings
from kvcore.model.model import Model
from kvcore.planning.launch_words import (
    SIXTEEN_BITS,
    Command,
    cache_word,
    other_weights,
    requantised_note,
    stored_format,
)

SCRIPT = "generate.py"
_PACKAGES = {"quanto": "optimum-quanto", "hqq": "hqq"}


def transformers(model: Model, deployment: Deployment, settings: TransformersSettings) -> Command:
    """`python generate.py` and that file. The model's name stands in it as a Python literal."""
    wanted = other_weights(model, deployment)
    # Its cache has the dtype that the model runs in: one cannot be asked for without the other.
    settings.element_bytes(model)
    cache = cache_word(deployment.kv_dtype, {})
    served = cache or (wanted if wanted in SIXTEEN_BITS else model.model_dtype)
    notes = ["Placing the model with device_map needs the package accelerate."]
    if settings.cache_implementation == "quantized" and settings.cache_backend in _PACKAGES:
        notes.append(f"Its quantised cache needs the package {_PACKAGES[settings.cache_backend]}.")
    extra = ""
    if wanted == "fp8" and stored_format(model) in SIXTEEN_BITS:
        extra = ", quantization_config=FineGrainedFP8Config()"
        notes.append("The linear layers are quantised to fp8 while loading.")
    elif wanted is not None and wanted not in SIXTEEN_BITS:
        notes.append(requantised_note(wanted))
    names = ", ".join(["AutoModelForCausalLM", "AutoTokenizer", *(["FineGrainedFP8Config"] if extra else [])])
    generate = " ".join(TRANSFORMERS.flags(model, settings))
    lines = [
        f"from transformers import {names}",
        "",
        f"name = {model.name!r}",
        "tokenizer = AutoTokenizer.from_pretrained(name, padding_side='left')",
        f"dtype = {SIXTEEN_BITS.get(served, 'auto')!r}",
        f"model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map='auto'{extra})",
        f"prompts = ['Why is the sky blue?'] * {settings.batch_size}",
        "tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token",
        "inputs = tokenizer(prompts, return_tensors='pt', padding=True).to(model.device)",
        f"output = {generate}",
        "print(tokenizer.batch_decode(output, skip_special_tokens=True))",
    ]
    if deployment.dp > 1:
        notes.append(f"This is one process on one GPU: start it {deployment.dp} times.")
    return Command(words=("python", SCRIPT), files=((SCRIPT, "\n".join(lines) + "\n"),), notes=tuple(notes))
