"""Which accelerators an engine runs on, as far as its rules are followed here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvcore.engines.registry import NAMES
from kvcore.hardware.gpus import Accelerator

# Vendors of the GPUs on which the rules of an engine are followed.
VENDORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vllm": ("NVIDIA", "AMD", "Intel"),
        "sglang": ("NVIDIA",),
        "tensorrt-llm": ("NVIDIA",),
        "transformers": ("NVIDIA", "AMD", "Intel", "Apple"),
        "llama.cpp": ("NVIDIA", "AMD", "Intel", "Apple"),
        "ollama": ("NVIDIA", "AMD", "Apple"),
    }
)
# What these keep is the same in the memory of a processor.
_ON_PROCESSORS = ("transformers", "llama.cpp", "ollama")


def runs_on(engine: str, gpu: Accelerator) -> bool:
    """Whether an engine is offered for GPUs of that vendor; one that was typed in is taken as one of NVIDIA's."""
    return gpu.vendor == "custom" or (gpu.vendor in VENDORS.get(engine, ()) and not _is_processor(gpu))


def not_followed(engine: str, gpu: Accelerator) -> str:
    """Why an engine is not planned on an accelerator, and which ones are; "" where it is, or is not known."""
    vendors = VENDORS.get(engine, ())
    if not vendors or _followed(engine, gpu):
        return ""
    theirs = " and ".join((", ".join(vendors[:-1]), vendors[-1])) if len(vendors) > 1 else "".join(vendors)
    text = f"{engine}: its rules are followed here on GPUs of {theirs}"
    if engine in _ON_PROCESSORS:
        text += " and on processors"
    others = [name for name in NAMES if _followed(name, gpu)]
    instead = f"{', '.join(others)} can be planned on it" if others else "no engine is planned on it here"
    return f"{text}, and {gpu.name} is not one of them; {instead}"


def _followed(engine: str, gpu: Accelerator) -> bool:
    return runs_on(engine, gpu) or (_is_processor(gpu) and engine in _ON_PROCESSORS)


def _is_processor(gpu: Accelerator) -> bool:
    return gpu.form == "CPU socket"
