"""Every memory answers every question; a new kind needs one class, and engines refuse it until they lay it out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import pytest

from kvcore.deployment import Request
from kvcore.engines.registry import engine, engine_names
from kvcore.errors import EngineError
from kvcore.formats import KVFormat, kv_format
from kvcore.model import Memory, Model
from kvcore.model.memories import (
    KINDS,
    Access,
    Factor,
    Growth,
    Heads,
    MemoryWork,
    State,
    StateDesign,
    StatePart,
    StateTensor,
)
from kvcore.ranks.memories import rank_bytes
from kvcore.sizing import curve, resident_bytes, size, token_steps
from kvcore.sources import catalogue
from kvcore.timing import decode_cache_work
from kvcore.variants.compare import compare
from kvcore.work import Step
from tests.models import llama

BF16 = kv_format("bf16")
MODELS = [catalogue.load(entry.model_id) for entry in catalogue.entries()]
MEMORIES = list({memory: None for model in MODELS for memory, _ in model.groups})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(Memory):
    """A made-up memory: 64 numbers for every token, the newest 100 of them."""

    width: int = 64

    @property
    def kind(self) -> str:
        return "ring"

    @property
    def window(self) -> int:
        return 100

    def growth(self, kv: KVFormat, source_tokens: int | None = None) -> Growth:
        return Growth(bytes_per_entry=kv.k.row_bytes(1, self.width), max_entries=100)

    def formula(self, kv: KVFormat, source_tokens: int | None = None) -> str:
        return f"{self.width} × {kv.k.describe()}"

    def factors(self, kv: KVFormat, source_tokens: int | None = None) -> tuple[Factor, ...]:
        return (Factor(value=f"{kv.k.row_bytes(1, self.width)}", what="bytes"),)

    def numbers_a_token(self) -> tuple[int, int]:
        return self.width, 1

    def on_rank(self, ranks: int) -> Ring:
        return self

    def work(self, access: Access) -> MemoryWork:
        seen = access.step.entries_seen(100)
        return MemoryWork(
            noun="tokens", entry_bytes=access.kv.k.row_bytes(1, self.width), entries_read=seen,
            entries_written=access.step.new_tokens, pairs=seen, operations_per_pair=1, pair_formula="1",
        )  # fmt: skip

    def keeps(self, source_tokens: int | None = None) -> str:
        return "keep a ring"

    @property
    def brief(self) -> str:
        return "a ring"


def ringed() -> Model:
    return Model(
        name="ringed", model_type="llama", layers=((Ring(),),) * 3, hidden_size=64, num_attention_heads=2, head_dim=32,
        vocab_size=100, context_limit=8192,
    )  # fmt: skip


def test_a_new_kind_of_memory_is_one_class() -> None:
    model = ringed()
    assert resident_bytes(model, 1000, BF16) == 3 * 100 * 64 * 2
    assert list(curve(model, [50, 1000], BF16)) == [3 * 50 * 128, 3 * 100 * 128]
    assert size(model, 50).bytes_per_token == 3 * 128
    assert token_steps(model, BF16)[0].bytes == 3 * 128
    assert rank_bytes(model, 1000, BF16, 8) == 3 * 100 * 128
    assert decode_cache_work(model, 1000, BF16).work.read_bytes == 3 * 100 * 128
    assert compare(model, catalogue.load("openai-community/gpt2"), 50, BF16, BF16, name_a="A", name_b="B")


@pytest.mark.parametrize("name", engine_names())
def test_an_engine_refuses_a_kind_that_it_does_not_lay_out(name: str) -> None:
    model, chosen = ringed(), engine(name)
    settings = chosen.settings(model, Request(context=1024))
    with pytest.raises(EngineError, match="ring"):
        chosen.layout(model, settings)


def test_every_memory_answers_every_question() -> None:
    heads = Heads(count=8, key_width=64, value_width=64)
    access = Access(step=Step(cached_tokens=500, new_tokens=3), kv=BF16, heads=heads)
    for memory in MEMORIES:
        assert memory.kind in KINDS
        assert memory.name
        assert memory.keeps()[0]
        assert bool(memory.brief) or memory.kind == "none"
        law = memory.growth(BF16)
        each = law.bytes_per_entry or law.constant_bytes
        assert memory.is_empty == (each == 0)
        assert f"{each:,} B" in memory.formula(BF16) or memory.kind == "cross"
        factors = [sum(float(part) for part in one.value.strip("()").replace(",", "").split("+"))
                   for one in memory.factors(BF16)]  # fmt: skip
        assert prod(factors) == each or memory.is_empty
        assert memory.work(access).work.read_bytes >= 0
        shares = [memory.on_rank(ranks).growth(BF16).at(4096) for ranks in (1, 2, 3, 8, 64)]
        assert shares[0] == law.at(4096)
        assert all(after <= before for before, after in pairwise(shares))
        assert all(share * ranks >= shares[0] for share, ranks in zip(shares, (1, 2, 3, 8, 64), strict=True))


def test_the_groups_of_a_convolution() -> None:
    def state(channels: int) -> State:
        convolution = StatePart(name=StateTensor.CONVOLUTION, shape=(channels, 3), element_bytes=2)
        matrix = StatePart(name=StateTensor.STATE, shape=(16, 64, 128), element_bytes=4)
        return State(design=StateDesign.MAMBA_2, parts=(convolution, matrix))

    # 16 heads of 64 channels, and B and C of 128 for each of four groups.
    made = state(16 * 64 + 2 * 4 * 128)
    assert made.groups == 4
    assert made.channels(2) == made.channels(4) == 16 * 64 + 2 * 4 * 128
    # Eight ranks have a group each.
    assert made.channels(8) == 16 * 64 + 2 * 8 * 128
    assert State(design=StateDesign.LINEAR, parts=made.parts[1:]).groups == 0


def test_a_window_is_given_and_taken() -> None:
    from kvcore.model import model_from_config

    (memory,) = model_from_config(llama()).layers[0]
    assert (memory.with_window(64).window, memory.with_window(64).kind) == (64, "sliding")
    assert memory.with_window(64).with_window(None) == memory
