"""The cache work of a step: what a model's layers read from the cache, write to it and compute on it."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.formats import KVFormat
from kvcore.model.memories import Access, Heads, Indexer, Memory, MemoryWork
from kvcore.model.model import Knowledge, Model
from kvcore.terms import Term
from kvcore.units import check_tokens
from kvcore.work import Step, Work, decode_step, prefill_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a layer uses one cache: which, how many entries an indexer lets it read, and whether the cache is its own.

    A layer that shares reads its owner's cache (`owned` is False): that saves memory, not reading.
    """

    memory: Memory
    topk: int | None = None
    owned: bool = True

    @property
    def kind(self) -> str:
        """The kind of the cache in words: `full`, `shared sliding`, `Mamba 2`, …"""
        return self.memory.name if self.owned else f"shared {self.memory.name}"


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
    access = Access(step=step, kv=kv, heads=heads, topk=use.topk, writes=use.owned, source_tokens=source_tokens)
    return use.memory.work(access)


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
                Use(memory=memory, topk=memory.topk(mine, chooser)) for memory in layer if not memory.is_empty
            ]
        own.append(alike[key])
    used = []
    for layer, uses in zip(model.layers, own, strict=True):
        owners = [memory.reads_layer for memory in layer if memory.reads_layer is not None]
        used.append(uses + [use for owner in owners for use in _of_owner(model, own, owner)])
    return used


def _of_owner(model: Model, own: list[list[Use]], owner: int) -> list[Use]:
    """The caches of layer `owner`, as another layer reads them; an owner may itself share an earlier one's."""
    further = [memory.reads_layer for memory in model.layers[owner] if memory.reads_layer is not None]
    found = [Use(memory=use.memory, topk=use.topk, owned=False) for use in own[owner] if use.memory.attends]
    return found + [use for earlier in further if earlier < owner for use in _of_owner(model, own, earlier)]


def _notes(model: Model, parts: list[CachePart]) -> tuple[str, ...]:
    notes = []
    if model.other_query_heads:
        notes.append(
            f"{', '.join(model.other_query_heads)}: some layers have query heads of their own; the arithmetic counts "
            f"the model's {model.num_attention_heads} in every layer."
        )
    if any(indexer.index_heads is None for indexer in model.indexers):
        notes.append("The indexer's query heads are not stated: its bytes are counted, its arithmetic is not.")
    if any(indexer.index_topk is None for indexer in model.indexers):
        notes.append("How many entries the indexer chooses is not stated: attention is counted as reading all of them.")
    unlisted = [part.use.memory.name for part in parts if not part.use.memory.is_counted]
    if unlisted:
        notes.append(f"{', '.join(dict.fromkeys(unlisted))}: arithmetic is estimated as 4 operations for each number.")
    if model.knowledge == "upper_bound":
        notes.append("The layout was not fully understood: this is the most that there can be, not the least.")
    return tuple(notes)


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
        terms.append(
            Term(
                name=f"{what}: arithmetic",
                formula=f"{part.count} {noun} × {operations} = {work.operations:,} operations",
                value=work.operations,
                unit="operations",
                knowledge=result.knowledge if part.use.memory.is_counted else "estimated",
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
