"""Cache work, by hand: rows × bytes of a row, pairs × operations of a pair."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import pytest

from kvcore.errors import KVCoreError, UnitError
from kvcore.formats import ELEMENT_FORMATS, kv_format
from kvcore.model import model_from_config
from kvcore.model.gguf import model_from_gguf
from kvcore.model.memories import Attention, Indexer, Latent, Memory, NoMemory, SharedCache, State, StatePart
from kvcore.model.model import Model
from kvcore.timing import Work, cache_work, decode_cache_work, decode_step, layer_work, prefill_cache_work, prefill_step
from kvcore.variants.variants import variant
from kvcore.work import chunked_pairs, windowed_pairs
from tests.gguf_writer import indexed, minimax_m3, write
from tests.models import config, every_model, llama, model

BF16 = kv_format("bf16")
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def small(*layers: tuple[Memory, ...], heads: int = 4) -> Model:
    """Layers by hand; heads are 8 wide."""
    return Model(name="x", model_type="x", layers=layers, hidden_size=32, num_attention_heads=heads, head_dim=8)


FULL = Attention(num_kv_heads=2, head_dim=8, v_head_dim=8)


def test_llama_reads_its_whole_cache_for_every_token() -> None:
    """80 layers, 8 KV heads of 128 in bf16: 80 × 2 × 8 × 128 × 2 B = 327,680 B a token; 64 query heads."""
    work = decode_cache_work(model(LLAMA), 32_768, BF16).work
    assert work.read_bytes == 32_768 * 327_680 == 10 * 2**30
    assert work.written_bytes == 327_680
    assert work.operations == 2 * 80 * 64 * (128 + 128) * 32_768
    # Eight query heads share a row, and a multiply-add takes a number of 2 bytes: 8 × 2 / 2.
    assert work.operations == 8 * work.read_bytes
    assert work.operations_per_byte == pytest.approx(8 * 32_768 / 32_769)


@pytest.mark.parametrize(
    ("text", "intensity"), [("mha", 1), ("gqa:32", 2), ("gqa:8", 8), ("gqa:4", 16), ("mqa", 64), ("share:2", 8)]
)
def test_operations_per_byte_are_query_heads_over_kv_heads(text: str, intensity: int) -> None:
    """64 query heads; of 16 bits each number read makes one multiply-add for each query head that shares it."""
    work = decode_cache_work(variant(model(LLAMA), text), 4096, BF16).work
    assert work.operations == intensity * work.read_bytes


def test_half_the_bytes_are_twice_the_intensity() -> None:
    halved, whole = (decode_cache_work(model(LLAMA), 4096, kv_format(name)).work for name in ("fp8", "bf16"))
    assert 2 * halved.read_bytes == whole.read_bytes
    assert halved.operations == whole.operations


def test_a_latent_is_read_once_for_all_heads() -> None:
    """DeepSeek-V3: 61 layers, 576 numbers; 128 heads: 2 × 128 × (576 + 512) operations over 576 × 2 B."""
    work = decode_cache_work(model("deepseek-ai/DeepSeek-V3"), 10_000, BF16).work
    assert work.read_bytes == 61 * 10_000 * 1152
    assert work.operations == 61 * 10_000 * 2 * 128 * (576 + 512)
    assert work.operations / work.read_bytes == pytest.approx(241.78, abs=0.01)


def test_long_prompts_expand_latents() -> None:
    """DeepSeek-V3, 1,000 tokens on none: keys of 192 and values of 128 take less than 576 + 512 a pair."""
    pairs = 1000 * 1001 // 2
    fresh = prefill_cache_work(model("deepseek-ai/DeepSeek-V3"), 1000, BF16).work
    assert fresh.operations == 61 * pairs * 2 * 128 * (192 + 128)
    # On 1,000 cached ones: 500,500 + 1,000,000 pairs, and cached latents of 512 become 128 + 128 numbers a head.
    onto = prefill_cache_work(model("deepseek-ai/DeepSeek-V3"), 1000, BF16, cached_tokens=1000).work
    assert onto.operations == 61 * ((pairs + 10**6) * 2 * 128 * 320 + 1000 * 2 * 128 * 512 * 256)
    # Two tokens on 1,000 stay absorbed: 1,001 + 1,002 pairs.
    few = prefill_cache_work(model("deepseek-ai/DeepSeek-V3"), 2, BF16, cached_tokens=1000).work
    assert few.operations == 61 * 2003 * 2 * 128 * (576 + 512)


def test_sliding_stops_at_its_window() -> None:
    """Gemma 3 27B: 62 layers, every sixth full: 10 full, 52 with a window of 1,024; 16 KV heads of 128 in bf16."""
    row = 2 * 16 * 128 * 2
    for tokens, window in ((1000, 1000), (1024, 1024), (1025, 1024), (100_000, 1024)):
        work = decode_cache_work(model("google/gemma-3-27b-it"), tokens, BF16).work
        assert work.read_bytes == row * (10 * tokens + 52 * window)
        assert work.operations == 2 * 32 * 256 * (10 * tokens + 52 * window)


def test_a_chunk_starts_anew() -> None:
    """A token looks back to the start of its own chunk: token 9 of chunks of 8 sees itself alone."""
    chunked = small((replace(FULL, limit=8, law="chunked"),))
    reads = [decode_cache_work(chunked, tokens, BF16).work.read_bytes for tokens in (7, 8, 9, 15, 16)]
    # 2 × 2 heads × 8 × 2 B = 64 B a row.
    assert reads == [64 * 7, 64 * 8, 64, 64 * 7, 64 * 8]


def test_sharing_saves_memory_and_no_reading() -> None:
    llama = model(LLAMA)
    own, shared = decode_cache_work(llama, 8192, BF16), decode_cache_work(variant(llama, "share:2"), 8192, BF16)
    assert shared.work.read_bytes == own.work.read_bytes
    assert shared.work.operations == own.work.operations
    assert shared.work.written_bytes * 2 == own.work.written_bytes
    assert [(part.use.kind, part.count) for part in shared.parts] == [("full", 40), ("shared full", 40)]


def test_a_sharing_layer_reads_what_its_owner_keeps_of_tokens() -> None:
    """Also through another sharing layer; the owner's recurrent state is its own affair."""
    state = State(design="Mamba 2", parts=(StatePart(name="state", shape=(4, 8, 8), element_bytes=4),))
    window = replace(FULL, limit=5, law="sliding")
    built = small((window, state), (SharedCache(owner=0),), (SharedCache(owner=1),))
    own, first, second = ([one.work for one in layer_work(built, layer, decode_step(9), BF16)] for layer in (0, 1, 2))
    assert len(own) == 2
    # 5 rows of 64 B; 4 query heads × (8 + 8).
    assert first == second == [Work(read_bytes=5 * 64, operations=2 * 4 * 16 * 5)]
    assert own[0] == first[0] + Work(written_bytes=64)


