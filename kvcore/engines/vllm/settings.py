"""What a user of vLLM may set: its flags, the settings made from them, and defaults by release and machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, longest_request, own_values
from kvcore.engines.releases import followed, is_among, release
from kvcore.errors import EngineError
from kvcore.hardware.gpus import Accelerator
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.ranks.parts import prediction_head
from kvcore.units import GIB, MAX_TOKENS, check_tokens

VERSION = "0.33.0"
# The newest release with wheels for CPUs.
CPU_VERSION = "0.32.0"
# What changed between releases, read in each release's own v1/kv_cache_interface.py and v1/core/kv_cache_utils.py:
# windows beside full attention get blocks of their own (unify_hybrid_kv_cache_specs became an option), the line "GPU
# KV cache size" counts all groups, DeepSeek-V4's pages get slots of their size and later none at all, windows hold what
# all batches in flight may bring and not one batch, size and concurrency share a line, the check at the start leaves
# out the block that is never handed out (the null block), a CPU is called one.
HYBRID_MANAGER = (0, 9, 1)
ALL_GROUPS_LOGGED = (0, 21)
SLOTS_BY_SIZE = (0, 23)
ALL_BATCHES_HELD = (0, 26)
PACKED_DENSELY = (0, 27)
ONE_LINE_LOGGED = (0, 28)
NULL_BLOCK_LEFT_OUT = (0, 29)
CPU_NAMED = (0, 30)
# From this release vLLM has its second engine core ("V1") by default, and by it alone from 0.11 (envs.py, VLLM_USE_V1).
V1_FROM, V1_ONLY_FROM = (0, 8), (0, 11)
# The newer core's tokens of a step are no more than all sequences can bring from here on (arg_utils.py).
_TOKENS_WITHIN_REQUESTS = (0, 11, 1)
# The older core prefilled longer contexts than this in chunks by itself, of so many tokens (engine/arg_utils.py and
# config.py); models that read pictures it never did, and gave steps of at least so many tokens.
V0_CHUNKS_ABOVE, V0_SEQUENCES, V0_TOKENS_AT_LEAST = 32_768, 256, 2048
_BOUNDS = {
    "tensor_parallel_size": (1, MAX_GPUS), "pipeline_parallel_size": (1, MAX_GPUS),
    "decode_context_parallel_size": (1, MAX_GPUS),
    "block_size": (1, 65_536), "max_num_batched_tokens": (1, MAX_TOKENS), "num_speculative_tokens": (0, 1024),
    "mtp_layers": (0, 256), "num_gpu_blocks_override": (1, MAX_TOKENS),
}  # fmt: skip


class Batch(NamedTuple):
    """Tokens and sequences of a step; `chunked` where the older core prefills in chunks without being asked to."""

    tokens: int
    sequences: int
    chunked: bool


class BatchDefaults(NamedTuple):
    """max_num_batched_tokens and max_num_seqs of `vllm serve` on devices of `gib` GiB and more."""

    gib: int
    tokens: int
    sequences: int


_SMALLEST = BatchDefaults(0, 2048, 256)
_LARGE = BatchDefaults(70, 8192, 1024)
_LARGEST = BatchDefaults(160, 16_384, 1024)
# By the release from which they hold, the newest first, each the largest first (engine/arg_utils.py:
# _set_default_args_v1, from 0.11.1 on get_batch_defaults, of every release on PyPI). The driver reports an "80 GB" card
# as a little less than 80 GiB; vLLM draws its line at 70.
_BATCH_DEFAULTS: tuple[tuple[tuple[int, ...], tuple[BatchDefaults, ...]], ...] = (
    ((0, 28), (_LARGEST, _LARGE, _SMALLEST)),
    ((0, 8, 4), (_LARGE, _SMALLEST)),
    ((0, 0), (_LARGE, BatchDefaults(0, 2048, 1024))),
)
# From here on the defaults of a CPU are those of one rank times the ranks.
_CPU_RANKS_COUNTED = (0, 10)
# The same of the older core: tokens of a chunk, and the least of a step of models that read pictures (config.py).
_V0_CHUNKS: tuple[tuple[tuple[int, ...], int], ...] = (((0, 6, 5), 2048), ((0, 5, 3), 512), ((0, 0), 0))
_V0_PICTURES: tuple[tuple[tuple[int, ...], int], ...] = (((0, 6, 3), 5120), ((0, 6), 4096), ((0, 0), 2048))
# gpu_memory_utilization (config/cache.py).
_UTILIZATION: tuple[tuple[tuple[int, ...], float], ...] = (((0, 20), 0.92), ((0, 0), 0.9))


def batch_defaults(version: str) -> tuple[BatchDefaults, ...]:
    """What `vllm serve` gives devices by their memory in this release, the largest first."""
    return next(rows for first, rows in _BATCH_DEFAULTS if release(version) >= first)


@lru_cache(maxsize=256)
def _device_defaults(version: str, gpu_bytes: int, small: bool) -> BatchDefaults:
    rows = batch_defaults(version)
    return rows[-1] if small else next(row for row in rows if gpu_bytes >= row.gib * GIB)


def has_small_defaults(gpu: Accelerator, version: str | None) -> bool:
    """Whether this release gives the device the smallest batch whatever its memory (data/HARDWARE.md)."""
    among = gpu.vllm_small_defaults
    return among is not None and is_among(release(version or VERSION), among)


def default_utilization(version: str | None) -> float:
    """gpu_memory_utilization where nobody says; None is the newest release that is followed."""
    found = release(version or VERSION)
    return next(share for first, share in _UTILIZATION if found >= first)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """vLLM's own flags under their own names, with the facts about device and model that its defaults depend on.

    `gpu_bytes` and `compute_capability` describe one device (an H100 unless said); `small_defaults` is true of devices
    that have the memory of a larger class and the smallest's defaults. `needs_older_core`: GPU, weight format or model
    is one that the core named "V1" did not serve at first; `pictures`: how the model reads them, as tokens or by cross
    attention. Both matter before 0.11 alone. `mtp_layers` are layers of a multi-token-prediction head that speculation
    adds. On a CPU with AVX-512 BF16 (`cpu_avx512_bf16`) vLLM keeps recurrent states in fp32. None means vLLM's own
    default.
    """

    max_model_len: int
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_prefix_caching: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    async_scheduling: bool = True
    num_speculative_tokens: int = 0
    mtp_layers: int = 0
    num_gpu_blocks_override: int | None = None
    platform: Literal["cuda", "cpu"] = "cuda"
    cpu_avx512_bf16: bool = True
    gpu_bytes: int = 80 * GIB
    compute_capability: float = 9.0
    small_defaults: bool = False
    needs_older_core: bool = False
    pictures: Literal["none", "tokens", "cross"] = "none"
    version: str = VERSION

    def __post_init__(self) -> None:
        check_tokens(self.max_model_len)
        check_whole("vllm", self, _BOUNDS)
        if self.max_model_len < 1:
            raise EngineError("max_model_len is 0; a request has at least one token", engine="vllm")
        if self.tensor_parallel_size % self.decode_context_parallel_size:
            raise EngineError(
                f"decode_context_parallel_size {self.decode_context_parallel_size} does not divide "
                f"tensor_parallel_size {self.tensor_parallel_size}",
                engine="vllm",
            )

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"

    @property
    def older_core(self) -> bool:
        """Whether the engine core before "V1" runs."""
        found = release(self.version)
        return found < V1_FROM or (found < V1_ONLY_FROM and self.needs_older_core)

    @property
    def windows_are_whole(self) -> bool:
        """Whether windows beside full attention get blocks for every token: without the hybrid cache manager."""
        return self.disable_hybrid_kv_cache_manager or release(self.version) < HYBRID_MANAGER

    @property
    def batched_tokens(self) -> int:
        """max_num_batched_tokens: as asked for, else as `vllm serve` of this release defaults it."""
        return self.batch(self.max_model_len).tokens

    @property
    def sequences(self) -> int:
        """max_num_seqs: as asked for, else the release's default, of which each has a token in a step."""
        return self.batch(self.max_model_len).sequences

    def batch(self, max_model_len: int) -> Batch:
        """Tokens and sequences of a step, what is not asked for by the release's default, with this max_model_len."""
        stated, chunked = self.max_num_batched_tokens, False
        if self.older_core:
            sequences = V0_SEQUENCES
            tokens, chunked = (stated, False) if stated is not None else self._older_tokens(max_model_len)
        else:
            tokens, sequences = self._defaults()
            if stated is not None:
                tokens = stated
            elif release(self.version) >= _TOKENS_WITHIN_REQUESTS:
                tokens = min(tokens, (self.max_num_seqs or sequences) * max_model_len)
        if self.max_num_seqs is not None:
            return Batch(tokens, self.max_num_seqs, chunked)
        return Batch(tokens, min(sequences, tokens), chunked)

    @property
    def has_larger_defaults(self) -> bool:
        """Whether the newer core gives this device a larger batch than the smallest devices."""
        return not (self.older_core or self.is_cpu) and self._row().gib > 0

    def _row(self) -> BatchDefaults:
        return _device_defaults(self.version, self.gpu_bytes, self.small_defaults)

    def _defaults(self) -> tuple[int, int]:
        """Tokens and sequences of the newer core by the device alone."""
        if not self.is_cpu:
            return self._row()[1:]
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        return (2048 * ranks, 128 * ranks) if release(self.version) >= _CPU_RANKS_COUNTED else (2048, 32)

    def _older_tokens(self, max_model_len: int) -> tuple[int, bool]:
        """Tokens of a step of the older core, and whether it prefills in chunks of them without being asked to."""
        found = release(self.version)
        chunk = next(tokens for first, tokens in _V0_CHUNKS if found >= first)
        if chunk and max_model_len > V0_CHUNKS_ABOVE and self.pictures == "none":
            return chunk, True
        least = V0_TOKENS_AT_LEAST
        if self.pictures != "none":
            least = next(tokens for first, tokens in _V0_PICTURES if found >= first)
        return max(max_model_len, least), False

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that may be scheduled before a window's blocks are freed: batches in flight × batched tokens.

        Before 0.26 vLLM counted one batch, however many were in flight; the older core used the window's own blocks
        again (core/block_manager.py).
        """
        if self.older_core:
            return 0
        if self.is_cpu or release(self.version) < ALL_BATCHES_HELD:
            return self.batched_tokens
        batches = self.pipeline_parallel_size + (1 if self.async_scheduling else 0)
        return batches * self.batched_tokens


OPTIONS = (
    Option(flag="--block-size", field="block_size", kind="integer", help="tokens a block"),
    Option(
        flag="--max-num-batched-tokens",
        field="max_num_batched_tokens",
        kind="integer",
        help="tokens a step",
        means="max_num_batched_tokens",
    ),
    Option(
        flag="--no-prefix-caching",
        field="no_prefix_caching",
        kind="switch",
        help="keep no blocks of past prompts",
        means="prefix_caching",
        says=False,
        turns_off="enable_prefix_caching",
    ),
    Option(
        flag="--disable-hybrid-kv-cache-manager",
        field="disable_hybrid_kv_cache_manager",
        kind="switch",
        help="give windows beside full attention blocks for every token",
    ),
    Option(
        flag="--no-async-scheduling",
        field="no_async_scheduling",
        kind="switch",
        help="one batch in flight",
        turns_off="async_scheduling",
    ),
    Option(
        flag="--num-speculative-tokens",
        field="num_speculative_tokens",
        kind="integer",
        help="proposed tokens",
        means="speculative_tokens",
    ),
    Option(flag="--mtp-layers", field="mtp_layers", kind="integer", help="layers of a multi-token-prediction head"),
    Option(
        flag="--cpu-without-avx512-bf16",
        field="cpu_without_avx512_bf16",
        kind="switch",
        help="a CPU on which recurrent states stay in 16 bits",
        turns_off="cpu_avx512_bf16",
    ),
    Option(
        flag="--num-gpu-blocks-override", field="num_gpu_blocks_override", kind="integer", help="blocks of the pool"
    ),
)


def make_settings(model: Model, asked: Request) -> VllmSettings:
    """Settings of a request for a model; EngineError for a version or a value that cannot be."""
    length = longest_request("vllm", model, asked)
    chosen = own_values("vllm", OPTIONS, asked)
    if asked.draft is not None and asked.draft.own:
        chosen = {"mtp_layers": _own_layers(model)} | chosen
    version = check_version(asked.engine_version or (VERSION if asked.platform == "cuda" else CPU_VERSION))
    found = release(version)
    gpu = asked.gpu
    if gpu is not None and asked.platform == "cuda":
        chosen["gpu_bytes"] = gpu.memory_bytes
        chosen["compute_capability"] = _capability(gpu.compute_capability)
        chosen["small_defaults"] = has_small_defaults(gpu, version)
    if found < V1_ONLY_FROM:
        chosen["pictures"] = pictures = _pictures(model)
        # Before Ampere the newer core did not serve at first, nor bitsandbytes' formats nor cross attention.
        old = chosen.get("compute_capability", 9.0) < 8 or asked.weight_format == "bnb4" or pictures == "cross"
        chosen["needs_older_core"] = old
    return VllmSettings(
        max_model_len=length,
        kv_cache_dtype=asked.kv_dtype,
        tensor_parallel_size=asked.tp,
        pipeline_parallel_size=asked.pp,
        decode_context_parallel_size=asked.dcp,
        max_num_seqs=asked.max_num_seqs,
        platform=asked.platform,
        version=version,
        **chosen,
    )


def _pictures(model: Model) -> Literal["none", "tokens", "cross"]:
    made = model.tower
    return "none" if made is None else "cross" if made.crosses else "tokens"


def _own_layers(model: Model) -> int:
    """Layers with a cache of the model's own prediction modules."""
    head = prediction_head(model)
    return 0 if head is None else sum(any(memory.kind != "none" for memory in layer) for layer in head.layers)


def check_version(version: str) -> str:
    """The version without its `v`; EngineError when it is not one, or older than the rules that are followed."""
    return followed("vllm", version, "0.4 and newer", first=(0, 4))


def _capability(text: str | float | None) -> float:
    try:
        return float(text) if text not in (None, "") else 9.0
    except ValueError:
        return 9.0
