"""The ladder: one model as it ships beside the same model built or stored differently, each with its bytes.

A design is `VARIANT`, `VARIANT@FORMAT`, `shipped` or `shipped@FORMAT`: a counterfactual (variants.py) and a cache
format (formats.py). Without a format it is stored in the format that is asked for as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvcore.errors import KVCoreError, UnitError
from kvcore.formats import KVFormat, kv_format
from kvcore.model.model import Model
from kvcore.sizing import bytes_per_token, growth_laws, resident_bytes, state_bytes
from kvcore.variants.variants import canonical, variant

SHIPPED = "shipped"
# One of each kind, as a first look at any model.
DEFAULT_DESIGNS = (
    "mha", "gqa:8", "mla", "mqa", "sliding:4096", "sliding:1024/6", "share:2", "hybrid:4:gdn", "linear:mamba2",
    "shipped@fp8", "shipped@kivi2",
)  # fmt: skip
MAX_DESIGNS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One design of a model: its Model and cache format, and its bytes for the whole batch.

    `bytes_per_token` is what one more token adds while nothing is full, to one request; `next_token_bytes` is what
    the next one adds at the ladder's length, less where windows are full. `factor_mha` and
    `factor_shipped` say how many times more full multi-head attention and the model as it ships hold at this length;
    None where there is nothing to divide by.
    """

    design: str
    model: Model
    kv: KVFormat
    shipped: bool
    resident_bytes: int
    bytes_per_token: int
    next_token_bytes: int
    state_bytes: int
    factor_mha: Fraction | None
    factor_shipped: Fraction | None

    @property
    def own_format(self) -> bool:
        """Whether it is stored in the format that the model keeps its cache in when none is asked for."""
        return self.kv.name == self.model.resolve_format("auto").name


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The rungs, most bytes first, exactly one of them the model as it ships; and what could not be built, with why.

    `mha_bytes` is the yardstick, full multi-head attention in the format `mha_format`; None for a model without heads.
    `same` names the rung of a design that comes out as another one (`gqa:8@fp8` as `shipped@fp8`).
    """

    rungs: tuple[Rung, ...]
    refused: tuple[tuple[str, str], ...]
    mha_bytes: int | None
    mha_format: str
    same: tuple[tuple[str, str], ...] = ()

    @property
    def stored_as_shipped(self) -> bool:
        """Whether the format that was asked for is the model's own, so that `shipped` is it in all respects."""
        return self.shipped.own_format

    @property
    def shipped(self) -> Rung:
        """The model as it ships, in the format that was asked for."""
        return next(rung for rung in self.rungs if rung.shipped)

    def rung(self, design: str) -> Rung | None:
        """The rung of that design, or the one that it comes out as; None where there is none."""
        wanted = dict(self.same).get(design, design)
        return next((rung for rung in self.rungs if rung.design == wanted), None)


def parse_design(text: str) -> str:
    """A design in its one spelling; UnitError for what cannot be read. Whether a model can be built so is not asked."""
    first, at, second = text.strip().lower().partition("@")
    if len(text) > 80 or (at and not second.strip()):
        raise UnitError(f"design {text[:40]!r} is not known; write for example mqa, mla@fp8 or shipped@kivi2")
    if second.strip() == "auto":
        raise UnitError(f"design {text[:40]!r}: leave @auto out; without a format it is stored as everything else")
    name = SHIPPED if first.strip() == SHIPPED else canonical(first)
    return f"{name}@{kv_format(second).name}" if at else name


def build(model: Model, design: str, kv_dtype: str = "auto") -> tuple[Model, KVFormat]:
    """The model and the cache format of a design; UnitError where the model cannot be built or stored so."""
    name, _, stored = parse_design(design).partition("@")
    made = model if name == SHIPPED else variant(model, name)
    kv = kv_format(stored) if stored else model.resolve_format(kv_dtype)
    resident_bytes(made, 1, kv)
    return made, kv


def ladder(
    model: Model,
    designs: Sequence[str] = DEFAULT_DESIGNS,
    *,
    tokens: int,
    kv_dtype: str = "auto",
    batch: int = 1,
    source_tokens: int | None = None,
) -> Ladder:
    """The model as it ships and each design that can be built, at `tokens` tokens for `batch` requests; see Ladder.

    Raises UnitError for tokens or a batch out of range, or a format that does not suit the model as it ships.
    """
    kv = model.resolve_format(kv_dtype)
    shipped = resident_bytes(model, tokens, kv, batch, source_tokens)
    mha, mha_format = _yardstick(model, tokens, kv, batch, source_tokens)
    # What a format does not change (a state) is the same rung.
    rungs: dict[tuple[object, object], Rung] = {}
    refused, same = [], []
    for design in (SHIPPED, *list(dict.fromkeys(designs))[: MAX_DESIGNS + 1]):
        try:
            made, stored = build(model, design, kv_dtype)
        except KVCoreError as problem:
            refused.append((design, str(problem)))
            continue
        key = (made.layers, growth_laws(made, stored, source_tokens))
        if key in rungs:
            same.append((parse_design(design), rungs[key].design))
            continue
        held = resident_bytes(made, tokens, stored, batch, source_tokens)
        rungs[key] = Rung(
            design=parse_design(design),
            model=made,
            kv=stored,
            shipped=not rungs,
            resident_bytes=held,
            bytes_per_token=bytes_per_token(made, 0, stored),
            next_token_bytes=bytes_per_token(made, tokens, stored),
            state_bytes=state_bytes(made, stored, batch, source_tokens),
            factor_mha=Fraction(mha, held) if mha and held else None,
            factor_shipped=Fraction(shipped, held) if shipped and held else None,
        )
    ordered = sorted(rungs.values(), key=lambda rung: (-rung.resident_bytes, -rung.bytes_per_token, not rung.shipped))
    return Ladder(rungs=tuple(ordered), refused=tuple(refused), mha_bytes=mha, mha_format=mha_format, same=tuple(same))


def _yardstick(
    model: Model, tokens: int, kv: KVFormat, batch: int, source_tokens: int | None
) -> tuple[int | None, str]:
    """What full multi-head attention holds; in 16 bits where the format exists for latents only."""
    if model.num_attention_heads < 1 or not any(kind != "none" for kind, _ in model.kinds):
        return None, ""
    full = variant(model, "mha")
    stored = kv_format(model.model_dtype) if kv.packed_latent else kv
    return resident_bytes(full, tokens, stored, batch, source_tokens), stored.name
