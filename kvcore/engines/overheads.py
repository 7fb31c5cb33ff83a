"""What a GPU holds beside weights and cache, as a range: activations, graphs, the runtime, what the driver keeps.

Each engine's memory module says what its code does; here is what they have in common. data/OVERHEADS.md says where each
part comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

from kvcore.deployment import Deployment
from kvcore.model.memories import Indexer, Latent
from kvcore.model.model import Model
from kvcore.terms import Range
from kvcore.units import GIB

# GiB of what nvidia-smi reports and CUDA does not give (data/overheads.json), of a CUDA context, and of what ranks take
# to talk.
DRIVER = Range(low=0.25, best=0.45, high=0.8)
CONTEXT = Range(low=0.3, best=0.45, high=0.7)
COLLECTIVES = Range(low=0.3, best=0.8, high=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes on one GPU that are neither weights nor cache, with the range in which they lie and how that is known."""

    name: str
    bytes: Range[int]
    formula: str
    knowledge: str = "estimated"


class Overheads(Protocol):
    """The parts on one GPU and their total; where the total is fitted, it is narrower than the parts' ranges added."""

    @property
    def parts(self) -> tuple[Overhead, ...]: ...

    @property
    def total(self) -> Range[int]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One part in GiB."""

    name: str
    gib: Range[float]
    formula: str


# Without slots, so that the parts are made once, and only where they are asked for: searches want totals alone.
@dataclass(frozen=True, kw_only=True)
class AddedOverheads:
    """Overheads of an engine without a fit: the parts' ranges added up, the least certain reading."""

    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...]
    total: Range[int]

    @cached_property
    def parts(self) -> tuple[Overhead, ...]:
        """The parts that there are, in bytes."""
        return tuple(
            Overhead(name=one.name, bytes=one.gib.map(gib_bytes), formula=one.formula) for one in self.estimates
        )


def added(parts: Iterable[Estimate], notes: tuple[str, ...] = ()) -> AddedOverheads:
    """The parts that there are, together."""
    found = tuple(part for part in parts if part.gib.high > 0)
    total = Range(
        low=sum(gib_bytes(part.gib.low) for part in found),
        best=sum(gib_bytes(part.gib.best) for part in found),
        high=sum(gib_bytes(part.gib.high) for part in found),
    )
    return AddedOverheads(estimates=found, notes=notes, total=total)


def gib_bytes(gib: float) -> int:
    """Whole bytes of so many GiB."""
    return int(gib * GIB)


def driver(deployment: Deployment) -> Estimate:
    """What the driver keeps of a card of NVIDIA's; nothing is known of others."""
    known = deployment.gpu.vendor == "NVIDIA" and not deployment.gpu.unified_memory
    return Estimate(
        name="kept by the driver",
        gib=DRIVER if known else Range.exactly(0.0),
        formula="what nvidia-smi counts and CUDA does not give",
    )


def has_ranks(model: Model, deployment: Deployment) -> bool:
    """Whether a GPU talks to others: replicas of a mixture exchange what their experts need, others are apart."""
    return deployment.tp > 1 or deployment.pp > 1 or (deployment.dp > 1 and model.experts is not None)


def runtime(model: Model, deployment: Deployment, collectives: Range[float] = COLLECTIVES) -> Estimate:
    """A context, and what ranks take to talk where there are several."""
    several = has_ranks(model, deployment)
    text = f"a context of {CONTEXT.best:g} GiB"
    if several:
        text += f" + {collectives.best:g} GiB for collectives"
    return Estimate(name="runtime", gib=CONTEXT + collectives if several else CONTEXT, formula=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What one token keeps in 16-bit numbers at the peak of the widest layer on one rank, and what else matters.

    `layer_width`: gate, up and their product in a dense layer (3 × FFN width), or queries, keys and values that a
    latent expands to; `expert_width`: gate, up and product of every expert that a token uses; all but the residual
    stream. `latent_row`: numbers that one cached latent expands to, 0 without one; `sparse`: an indexer chooses what is
    read.
    """

    hidden: int
    vocabulary: int
    layers: int
    layer_width: int
    expert_width: int
    latent_row: int
    sparse: bool

    @property
    def widest(self) -> int:
        """The wider of the two kinds of layers."""
        return max(self.layer_width, self.expert_width)


@lru_cache(maxsize=1024)
def shape(model: Model, tp: int) -> RunShape:
    """The shape on one of `tp` ranks. Widths come from the parameters that the configuration makes: estimates."""
    return RunShape(
        hidden=model.hidden_size,
        vocabulary=model.vocab_size or 0,
        layers=len(model.layers),
        layer_width=max(_dense_width(model, tp), _attention_width(model, tp)),
        expert_width=_expert_width(model, tp),
        latent_row=0 if _is_compressed(model) else _attention_width(model, tp) // 2,
        sparse=not _is_compressed(model) and any(isinstance(memory, Indexer) for memory, _ in model.kept),
    )


def _parameters(model: Model, name: str) -> int:
    return sum(part.parameters for part in model.weights if part.name == name)


def _dense_width(model: Model, tp: int) -> int:
    """Gate, up and product of a dense layer: as many as its parameters over the hidden size."""
    layers = len(model.layers)
    if model.experts is not None and 0 < model.experts.moe_layers < layers:
        layers -= model.experts.moe_layers
    if not layers or not model.hidden_size:
        return 0
    return -(-_parameters(model, "feed-forward") // (layers * model.hidden_size * tp))


def _expert_width(model: Model, tp: int) -> int:
    """A mixture's workspace: for each expert of a token, gate and up (or the output, if wider) and their product.

    vLLM's fused_moe keeps the first and the last of the three in one buffer.
    """
    experts = model.experts
    if experts is None or not experts.moe_layers or not model.hidden_size:
        return 0
    one = _parameters(model, "experts") // (experts.num_experts * experts.moe_layers * model.hidden_size * 3)
    inner = -(-one // tp)
    return experts.experts_per_token * (max(2 * inner, model.hidden_size) + inner)


def _attention_width(model: Model, tp: int) -> int:
    """Queries, keys, values and the result where a latent is expanded to all heads; smaller than a layer elsewhere."""
    if not any(isinstance(memory, Latent) for memory, _ in model.kept):
        return 0
    heads = -(-model.num_attention_heads // tp)
    expanded = 1 if _is_compressed(model) else 2
    return heads * expanded * ((model.key_head_dim or model.head_dim) + model.head_dim)


def _is_compressed(model: Model) -> bool:
    """Whether latents stand for many tokens each (DeepSeek V4): they are read as they are.

    So there are queries and results of all heads but no expanded keys and values, and no room is kept that grows with
    the context: ten starts with 4,096 to 262,144 tokens left the same 32.08 GiB (file 63396953296 and nine others of
    its writer).
    """
    return any(isinstance(memory, Latent) and memory.tokens_per_entry > 1 for memory, _ in model.kept)