@pytest.mark.parametrize(
    ("model_id", "indexers", "topk", "heads", "index_heads"),
    [("deepseek-ai/DeepSeek-V3.2", 61, 2048, 128, 64), ("zai-org/GLM-5.2", 21, 2048, 64, 32)],
)
def test_sparse_attention_reads_all_keys_and_few_latents(
    model_id: str, indexers: int, topk: int, heads: int, index_heads: int
) -> None:
    """Index keys are 132 B, latents 1,152 B. GLM-5.2's layers without an indexer use the choice of the one before."""
    layers = len(model(model_id).layers)
    for tokens in (100, 2048, 50_000):
        work = decode_cache_work(model(model_id), tokens, BF16).work
        chosen = min(tokens, topk)
        assert work.read_bytes == layers * chosen * 1152 + indexers * tokens * 132
        attention, index = 2 * heads * (576 + 512) * chosen, 2 * index_heads * 128 * tokens
        assert work.operations == layers * attention + indexers * index


def test_layers_without_an_indexer_of_their_own_may_attend_to_all() -> None:
    """MiniMax-M3: 3 of 60 layers are dense; 57 choose 16 blocks of 128; 4 KV and 64 query heads of 128, 4 index heads."""
    work = decode_cache_work(model("MiniMaxAI/MiniMax-M3"), 100_000, BF16).work
    assert work.read_bytes == 2 * 4 * 128 * 2 * (3 * 100_000 + 57 * 2048) + 57 * 100_000 * 256
    assert work.operations == 2 * 64 * 256 * (3 * 100_000 + 57 * 2048) + 57 * 2 * 4 * 128 * 100_000


