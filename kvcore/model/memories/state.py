"""What a recurrent layer keeps: tensors of fixed shape.

Arithmetic is counted in the recurrent form, one token after another, which is the least; kernels that take in a prompt
in chunks do more. Exponentials, gates and norms of single channels are left out: they are few beside the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from kvcore.formats import KVFormat
from kvcore.model.memories.base import Access, Factor, Growth, Kind, Memory, MemoryWork, most
from kvcore.units import format_bytes


class StateDesign(StrEnum):
    """The design of a recurrent layer, by the name that it is shown with."""

    MAMBA_1 = "Mamba 1"
    MAMBA_2 = "Mamba 2"
    GATED_DELTA_NET = "Gated delta net"
    KIMI_DELTA = "Kimi delta attention"
    LINEAR = "Linear attention"
    SHORT_CONVOLUTION = "Short convolution"
    RG_LRU = "RG-LRU"
    RWKV_4 = "RWKV-4"
    RWKV = "RWKV"
    LOCALIZED_FILTERING = "Localized filtering"
    COMPRESSOR = "compressor"
    INDEXER_COMPRESSOR = "indexer compressor"


class StateTensor(StrEnum):
    """What one tensor of a state holds, by the name that it is shown with."""

    CONVOLUTION = "convolution"
    STATE = "state"
    SHIFTED_TOKENS = "shifted tokens"
    WKV = "wkv"
    HIDDEN_STATES = "hidden states"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Operations a token on each number of one tensor of a state, and what they are.

    `rows` says that a token touches one row of the tensor and leaves the others as they are.
    """

    operations: int
    reason: str
    rows: bool = False


def _rule(operations: int, reason: str, rows: bool = False) -> _Rule:
    return _Rule(operations=operations, reason=reason, rows=rows)


_DECAYED = "decay 1, outer-product update 2, read-out 2"
_DELTA = "decay 1, product with the key 2, outer-product update 2, read-out 2"

