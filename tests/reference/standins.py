"""Architectures of the catalogue that transformers 5.24 does not implement, and the check that stands in for each.

Most come with code of their own, which is never run here. A stand-in is a class of transformers that keeps the same
(`theirs` renames what that class calls otherwise), a value written out from the architecture's own description, or a
record of vLLM's plan in vllm.jsonl.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.run import Case


@dataclass(frozen=True, kw_only=True)
class Written:
    """Bytes that one request of `tokens` tokens keeps in 16 bits, with the arithmetic."""

    file: str
    tokens: int
    expected_bytes: int
    arithmetic: str


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Why an architecture is not run, and what is checked in its place."""

    architecture: str
    reason: str
    checks: tuple[Case | Written, ...]


_OWN_CODE = "needs code from the model's repository"
_LINEAR = ["linear_attention"] * 7


def _llama(architecture: str, *files: str, reason: str = _OWN_CODE, **more: object) -> StandIn:
    cases = tuple(Case(file=f"{name}.json", layers=2, as_type="llama", **more) for name in files)  # type: ignore[arg-type]
    return StandIn(architecture=architecture, reason=f"{reason}; its cache is that of Llama", checks=cases)


def _as(architecture: str, as_type: str, file: str, reason: str = _OWN_CODE, **more: object) -> StandIn:
    case = Case(**{"file": f"{file}.json", "as_type": as_type, "layers": 2} | more)  # type: ignore[arg-type]
    return StandIn(architecture=architecture, reason=f"{reason}; its cache is that of {as_type}", checks=(case,))


def _written(architecture: str, *checks: Written, reason: str = _OWN_CODE) -> StandIn:
    return StandIn(architecture=architecture, reason=reason, checks=checks)


STAND_INS: tuple[StandIn, ...] = (
    _llama("internlm", "internlm__internlm-chat-7b"),
    _llama("internlm2", "internlm__internlm2-7b"),
    _llama("internvl_chat", "OpenGVLab__InternVL2-2B", change={"rope_scaling": None}),
    _llama("baichuan", "baichuan-inc__Baichuan2-7B-Chat"),
    _llama("xverse", "xverse__XVERSE-7B"),
    _llama("qwen", "Qwen__Qwen-7B-Chat"),
    _llama("bailing_moe", "inclusionAI__Ling-plus"),
    _llama("minicpm", "openbmb__MiniCPM-MoE-8x2B"),
    _llama("multi_modality", "deepseek-ai__Janus-1.3B", reason="Janus' wrapper is not implemented"),
    _llama("llava", "liuhaotian__llava-v1.5-7b",
           reason="LLaVA's first files state the language model beside the vision tower's keys"),
    _llama("deepseek_vl_v2", "deepseek-ai__deepseek-vl2-tiny",
           reason="the tiny model switches MLA off, which DeepseekV2Model cannot"),
    _as("phi3_v", "phi3", "microsoft__Phi-3-vision-128k-instruct", change={"rope_scaling": None}),
    _as("minicpmv", "qwen2", "openbmb__MiniCPM-V-2_6"),
    _as("mimo", "qwen2", "XiaomiMiMo__MiMo-7B-Base"),
    _as("kimi_k2", "deepseek_v3", "moonshotai__Kimi-K2-Instruct", reason="implemented as DeepseekV3Model only"),
    _as("kimi_k3", "kimi_linear", "moonshotai__Kimi-K3", layers=4, theirs={"hidden_act": "silu"}),
    _as("step3p7", "step3p5", "stepfun-ai__Step-3.7-Flash", layers=4, stub=("mlp", "moe"),
        reason="the catalogue's file states the language model alone, which has a type of its own in transformers"),
    _as("minimax_m3", "minimax_m3_vl_text", "MiniMaxAI__MiniMax-M3", layers=6,
        reason="the text model is implemented inside the vision model"),
    _as("minimax_m1", "minimax", "MiniMaxAI__MiniMax-M1-80k", layers=8, keeps="beside the cache",
        theirs={"layer_types": [*_LINEAR, "full_attention"]}),
    _as("deepseek_ref", "deepseek_v4", "sgl-project__DeepSeek-V4-Pro-FP8", layers=3,
        reason="a model_type that no library has"),
    StandIn(
        architecture="hunyuan",
        reason="the model_type of the first files, without a class of its own",
        checks=(
            Case(file="tencent__Hunyuan-A13B-Instruct.json", layers=2, as_type="hunyuan_v1_moe",
                 theirs={"head_dim": 128}),
            Written(
                file="tencent__Tencent-Hunyuan-Large.json", tokens=1000, expected_bytes=81_920_000,
                arithmetic="every second of 64 layers keeps (cla_share_factor 2): 32 × 2 × 8 KV heads × 6400/80 × 2 B "
                "= 81,920 B a token",
            ),
        ),
    ),
    _written(
        "chatglm",
        Written(
            file="THUDM__chatglm-6b.json", tokens=1000, expected_bytes=458_752_000,
            arithmetic="28 layers × 2 × 32 heads × 4096/32 × 2 B = 458,752 B a token (no grouping in the first one)",
        ),
        Written(
            file="THUDM__glm-4-9b.json", tokens=1000, expected_bytes=40_960_000,
            arithmetic="40 layers × 2 × multi_query_group_num 2 × kv_channels 128 × 2 B = 40,960 B a token",
        ),
    ),
    _written(
        "telechat",
        Written(
            file="Tele-AI__TeleChat-12B.json", tokens=1000, expected_bytes=778_240_000,
            arithmetic="38 layers × 2 × 32 heads × 5120/32 × 2 B = 778,240 B a token",
        ),
    ),
    _written(
        "phi3small",
        Written(
            file="microsoft__Phi-3-small-8k-instruct.json", tokens=1000, expected_bytes=131_072_000,
            arithmetic="32 layers × 2 × 8 KV heads × 4096/32 × 2 B = 131,072 B a token; block-sparse layers keep all",
        ),
    ),
    _written(
        "yuan",
        Written(
            file="IEITYuan__Yuan2-2B-hf.json", tokens=1000, expected_bytes=196_804_608,
            arithmetic="24 layers × 2 × 32 heads × 2048/32 × 2 B = 196,608 B a token, and in each layer the last two "
            "hidden states for its localized filtering: 24 × 2 × 2048 × 2 B = 196,608 B",
        ),
    ),
    _written(
        "nemotron-nas",
        Written(
            file="nvidia__Llama-3_3-Nemotron-Super-49B-v1.json", tokens=1000, expected_bytes=200_704_000,
            arithmetic="49 of 80 blocks attend, with 64/8 = 8 KV heads: 49 × 2 × 8 × 8192/64 × 2 B = 200,704 B a token",
        ),
    ),
    _written(
        "rwkv5",
        Written(
            file="RWKV__rwkv-5-world-3b.json", tokens=1000, expected_bytes=21_299_200,
            arithmetic="32 layers × (2 shifted tokens × 2560 × 2 B + 2560/64 heads × 64 × 64 × 4 B) = 32 × 665,600 B, "
            "whatever the length",
        ),
    ),
    _written(
        "longformer",
        Written(
            file="allenai__longformer-base-4096.json", tokens=1000, expected_bytes=0,
            arithmetic="an encoder sees its whole input at once: LongformerModel takes and returns no cache",
        ),
        reason="warns about padding by looking at the input's values, which a run without numbers has none of",
    ),
)  # fmt: skip
