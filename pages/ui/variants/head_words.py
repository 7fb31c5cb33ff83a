"""What query heads read, grouped by layers and put in words: the sentences of the diagram of heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kvcore.formats import KVFormat
from kvcore.model import Attention, CrossAttention, Indexer, Latent, Memory, Model, NoMemory, SharedCache, State
from kvcore.model.memories import KINDS, StatePart
from kvcore.units import format_bytes
from pages.ui.size.words import plural

# More query heads than this are not drawn: nobody tells them apart, and the page stays small.
MAX_HEADS = 144
# Layers that read one cache: as many rows of query heads are drawn at most.
MAX_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What query heads of some layers read: `memories` that one attention or one recurrence keeps, the main one first.

    `layers` keep it, `places` times in all (twice a layer where a layer has two attentions). `owners` are the layers
    whose cache others read, with how many others do.
    """

    memories: tuple[Memory, ...]
    layers: int
    places: int
    owners: tuple[tuple[int, int], ...] = ()

    @property
    def main(self) -> Memory:
        return self.memories[0]

    @property
    def compressed(self) -> bool:
        """Whether its entries are of several lengths: single tokens of a window, and groups of tokens."""
        return any(memory.kind == "compressed" for memory in self.memories)

    @property
    def readers(self) -> int:
        """The most layers that read one and the same cache beside the layer that keeps it."""
        return max((count for _, count in self.owners), default=0)


def blocks(model: Model) -> tuple[Block, ...]:
    """Every distinct thing that heads of this model read, those that grow first; layers that keep nothing, last."""
    layers: Counter[tuple[Memory, ...]] = Counter()
    places: Counter[tuple[Memory, ...]] = Counter()
    owners: dict[tuple[Memory, ...], Counter[int]] = {}
    for layer in model.layers:
        found = Counter(_parts(layer))
        layers.update(found.keys())
        places.update(found)
        for memory in layer:
            if isinstance(memory, SharedCache):
                for part in dict.fromkeys(_parts(model.layers[memory.owner])):
                    owners.setdefault(part, Counter())[memory.owner] += 1
    made = [
        Block(memories=part, layers=count, places=places[part], owners=tuple(owners.get(part, Counter()).items()))
        for part, count in layers.items()
    ]
    return tuple(sorted(made, key=lambda block: KINDS.index(block.main.kind)))


def _parts(layer: tuple[Memory, ...]) -> Iterator[tuple[Memory, ...]]:
    """The memories of a layer, those together that one attention reads together."""
    if any(memory.kind == "compressed" for memory in layer):
        # DeepSeek-V4: every query reads the window and the compressed entries, and the states are their compressors'.
        yield tuple(sorted(layer, key=_rank))
        return
    indexers = tuple(memory for memory in layer if isinstance(memory, Indexer))
    for memory in layer:
        if isinstance(memory, Attention | Latent):
            yield (memory, *indexers)
        elif not isinstance(memory, Indexer | SharedCache):
            yield (memory,)


def _rank(memory: Memory) -> tuple[bool, bool, bool]:
    """The window first, then compressed entries, then the keys that choose among them, then what makes them."""
    window = isinstance(memory, Latent) and memory.window is not None
    return isinstance(memory, State), isinstance(memory, Indexer), not window


def describe(model: Model, source_tokens: int | None = None) -> str:
    """The diagram in words: query heads, what they share, in how many layers."""
    sentences = []
    for block in blocks(model):
        heads = plural(model.num_attention_heads, "query head")
        parts = [sharing(block, model, counted=True) + _reach(block, source_tokens)]
        if model.num_attention_heads and not isinstance(block.main, State | NoMemory) and heads not in parts[0]:
            parts.insert(0, heads)
        entries = block.memories if block.compressed else block.memories[1:]
        parts += [_entry_words(memory) for memory in entries if isinstance(memory, Latent | Indexer)]
        if block.readers:
            parts.append(readers_words(block))
        sentences.append("; ".join([parts[0], *map(lower, parts[1:]), where(block, model)]))
    return ". ".join(sentences) + "."


def sharing(block: Block, model: Model, counted: bool = False) -> str:
    """What the heads share, as a sentence without its end; `counted` where the query heads were just named."""
    main, queries = block.main, model.num_attention_heads
    if isinstance(main, Attention | CrossAttention):
        heads, width = main.num_kv_heads, _width_words(main)
        if not queries:
            return f"{plural(heads, 'KV head')} of {width}"
        if heads == 1:
            who = "The query head has" if queries == 1 else f"All {queries:,} query heads share"
            return f"{who} one KV head of {width}"
        if heads == queries:
            return f"Each of {queries:,} query heads has its own KV head of {width}"
        if queries % heads:
            return f"They share {heads:,} KV heads of {width}"
        noun = "" if counted else " query heads"
        return f"Groups of {queries // heads:,}{noun} share one of {heads:,} KV heads of {width}"
    if isinstance(main, Latent):
        if block.compressed:
            return f"All {plural(queries, 'query head')} read the same entries"
        noun = "latent" if main.window is None else "vector"
        return f"All {plural(queries, 'query head')} share one {noun} of {_latent_words(main)} a token"
    if isinstance(main, State):
        count, sides = state_shape(main)
        if count == 1:
            return f"One state of {sides}, whatever the length"
        return f"{count:,} states of {sides}, whatever the length"
    return f"Nothing is kept ({main.reason})" if isinstance(main, NoMemory) else "An index key a token"


