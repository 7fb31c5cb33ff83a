"""What a reader may have heard about the cache, in plain words, with figures computed here."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.errors import ConfigError
from kvcore.model import Model
from kvcore.model.weight_formats import weights_bytes
from kvcore.scenario.scenario import Scenario
from kvcore.sizing import bytes_per_token, resident_bytes
from kvcore.sources import catalogue
from kvcore.units import GB, format_bytes
from kvcore.variants.variants import variant

LLAMA_70B, LLAMA_13B = "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-2-13b-hf"
MISTRAL_7B = "mistralai/Mistral-7B-Instruct-v0.3"
DEEPSEEK_V2, DEEPSEEK_67B = "deepseek-ai/DeepSeek-V2", "deepseek-ai/deepseek-llm-67b-base"
_K = 1024

_ATTENTION = """
In each attention layer a token leaves two vectors behind: a **key** (K), what it can be found by, and a **value** (V),
what it has to say. Later tokens compare their query with all keys and mix the values.

The keys and values of a token never change, so they are computed once and kept: that is the KV cache. Every layer keeps
its own, because every layer sees the token differently.
"""
_BY_KIND = {
    "sliding": "A **sliding window** looks back a fixed number of tokens: older keys and values are dropped.",
    "chunked": "A **chunked** layer looks back to the start of its chunk only, and then begins anew.",
    "latent": "A **latent** layer keeps one compressed vector, from which the K and V of all heads are made again.",
    "compressed": "A **compressed** layer keeps one vector for several tokens.",
    "indexer": "An **indexer** keeps a short key a token, to choose which tokens the attention reads at all.",
    "state": "A **recurrent** layer keeps no tokens: each one updates a state of fixed size.",
    "cross": "**Cross-attention** keeps the keys and values of the source, once, whatever is generated.",
    "shared": "Some layers **share**: they read the cache of another layer.",
    "none": "The other layers keep nothing.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A figure that is quoted often: a title, what it is, and the view that shows it."""

    title: str
    text: str
    view: Scenario


def explained(model: Model) -> str:
    """What K and V are, and what this model's layers keep."""
    kinds = [kind for kind, _ in model.kinds]
    if set(kinds) <= {"none"}:
        return "An encoder reads its whole input at once and generates nothing, so it has nothing to remember."
    parts = [_ATTENTION] if set(kinds) - {"state", "none"} else []
    return "\n\n".join(parts + [_BY_KIND[kind] for kind in kinds if kind in _BY_KIND])


def figures() -> tuple[Claim, ...]:
    """Figures that are quoted often, with what they are; none of the sizes is typed in."""
    llama, small, seven = (catalogue.load(name) for name in (LLAMA_70B, LLAMA_13B, MISTRAL_7B))
    ten = _held(llama, 32, 10)
    steps = ", ".join(_held(seven, thousands) for thousands in (8, 16, 32, 64))
    a_token = format_bytes(bytes_per_token(seven, 0, seven.resolve_format("bf16")))
    heads = [_held(variant(llama, form), 8) for form in ("mha", "gqa:8", "mqa")]
    return (
        Claim(
            title=f"13B, full multi-head, 8K: {_held(small, 8)}",
            text=f"Llama 2 13B holds {_held(small, 8)} at 8,192 tokens in 16 bits. The {_held(small, 16)} that is "
            "often quoted for 8,000 tokens is what it holds at 16,384, or for two requests.",
            view=Scenario(model=LLAMA_13B, tokens=8 * _K),
        ),
        _weights(llama),
        Claim(
            title="“8,000 tokens” means 8,192",
            text=f"Talks round 8K to 64K to thousands. A 7B with grouped queries keeps {a_token} a token: {steps} at "
            "8,192, 16,384, 32,768 and 65,536.",
            view=Scenario(model=MISTRAL_7B, tokens=8 * _K),
        ),
        Claim(
            title=f"Ten users at 32K: {ten}",
            text=f"No two conversations share their caches, so Llama 3.3 70B holds {ten} for ten users. Its weights "
            "stay as they are; the caches grow with every token.",
            view=Scenario(batch=10, budget="100 GiB"),
        ),
        Claim(
            title=f"A 70B at 8K: {heads[0]}, {heads[1]} or {heads[2]}",
            text=f"With keys and values for all 64 heads it would hold {heads[0]}. Llama 3.3 70B shares them among "
            f"groups of eight heads: {heads[1]}. With one for all heads it would be {heads[2]}.",
            view=Scenario(tokens=8 * _K),
        ),
        _deepseek(),
    )


def _held(model: Model, thousands: int, batch: int = 1) -> str:
    return format_bytes(resident_bytes(model, thousands * _K, model.resolve_format("bf16"), batch))


def _weights(llama: Model) -> Claim:
    weights, count = weights_bytes(llama, "bf16"), llama.total_parameters
    if weights is None or count is None:
        raise ConfigError("the catalogue's Llama 3.3 70B has no counted weights")
    in_gb, in_gib = f"{weights.bytes / GB:.0f} GB", format_bytes(weights.bytes, 0)
    return Claim(
        title=f"70B in 16 bits: {in_gb}, which is {in_gib}",
        text=f"Two bytes for each of {count / 10**9:.1f} billion weights: one amount in two units (10⁹ and 2³⁰ bytes), "
        "not 140 GiB. Cards are sold in GB and report GiB; memory is in GiB here.",
        view=Scenario(),
    )


def _deepseek() -> Claim:
    new, old = catalogue.load(DEEPSEEK_V2), catalogue.load(DEEPSEEK_67B)
    wide = bytes_per_token(old, 0, old.resolve_format("bf16"))
    same, six = (1 - bytes_per_token(new, 0, new.resolve_format(name)) / wide for name in ("bf16", "int6"))
    return Claim(
        title=f"DeepSeek-V2 keeps {six:.1%} less",
        text=f"Against DeepSeek 67B in 16 bits: its latent alone saves {same:.1%}; the paper’s {six:.1%} also stores "
        "it in 6 bits a number.",
        view=Scenario(model=DEEPSEEK_V2, compare=(DEEPSEEK_67B,), kv="int6"),
    )
