"""Sentences and labels of the Variants screen, computed from the rungs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from kvcore.model import Latent, Memory, Model
from kvcore.planning.bound import Room
from kvcore.scenario.scenario import Scenario
from kvcore.sources.catalogue import attention_kind, attention_label
from kvcore.units import format_bytes, format_tokens
from kvcore.variants.ladder import SHIPPED, Ladder, Rung
from kvcore.variants.trend import attention_class
from pages.ui.size.words import plural

STATE_NAMES = {"mamba2": "Mamba-2", "gdn": "gated delta net", "kda": "KDA", "linear": "linear attention"}


def design_words(design: str) -> str:
    """A design in a few words, whatever the model: `MQA`, `MLA 512 + 64`, `window 1,024, 1 in 6 full`, `as shipped`."""
    name, _, stored = design.partition("@")
    if stored and name == SHIPPED:
        # What ships has a format of its own, which may be another one.
        return f"this design in {stored}"
    return f"{_variant_words(name)} in {stored}" if stored else _variant_words(name)


def _variant_words(name: str) -> str:
    kind, _, argument = name.partition(":")
    first, _, second = argument.replace("/", ":").replace("+", ":").partition(":")
    if kind == SHIPPED:
        return "as shipped"
    if kind == "mla":
        return f"MLA {first or 512} + {second or 64}"
    if kind == "sliding":
        window = f"window {int(first):,}"
        return f"{window}, 1 in {second} full" if second else window
    if kind == "share":
        return f"{first} layers share" if first != "1" else "no layers share"
    if kind == "hybrid":
        return f"1 in {first}, rest {STATE_NAMES[second]}"
    if kind == "linear":
        return "linear attention" if first in ("", "linear") else f"all {STATE_NAMES[first]}"
    return kind.upper() + (f"-{first}" if first else "")


def short(rung: Rung) -> str:
    """A name for the end of a line, where there is little room: `window 4K`, `hybrid 1/4`."""
    name = rung.design.partition("@")[0]
    if name == SHIPPED and not rung.own_format:
        return f"in {rung.kv.name}"
    kind, _, argument = name.partition(":")
    first, _, second = argument.replace("/", ":").partition(":")
    stored = f" {rung.kv.name}" if "@" in rung.design else ""
    every = f" 1/{second}" if second else ""
    words = {
        SHIPPED: lambda: "shipped",
        "sliding": lambda: f"window {format_tokens(int(first))}{every}",
        "share": lambda: f"{first} share",
        "hybrid": lambda: f"hybrid 1/{first}",
        "linear": lambda: STATE_NAMES[first or "linear"],
        "mla": lambda: "MLA" if not argument else f"MLA {first}",
    }.get(kind, lambda: _variant_words(name))
    return words() + stored


def shipped_words(model: Model) -> str:
    """What the model ships with: `GQA-8`, `MLA 512 + 64`, `sliding 5:1 + full`."""
    label, main = attention_label(model), _main(model)
    if label == "GQA" and main is not None and main.attends and main.kv_heads:
        return f"GQA-{main.kv_heads}"
    if attention_kind(model) == "latent" and isinstance(main, Latent):
        return attention_label(model, latent=f"MLA {main.kv_lora_rank} + {main.qk_rope_head_dim}")
    return label


def label(rung: Rung) -> str:
    """A rung's name on charts and tables; the model as it ships, in its own format, is marked."""
    stored = "@" in rung.design
    if rung.design.partition("@")[0] != SHIPPED:
        return design_words(rung.design)
    if rung.own_format:
        return f"{shipped_words(rung.model)}{f' in {rung.kv.name}' if stored else ''} (shipped)"
    return design_words(f"{SHIPPED}@{rung.kv.name}")


def yardstick(rungs: Ladder) -> str:
    """What the second factor compares with: the model as it ships, or its design in the format that was asked for."""
    return "the model as shipped" if rungs.stored_as_shipped else label(rungs.shipped)


def per_token_line(rung: Rung) -> str:
    """What the figure is that one more token adds, and the other one where windows are full by then."""
    now, first = rung.next_token_bytes, rung.bytes_per_token
    if now != first:
        return f"what the next token adds here; {format_bytes(first)} while no window is full"
    if any(memory.growth(rung.kv).max_entries is not None for memory, _ in rung.model.kept):
        return "what the next token adds; no window is full yet"
    return "what one more token adds"


def kinds_of(model: Model) -> tuple[str, ...]:
    """The ways of remembering that a model ships with: its class, shared caches, an index to read through."""
    kinds = dict(model.kinds)
    extra = [name for name in ("shared", "indexer") if name in kinds]
    return (attention_class(model) or "none", *extra)


def keeps(model: Model) -> str:
    """What the layers keep, in a line: `80 layers: 8 KV heads × 128`."""
    found: dict[str, int] = {}
    for memory, count in model.groups:
        if words := memory.brief:
            found[words] = found.get(words, 0) + count
    parts = [f"{plural(count, 'layer')}: {words}" for words, count in list(found.items())[:3]]
    return "; ".join(parts) + ("; …" if len(found) > 3 else "") or "nothing"