@pytest.mark.parametrize(
    ("model_id", "architecture", "mapping", "choice"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "deepseek32", indexed, (2048, 64)),
        ("MiniMaxAI/MiniMax-M3", "minimax-m3", minimax_m3, (16 * 128, 4)),
    ],
)
def test_a_gguf_states_the_same_choice(
    model_id: str, architecture: str, mapping: Callable[..., dict[str, object]], choice: tuple[int, int]
) -> None:
    raw = config(model_id)
    written = write(architecture, mapping(raw.get("text_config", raw)))
    for found in (model_from_gguf(BytesIO(written), "test"), model(model_id)):
        indexers = [memory for memory, _ in found.groups if isinstance(memory, Indexer)]
        assert [(one.index_topk, one.index_heads) for one in indexers] == [choice]


def test_compressed_entries_of_deepseek_v4() -> None:
    """One layer with ratio 4: a window, a quarter as many entries, of which index_topk are read, and all index keys."""
    v4 = model("deepseek-ai/DeepSeek-V4-Flash")
    raw = config("deepseek-ai/DeepSeek-V4-Flash")
    assert (raw["sliding_window"], raw["index_topk"], raw["num_attention_heads"]) == (128, 512, 64)
    layer = raw["compress_ratios"].index(4)
    works = [one.work for one in layer_work(v4, layer, decode_step(8192), BF16)]
    # 512 numbers are key and value at once; token 8,192 completes an entry; rows of 2 × 1,024 and 2 × 256 in fp32.
    pair = 2 * 64 * (512 + 512)
    assert works == [
        Work(read_bytes=128 * 1024, written_bytes=1024, operations=pair * 128),
        Work(read_bytes=512 * 1024, written_bytes=1024, operations=pair * 512),
        Work(read_bytes=2048 * 132, written_bytes=132, operations=2 * 64 * 128 * 2048),
        Work(read_bytes=8192, written_bytes=8192, operations=2 * 2048),
        Work(read_bytes=2048, written_bytes=2048, operations=2 * 512),
    ]
    # Of ratio 128 all entries are read, and token 8,193 completes none.
    layer = raw["compress_ratios"].index(128)
    entries = layer_work(v4, layer, decode_step(8193), BF16)[1].work
    assert entries == Work(read_bytes=64 * 1024, written_bytes=0, operations=pair * 64)
    assert layer_work(v4, layer, decode_step(128_000), BF16)[1].work.read_bytes == 1000 * 1024


def test_a_state_costs_the_same_at_every_context() -> None:
    """Codestral Mamba: 64 layers; (8192 + 2 × 8 × 128) × 3 columns and 128 heads of 64 × 128."""
    built = model("mistralai/Mamba-Codestral-7B-v0.1")
    works = {decode_cache_work(built, tokens, BF16).work for tokens in (1, 1000, 10**6)}
    (work,) = works
    columns, numbers = (8192 + 2048) * 3, 128 * 64 * 128
    element = next(memory for memory, _ in built.groups).parts[1].element_bytes  # type: ignore[union-attr]
    assert work.read_bytes == work.written_bytes == 64 * (columns * 2 + numbers * element)
    assert work.operations == 64 * (2 * columns + 5 * numbers)
    prompt = prefill_cache_work(built, 500, BF16).work
    assert (prompt.read_bytes, prompt.operations) == (work.read_bytes, 500 * work.operations)


@pytest.mark.parametrize(("design", "per_number"), [("linear", 4), ("mamba2", 5), ("gdn", 7), ("kda", 7)])
def test_arithmetic_of_the_designs(design: str, per_number: int) -> None:
    built = variant(model(LLAMA), f"linear:{design}")
    (state,) = (memory for memory, _ in built.groups if isinstance(memory, State))
    expected = 0
    for part in state.parts:
        numbers = part.bytes // part.element_bytes
        expected += numbers * (2 if part.name == "convolution" else per_number)
    assert decode_cache_work(built, 77, BF16).work.operations == 80 * expected


