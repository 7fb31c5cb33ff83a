"""The public API: what the command line answers, as functions of the package (`kvcore.size`, `kvcore.plan`, …).

Each takes a model, or the text that names one on the command line, and returns a frozen record whose `to_dict()` is the
command's JSON. Every refusal is a KVCoreError with one readable sentence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvcore.errors import EngineError, UnitError
from kvcore.model.model import Model
from kvcore.units import GIB, MAX_BATCH, parse_tokens

if TYPE_CHECKING:
    from kvcore.deployment import Draft
    from kvcore.engines.base import Engine
    from kvcore.engines.result import EngineResult
    from kvcore.logs.command import LogResult
    from kvcore.planning.result import PlanResult
    from kvcore.sizing import SizeResult
    from kvcore.variants.compare import Comparison

# What an engine's option may be, by its kind.
_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "text": (str,), "fraction": (int, float), "switch": (bool,),
}  # fmt: skip
# The most memory for a cache that is taken for a number of bytes.
_MAX_BYTES = 2**50


def load(
    reference: str | os.PathLike[str] | Mapping[str, Any],
    *,
    variant: str | None = None,
    hub: bool = False,
    upper_bound: bool = False,
) -> Model:
    """A model: a catalogue id, the path of a config.json, of a folder with one or of a .gguf, or a configuration.

    `variant` makes it the counterfactual of that name (`mha`, `gqa:8`, `mla`, `sliding:4096/6`, …). `hub` fetches the
    configuration of an id that is not in the catalogue; without it nothing is ever fetched. `upper_bound` answers an
    unknown architecture with a labelled bound. Raises ModelError, ConfigError or SourceError.
    """
    if isinstance(reference, Mapping):
        from kvcore.model.read import model_from_config

        model = model_from_config(dict(reference), upper_bound=upper_bound)
    else:
        from kvcore.sources import files

        model = files.load(os.fspath(reference), hub=hub, upper_bound=upper_bound).model
    if variant is None:
        return model
    from kvcore.variants import variants

    return variants.variant(model, variant)


def size(
    model: Model | str,
    tokens: int | str,
    *,
    kv_dtype: str = "auto",
    batch: int = 1,
    source_tokens: int | str | None = None,
) -> SizeResult:
    """The KV cache of `batch` requests of `tokens` tokens (`131072` or `"128K"`): resident bytes, layer by layer.

    Whole model, nothing sharded, whatever the engine. `kv_dtype` is the cache format (`auto`, `bf16`, `fp8`, `q8_0`, or
    `K/V`), `source_tokens` the encoder or image tokens for cross-attention. Raises UnitError, or what `load` raises.
    """
    from kvcore.sizing import size

    source = None if source_tokens is None else _tokens(source_tokens, "source_tokens")
    return size(_model(model), _tokens(tokens, "tokens"), kv_dtype, batch, source)


def compare(
    a: Model | str, b: Model | str, tokens: int | str, *, kv_dtype: str = "auto", other_kv_dtype: str = "auto"
) -> Comparison:
    """Model A against model B, per token and for one request of `tokens` tokens, with the reasons as factors.

    `kv_dtype` is A's cache format, `other_kv_dtype` B's. Raises UnitError, or what `load` raises.
    """
    from kvcore.variants.compare import compare

    left, right = _model(a), _model(b)
    return compare(
        left,
        right,
        _tokens(tokens, "tokens"),
        left.resolve_format(kv_dtype),
        right.resolve_format(other_kv_dtype),
        name_a=left.name.rsplit("/", 1)[-1],
        name_b=right.name.rsplit("/", 1)[-1],
    )


def engine(
    name: str,
    model: Model | str,
    *,
    max_model_len: int | str | None = None,
    kv_dtype: str = "auto",
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    gpu: str | None = None,
    platform: Literal["cuda", "cpu"] = "cuda",
    engine_version: str | None = None,
    kv_bytes: int | None = None,
    kv_gib: float | None = None,
    **options: Any,
) -> EngineResult:
    """What a serving engine reserves on each GPU for a request of `max_model_len` tokens (None: the model's limit).

    With memory for the cache on each GPU (`kv_bytes` or `kv_gib`) also what fits in it and what the engine logs.
    `options` are the engine's own, under its own names with underscores: `block_size=32`, `ctx_size=131072`. Raises
    EngineError for what the engine does not support, HardwareError, UnitError, or what `load` raises.
    """
    from kvcore.deployment import Request, as_options
    from kvcore.engines import registry
    from kvcore.engines.result import engine_result
    from kvcore.hardware.gpus import accelerator

    chosen, loaded = registry.engine(name), _model(model)
    asked = Request(
        context=None if max_model_len is None else _tokens(max_model_len, "max_model_len"),
        kv_dtype=kv_dtype,
        tp=tp,
        pp=pp,
        dcp=dcp,
        gpu=None if gpu is None else accelerator(gpu),
        platform=platform,
        engine_version=engine_version,
        options=as_options(_own(chosen, options)),
    )
    settings = chosen.settings(loaded, asked)
    return engine_result(chosen, loaded, settings, _memory(kv_bytes, kv_gib))


def plan(
    model: Model | str,
    *,
    gpu: str,
    context: int | str,
    gpus: int | None = None,
    users: int | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    dcp: int | None = None,
    expert_parallel: bool = False,
    dp_attention: bool = False,
    kv_dtype: str = "auto",
    weight_format: str | None = None,
    utilization: float | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    enforce_eager: bool = False,
    prefix_caching: bool = True,
    speculative_tokens: int = 0,
    draft: Model | str | None = None,
    draft_weight_format: str | None = None,
    kv_bytes: int | None = None,
    kv_gib: float | None = None,
    **options: Any,
) -> PlanResult:
    """Whether a deployment fits, for how many requests of `context` tokens, what limits it and what would help.

    `gpus` are all GPUs; without `tp` the first split that the engine serves is taken. `users` requests must fit (None:
    one). Without `engine` it is the registry's default, and None elsewhere is that engine's. `draft` proposes
    `speculative_tokens` a step: a model, or `"mtp"` for the model's own prediction layers. `kv_bytes` or `kv_gib` is a
    cache size that a log states: nothing is estimated then. `options` are the engine's own, as for `engine`. A plan
    that does not fit is an answer; EngineError and PlanError say what cannot be planned at all. Raises HardwareError,
    UnitError, or what `load` raises.
    """
    from kvcore.deployment import Deployment
    from kvcore.engines import registry
    from kvcore.formats import kv_format
    from kvcore.hardware.gpus import accelerator
    from kvcore.model import weight_formats
    from kvcore.planning.plan import make_plan
    from kvcore.planning.resolve import accepted, deployment_fields, on_gpus, with_draft
    from kvcore.planning.result import plan_result

    chosen, loaded = registry.engine(registry.DEFAULT if engine is None else engine), _model(model)
    if users is not None and not 1 <= users <= MAX_BATCH:
        raise UnitError(f"users: {users!r} is outside 1 … {MAX_BATCH:,}")
    if kv_dtype.strip().lower() != "auto":
        kv_format(kv_dtype)
    sides = {name: ranks for name, ranks in (("tp", tp), ("pp", pp), ("dp", dp), ("dcp", dcp)) if ranks is not None}
    fields: dict[str, Any] = {
        "utilization": utilization,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "speculative_tokens": speculative_tokens,
        "enforce_eager": enforce_eager,
        "dp_attention": dp_attention,
        "prefix_caching": prefix_caching,
    }
    fields |= sides | deployment_fields(chosen, _own(chosen, options), tp or 1, dp or 1)
    wanted = Deployment(
        gpu=accelerator(gpu),
        context=_tokens(context, "context"),
        expert_parallel=expert_parallel,
        engine=chosen.name,
        engine_version=engine_version,
        kv_dtype=kv_dtype,
        weight_format=None if weight_format is None else weight_formats.weight_format(weight_format).name,
        kv_bytes=_memory(kv_bytes, kv_gib),
        **fields,
    )
    wanted = with_draft(loaded, wanted, None if draft is None else _draft(draft, draft_weight_format))
    if gpus is not None:
        wanted = on_gpus(loaded, wanted, gpus, frozenset(sides), users)
    return plan_result(accepted(make_plan(loaded, wanted, users)))


def read_log(text: str | os.PathLike[str], *, model: Model | str | None = None) -> LogResult:
    """An engine's start-up log, as text or as the path of a file, beside our predictions for what it states.

    `model` is the one that was served, where the log does not name one of the catalogue. Raises LogError where no
    engine is recognised, SourceError where the file cannot be read, or what `load` raises.
    """
    from kvcore.logs.command import log_result, read_text

    return log_result(text if isinstance(text, str) else read_text(Path(text)), model)


def _model(model: Model | str) -> Model:
    return model if isinstance(model, Model) else load(model)


def _tokens(value: int | str, name: str) -> int:
    return parse_tokens(value, name) if isinstance(value, str) else value


def _memory(kv_bytes: int | None, kv_gib: float | None) -> int | None:
    """Memory for the cache on each GPU in bytes; None where neither is given."""
    if kv_bytes is not None and kv_gib is not None:
        raise UnitError("kv_bytes and kv_gib say the same thing; give one of them")
    total = kv_bytes if kv_gib is None else kv_gib * GIB
    if total is None:
        return None
    if not 0 <= total <= _MAX_BYTES:
        raise UnitError(f"memory for the cache: {total!r} B is outside 0 … {_MAX_BYTES:,}")
    return int(total)


def _draft(draft: Model | str, weight_format: str | None) -> Draft:
    from kvcore.deployment import OWN, OWN_HEAD, Draft
    from kvcore.model import weight_formats

    if draft == OWN:
        return OWN_HEAD
    model = _model(draft)
    stored = None if weight_format is None else weight_formats.weight_format(weight_format).name
    return Draft(name=model.name, model=model, weight_format=stored)


def _own(chosen: Engine, options: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's own options by the field of its settings; EngineError for one that it does not have."""
    known = {option.field: option for option in chosen.options}
    for name, value in options.items():
        if name not in known:
            raise EngineError(f"{name[:40]!r} is not one of its options: {', '.join(known)}", engine=chosen.name)
        option = known[name]
        if not isinstance(value, _KINDS[option.kind]) or (isinstance(value, bool) and option.kind != "switch"):
            raise UnitError(f"{name}: {str(value)[:40]!r} is not a {option.kind}")
        if option.choices and value not in option.choices:
            raise UnitError(f"{name}: {str(value)[:40]!r} is not one of {', '.join(option.choices)}")
    # A switch that is off is the default.
    return {name: value for name, value in options.items() if value is not False}
