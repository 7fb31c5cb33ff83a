"""The trio in words: how what an engine sets aside compares with what is remembered, why, and what it will log."""

from __future__ import annotations

from kvcore.engines.base import Group, Layout
from kvcore.engines.reserve import Reservation
from kvcore.hardware import Accelerator
from kvcore.model import Attention, Model
from kvcore.units import format_bytes

ENGINES = {
    "vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp", "ollama": "Ollama",
    "transformers": "transformers",
}  # fmt: skip
# Notes that begin so say whose rules were followed, which the page says elsewhere.
_RULES = "The rules of "
# What an engine does with all layers of a kind and does not say in a note.
_HABITS = {
    ("llama.cpp", "sliding"): "Windows of all slots and one micro-batch have cells, in whole 256s.",
    ("ollama", "sliding"): "Windows of all slots and one micro-batch have cells, in whole 256s.",
    ("llama.cpp", "state"): "States are kept in 32 bits, for every slot.",
    ("ollama", "state"): "States are kept in 32 bits, for every slot.",
}


def headline(resident: int, reserved: Reservation, budget: str) -> str:
    """The section's title: the three figures in a sentence."""
    title = "Three numbers for one model"
    if reserved.layout is None:
        return title
    held, aside = format_bytes(resident), format_bytes(reserved.layout.bytes_per_request)
    return f"{title}: {held} remembered, {aside} set aside, {_reported(reserved, budget)}"


def _reported(reserved: Reservation, budget: str) -> str:
    if reserved.capacity is None or shortfall(reserved):
        return f"and {budget} is too little to start"
    word = "reported" if reserved.capacity.log_lines else "of room"
    return f"{reserved.capacity.kv_cache_size_tokens:,} tokens {word}"


def shortfall(reserved: Reservation) -> int:
    """The bytes that lack for the engine to start; 0 where it starts."""
    terms = reserved.capacity.terms if reserved.capacity else ()
    return next((int(term.value) for term in terms if term.name == "shortfall"), 0)


def short_of(reserved: Reservation, budget: str) -> str:
    """Why it does not start."""
    short, block = shortfall(reserved), reserved.layout.bytes_per_block if reserved.layout else None
    # What lacks is a block or less only because vLLM keeps its null block back.
    why = ": one block of the pool is never handed out" if block and short <= block else ""
    return f"with {budget} on each rank it is {format_bytes(short)} short{why}"


def refusal(reserved: Reservation) -> str:
    """The sentence of a refusal, without the engine's name in front."""
    said = reserved.refused.partition(": ")
    text = said[2] if said[0].lower() in (reserved.engine, "llama.cpp") else reserved.refused
    return f"{text[:1].upper()}{text[1:]}."


def compared(aside: int, resident: int, ranks: int) -> str:
    """What all ranks set aside for a request, beside what it remembers at that length."""
    held = f"what it remembers at that length ({_unbroken(resident)})"
    total = aside * ranks
    together = f"{ranks:,} ranks together: " if ranks > 1 else ""
    if total == resident:
        return f"{together}exactly {held}"
    if not resident:
        return f"{together}it would remember nothing"
    ratio = total / resident
    if ratio >= 1.995:
        return f"{together}**{ratio:,.1f} times** {held}"
    percent = f"{abs(ratio - 1):.1%}" if abs(ratio - 1) >= 0.0005 else "under 0.1%"
    return f"{together}**{percent} {'more' if ratio > 1 else 'less'}** than {held}"


def _unbroken(size: int) -> str:
    return format_bytes(size).replace(" ", "\N{NO-BREAK SPACE}")


def reasons(model: Model, reserved: Reservation, ranks: int, alone: Reservation) -> list[str]:
    """Why the engine's bytes differ from the model's; `alone` is the same on one rank."""
    layout = reserved.layout
    if layout is None:
        return []
    found = [note for note in layout.notes if not note.startswith(_RULES)]
    found += [text for (name, kind), text in _HABITS.items() if name == layout.engine and _has(layout, kind)]
    found += [text for text in (_padding(layout), _rounding(layout)) if text]
    found += [_fixed_part(group) for group in dict.fromkeys(layout.groups) if _takes_blocks(group)]
    if alone.layout is not None and layout.bytes_per_request * ranks > alone.layout.bytes_per_request:
        found += _copies(model, ranks)
    return list(dict.fromkeys(found))


def _has(layout: Layout, kind: str) -> bool:
    return any(group.kind == kind for group in layout.groups)


def _padding(layout: Layout) -> str:
    """Groups that are narrower than a block of the pool they share."""
    if not layout.bytes_per_block or len(layout.groups) < 2 or any(g.blocks_per_request is None for g in layout.groups):
        return ""
    blocks = sum(group.blocks_per_request or 0 for group in layout.groups)
    used = sum((group.blocks_per_request or 0) * group.layers * group.page_bytes for group in layout.groups)
    if blocks != layout.blocks_per_request or used >= blocks * layout.bytes_per_block:
        return ""
    lost = format_bytes(blocks * layout.bytes_per_block - used)
    return f"All groups draw blocks as wide as the widest of them: {lost} of padding layers."


def _rounding(layout: Layout) -> str:
    """The part of the last block that is empty."""
    for group in layout.groups:
        rooms = (group.block_size or 0) * (group.blocks_per_request or 0)
        if group.kind.startswith(("full", "latent")) and rooms > layout.max_model_len:
            return f"Tokens are kept in blocks of {group.block_size:,}; the last one is partly empty."
    return ""


def _takes_blocks(group: Group) -> bool:
    return group.kind in ("state", "cross") and bool(group.block_size and group.blocks_per_request)


def _fixed_part(group: Group) -> str:
    """What a state or a source takes of the pool's blocks."""
    blocks = group.blocks_per_request or 0
    if group.kind == "state":
        return f"Each group of states takes {blocks} whole block{'s' if blocks > 1 else ''} of the shared pool."
    return f"Cross-attention has room for {blocks * (group.block_size or 0):,} source tokens."


def _copies(model: Model, ranks: int) -> list[str]:
    """What ranks hold more than once."""
    memories = [memory for memory, _ in model.groups]
    found = []
    if any(memory.kind in ("latent", "compressed", "indexer") for memory in memories):
        found.append("A latent cannot be divided by heads: every rank keeps the whole of it.")
    heads = min((memory.num_kv_heads for memory in memories if isinstance(memory, Attention)), default=ranks)
    if heads < ranks:
        found.append(f"A rank never holds less than one KV head: {heads} of them on {ranks:,} ranks are copied.")
    return found


def requests_at_once(reserved: Reservation) -> str:
    """How many requests of the engine's length the reported tokens are."""
    if reserved.capacity is None or reserved.length is None:
        return ""
    many = f"{float(reserved.capacity.max_concurrency):,.2f}".removesuffix(".00")
    return f"{many} {'request' if many == '1' else 'requests'} of {reserved.length:,} tokens at once"


def too_large(budget_bytes: int, gpu: Accelerator) -> str:
    """A remark where the memory is more than the accelerator has."""
    if budget_bytes <= gpu.memory_bytes:
        return ""
    return f"More than {gpu.name} has in all: {format_bytes(gpu.memory_bytes)}."
