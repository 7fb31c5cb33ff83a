"""What a user of SGLang may set, and the defaults that depend on the machine or the model."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, longest_request, own_values
from kvcore.engines.releases import followed
from kvcore.errors import EngineError
from kvcore.hardware.systems import MAX_GPUS
from kvcore.model.model import Model
from kvcore.units import GIB, MAX_BATCH, MAX_TOKENS, MIB, check_tokens

VERSION = "0.5.23"
DSA_BACKENDS = ("flashmla_kv", "flashmla_sparse", "fa3", "tilelang", "trtllm")
# --swa-full-tokens-ratio and --mamba-full-memory-ratio (arg_groups/fields/schedule.py).
SWA_FULL_TOKENS_RATIO, MAMBA_FULL_MEMORY_RATIO = 0.8, 0.9
SSM_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_BOUNDS = {
    "context_length": (1, MAX_TOKENS), "tp_size": (1, MAX_GPUS), "pp_size": (1, MAX_GPUS), "dcp_size": (1, MAX_GPUS),
    "dp_size": (1, MAX_GPUS), "page_size": (1, 65_536), "max_mamba_cache_size": (1, MAX_BATCH),
    "max_total_tokens": (1, MAX_TOKENS), "max_running_requests": (1, MAX_BATCH),
    "chunked_prefill_size": (1, MAX_TOKENS),
}  # fmt: skip

OPTIONS = (
    Option(flag="--page-size", field="page_size", kind="integer", help="tokens a page"),
    Option(flag="--dp-size", field="dp_size", kind="integer", help="data-parallel replicas"),
    Option(flag="--enable-dp-attention", field="enable_dp_attention", kind="switch",
           help="attention data-parallel inside the tensor-parallel ranks", means="dp_attention"),
    Option(flag="--swa-full-tokens-ratio", field="swa_full_tokens_ratio", kind="fraction",
           help="tokens of the sliding pool for each token of the full pool"),
    Option(flag="--disable-hybrid-swa-memory", field="disable_hybrid_swa_memory", kind="switch",
           help="give sliding layers slots for every token"),
    Option(flag="--mamba-full-memory-ratio", field="mamba_full_memory_ratio", kind="fraction",
           help="memory of states for each byte of token slots"),
    Option(flag="--max-mamba-cache-size", field="max_mamba_cache_size", kind="integer", help="slots of states"),
    Option(flag="--mamba-ssm-dtype", field="mamba_ssm_dtype", kind="text", help="number format of recurrent states",
           choices=tuple(SSM_DTYPES)),
    Option(flag="--disable-radix-cache", field="disable_radix_cache", kind="switch", help="keep no past prompts",
           means="prefix_caching", says=False),
    Option(flag="--max-total-tokens", field="max_total_tokens", kind="integer", help="most token slots"),
    Option(flag="--max-running-requests", field="max_running_requests", kind="integer", help="most requests at once",
           means="max_num_seqs"),
    Option(flag="--mem-fraction-static", field="mem_fraction_static", kind="fraction",
           help="share of the free memory for weights and pools", means="utilization"),
    Option(flag="--chunked-prefill-size", field="chunked_prefill_size", kind="integer", help="tokens a prefill chunk",
           means="max_num_batched_tokens"),
    Option(flag="--dsa-decode-backend", field="dsa_decode_backend", kind="text", help="kernels of sparse attention",
           choices=DSA_BACKENDS),
    Option(flag="--disable-cuda-graph", field="disable_cuda_graph", kind="switch", help="capture no CUDA graphs",
           means="enforce_eager"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """SGLang's own flags under their own names, with the facts about the device that its defaults depend on.

    None means SGLang's own default. `gpu_mib` is what the driver shows of one device, an H100 of 80 GB unless said.
    """

    context_length: int
    kv_cache_dtype: str = "auto"
    tp_size: int = 1
    pp_size: int = 1
    dcp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    page_size: int | None = None
    swa_full_tokens_ratio: float = SWA_FULL_TOKENS_RATIO
    disable_hybrid_swa_memory: bool = False
    mamba_full_memory_ratio: float = MAMBA_FULL_MEMORY_RATIO
    max_mamba_cache_size: int | None = None
    mamba_ssm_dtype: str | None = None
    disable_radix_cache: bool = False
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    dsa_decode_backend: str | None = None
    disable_cuda_graph: bool = False
    gpu_mib: int = 80 * GIB // MIB
    compute_capability: float = 9.0
    version: str = VERSION

    def __post_init__(self) -> None:
        check_tokens(self.context_length)
        check_whole("sglang", self, _BOUNDS)
        self._check_shares()
        if self.enable_dp_attention and self.tp_size % self.dp_size:
            raise EngineError(f"dp_size {self.dp_size} does not divide tp_size {self.tp_size}", engine="sglang")
        if self.attention_tp % self.dcp_size:
            raise EngineError(
                f"dcp_size {self.dcp_size} does not divide the {self.attention_tp} ranks that share attention",
                engine="sglang",
            )

    def _check_shares(self) -> None:
        if not 0 < self.swa_full_tokens_ratio <= 1:
            raise EngineError(
                f"swa_full_tokens_ratio is {self.swa_full_tokens_ratio}; expected above 0 … 1", engine="sglang"
            )
        if not 0 < self.mamba_full_memory_ratio <= 1000:
            raise EngineError(
                f"mamba_full_memory_ratio is {self.mamba_full_memory_ratio}; expected above 0", engine="sglang"
            )
        if self.mem_fraction_static is not None and not 0 < self.mem_fraction_static < 1:
            raise EngineError(
                f"mem_fraction_static is {self.mem_fraction_static}; expected within 0 … 1", engine="sglang"
            )
        if self.mamba_ssm_dtype is not None and self.mamba_ssm_dtype not in SSM_DTYPES:
            raise EngineError(
                f"mamba_ssm_dtype {self.mamba_ssm_dtype[:20]!r} is not {', '.join(SSM_DTYPES)}", engine="sglang"
            )
        if self.dsa_decode_backend is not None and self.dsa_decode_backend not in DSA_BACKENDS:
            raise EngineError(
                f"dsa_decode_backend {self.dsa_decode_backend[:20]!r} is not {', '.join(DSA_BACKENDS)}", engine="sglang"
            )

    @property
    def attention_dp(self) -> int:
        """Groups of ranks that each serve requests of their own inside one tensor-parallel group."""
        return self.dp_size if self.enable_dp_attention else 1

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one attention layer."""
        return self.tp_size // self.attention_dp

    @property
    def is_blackwell(self) -> bool:
        """SM100 and SM103: the data-centre Blackwells, whose default kernels differ."""
        return 10 <= self.compute_capability < 11

    @property
    def prefill_chunk(self) -> int:
        """chunked_prefill_size as the GPU's memory sets it (0.5.23, arg_groups/memory_hook.py)."""
        if self.chunked_prefill_size is not None:
            return self.chunked_prefill_size
        return next(tokens for below_gib, tokens, _, _ in GPU_DEFAULTS if self.gpu_mib < below_gib * 1024)

    @property
    def graph_batch(self) -> int:
        """Requests of the largest decode graph: by the GPU's memory, and at most what may run at once."""
        _, _, few, many = next(row for row in GPU_DEFAULTS if self.gpu_mib < row[0] * 1024)
        batch = few if self.tp_size < 4 else many
        return batch if self.max_running_requests is None else min(batch, self.max_running_requests)