def title(block: Block, model: Model, source: int | None, alone: bool) -> tuple[str, str]:
    """The two lines over a block, the one that tells it from the others first: sharing, or what its layers keep."""
    if block.readers:
        return readers_words(block), where(block, model)
    if alone:
        return sharing(block, model) + _reach(block, source), where(block, model)
    layers = where(block, model).removeprefix("in ")
    verb = "read" if isinstance(block.main, CrossAttention) else "keep"
    if block.layers == 1:
        verb += "s"
    return f"{layers[:1].upper()}{layers[1:]} {verb} {_object(block, source)}", sharing(block, model)


def _object(block: Block, source: int | None) -> str:
    """What a layer keeps, as the object of a sentence."""
    main = block.main
    if isinstance(main, CrossAttention):
        return plural(main.source_tokens if source is None else source, "source token")
    if isinstance(main, State):
        return "a state of fixed size"
    if isinstance(main, Attention) and main.law == "chunked":
        return f"the current chunk of at most {main.limit:,} tokens"
    limit = _limit(main)
    every = [memory.tokens_per_entry for memory in block.memories if isinstance(memory, Latent)]
    window = f"the last {plural(limit, 'token')}" if limit is not None else "every token"
    if main.kind == "compressed":
        return f"one entry for every {max(every):,} tokens"
    if max(every, default=1) > 1:
        return f"{window} and one entry for every {max(every):,}"
    return f"{window} and an index key" if any(isinstance(memory, Indexer) for memory in block.memories) else window


def _limit(memory: Memory) -> int | None:
    if isinstance(memory, Attention):
        return memory.limit
    return memory.window if isinstance(memory, Latent) else None


def lower(sentence: str) -> str:
    """The sentence as a part of a longer one."""
    return sentence[:1].lower() + sentence[1:]


def _width_words(memory: Attention | CrossAttention) -> str:
    if isinstance(memory, Attention) and memory.head_dim != memory.v_head_dim:
        return f"K {memory.head_dim:,} + V {memory.v_head_dim:,}"
    return f"{memory.head_dim:,}"


def _latent_words(memory: Latent) -> str:
    return f"{memory.kv_lora_rank:,} + {memory.qk_rope_head_dim:,}"


def _reach(block: Block, source: int | None) -> str:
    """Which tokens are kept, as the end of a clause; nothing where every token is."""
    memory = block.main
    if block.compressed:
        return ""
    if isinstance(memory, CrossAttention):
        return f", over {plural(memory.source_tokens if source is None else source, 'source token')}"
    if isinstance(memory, Attention) and memory.law == "chunked":
        return f", for the current chunk of at most {memory.limit:,} tokens"
    limit = _limit(memory)
    return f", for the last {plural(limit, 'token')} only" if limit is not None else ""


def readers_words(block: Block) -> str:
    """How many layers read one cache."""
    most = block.readers
    if len(block.owners) == 1:
        verb = "reads" if most == 1 else "read"
        return f"{plural(most, 'more layer')} {verb} the cache of layer {block.owners[0][0]}"
    same = len(block.owners) == block.places and all(count == most for _, count in block.owners)
    return f"{most + 1:,} layers share each cache" if same else f"Up to {most + 1:,} layers share one cache"


def where(block: Block, model: Model) -> str:
    """In how many layers."""
    total = len(model.layers)
    if block.layers == total:
        words = f"in all {total:,} layers" if total > 1 else "in its one layer"
    else:
        words = f"in {block.layers:,} of {plural(total, 'layer')}"
    if block.places > block.layers:
        each = block.places // block.layers
        words += ", twice in each" if each == 2 else f", {each} times in each"
    readers = sum(count for _, count in block.owners)
    return f"{words}; {plural(readers, 'other')} read along" if readers else words


def above(block: Block, model: Model) -> str:
    """The label over the heads."""
    main = block.main
    if isinstance(main, State):
        count, _ = state_shape(main)
        return main.design if count == 1 else f"{main.design}, {plural(count, 'head')}"
    words = plural(model.num_attention_heads, "query head") if model.num_attention_heads else "Query heads: not known"
    if model.num_attention_heads > MAX_HEADS:
        words += ", not all drawn"
    if block.readers:
        words += f" in each of {block.readers + 1} layers"
        if block.readers + 1 > MAX_ROWS:
            words += f", {MAX_ROWS} layers drawn"
    return words


