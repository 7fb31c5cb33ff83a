"""What a smaller cache format was measured to cost, in one sentence out of data/levers.csv and data/quality.csv."""

from __future__ import annotations

import re

from kvcore.errors import UnitError
from kvcore.formats import kv_format
from kvcore.variants.levers import QualityResult, lever, lever_of, results

# The word by which a comparison names a format, where it is not the format's own name.
_NAMED = {"nvfp4": "E2M1", "mxfp4": "E2M1", "fp8_ds_mla": "fp8", "fp8_per_token_head": "fp8"}


def cache_quality(model_name: str, format_name: str) -> str:
    """The published risk of a cache format and one result, of this model if there is one, else the worst.

    "" for a format of 16 bits or more.
    """
    try:
        found = lever_of("", format_name)
    except UnitError:
        return ""
    texts = _risks(format_name, found)
    example = _example(model_name, format_name, found)
    return " ".join([*texts, example] if example else texts)


def _risks(format_name: str, found: tuple[str, ...]) -> list[str]:
    """The risk of each lever; where keys and values are two of them, whose it is."""
    texts = [lever(id).quality_risk.text for id in found]
    if len(texts) < 2:
        return texts
    both = kv_format(format_name)
    of_keys = [id for id in found if both.k.name in lever(id).formats]
    if len(of_keys) != 1:
        return texts
    said = {id: text[:1].lower() + text[1:] for id, text in zip(found, texts, strict=True)}
    rest = " ".join(text for id, text in said.items() if id not in of_keys)
    return [f"For the keys, in {both.k.bits:g} bits: {said[of_keys[0]]}", f"For the values, in {both.v.bits:g}: {rest}"]


def _example(model_name: str, format_name: str, levers: tuple[str, ...]) -> str:
    word = _NAMED.get(format_name, format_name).lower()
    rows = [
        row
        for id in levers
        for row in results(id)
        if row.measures == "quality" and row.baseline is not None and re.search(rf"\b{re.escape(word)}\b", _words(row))
    ]
    if not rows:
        return ""
    own = [row for row in rows if _same(model_name, row.model)]
    row = max(own or rows, key=_harm)
    # The name of a model stays as it is written.
    other = "On a model that the source does not name" if row.model == "not stated" else row.model
    whose = "This model" if own else other
    return f"{whose}: {_result(row)} ({row.source})."


def _result(row: QualityResult) -> str:
    """A score against the one without it; of a change against none, how much higher."""
    rise = row.metric.removeprefix("increase of ")
    if rise != row.metric and row.baseline == 0:
        return f"{rise} {row.value:g} {row.unit} higher"
    return f"{row.metric} {row.value:g} instead of {row.baseline:g} {row.unit}"


def _words(row: QualityResult) -> str:
    return row.comparison.lower()


def _harm(row: QualityResult) -> tuple[bool, float]:
    """Scores of a task come before perplexities and divergences; among them the largest loss, in its own unit."""
    change = row.change or 0.0
    return row.unit == "%" and bool(row.baseline), -change if row.better == "higher" else change


def _same(name: str, other: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    return len(plain(other)) >= 6 and plain(other) in plain(name)
