"""`kvcore variants MODEL …` and `compare A B …`: one model built otherwise, and two models side by side."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kvcore.cli.options import add_model_options, read_batch
from kvcore.model.model import Model
from kvcore.units import format_bytes, parse_tokens
from kvcore.variants.compare import compare
from kvcore.variants.ladder import DEFAULT_DESIGNS, Ladder, ladder


def add(commands: Any) -> None:
    """Add both commands."""
    command = commands.add_parser("variants", help="one model as if it had been built or stored otherwise")
    command.add_argument("model", help="config.json, folder, .gguf, catalogue id, or - for a config.json on stdin")
    command.add_argument("--tokens", required=True, type=parse_tokens, help="tokens in each request: 8192, 8K, 1M")
    command.add_argument("--kv-dtype", default="auto", help="cache format: auto, bf16, fp8, q8_0, or K/V")
    command.add_argument("--batch", type=read_batch, default=1, help="requests at once")
    command.add_argument(
        "--designs", default=",".join(DEFAULT_DESIGNS), help="variants with commas, each perhaps with @ and a format"
    )
    add_model_options(command)
    command.set_defaults(run=_variants)
    command = commands.add_parser("compare", help="two models per token and at a length, and why they differ")
    command.add_argument("model", help="the first: a path or a catalogue id")
    command.add_argument("other", help="the second")
    command.add_argument("--tokens", required=True, type=parse_tokens, help="tokens in one request: 8192, 8K, 1M")
    command.add_argument("--kv-dtype", default="auto", help="the first one's cache format")
    command.add_argument("--other-kv-dtype", default="auto", help="the second one's cache format")
    add_model_options(command)
    command.set_defaults(run=_compare)


def _load(name: str, options: argparse.Namespace) -> Model:
    from kvcore.sources import files

    return files.load(name, hub=options.hub, upper_bound=options.upper_bound, stdin=sys.stdin).model


def _variants(options: argparse.Namespace) -> None:
    designs = [part for part in options.designs.split(",") if part.strip()]
    found = ladder(
        _load(options.model, options),
        designs,
        tokens=options.tokens,
        kv_dtype=options.kv_dtype,
        batch=options.batch,
    )
    print(json.dumps(ladder_as_dict(found)) if options.json else ladder_as_text(found))


def ladder_as_dict(found: Ladder) -> dict[str, Any]:
    """The stable JSON form of a ladder; bytes are for the whole batch, a token's for one request."""
    return {
        "model": found.shipped.model.name,
        "kv_dtype": found.shipped.kv.name,
        "mha_bytes": found.mha_bytes,
        "rungs": [
            {
                "design": rung.design,
                "shipped": rung.shipped,
                "kv_dtype": rung.kv.name,
                "resident_bytes": rung.resident_bytes,
                "bytes_per_token": rung.bytes_per_token,
                "next_token_bytes": rung.next_token_bytes,
                "state_bytes": rung.state_bytes,
                "factor_mha": None if rung.factor_mha is None else float(rung.factor_mha),
                "factor_shipped": None if rung.factor_shipped is None else float(rung.factor_shipped),
            }
            for rung in found.rungs
        ],
        "refused": [{"design": design, "why": why} for design, why in found.refused],
    }


def ladder_as_text(found: Ladder) -> str:
    """The same answer as a table for people."""
    rows = [f"{found.shipped.model.name} · {found.shipped.kv.name} cache", f"  {'':<24}{'holds':>12}  against MHA"]
    for rung in found.rungs:
        factor = "" if rung.factor_mha is None else f"÷ {float(rung.factor_mha):,.4g}"
        mark = "  (shipped)" if rung.shipped else ""
        rows.append(f"  {rung.design:<24}{format_bytes(rung.resident_bytes):>12}  {factor}{mark}")
    rows += [f"  not possible: {design}: {why}" for design, why in found.refused]
    return "\n".join(rows)


def _compare(options: argparse.Namespace) -> None:
    a, b = _load(options.model, options), _load(options.other, options)
    result = compare(
        a,
        b,
        options.tokens,
        a.resolve_format(options.kv_dtype),
        b.resolve_format(options.other_kv_dtype),
        name_a=_short(a),
        name_b=_short(b),
    )
    if options.json:
        print(json.dumps(result.to_dict()))
    else:
        print(f"{result.per_token}\n{result.at_length}")


def _short(model: Model) -> str:
    return model.name.rsplit("/", 1)[-1]
