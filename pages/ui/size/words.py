"""Sentences computed from a model: what its growth means, what its layers keep."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kvcore.engines.base import Group, Layout
from kvcore.engines.reserve import Reservation
from kvcore.formats import KVFormat
from kvcore.hardware.gpus import Accelerator
from kvcore.model import Attention, CrossAttention, Indexer, Latent, Memory, Model, NoMemory, SharedCache, State
from kvcore.scenario.scenario import Scenario
from kvcore.sizing import SizeResult, growth_laws, resident_bytes
from kvcore.units import format_bytes, format_tokens
from pages.ui.models import Chosen
from pages.ui.text import plain, tidy_name

PART = {
    "full": "attention", "sliding": "window", "chunked": "chunk", "latent": "latent", "indexer": "index key",
    "compressed": "compressed part", "state": "state", "cross": "cross-attention",
    "shared": "shared part", "none": "rest",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same thing: how many, of which kind, in words, and their bytes for one request."""

    kind: str
    layers: int
    words: str
    bytes: int
    grows: bool


def plural(count: int, noun: str) -> str:
    """`1 layer`, `1,024 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def growth_sentence(model: Model, tokens: int, kv: KVFormat, batch: int, source: int | None) -> str:
    """The one thing to see in the growth chart, with its numbers."""
    laws = [(law, count) for law, count in growth_laws(model, kv, source) if law.bytes_per_entry or law.constant_bytes]
    if not laws:
        return "This model keeps no cache: it reads its input once and generates nothing from it."
    first, second = _two_contexts(model, tokens)
    low, high = (format_bytes(resident_bytes(model, n, kv, batch, source)) for n in (first, second))
    here, there = (f"{format_tokens(n)} tokens" for n in (first, second))
    growing = [law for law, _ in laws if law.bytes_per_entry and law.max_entries is None]
    fills = sorted({law.max_entries * law.tokens_per_entry for law, _ in laws if law.max_entries is not None})
    constant = sum(count * law.constant_bytes for law, count in laws) * batch
    if not growing:
        held = format_bytes(resident_bytes(model, fills[-1] if fills else 0, kv, batch, source))
        start = f"After {fills[-1]:,} tokens it stops growing" if fills else "It never grows"
        return f"{start}: {held}, however long the conversation becomes."
    numbers = f"{here} hold {low}, {there} hold {high}"
    if fills:
        return f"Past {fills[-1]:,} tokens only {_growing(model, kv)}: {numbers}."
    if constant and all(kind != "state" for kind, _ in model.kinds):
        return f"What it holds of the source stays at {format_bytes(constant)}; its own cache grows: {numbers}."
    if constant:
        return f"Only {_growing(model, kv)}, the states stay at {format_bytes(constant)}: {numbers}."
    return f"Doubling the conversation doubles the cache: {numbers}."


def _two_contexts(model: Model, tokens: int) -> tuple[int, int]:
    start = tokens or 8192
    limit = model.context_limit
    if limit is not None and 4 * start > limit and start >= 4:
        return (start // 4, start)
    return (start, 4 * start)


def _growing(model: Model, kv: KVFormat) -> str:
    count = sum(
        any((law := memory.growth(kv)).bytes_per_entry and law.max_entries is None for memory in layer)
        for layer in model.layers
    )
    everything = count == len(model.layers)
    return "a part of each layer grows" if everything else f"{count} of {len(model.layers)} layers grow"


def answer(name: str, result: SizeResult) -> str:
    """The headline: what this scenario holds, as markdown; so is `name`."""
    tokens, batch, total = result.tokens, result.batch, result.resident_bytes
    if not total and not result.bytes_per_token:
        return f"{name} keeps no cache"
    if batch == 1:
        return f"{name} remembers **{tokens:,} tokens** in **{format_bytes(total)}**"
    return f"{name} remembers **{batch:,} × {tokens:,} tokens** in **{format_bytes(total)}**"


def groups(model: Model, tokens: int, kv: KVFormat, source: int | None) -> tuple[LayerGroup, ...]:
    """The model's layers by what they keep, those that hold most first."""
    found: dict[tuple[str, str], list[int]] = {}
    grows: dict[tuple[str, str], bool] = {}
    for memory, count in model.groups:
        law = memory.growth(kv, source)
        key = (memory.kind, keeps(memory, source))
        entry = found.setdefault(key, [0, 0])
        entry[0] += count
        entry[1] += count * law.at(tokens)
        grows[key] = bool(law.bytes_per_entry) and law.max_entries is None
    rows = [
        LayerGroup(kind=kind, layers=count, words=words, bytes=size, grows=grows[kind, words])
        for (kind, words), (count, size) in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def keeps(memory: Memory, source: int | None = None) -> str:
    """What a layer with this memory keeps, as the end of `52 layers …`."""
    if isinstance(memory, Attention):
        heads = f"{plural(memory.num_kv_heads, 'KV head')} of {memory.head_dim}"
        if memory.law == "sliding":
            return f"keep the last {memory.limit:,} tokens, {heads}"
        if memory.law == "chunked":
            return f"keep the current chunk of at most {memory.limit:,} tokens, {heads}"
        return f"keep every token, {heads}"
    if isinstance(memory, Latent):
        numbers = f"{memory.kv_lora_rank} + {memory.qk_rope_head_dim} numbers"
        if memory.window is not None:
            return f"keep one vector of {numbers} for each of the last {memory.window:,} tokens"
        each = "token" if memory.tokens_per_entry == 1 else f"{memory.tokens_per_entry} tokens"
        return f"keep one latent vector of {numbers} for every {each}"
    if isinstance(memory, Indexer):
        return f"keep an index key of {memory.index_head_dim} numbers, to choose which tokens to read"
    if isinstance(memory, State):
        return f"keep a state of fixed size ({memory.design}), whatever the length"
    if isinstance(memory, CrossAttention):
        tokens = memory.source_tokens if source is None else source
        return f"keep the keys and values of {tokens:,} source tokens"
    if isinstance(memory, SharedCache):
        return "keep nothing of their own: they read another layer's cache"
    if isinstance(memory, NoMemory):
        return f"keep nothing ({memory.reason})"
    return ""


def where_sentence(model: Model, rows: tuple[LayerGroup, ...]) -> str:
    """The title of the layer strip: who holds the bytes."""
    total = sum(row.bytes for row in rows)
    holders = [row for row in rows if row.bytes]
    if not total:
        return "No layer holds anything"
    top = holders[0]
    share = f"{top.bytes / total:.0%}".replace("100%", "nearly all")
    if len(holders) == 1:
        what = top.words.split(",")[0]
        if top.layers == len(model.layers):
            return f"All {plural(top.layers, 'layer')} {what}"
        return f"{top.layers} of {len(model.layers)} layers {what}, the others nothing"
    step = _rhythm(model)
    if top.kind == "full" and step:
        return f"1 layer in {step} keeps every token, and these {top.layers} hold {share} of the bytes"
    if top.layers == len(model.layers):
        return f"The {PART[top.kind]} of each layer holds {share} of the bytes"
    return f"{top.layers} of {len(model.layers)} layers hold {share} of the bytes"


def _rhythm(model: Model) -> int | None:
    """n where every n-th layer keeps everything and the others do not; None where there is no such rhythm."""
    places = [at for at, layer in enumerate(model.layers) if any(memory.kind == "full" for memory in layer)]
    steps = {after - before for before, after in pairwise(places)}
    return steps.pop() if len(steps) == 1 and min(steps) > 1 else None


def knowledge(known: str) -> str:
    """How a figure is known, in words."""
    return "an upper bound" if known == "upper_bound" else "exact"


def scenario_words(chosen: Chosen, scenario: Scenario, kv: KVFormat, result: SizeResult) -> str:
    """The scenario in one line, from what was computed and not from the controls."""
    stored = f"cache in {kv.name}" if scenario.kv != "auto" else f"cache in {kv.name}, the model's own"
    counts = f"{plural(scenario.tokens, 'token')} × {plural(scenario.batch, 'request')}"
    parts = [plain(tidy_name(chosen.model.name)), counts, stored]
    limit = chosen.model.context_limit
    if limit and scenario.tokens > limit:
        parts.append(f"**beyond this model’s limit of {limit:,} tokens**")
    if result.knowledge == "upper_bound":
        parts.append("**upper bound: its layout is not understood**")
    return " · ".join(parts)


def per_token_line(model: Model, kv: KVFormat, tokens: int, known: str) -> str:
    """The caption of the per-token figure: one more token, or why it adds nothing."""
    laws = [law for law, _ in growth_laws(model, kv) if law.bytes_per_entry]
    if not laws:
        return "it keeps a state of fixed size" if any(kind == "state" for kind, _ in model.kinds) else "nothing grows"
    if all(law.next_token(tokens)[0] == 0 for law in laws):
        return "every window is full: one more token replaces the oldest"
    return f"what one more token adds to a request, {known}"


def chart_caption(scenario: Scenario) -> str:
    """What the chart counts."""
    many = "one request" if scenario.batch == 1 else f"{scenario.batch:,} requests of that length"
    return f"Resident bytes of {many}, cache only. Horizontal lines: whole cards, of which the weights take their part."


def fits(most: int | None, scenario: Scenario, model: Model) -> str:
    """The inverse in a sentence."""
    each = "" if scenario.batch == 1 else f" in each of {scenario.batch:,} requests"
    if most is None:
        return f"Any length fits{each}: it stops growing before that."
    if most < 0:
        return f"Not even an empty request fits: what never grows is larger than {plain(scenario.budget)}."
    limit = model.context_limit
    beyond = f", beyond the model's limit of {limit:,}" if limit and most > limit else ""
    return f"**{most:,} tokens** fit in {plain(scenario.budget)}{each}{beyond}."


def saving(model: Model, tokens: int, with_cache: int, without: int) -> str:
    """Projections with and without a cache, and why the first token waits."""
    kinds = {kind for kind, _ in model.kinds}
    if kinds <= {"none"}:
        return "Nothing: an encoder produces no further tokens that could use what it kept."
    first = (
        "The first token waits for the whole prompt to go through the model (prefill). After that each step computes "
        "one token and reads what is kept."
    )
    if kinds <= {"state", "none"}:
        held = (
            f"The state sums up all {tokens:,} tokens at a fixed size; without it each step would start from the first."
        )
        return f"{held}\n\n{first}"
    ratio = f", {without // with_cache:,} times as many" if with_cache else ""
    return (
        f"With the cache, each attention layer computes keys and values **{with_cache:,}** times for "
        f"{plural(tokens, 'token')}. Without it every new token would repeat all before it: **{without:,}** "
        f"times{ratio}.\n\n{first}"
    )


def compared(here: int, others: list[tuple[str, int]], tokens: int) -> str:
    """What other models hold at the same place, beside the chosen one."""
    parts = []
    for name, held in others:
        if not here or not held:
            beside = ""
        elif held >= here:
            beside = f", {held / here:.1f} times as much"
        else:
            beside = f", {1 - held / here:.1%} less"
        parts.append(f"{name} {format_bytes(held)}{beside}")
    return f"At {tokens:,} tokens: {'; '.join(parts)}. " if parts else ""


def origin(chosen: Chosen) -> str:
    """Where the configuration is from."""
    parts = [f"From: {chosen.origin}", chosen.detail, chosen.fidelity]
    return " · ".join(part for part in parts if part)


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


def beside_resident(aside: int, resident: int, ranks: int) -> str:
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
