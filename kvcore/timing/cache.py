"""The cache work of a step: what a model's layers read from the cache, write to it and compute on it."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.formats import KVFormat
from kvcore.model.memories import Attention, Indexer, Latent, Memory, NoMemory, SharedCache, State
from kvcore.model.model import Knowledge, Model
from kvcore.terms import Term
from kvcore.timing.memory_work import Cache, Heads, MemoryWork, memory_work
from kvcore.timing.states import is_counted
from kvcore.timing.work import Step, Work, decode_step, prefill_step
from kvcore.units import check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a layer uses one cache: which, how many entries an indexer lets it read, and whether the cache is its own.

    A layer that shares reads its owner's cache (`owned` is False): that saves memory, not reading.
    """

    memory: Cache
    topk: int | None = None
    owned: bool = True

    @property
    def kind(self) -> str:
        """The kind of the cache in words: `full`, `shared sliding`, `Mamba 2`, …"""
        if isinstance(self.memory, State):
            return self.memory.design
        return self.memory.kind if self.owned else f"shared {self.memory.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """The work of the memories that are used alike: `count` of them, each `each`, for one request."""

    use: Use
    count: int
    each: MemoryWork

    @property
    def work(self) -> Work:
        return self.each.work.times(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWork:
    """The cache work of one step for one request; `parts` add up to `work`, and `terms` explains both."""

    step: Step
    work: Work
    parts: tuple[CachePart, ...]
    knowledge: Knowledge
    notes: tuple[str, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """Bytes read and operations of every part, then the totals and operations per byte."""
        return _terms(self)


def decode_cache_work(model: Model, tokens: int, kv: KVFormat, source_tokens: int | None = None) -> CacheWork:
    """Cache work of making one token at a context of `tokens` (that token counted), for one request.

    Raises UnitError for tokens out of range or a format that does not suit the model.
    """
    return cache_work(model, decode_step(tokens), kv, source_tokens)


def prefill_cache_work(
    model: Model, new_tokens: int, kv: KVFormat, cached_tokens: int = 0, source_tokens: int | None = None
) -> CacheWork:
    """Cache work of taking in `new_tokens` at once on top of `cached_tokens`, for one request.

    Raises UnitError for tokens out of range or a format that does not suit the model.
    """
    return cache_work(model, prefill_step(new_tokens, cached_tokens), kv, source_tokens)


def cache_work(model: Model, step: Step, kv: KVFormat, source_tokens: int | None = None) -> CacheWork:
    """Cache work of any step, for one request; see CacheWork. Raises UnitError as decode_cache_work does."""
    if source_tokens is not None:
        check_tokens(source_tokens, "source tokens")
    heads = query_heads(model)
    parts, total = [], Work()
    for use, count in cache_uses(model):
        each = _use_work(use, step, kv, heads, source_tokens)
        parts.append(CachePart(use=use, count=count, each=each))
        total += each.work.times(count)
    notes = _notes(model, parts)
    return CacheWork(step=step, work=total, parts=tuple(parts), knowledge=model.knowledge, notes=notes)


def layer_work(
    model: Model, layer: int, step: Step, kv: KVFormat, source_tokens: int | None = None
) -> tuple[MemoryWork, ...]:
    """The work of each cache that layer `layer` uses, for one request; empty where it uses none.

    Raises UnitError for a format that does not suit the layer.
    """
    heads = query_heads(model)
    return tuple(_use_work(use, step, kv, heads, source_tokens) for use in _layer_uses(model)[layer])


def _use_work(use: Use, step: Step, kv: KVFormat, heads: Heads, source_tokens: int | None) -> MemoryWork:
    return memory_work(use.memory, step, kv, heads, topk=use.topk, writes=use.owned, source_tokens=source_tokens)


def query_heads(model: Model) -> Heads:
    """The model's query heads and the widths of one head's key and value."""
    return Heads(
        count=model.num_attention_heads,
        key_width=model.key_head_dim or model.head_dim,
        value_width=model.head_dim,
    )


def cache_uses(model: Model) -> tuple[tuple[Use, int], ...]:
    """The distinct uses of caches in a model, each with the number of times that it occurs, in layer order."""
    counts: dict[Use, int] = {}
    by_identity: dict[int, tuple[Use, int]] = {}
    for uses in _layer_uses(model):
        for use in uses:
            by_identity[id(use)] = (use, by_identity.get(id(use), (use, 0))[1] + 1)
    for use, count in by_identity.values():
        counts[use] = counts.get(use, 0) + count
    return tuple(counts.items())


def _layer_uses(model: Model) -> list[list[Use]]:
    """What each layer uses, one after another."""
    own: list[list[Use]] = []
    # Layers of one kind mostly share their memories: looking these up by identity spares making uses for every layer.
    alike: dict[tuple[int, ...], list[Use]] = {}
    chooser: Indexer | None = None
    for layer in model.layers:
        mine = next((memory for memory in layer if isinstance(memory, Indexer)), None)
        chooser = mine or chooser
        key = (*map(id, layer), id(chooser))
        if key not in alike:
            alike[key] = [
                _own(memory, mine, chooser) for memory in layer if not isinstance(memory, SharedCache | NoMemory)
            ]
        own.append(alike[key])
    used = []
    for layer, uses in zip(model.layers, own, strict=True):
        owners = [memory.owner for memory in layer if isinstance(memory, SharedCache)]
        used.append(uses + [use for owner in owners for use in _of_owner(model, own, owner)])
    return used


def _own(memory: Cache, mine: Indexer | None, chooser: Indexer | None) -> Use:
    """A layer's use of its own cache.

    `mine` is the indexer in that layer. A latent without one reads what the last indexer before it chose, `chooser`
    (GLM-5.2); keys and values without one are read whole (MiniMax-M3), and so are entries that the indexer does not
    score (DeepSeek-V4's window, and its groups of 128).
    """
    if isinstance(memory, Attention) and mine is not None and memory.limit is None:
        return Use(memory=memory, topk=mine.index_topk)
    if isinstance(memory, Latent) and chooser is not None and memory.window is None:
        scored = memory.tokens_per_entry == chooser.tokens_per_entry
        return Use(memory=memory, topk=chooser.index_topk if scored else None)
    return Use(memory=memory)


def _of_owner(model: Model, own: list[list[Use]], owner: int) -> list[Use]:
    """The caches of layer `owner`, as another layer reads them; an owner may itself share an earlier one's."""
    further = [memory.owner for memory in model.layers[owner] if isinstance(memory, SharedCache)]
    found = [
        Use(memory=use.memory, topk=use.topk, owned=False)
        for use in own[owner]
        if isinstance(use.memory, Attention | Latent)
    ]
    return found + [use for earlier in further if earlier < owner for use in _of_owner(model, own, earlier)]


# Keys that give some layers another number of query heads than the model's.
_OWN_HEADS = (
    "num_query_heads", "swa_num_attention_heads", "attention_other_setting.num_attention_heads",
    "num_attention_heads_per_layer", "attention.head_count",
)  # fmt: skip


def _notes(model: Model, parts: list[CachePart]) -> tuple[str, ...]:
    notes = []
    stated = [key for key, value in model.reading.keys_used if _differs(model, key, value)]
    if stated:
        notes.append(
            f"{', '.join(stated)}: some layers have query heads of their own; the arithmetic counts the model's "
            f"{model.num_attention_heads} in every layer."
        )
    memories: list[Memory] = [part.use.memory for part in parts]
    indexers = [memory for memory in memories if isinstance(memory, Indexer)]
    if any(indexer.index_heads is None for indexer in indexers):
        notes.append("The indexer's query heads are not stated: its bytes are counted, its arithmetic is not.")
    if any(indexer.index_topk is None for indexer in indexers):
        notes.append("How many entries the indexer chooses is not stated: attention is counted as reading all of them.")
    unlisted = [memory.design for memory in memories if isinstance(memory, State) and not is_counted(memory)]
    if unlisted:
        notes.append(f"{', '.join(dict.fromkeys(unlisted))}: arithmetic is estimated as 4 operations for each number.")
    if model.knowledge == "upper_bound":
        notes.append("The layout was not fully understood: this is the most that there can be, not the least.")
    return tuple(notes)


def _differs(model: Model, key: str, value: str) -> bool:
    return key.endswith(_OWN_HEADS) and value != str(model.num_attention_heads)


def _terms(result: CacheWork) -> tuple[Term, ...]:
    terms = []
    for part in result.parts:
        noun = "layer" if part.count == 1 else "layers"
        what, work = f"{part.count} {part.use.kind} {noun}", part.work
        bytes_formula = f"{part.count} {noun} × {part.each.read_formula} = {work.read_bytes:,} B"
        operations = part.each.operations_formula
        if part.each.extra_operations:
            operations = f"({operations})"
        terms.append(_term(result, f"{what}: read", bytes_formula, work.read_bytes, "B"))
        memory = part.use.memory
        terms.append(
            Term(
                name=f"{what}: arithmetic",
                formula=f"{part.count} {noun} × {operations} = {work.operations:,} operations",
                value=work.operations,
                unit="operations",
                knowledge="estimated" if isinstance(memory, State) and not is_counted(memory) else result.knowledge,
            )
        )
    work, parts = result.work, [part.work for part in result.parts]
    read = " + ".join(f"{part.read_bytes:,}" for part in parts) or "0"
    written = " + ".join(f"{part.written_bytes:,}" for part in parts) or "0"
    operations = " + ".join(f"{part.operations:,}" for part in parts) or "0"
    terms.append(_term(result, "read from the cache", f"{read} = {work.read_bytes:,} B", work.read_bytes, "B"))
    terms.append(
        _term(result, "written to the cache", f"{written} = {work.written_bytes:,} B", work.written_bytes, "B")
    )
    operations = f"{operations} = {work.operations:,} operations"
    terms.append(_term(result, "arithmetic on the cache", operations, work.operations, "operations"))
    if work.bytes:
        ratio = work.operations_per_byte
        formula = f"{work.operations:,} operations / ({work.read_bytes:,} + {work.written_bytes:,} B) = {ratio:.4g}"
        terms.append(_term(result, "operations per byte", formula, ratio, "operations/B"))
    return tuple(terms)


def _term(result: CacheWork, name: str, formula: str, value: int | float, unit: str) -> Term:
    return Term(name=name, formula=formula, value=value, unit=unit, knowledge=result.knowledge)