def _main(model: Model) -> Memory | None:
    return max(model.kept, key=lambda pair: pair[1])[0] if model.kept else None


def times(factor: Fraction | None, sign: str = "÷") -> str:
    """`÷8`, `÷28.4`, `×2`; a dash where there is nothing to divide by."""
    if not factor or factor == 1:
        return "the same" if factor else "–"
    if factor < 1:
        factor, sign = 1 / factor, {"÷": "×", "×": "÷"}[sign]
    value = float(factor)
    if factor.denominator == 1 or value >= 100:
        return f"{sign}{round(value):,}"
    return "≈ the same" if value < 1.05 else f"{sign}{value:.1f}"


def factor_words(factor: Fraction | None) -> str:
    """`8× less`, `2.5× more`, `as much`."""
    if factor is None or factor == 1:
        return "as much"
    less = factor > 1
    value = float(factor if less else 1 / factor)
    exact = (factor if less else 1 / factor).denominator == 1
    number = f"{round(value):,}" if exact or value >= 100 else f"{value:.1f}"
    if number == "1.0":
        return "slightly less" if less else "slightly more"
    return f"{number}× {'less' if less else 'more'}"


def title(name: str, rungs: Ladder, chosen: Rung) -> str:
    """The one thing to see: how the chosen design compares."""
    held = f"**{format_bytes(chosen.resident_bytes)}**"
    shipped = rungs.shipped.resident_bytes
    if not chosen.shipped:
        if chosen.own_format and chosen.design.startswith(SHIPPED) and chosen.factor_shipped:
            than = f"{factor_words(chosen.factor_shipped)} than in {rungs.shipped.kv.name}".replace(
                "much than", "much as"
            )
            return f"{name} as it ships, in {chosen.kv.name}, remembers **{than}**: {held}"
        if chosen.factor_shipped is None:
            return f"{name} {_built(chosen)} would hold {held} instead of {format_bytes(shipped)}"
        if chosen.factor_shipped == 1:
            return f"{name} {_built(chosen)} would remember **as much** as it ships with: {held}"
        return (
            f"{name} {_built(chosen)} would remember **{factor_words(chosen.factor_shipped)}**: {held} instead of "
            f"{format_bytes(shipped)}"
        )
    if not chosen.model.kept:
        return f"{name} keeps no cache, so there is nothing to build otherwise"
    if rungs.mha_bytes is None:
        return f"{name} has no query heads to build otherwise: it holds {held}"
    if chosen.factor_mha is None:
        return f"{name} holds {held} before its first token"
    if chosen.factor_mha == 1:
        return f"{name} keeps keys and values for every head: {held}"
    return (
        f"{_because(chosen.model)} {name} remembers **{factor_words(chosen.factor_mha)}** than with full multi-head "
        f"attention: {held}"
    )


def answer(name: str, rung: Rung, batch: int) -> str:
    """The answer in a few words, for a message over the page: `Gemma 3 27B: 10.41 GiB, ÷6 against MHA`."""
    factor = "" if rung.factor_mha in (None, 1) else f", {times(rung.factor_mha)} against MHA"
    how = "" if rung.shipped else f" {_built(rung)}"
    return f"{name}{how}: {format_bytes(rung.resident_bytes)}{f' for {batch:,}' if batch > 1 else ''}{factor}"


def _built(rung: Rung) -> str:
    """How it was built, after the model's name: `as MQA`, `with a window of 4,096 tokens`, `stored in fp8`."""
    name, _, stored = rung.design.partition("@")
    parts = [] if name == SHIPPED else [_with(rung)]
    return ", ".join(parts + ([f"stored in {stored}"] if stored else []))


def _with(rung: Rung) -> str:
    """The variant, from what its layers really keep: a rhythm longer than the model has no full layer."""
    kind, _, argument = rung.design.partition("@")[0].partition(":")
    first, _, second = argument.replace("/", ":").partition(":")
    kinds = dict(rung.model.kinds)
    full = kinds.get("full", 0) + kinds.get("latent", 0)
    if kind == "sliding":
        window = f"with a window of {plural(int(first), 'token')}"
        return f"{window} and {plural(full, 'full layer')}" if full else window
    if kind == "share":
        return f"with {first} layers sharing a cache" if full > 1 else "with one cache for all layers"
    if kind == "hybrid" and full:
        return (
            f"with attention in {full} of {full + kinds.get('state', 0)} layers and {STATE_NAMES[second]} in the rest"
        )
    if kind in ("hybrid", "linear"):
        return f"with {STATE_NAMES[second or first or 'linear']} in all layers"
    return f"as {_variant_words(rung.design.partition('@')[0])}"