def test_a_design_without_a_count_is_estimated_and_says_so() -> None:
    part = StatePart(name="state", shape=(4, 8), element_bytes=4)
    result = decode_cache_work(small((State(design="New thing", parts=(part,)),)), 5, BF16)
    assert result.work == Work(read_bytes=128, written_bytes=128, operations=4 * 32)
    assert "New thing" in result.notes[0]
    assert [term.knowledge for term in result.terms if "arithmetic" in term.name] == ["estimated", "exact"]


def test_cross_attention_reads_its_source_and_writes_it_once() -> None:
    """Whisper large-v3: 32 decoder layers with 20 heads of 64, 1,500 source positions."""
    whisper = model("openai/whisper-large-v3")
    row = 2 * 20 * 64 * 2
    later = decode_cache_work(whisper, 10, BF16).work
    assert (later.read_bytes, later.written_bytes) == (32 * row * (10 + 1500), 32 * row)
    assert decode_cache_work(whisper, 10, BF16, source_tokens=100).work.read_bytes == 32 * row * 110
    first = decode_cache_work(whisper, 1, BF16).work
    assert first.written_bytes == 32 * row * (1 + 1500)


def test_nothing_kept_is_nothing_done() -> None:
    result = decode_cache_work(small((NoMemory(reason="feed-forward layer"),)), 5, BF16)
    assert (result.work, result.parts, result.work.operations_per_byte) == (Work(), (), 0.0)
    assert decode_cache_work(model(LLAMA), 0, BF16).work == Work()
    assert prefill_cache_work(model("deepseek-ai/DeepSeek-V4-Flash"), 0, BF16, cached_tokens=500).work == Work()