# The recurrent tensor of each design.
_BY_DESIGN: dict[StateDesign, _Rule] = {
    # S += k vᵀ; o = q S. A decay of the whole head, as in lightning attention, is not counted.
    StateDesign.LINEAR: _rule(4, "outer-product update 2, read-out 2"),
    # h = a h + (Δ x) Bᵀ; y = h C, with one decay a head (Mamba-2 paper, section 6).
    StateDesign.MAMBA_2: _rule(5, _DECAYED),
    # The same with a decay for each number, exp(Δ A), whose product is one more; the exponential is not counted.
    StateDesign.MAMBA_1: _rule(6, f"decay's exponent 1, {_DECAYED}"),
    # S = a S; S += β k (v − Sᵀ k)ᵀ; o = q S (gated delta net paper, equation 10; Kimi Linear: a decay a channel).
    StateDesign.GATED_DELTA_NET: _rule(7, _DELTA),
    StateDesign.KIMI_DELTA: _rule(7, _DELTA),
    # S = diag(w) S + k vᵀ and its read-out; RWKV-7 adds a delta rule, which is not counted.
    StateDesign.RWKV: _rule(5, _DECAYED),
    # Numerator, denominator and maximum: 19 operations a channel on three numbers, exponentials not counted.
    StateDesign.RWKV_4: _rule(6, "19 operations a channel over its three numbers"),
    # h = a h + x: one number a channel.
    StateDesign.RG_LRU: _rule(3, "decay 1, update 2"),
}
# Tensors that mean the same in every design.
_BY_TENSOR: dict[StateTensor, _Rule] = {
    StateTensor.CONVOLUTION: _rule(2, "convolution 2"),
    StateTensor.SHIFTED_TOKENS: _rule(2, "mix with the token before 2"),
    StateTensor.HIDDEN_STATES: _rule(2, "filter 2"),
    # A compressor fills one row a token and pools each row once, by its gate.
    StateTensor.ROWS: _rule(2, "pooling 2", rows=True),
}
_UNKNOWN = _rule(4, "design without a count of its own: update 2, read-out 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """One tensor of a state: what it is, its shape, and the bytes of one element."""

    name: StateTensor
    shape: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> int:
        total = self.element_bytes
        for side in self.shape:
            total *= side
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Memory):
    """What a recurrent layer keeps: tensors of fixed shape, whatever the number of tokens and the cache format."""

    projections = "recurrent layers"

    design: StateDesign
    parts: tuple[StatePart, ...]

    @property
    def kind(self) -> Kind:
        return "state"

    @property
    def name(self) -> str:
        return str(self.design)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def is_copied(self) -> bool:
        """Whether every rank has a copy: DeepSeek-V4's unfinished groups of tokens, which belong to all heads."""
        return self.part(StateTensor.ROWS) is not None

    def part(self, name: StateTensor) -> StatePart | None:
        """The tensor of that name, None where the state has none."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def groups(self) -> int:
        """Groups that share B and C (Mamba 2), or key heads (delta nets), by the channels of the convolution."""
        channels, inner, columns = self._convolved()
        return (channels - inner) // (2 * columns) if columns else 0

    def channels(self, ranks: int) -> int:
        """Channels of the convolution over all ranks: a group is copied where there are fewer than ranks."""
        channels, inner, columns = self._convolved()
        if not columns or (channels - inner) // (2 * columns) % ranks == 0:
            return channels
        return inner + 2 * ranks * columns

    def _convolved(self) -> tuple[int, int, int]:
        """(channels of the convolution, those of the heads, columns of B and C); 0 columns where it has not both."""
        channels = inner = columns = 0
        for part in self.parts:
            if part.name == StateTensor.CONVOLUTION:
                channels = part.shape[0]
            elif part.name == StateTensor.STATE:
                inner, columns = prod(part.shape[:-1]), part.shape[-1]
        return channels, inner, columns if channels else 0

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(constant_bytes=self.bytes)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        parts = " + ".join(
            f"{part.name} {' × '.join(map(str, part.shape))} × {part.element_bytes} B" for part in self.parts
        )
        return f"{self.design}: {parts} = {self.bytes:,} B whatever the length"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return (Factor(value=f"{self.bytes:,}", what=f"bytes of {self.design} state"),)

    def numbers_a_token(self) -> tuple[int, int]:
        return 0, 1

    def on_rank(self, ranks: int) -> State:
        """Split by head, whole heads only: the first side of every tensor counts heads, or their channels together.

        Unfinished groups of tokens are copied, as the latents that are made of them.
        """
        if self.is_copied:
            return self
        parts = (replace(part, shape=(most(part.shape[0], ranks), *part.shape[1:])) for part in self.parts)
        return replace(self, parts=tuple(parts))

    def work(self, access: Access) -> MemoryWork:
        new_tokens = access.step.new_tokens
        once = min(new_tokens, 1)
        return MemoryWork(
            noun="state",
            entry_bytes=self._touched_bytes(new_tokens),
            entries_read=once,
            entries_written=once,
            pairs=new_tokens,
            operations_per_pair=self.operations_per_token,
            pair_formula=self._arithmetic,
        )

    @property
    def is_counted(self) -> bool:
        """Whether every tensor has a rule."""
        return all(self._rule_of(part) is not _UNKNOWN for part in self.parts)

    @property
    def operations_per_token(self) -> int:
        """Operations that one token makes on the whole state."""
        return sum(self._rule_of(part).operations * self._numbers(part) for part in self.parts)

    @property
    def _arithmetic(self) -> str:
        """The same as a formula: operations for each number, numbers of each tensor, and what the operations are."""
        terms = []
        for part in self.parts:
            rule = self._rule_of(part)
            terms.append(f"{rule.operations} × {self._numbers(part):,} ({part.name}: {rule.reason})")
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    def _rule_of(self, part: StatePart) -> _Rule:
        return _BY_TENSOR.get(part.name) or _BY_DESIGN.get(self.design) or _UNKNOWN

    def _numbers(self, part: StatePart) -> int:
        """Numbers of a tensor that one token touches."""
        numbers = part.bytes // part.element_bytes
        return numbers // part.shape[0] if self._rule_of(part).rows else numbers

    def _touched_bytes(self, new_tokens: int) -> int:
        """Bytes that these tokens read, and write again, once: whole tensors, or as many rows as there are tokens."""
        if not new_tokens:
            return 0
        return sum(
            part.bytes // part.shape[0] * min(part.shape[0], new_tokens) if self._rule_of(part).rows else part.bytes
            for part in self.parts
        )

    def keeps(self, source_tokens: int | None = None) -> tuple[str, str]:
        return f"keep a state of fixed size ({self.design})", "whatever the length"

    @property
    def brief(self) -> str:
        return f"a state of {format_bytes(self.bytes)}"