def kept_words(block: Block, source: int | None) -> str:
    """The label under the columns: what is kept, and of which tokens."""
    main = block.main
    if isinstance(main, Attention | CrossAttention):
        heads = f"{plural(main.num_kv_heads, 'KV head')} of {_width_words(main)}"
        if isinstance(main, CrossAttention):
            tokens = main.source_tokens if source is None else source
            return f"{heads} over {plural(tokens, 'source token')}, however much is written"
        if main.law == "sliding":
            return f"{heads}; only the last {plural(main.limit or 0, 'token')} stay"
        if main.law == "chunked":
            return f"{heads}; only the current chunk stays, at most {main.limit:,} tokens"
        return f"{heads}; every token stays"
    if isinstance(main, Latent):
        entries = [_entry_words(memory) for memory in block.memories if not isinstance(memory, State)]
        return "; ".join([entries[0], *map(lower, entries[1:])])
    if isinstance(main, State):
        count, sides = state_shape(main)
        return f"{sides if count == 1 else f'{count:,} × {sides}'} numbers, whatever the length"
    return "No cache"


def _entry_words(memory: Memory) -> str:
    if isinstance(memory, Latent):
        if memory.window is not None:
            return f"One vector of {_latent_words(memory)} for each of the last {plural(memory.window, 'token')}"
        each = "a token" if memory.tokens_per_entry == 1 else f"for every {memory.tokens_per_entry:,} tokens"
        return f"One latent of {_latent_words(memory)} {each}"
    if isinstance(memory, Indexer):
        each = "a token" if memory.tokens_per_entry == 1 else f"for every {memory.tokens_per_entry:,} tokens"
        return f"One index key of {memory.index_head_dim:,} {each}"
    return ""


def numbers(block: Block, model: Model, kv: KVFormat | None, source: int | None) -> Iterator[str]:
    """Sums under a block, each with its numbers filled in."""
    main, queries = block.main, model.num_attention_heads
    if isinstance(main, Attention | CrossAttention):
        k, v = (main.head_dim, main.v_head_dim) if isinstance(main, Attention) else (main.head_dim, main.head_dim)
        yield f"{main.num_kv_heads:,} × ({k:,} K + {v:,} V) = {main.num_kv_heads * (k + v):,} numbers a token"
        if main.num_kv_heads < queries:
            yield f"{_part(main.num_kv_heads, queries)} of what {queries:,} KV heads would keep"
    elif isinstance(main, Latent) and queries and not block.compressed:
        k, v = model.key_head_dim or model.head_dim, model.head_dim
        own = queries * (k + v)
        yield f"{main.kv_lora_rank:,} + {main.qk_rope_head_dim:,} = {main.width:,} numbers a token"
        if own > main.width:
            yield f"{_part(main.width, own)} of what {queries:,} KV heads of {k:,} K + {v:,} V would keep"
    elif isinstance(main, State):
        parts = " + ".join(f"{part.name} {_sides(part.shape)}" for part in main.parts)
        yield f"{parts}: {format_bytes(main.bytes)} in each layer"
        yield from _as_tokens(main, model, kv)
    extra = [memory for memory in block.memories[1:] if isinstance(main, Attention)]
    yield from (f"{_entry_words(memory)}, to choose what to read" for memory in extra)
    if any(isinstance(memory, State) for memory in block.memories[1:]):
        held = sum(memory.bytes for memory in block.memories[1:] if isinstance(memory, State))
        yield f"Compressors: {format_bytes(held)} in each layer, whatever the length"
    if kv is not None and isinstance(main, Attention | Latent) and not block.compressed:
        laws = [memory.growth(kv) for memory in block.memories]
        token = " + ".join(format_bytes(law.bytes_per_entry) for law in laws)
        most = laws[0].max_entries
        full = "" if most is None else f", at most {format_bytes(laws[0].at(most))}"
        yield f"{token} a token in each layer{full}, in {kv.name}"
    if kv is not None and isinstance(main, CrossAttention):
        yield f"{format_bytes(main.growth(kv, source).constant_bytes)} in each layer, in {kv.name}"


def _part(some: int, whole: int) -> str:
    """`1/8` where that is exact, else a percentage."""
    return f"1/{whole // some}" if whole % some == 0 else f"{100 * some / whole:.2g}%"


def _as_tokens(state: State, model: Model, kv: KVFormat | None) -> Iterator[str]:
    """A state beside the tokens that an attention layer of the same model could keep in as many bytes."""
    growing = [memory for memory, _ in model.kept if memory.kind in ("full", "latent")]
    if kv is not None and growing:
        tokens = state.bytes / growing[0].growth(kv).bytes_per_entry
        noun = "attention" if growing[0].kind == "full" else "latent attention"
        yield f"As much as {plural(round(tokens), 'token')} in a layer with {noun}, in {kv.name}"


def state_part(state: State) -> StatePart:
    """The part of a state that holds the past: the largest."""
    return max(state.parts, key=lambda part: prod(part.shape))


def state_shape(state: State) -> tuple[int, str]:
    """How many matrices a state has, and the sides of one in words; a flat state is one."""
    shape = state_part(state).shape
    return (shape[0], _sides(shape[1:])) if len(shape) == 3 else (1, _sides(shape))


def _sides(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{side:,}" for side in shape)