def visible(memory: Memory, token: int) -> list[int]:
    """The entries that token number `token` looks at, by walking through them all."""
    if isinstance(memory, Latent):
        entries = [entry for entry in range(1, token + 1) if entry * memory.tokens_per_entry <= token]
        return entries if memory.window is None else entries[-memory.window :]
    assert isinstance(memory, Attention)
    tokens = list(range(1, token + 1))
    if memory.law == "chunked" and memory.limit:
        return [other for other in tokens if (other - 1) // memory.limit == (token - 1) // memory.limit]
    return tokens if memory.limit is None else tokens[-memory.limit :]


MAKERS: tuple[Callable[[int], Memory], ...] = (
    lambda _: FULL,
    lambda n: replace(FULL, limit=n, law="sliding"),
    lambda n: replace(FULL, limit=n, law="chunked"),
    lambda n: Latent(kv_lora_rank=6, qk_rope_head_dim=2, window=n),
    lambda n: Latent(kv_lora_rank=6, qk_rope_head_dim=2, tokens_per_entry=n + 1),
)


@pytest.mark.parametrize("make", MAKERS)
def test_closed_forms_equal_a_walk_over_tokens(make: Callable[[int], Memory]) -> None:
    random.seed(7)
    for _ in range(200):
        memory, cached, new = make(random.randint(1, 12)), random.randint(0, 40), random.randint(1, 40)
        seen = [visible(memory, token) for token in range(cached + 1, cached + new + 1)]
        (one,) = layer_work(small((memory,)), 0, prefill_step(new, cached), BF16)
        assert one.pairs == sum(map(len, seen))
        assert one.entries_read == len(set().union(*seen))
        share = memory.tokens_per_entry if isinstance(memory, Latent) else 1
        assert one.entries_written == (cached + new) // share - cached // share
        # Rows of 2 heads × (8 + 8) and entries of 8 in bf16; scores and mix of 4 heads over 8 + 8 numbers.
        assert one.entry_bytes == (64 if isinstance(memory, Attention) else 16)
        assert one.work.operations == one.pairs * 2 * 4 * 16


@pytest.mark.parametrize("share", [1, 4])
def test_closed_forms_of_sparse_attention(share: int) -> None:
    random.seed(11)
    for _ in range(100):
        topk, cached, new = random.randint(1, 12), random.randint(0, 60), random.randint(1, 40)
        index = Indexer(index_head_dim=8, stored_as=ELEMENT_FORMATS["bf16"], tokens_per_entry=share, index_topk=topk)
        latent = Latent(kv_lora_rank=6, qk_rope_head_dim=2, tokens_per_entry=share)
        sparse, keys = layer_work(small((latent, index)), 0, prefill_step(new, cached), BF16)
        counts = [token // share for token in range(cached + 1, cached + new + 1)]
        assert sparse.pairs == sum(min(count, topk) for count in counts)
        assert keys.pairs == sum(counts)
        assert keys.entries_read == counts[-1]


def test_sums_of_pairs() -> None:
    """1 + 2 + 3 + 4; then 3 + 3; of pairs of tokens 0 + 1 + 1 + 2 + 2; of chunks of 3: 1 + 2 + 3 + 1."""
    assert windowed_pairs(0, 4) == 10
    assert windowed_pairs(3, 5, 3) == 6
    assert windowed_pairs(0, 5, None, 2) == 6
    assert chunked_pairs(0, 4, 3) == 7
    assert windowed_pairs(0, 10**9) == 10**9 * (10**9 + 1) // 2


def test_every_catalogued_model_answers(subtests: pytest.Subtests) -> None:
    """A token decoded is a prefill of one; parts, layers and terms add up."""
    for model_id in every_model():
        with subtests.test(model=model_id):
            built = model(model_id)
            kv = built.resolve_format()
            for tokens in (1, 2, 5000):
                decoded = decode_cache_work(built, tokens, kv)
                assert decoded == prefill_cache_work(built, 1, kv, cached_tokens=tokens - 1)
                layers = Work()
                for layer in range(len(built.layers)):
                    for one in layer_work(built, layer, decode_step(tokens), kv):
                        layers += one.work
                assert decoded.work == layers
                terms = decoded.terms
                for name, total in (("read", decoded.work.read_bytes), ("arithmetic", decoded.work.operations)):
                    assert sum(term.value for term in terms if term.name.endswith(f": {name}")) == total
            # Two prompts in a row do the arithmetic of one, where nothing is expanded anew.
            if not any(memory.kind == "latent" for memory, _ in built.groups):
                first = prefill_cache_work(built, 700, kv).work
                second = prefill_cache_work(built, 300, kv, cached_tokens=700).work
                whole = prefill_cache_work(built, 1000, kv).work
                assert first.operations + second.operations == whole.operations
                written = first.written_bytes + second.written_bytes
                assert written == whole.written_bytes or any(memory.kind == "state" for memory, _ in built.groups)


def test_terms_have_their_numbers_filled_in() -> None:
    terms = {term.name: term.formula for term in decode_cache_work(model(LLAMA), 32_768, BF16).terms}
    assert terms["80 full layers: read"] == "80 layers × 32,768 tokens × 4,096 B = 10,737,418,240 B"
    assert terms["80 full layers: arithmetic"] == (
        "80 layers × 32,768 × 2 × 64 heads × (K 128 + V 128) = 85,899,345,920 operations"
    )
    assert terms["written to the cache"] == "327,680 = 327,680 B"


def test_what_is_not_known_is_said() -> None:
    """OpenELM has query heads by layer, and an upper bound is no least time."""
    openelm = {"model_type": "openelm", "num_transformer_layers": 2, "model_dim": 64, "head_dim": 8}
    uneven = model_from_config(openelm | {"num_query_heads": [4, 8], "num_kv_heads": [2, 4]})
    assert "num_query_heads" in decode_cache_work(uneven, 10, BF16).notes[0]
    assert decode_cache_work(model(LLAMA), 10, BF16).notes == ()
    unknown = model_from_config(llama(model_type="unheard_of"), upper_bound=True)
    assert "not the least" in decode_cache_work(unknown, 10, BF16).notes[-1]
    bare = Indexer(index_head_dim=8, stored_as=ELEMENT_FORMATS["bf16"])
    notes = decode_cache_work(small((FULL, bare)), 10, BF16).notes
    assert len(notes) == 2


def test_impossible_steps_are_refused() -> None:
    for bad in (-1, 10**9 + 1, True, 1.5):
        with pytest.raises(UnitError):
            decode_cache_work(model(LLAMA), bad, BF16)  # type: ignore[arg-type]
        with pytest.raises(UnitError):
            prefill_cache_work(model(LLAMA), 1, BF16, cached_tokens=bad)  # type: ignore[arg-type]
        with pytest.raises(UnitError):
            cache_work(model(LLAMA), decode_step(5), BF16, source_tokens=bad)  # type: ignore[arg-type]
    with pytest.raises(KVCoreError, match="packs a latent"):
        decode_cache_work(model(LLAMA), 10, kv_format("fp8_ds_mla"))
