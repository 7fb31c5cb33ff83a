"""The pools that a budget makes, and what one request takes of them.

Sources: SGLang 0.5.23, srt/model_executor/pool_configurator.py, srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kvcore.engines.sglang.cells import EXTRA_BUFFER, Stage, has_sliding_pool, page_size
from kvcore.engines.sglang.settings import SglangSettings
from kvcore.model.memories import CrossAttention
from kvcore.model.model import Model

# Architectures whose class counts its window without the current token (get_attention_sliding_window_size).
_WINDOW_WITHOUT_CURRENT = frozenset({"gpt_oss", "gemma4_text", "gemma4_unified_text", "mellum"})
# Decoded tokens after which slots behind a window are given back (SGLANG_SWA_EVICTION_INTERVAL).
_EVICTION_INTERVAL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one request takes on a rank: slots of tokens, slots of the sliding pool, and slots of states."""

    tokens: int
    swa_tokens: int
    state_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The pools that a budget makes, in slots of one rank; `full` and `swa` 0 where there is no such pool.

    `tokens` is the pool that limits all tokens: the full one where there is one. `capped`: the sliding pool was sized
    by requests, not by its ratio.
    """

    tokens: int
    full: int
    swa: int
    state_slots: int
    capped: bool = False
    running: int = 0


def request_need(model: Model, settings: SglangSettings) -> Need:
    """Slots that one request of context_length tokens takes on a rank.

    A sliding pool admits a request that leaves it its window and one page (allocation at prefill). A recurrent model
    keeps several states a request: the running one and those that its prefix is saved in.
    """
    page = page_size(model, settings)
    source = max((memory.source_tokens for memory, _ in model.kept if isinstance(memory, CrossAttention)), default=0)
    wide = page * settings.dcp_size
    tokens = -(-(settings.context_length + source) // wide) * page
    swa = 0
    if has_sliding_pool(model, settings):
        swa = -(-(min(settings.context_length, _window(model)) + page) // page) * page
    slots = _slots_per_request(model, settings) if model.states else 0
    return Need(tokens=tokens, swa_tokens=swa, state_slots=slots)


def _window(model: Model) -> int:
    longest = max(memory.limit or 0 for memory in model.attentions)
    return longest - 1 if model.model_type in _WINDOW_WITHOUT_CURRENT else longest


def _slots_per_request(model: Model, settings: SglangSettings) -> int:
    """1 without a prefix cache; 3 with one, and 2 more where states are saved while batches overlap."""
    if settings.disable_radix_cache:
        return 1
    return 5 if model.model_type in EXTRA_BUFFER else 3


def pool_sizes(model: Model, settings: SglangSettings, parts: tuple[Stage, ...], page: int, kv_bytes: int) -> Sizes:
    """Slots of every pool on the tightest stage; 0 where the budget makes none."""
    slot = max(part.state_bytes for part in parts)
    slots = _state_slots(settings, slot, kv_bytes) if slot else 0
    rest = max(0, kv_bytes - (slots + 1) * slot) if slot else kv_bytes
    cap = sliding_cap(model, settings, page)
    found = [_token_slots(settings, part, page, rest, cap) for part in parts]
    tokens = min((count for count in found if count is not None), default=None)
    if tokens is None:
        # A model of states alone: what one request may have (pool_configurator.py).
        tokens = settings.max_total_tokens or settings.context_length
    if settings.max_total_tokens is not None:
        tokens = min(tokens, settings.max_total_tokens)
    tokens = tokens // page * page
    full, swa = _split_pools(settings, parts, page, tokens, cap)
    sizes = Sizes(tokens=tokens, full=full, swa=swa, state_slots=slots, capped=cap is not None)
    return replace(sizes, running=_running(model, settings, sizes, recurrent=slot > 0))


def sliding_cap(model: Model, settings: SglangSettings, page: int) -> int | None:
    """Slots of the sliding pool where the most requests are known and no prefixes are kept; None: by the ratio.

    For each request its window, what is evicted late, and two pages; two prefill chunks are in flight
    (compute_swa_request_cap).
    """
    capped = has_sliding_pool(model, settings) and settings.disable_radix_cache
    if not capped or settings.max_running_requests is None:
        return None
    requests = max(1, settings.max_running_requests // settings.attention_dp)
    cap = requests * (_window(model) + _EVICTION_INTERVAL + 2 * page) + 2 * settings.prefill_chunk + page
    return -(-cap // page) * page


def _split_pools(
    settings: SglangSettings, parts: tuple[Stage, ...], page: int, tokens: int, cap: int | None
) -> tuple[int, int]:
    """(full, sliding) slots of so many tokens; a model of sliding layers only has one pool and no ratio."""
    if not any(part.swa for part in parts):
        return tokens, 0
    if not any(part.full for part in parts):
        return 0, tokens
    if cap is not None:
        return tokens, cap if settings.max_total_tokens is None else min(cap, settings.max_total_tokens)
    return tokens, int(tokens * _exact(settings.swa_full_tokens_ratio)) // page * page


def _state_slots(settings: SglangSettings, slot: int, kv_bytes: int) -> int:
    """Slots of states: as asked for, else the ratio's part of the budget, one of them padding."""
    if settings.max_mamba_cache_size is not None:
        return settings.max_mamba_cache_size // settings.attention_dp
    if settings.disable_radix_cache and settings.max_running_requests is not None:
        return max(1, settings.max_running_requests // settings.attention_dp)
    ratio = _exact(settings.mamba_full_memory_ratio)
    return max(0, int((kv_bytes * ratio / (1 + ratio) - slot) // slot))


def _token_slots(settings: SglangSettings, part: Stage, page: int, rest: int, cap: int | None) -> int | None:
    if part.full is None:
        return rest // part.swa.bytes // page * page if part.swa else None
    if cap is not None and part.swa is not None:
        return max(0, (rest - cap * part.swa.bytes) // part.full.bytes // page * page)
    cell = Fraction(part.full.bytes)
    if part.swa is not None:
        cell += _exact(settings.swa_full_tokens_ratio) * part.swa.bytes
    return int(rest // cell) // page * page


def _exact(ratio: float) -> Fraction:
    return Fraction(str(ratio))


def _running(model: Model, settings: SglangSettings, sizes: Sizes, *, recurrent: bool) -> int:
    """Requests that may run at once on one rank (resolve_max_num_reqs)."""
    tokens = sizes.tokens
    if settings.max_running_requests is not None:
        most = max(1, settings.max_running_requests // settings.attention_dp)
    else:
        most = max(min(tokens * 512 // settings.context_length, 4096), 2048)
    most = min(most, tokens // 2)
    return min(most, sizes.state_slots // _slots_per_request(model, settings)) if recurrent else most


def window_too_wide(model: Model, settings: SglangSettings, sizes: Sizes, page: int) -> bool:
    """SGLang refuses a sliding pool that cannot hold one window and a page."""
    return has_sliding_pool(model, settings) and not sizes.capped and _window(model) + page >= sizes.swa
