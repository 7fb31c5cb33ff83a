"""transformers' answers: what a batch holds, how much fits, and the call that asks for it. It logs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from kvcore.deployment import Deployment, Request
from kvcore.engines.base import NOTHING, CachePool, Engine, Fill
from kvcore.engines.command import Command
from kvcore.engines.layout import Capacity, Group, Layout, Note
from kvcore.engines.transformers.launch import launch, room_for
from kvcore.engines.transformers.layers import OWN_CODE, HeldLayer, held_layers, layer_bytes, request_bytes
from kvcore.engines.transformers.memory import overheads
from kvcore.engines.transformers.settings import OPTIONS, VERSION, TransformersSettings, make_settings
from kvcore.errors import EngineError
from kvcore.model.model import Model
from kvcore.ranks.rules import RankRules
from kvcore.terms import Term
from kvcore.units import MAX_TOKENS

Knowledge = Literal["exact", "upper_bound", "estimated"]


class Transformers(Engine):
    """transformers 5.24; see kvcore.engines.base.Engine."""

    name = "transformers"
    label = "transformers"
    versions = f"transformers {VERSION}; sizes of quantized caches from optimum-quanto 0.2.7 and hqq 0.2.8"
    release = VERSION
    vendors = ("NVIDIA", "AMD", "Intel", "Apple")
    options = OPTIONS
    weight_formats = ("int8", "int4")
    on_processors = True
    rules = RankRules(whole_layers=True, keeps_32_bits=True)
    step_memory = False
    overheads_by_stage = True
    overheads = staticmethod(overheads)

    def settings(self, model: Model, asked: Request) -> TransformersSettings:
        """See Engine.settings; the longest request is the model's own limit unless said."""
        return make_settings(model, asked)

    def refusals(self, model: Model, deployment: Deployment) -> Iterator[str]:
        """See Ranked.refusals: one GPU for each replica."""
        if deployment.replica_gpus > 1:
            yield "transformers: its cache is not split over GPUs here; several replicas (dp) are possible"
        yield from super().refusals(model, deployment)

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """See Ranked.refuses_draft: none is followed here."""
        planned = "assisted generation is not planned here; plan it without a draft, or for another engine"
        return "" if deployment.draft is None else planned

    def pool(self, model: Model, deployment: Deployment, context: int) -> TransformersPool:
        """See Engine.pool."""
        return TransformersPool(model, deployment, context)

    def batched_tokens(self, settings: TransformersSettings) -> int:
        """See Engine.batched_tokens: a prompt is taken in whole."""
        return settings.max_length

    def no_sharing(self, model: Model, deployment: Deployment) -> str:
        """See Engine.no_sharing."""
        return "transformers keeps a cache for each request: a shared beginning is not counted once."

    def layout(self, model: Model, settings: TransformersSettings) -> Layout:
        """What one request of max_length tokens holds; `fixed_bytes` are counters and scales, once for a batch."""
        layers = held_layers(model, settings)
        return Layout(
            engine=self.name,
            engine_version=settings.version,
            model=model.name,
            kv_dtype=_dtype(model, settings),
            max_model_len=settings.max_length,
            bytes_per_request=request_bytes(layers, settings, model, settings.max_length),
            fixed_bytes=_fixed(layers),
            groups=tuple(
                Group(
                    kinds=(held.kind,), layers=count, page_bytes=layer_bytes(held, settings, model, settings.max_length)
                )
                for held, count in layers
            ),
            terms=_layout_terms(model, settings, layers),
            remarks=_notes(model, settings, layers),
        )

    def capacity(self, model: Model, settings: TransformersSettings, kv_bytes: int) -> Capacity:
        """The longest batch that fits in `kv_bytes`: its tokens, and how many requests of max_length.

        Caches that never fill hold max_length tokens of every request. EngineError when not one token fits.
        """
        layers = held_layers(model, settings)
        room = kv_bytes - _fixed(layers)
        longest = _longest(layers, settings, model, room // settings.batch_size)
        if longest < 1:
            raise EngineError(
                f"not one token of a batch of {settings.batch_size} fits in {kv_bytes:,} B", engine="transformers"
            )
        one = request_bytes(layers, settings, model, settings.max_length)
        tokens = longest * settings.batch_size
        text = f"{settings.batch_size:,} requests × {longest:,} tokens = {tokens:,}"
        return Capacity(
            kv_bytes=kv_bytes,
            kv_cache_size_tokens=tokens,
            max_concurrency=Fraction(room, one),
            terms=(
                Term(name="longest batch", formula=text, value=tokens, unit="tokens"),
                Term(
                    name="requests of max_length",
                    formula=f"{room:,} B / {one:,} B = {room / one:.4f}",
                    value=room / one,
                    unit="requests",
                ),
            ),
        )

    def launch(self, model: Model, deployment: Deployment, settings: TransformersSettings) -> Command:
        """See Engine.launch: a script that calls generate."""
        return launch(model, deployment, settings)

    def room_for(self, deployment: Deployment, requests: int) -> dict[str, Any]:
        """See Engine.room_for: the size of the batch."""
        return room_for(deployment, requests)


TRANSFORMERS = Transformers()


def _dtype(model: Model, settings: TransformersSettings) -> str:
    settings.element_bytes(model)
    if settings.cache_implementation == "quantized":
        return "fp8" if settings.cache_backend == "fp8" else f"{settings.cache_backend}_int{settings.bits}"
    return model.model_dtype if settings.dtype.strip().lower() == "auto" else settings.dtype.strip().lower()


def _fixed(layers: tuple[tuple[HeldLayer, int], ...]) -> int:
    return sum(count * held.counter_bytes for held, count in layers)


def _longest(
    layers: tuple[tuple[HeldLayer, int], ...], settings: TransformersSettings, model: Model, budget: int
) -> int:
    """Tokens of the longest request in `budget` bytes, by bisection: what is held never shrinks."""

    def fits(tokens: int) -> bool:
        return request_bytes(layers, settings, model, tokens) <= budget

    if not fits(1):
        return 0
    if not any(held.token_bytes and held.most is None for held, _ in layers) and fits(MAX_TOKENS):
        return settings.max_length
    low, high = 1, MAX_TOKENS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _layout_terms(
    model: Model, settings: TransformersSettings, layers: tuple[tuple[HeldLayer, int], ...]
) -> tuple[Term, ...]:
    quantized = settings.cache_implementation == "quantized" and settings.cache_backend != "fp8"
    knowledge: Knowledge = "estimated" if quantized or model.model_type in OWN_CODE else "exact"
    terms, total, length = [], 0, settings.max_length
    for held, count in layers:
        value = count * layer_bytes(held, settings, model, length)
        total += value
        text = f"{count} layers × {_inside(held, settings, length)} = {value:,} B"
        terms.append(Term(name=f"{held.kind} layers", formula=text, value=value, unit="B", knowledge=knowledge))
    together = " + ".join(f"{term.value:,}" for term in terms)
    terms.append(
        Term(name="one request", formula=f"{together} = {total:,} B", value=total, unit="B", knowledge=knowledge)
    )
    whole = settings.batch_size * total + _fixed(layers)
    text = f"{settings.batch_size:,} × {total:,} + {_fixed(layers):,} B of counters and scales = {whole:,} B"
    terms.append(Term(name="whole batch", formula=text, value=whole, unit="B", knowledge=knowledge))
    if (transient := _transient(layers, settings)) > 0:
        text = f"windows of a prompt of {length:,} tokens, held until the next token: {transient:,} B a request"
        terms.append(Term(name="after the prompt", formula=text, value=transient, unit="B", knowledge=knowledge))
    return tuple(terms)


def _inside(held: HeldLayer, settings: TransformersSettings, length: int) -> str:
    if held.waiting_bytes:
        return f"{held.buffered(length):,} B that wait to be compressed"
    if not held.token_bytes:
        return f"{held.constant_bytes:,} B whatever the length"
    if settings.cache_implementation != "quantized":
        return f"{held.token_bytes:,} B × {held.kept(length):,} {'tokens' if held.tokens_per_entry == 1 else 'entries'}"
    numbers = " + ".join(f"{number:,}" for number in held.numbers)
    if settings.cache_backend == "fp8":
        return f"({numbers}) × 1 B × {length:,} tokens"
    waiting = min(settings.residual_length - 1, max(0, length - 1))
    return (
        f"[({numbers}) × {settings.bits} bits with a scale and a shift per {settings.q_group_size} × "
        f"{length - waiting:,} tokens + {held.token_bytes:,} B × {waiting:,} tokens]"
    )


def _transient(layers: tuple[tuple[HeldLayer, int], ...], settings: TransformersSettings) -> int:
    """A growing window's tensors are views of the whole prompt's, whose memory is free only at the next token."""
    if settings.cache_implementation != "dynamic":
        return 0
    return sum(
        count * held.token_bytes * settings.max_length
        for held, count in layers
        if held.most is not None and held.most < settings.max_length
    )


def _notes(model: Model, settings: TransformersSettings, layers: tuple[tuple[HeldLayer, int], ...]) -> tuple[Note, ...]:
    rules = Note(
        f"The rules of transformers {VERSION}: no pool and no pages; padding in a batch costs what tokens cost.",
        kind="rules",
    )
    notes: list[str] = []
    if model.model_type in OWN_CODE:
        notes.append(f"{model.model_type} comes with code of its own, which was not run; it is taken to use a Cache.")
    if settings.cache_implementation == "static":
        notes.append("A static cache is allocated whole at the first token, whatever is generated.")
    if settings.cache_implementation == "dynamic" and any(held.most is not None for held, _ in layers):
        notes.append("Between steps a window keeps one token less than its width.")
    if settings.cache_implementation == "quantized" and settings.cache_backend != "fp8":
        notes.append(
            "Estimated: packed sizes as the backends' code has them, when the most tokens wait unquantized; while a "
            "layer is quantized anew, its whole cache exists in the model's dtype as well."
        )
    if model.states:
        notes.append("Convolutions keep all their columns, and states the dtype that the reference code computes in.")
    return (rules, *map(Note, notes))


class TransformersPool(CachePool):
    """See CachePool: there is no pool and there are no pages, a batch takes what its requests hold.

    `tokens` are those of all requests that fit, each of the length asked for.
    """

    sequences_name = "batch size"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: TransformersSettings = TRANSFORMERS.settings(model, deployment.at(context))
        self.layers = held_layers(model, self.settings)
        self.fixed = sum(count * held.counter_bytes for held, count in self.layers)
        self.sequences = deployment.max_num_seqs

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See CachePool.fill."""
        one = request_bytes(self.layers, self.settings, self.model, context)
        room = min(kv_bytes) - self.fixed
        if room <= 0 or one <= 0:
            return NOTHING
        requests = room // one
        return Fill(concurrency=Fraction(room, one), requests=requests, tokens=int(Fraction(room, one) * context))

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See CachePool.request_bytes."""
        return (request_bytes(self.layers, self.settings, self.model, context),)

    def layout(self, context: int, requests: int) -> Layout:
        """See CachePool.layout, for a batch of so many."""
        return TRANSFORMERS.layout(self.model, replace(self.settings, max_length=context, batch_size=max(1, requests)))

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See CachePool.terms."""
        one = request_bytes(self.layers, self.settings, self.model, context)
        room = min(kv_bytes) - self.fixed
        text = f"({min(kv_bytes):,} − {self.fixed:,} B of counters) / {one:,} B a request = {room / one:.4f}"
        return (Term(name="requests of max_length", formula=text, value=room / one, unit="requests"),)