def _because(model: Model) -> str:
    """What makes a shipped model remember less, as the start of a sentence: every cause that is at work."""
    kinds, main = dict(model.kinds), _main(model)
    layers = sum(any(memory.kind != "none" for memory in layer) for layer in model.layers)
    limited = kinds.get("sliding", 0) + kinds.get("chunked", 0)
    causes = []
    if "compressed" in kinds:
        return "With one latent for several tokens,"
    if "state" in kinds:
        attending = layers - kinds["state"]
        rest = "a state in the others" if attending > 0 else "a state beside it"
        causes.append(f"attention in {attending if attending > 0 else layers} of {layers} layers, {rest}")
    elif limited:
        widest = max(memory.window or 0 if memory.kv_heads else 0 for memory, _ in model.kept)
        causes.append(f"windows of {widest:,} tokens in {limited} of {layers} layers")
    attention = model.attentions
    if attention and attention[0].num_kv_heads < model.num_attention_heads:
        heads = plural(attention[0].num_kv_heads, "KV head")
        causes.append(f"{heads} for {plural(model.num_attention_heads, 'query head')}")
    elif isinstance(main, Latent) or "latent" in kinds:
        width = model.latents[0].width
        causes.append(f"one latent of {width} in place of {plural(model.num_attention_heads, 'head')}")
    return f"With {' and '.join(causes)}," if causes else "As it ships,"


def scenario_line(rungs: Ladder, scenario: Scenario, chosen: Rung) -> str:
    """What is counted, in one line."""
    mine = f"cache in {chosen.kv.name}"
    parts = [f"{plural(scenario.tokens, 'token')} × {plural(scenario.batch, 'request')}", mine]
    if rungs.mha_bytes is not None and rungs.mha_format != chosen.kv.name:
        parts.append(f"MHA in {rungs.mha_format}")
    limit = chosen.model.context_limit
    if limit and scenario.tokens > limit:
        parts.append(f"**beyond this model’s limit of {limit:,} tokens**")
    parts.append("resident bytes")
    if not chosen.design.startswith(SHIPPED):
        parts.append("a counterfactual: computed, not trained")
    return " · ".join(parts)


def ladder_title(rungs: Ladder, scenario: Scenario) -> str:
    """The title of the ladder."""
    top, bottom = rungs.rungs[0], rungs.rungs[-1]
    where = f"at {format_tokens(scenario.tokens)} {'token' if scenario.tokens == 1 else 'tokens'}"
    if len(rungs.rungs) == 1 or not bottom.resident_bytes:
        return f"What it holds {where}"
    return (
        f"From {format_bytes(top.resident_bytes)} to {format_bytes(bottom.resident_bytes)} {where}: "
        f"{factor_words(Fraction(top.resident_bytes, bottom.resident_bytes))}"
    )


def curves_title(rungs: Sequence[Rung]) -> str:
    """The title of the growth curves: which bend, which never grow."""
    bent, flat = 0, 0
    rungs = [rung for rung in rungs if rung.model.kept]
    for rung in rungs:
        laws = [memory.growth(rung.kv) for memory, _ in rung.model.kept]
        growing = [law for law in laws if law.bytes_per_entry]
        if not growing and laws:
            flat += 1
        elif any(law.max_entries is not None for law in growing):
            bent += 1
    parts = []
    if bent:
        parts.append(f"{bent} bend{'s' if bent == 1 else ''} where windows are full")
    if flat:
        parts.append(f"{flat} never grow{'s' if flat == 1 else ''}")
    whole = len(rungs) - bent - flat
    if whole == len(rungs):
        return "Every line grows with the context" if rungs else "Nothing grows"
    first = f"{whole} of {len(rungs)} lines grow with the context" if whole else "No line grows for ever"
    return ", ".join([first, *parts])


def reads_line(name: str, count: int) -> str:
    """What the column of bytes that a GPU reads counts."""
    who = f"each of {name}" if count > 1 else name
    return f"a GPU reads: {who}, of the cache, to make one more token of one request."


def room_words(room: Room | None) -> str:
    """Requests beside the weights, as a bound."""
    if room is None:
        return "not known"
    if room.free_bytes < 0:
        return "weights do not fit"
    if room.requests is None:
        return "any number"
    return f"≤ {room.requests:,}" if room.requests else "none"


def room_line(room: Room | None, gpu: str) -> str:
    """What the column of requests counts."""
    if room is None:
        return "This family's weights are not counted, so what fits beside them is not known."
    many = f"{room.gpus} × {gpu}" if room.gpus > 1 else f"one {gpu}"
    known = "exact" if room.weights_knowledge == "exact" else "≈"
    return (
        f"On {many}: {known} {format_bytes(room.weights_bytes, 1)} of weights in {room.weights_format} as shipped, "
        f"{format_bytes(max(0, room.free_bytes), 1)} left on each. At most: activations, graphs and the runtime take "
        "their part too. Variants are counted with their own projections, estimated. A latent is copied to every GPU; "
        "KV heads are split, one at least."
    )
