"""transformers: no pool and no pages, a batch takes what its requests hold."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvcore.deployment import Deployment
from kvcore.engines.base import Layout
from kvcore.engines.transformers.engine import TRANSFORMERS
from kvcore.engines.transformers.layers import held_layers, request_bytes
from kvcore.engines.transformers.settings import TransformersSettings
from kvcore.model.model import Model
from kvcore.planning.fill.base import NOTHING, Fill
from kvcore.terms import Term


class TransformersFiller:
    """See kvcore.planning.fill.base.Filler. `tokens` are those of all requests that fit, of the length asked for."""

    sequences_name = "batch size"

    def __init__(self, model: Model, deployment: Deployment, context: int) -> None:
        self.model = model
        self.settings: TransformersSettings = TRANSFORMERS.settings(model, deployment.at(context))
        self.layers = held_layers(model, self.settings)
        self.fixed = sum(count * held.counter_bytes for held, count in self.layers)
        self.keeps_cache = True
        self.sequences: int | None = deployment.max_num_seqs

    def fill(self, context: int, kv_bytes: tuple[int, ...]) -> Fill:
        """See Filler.fill."""
        one = request_bytes(self.layers, self.settings, self.model, context)
        room = min(kv_bytes) - self.fixed
        if room <= 0 or one <= 0:
            return NOTHING
        requests = room // one
        return Fill(concurrency=Fraction(room, one), requests=requests, tokens=int(Fraction(room, one) * context))

    def count(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.count."""
        return self.fill(context, kv_bytes).requests

    def holds(self, context: int, requests: int, kv_bytes: tuple[int, ...]) -> bool:
        """See Filler.holds."""
        return self.fill(context, kv_bytes).requests >= requests

    def request_bytes(self, context: int) -> tuple[int, ...]:
        """See Filler.request_bytes."""
        return (request_bytes(self.layers, self.settings, self.model, context),)

    def tightest(self, context: int, kv_bytes: tuple[int, ...]) -> int:
        """See Filler.tightest."""
        return 0

    def layout(self, context: int, requests: int) -> Layout:
        """See Filler.layout, for a batch of so many."""
        return TRANSFORMERS.layout(self.model, replace(self.settings, max_length=context, batch_size=max(1, requests)))

    def terms(self, context: int, kv_bytes: tuple[int, ...]) -> tuple[Term, ...]:
        """See Filler.terms."""
        one = request_bytes(self.layers, self.settings, self.model, context)
        room = min(kv_bytes) - self.fixed
        text = f"({min(kv_bytes):,} − {self.fixed:,} B of counters) / {one:,} B a request = {room / one:.4f}"
        return (Term(name="requests of max_length", formula=text, value=room / one, unit="requests"),)