# Below so many GiB: prefill chunk, largest decode graph with tp < 4 and from 4 on (arg_groups/memory_hook.py).
GPU_DEFAULTS: tuple[tuple[int, int, int, int], ...] = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
    (10**6, 16_384, 512, 512),
)


def make_settings(model: Model, asked: Request) -> SglangSettings:
    """Settings for a request; EngineError for a value, a platform or a version that is not followed.

    Where attention is data-parallel, SGLang counts all GPUs as tensor-parallel ranks, and a request counts replicas.
    """
    if asked.platform != "cuda":
        raise EngineError(f"its rules on {asked.platform} are not followed here; cuda is", engine="sglang")
    length = longest_request("sglang", model, asked)
    ranks, chosen = asked.tp, own_values("sglang", OPTIONS, asked)
    if asked.dp_attention:
        ranks, chosen = asked.tp * asked.dp, {"dp_size": asked.dp} | chosen
    if asked.gpu is not None:
        chosen["gpu_mib"] = asked.gpu.memory_bytes // MIB
        chosen["compute_capability"] = _capability(asked.gpu.compute_capability)
    return SglangSettings(
        context_length=length,
        kv_cache_dtype=asked.kv_dtype,
        tp_size=ranks,
        pp_size=asked.pp,
        dcp_size=asked.dcp,
        version=followed("sglang", asked.engine_version or VERSION, "0.4 and 0.5", first=(0, 4), before=(0, 6)),
        **chosen,
    )


def _capability(text: str | None) -> float:
    try:
        return float(text) if text else 9.0
    except ValueError:
        raise EngineError(
            f"its rules on {text} are not followed here; those on NVIDIA GPUs are", engine="sglang"
        ) from None
