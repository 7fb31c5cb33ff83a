"""What levers buy and give up: complete, sourced, and equal to what was published."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from kvcore.errors import ConfigError, UnitError
from kvcore.formats import KV_FORMATS
from kvcore.paths import DATA
from kvcore.variants import levers as module
from kvcore.variants.levers import (
    CHECK_LABELS,
    QualityResult,
    lever,
    lever_of,
    levers,
    read_levers,
    read_results,
    results,
)
from kvcore.variants.variants import variant
from tests.models import model

IDS = (
    "mha", "gqa", "mqa", "mla", "sliding", "share", "hybrid", "linear", "fp8", "int4", "kivi2", "sparse", "kernels",
    "paging", "prefix",
)  # fmt: skip
ALL = tuple(one for id in IDS for one in results(id))


def published(lever_id: str, model_name: str, comparison: str) -> dict[str, tuple[float | None, float]]:
    """Baseline and value by metric."""
    found = [one for one in results(lever_id) if one.model == model_name and one.comparison == comparison]
    assert len({one.metric for one in found}) == len(found)
    return {one.metric: (one.baseline, one.value) for one in found}


def test_the_levers() -> None:
    assert tuple(one.id for one in levers()) == IDS
    assert lever(" GQA ").name.startswith("Grouped-query")


@pytest.mark.parametrize("id", IDS)
def test_every_claim_is_a_short_sentence_with_a_source(id: str) -> None:
    claims = lever(id).claims
    assert len(claims) == 5
    for claim in claims:
        assert claim.text[0].isupper() or claim.text[0].isdigit()
        assert claim.text.endswith(".")
        assert len(claim.text) < 260
        assert claim.source
        # What is not known has no source to name, and only that.
        assert ("not known" in claim.text.lower() or "not measured" in claim.text) or "no published" not in claim.source
        assert re.search(
            r"arXiv:\d{4}\.\d{5}|documentation|pull request|vLLM|README|docs/|by definition|no published", claim.source
        )


def test_every_row_of_quality_is_read_and_complete() -> None:
    with (DATA / "quality.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(ALL)
    for one in ALL:
        assert one.url.startswith(("https://arxiv.org/abs/", "https://github.com/"))
        assert one.check in CHECK_LABELS
        assert re.fullmatch(r"2\d{3}-\d{2}-\d{2}", one.retrieved)
        if "/blob/" in one.url:
            assert re.search(r"/blob/[0-9a-f]{40}/", one.url), one.url
        arxiv = re.search(r"arXiv:(\d{4}\.\d{5})", one.source)
        if arxiv:
            assert one.url == f"https://arxiv.org/abs/{arxiv[1]}"
    keys = [(one.lever, one.model, one.comparison, one.metric) for one in ALL]
    assert len(set(keys)) == len(keys)


def test_reference_and_prefix_reuse_have_no_results() -> None:
    assert results("mha") == results("prefix") == ()


def test_percentages_and_scores_are_in_range() -> None:
    for one in ALL:
        if one.unit in ("%", "points"):
            assert all(0 <= number <= 100 for number in (one.baseline or 0, one.value)), one


# Ainslie et al. 2023, Table 1: seconds a sample, average, CNN, arXiv, PubMed, MediaSum, MultiNews, WMT, TriviaQA.
MHA = (1.51, 47.2, 43.8, 45.6, 47.5, 36.4, 46.9, 28.4, 81.9)
MQA = (0.24, 46.6, 43.0, 45.0, 46.9, 36.1, 46.5, 28.5, 81.3)
GQA = (0.28, 47.1, 43.5, 45.4, 47.7, 36.3, 47.2, 28.4, 81.6)
MHA_LARGE = (0.37, 46.0)
METRICS = (
    "time a sample", "average of 7 tasks", "CNN/Daily Mail ROUGE-1", "arXiv ROUGE-1", "PubMed ROUGE-1",
    "MediaSum ROUGE-1", "Multi-News ROUGE-1", "WMT 2014 EN-DE BLEU", "TriviaQA F1",
)  # fmt: skip


@pytest.mark.parametrize(("id", "row", "values"), [("gqa", "GQA-8-XXL", GQA), ("mqa", "MQA-XXL", MQA)])
def test_gqa_paper(id: str, row: str, values: tuple[float, ...]) -> None:
    assert published(id, "T5 XXL", f"{row} against MHA-XXL") == dict(
        zip(METRICS, zip(MHA, values, strict=True), strict=True)
    )
    assert published(id, "T5 XXL", f"{row} against MHA-Large") == dict(
        zip(METRICS, zip(MHA_LARGE, values, strict=False), strict=False)
    )


def test_printed_average_of_mqa_is_not_that_of_its_scores() -> None:
    """MHA: 330.5 / 7 = 47.21. GQA: 330.1 / 7 = 47.16. MQA: 327.3 / 7 = 46.76, which the paper prints as 46.6."""
    assert [round(sum(row[2:]) / 7, 2) for row in (MHA, GQA, MQA)] == [47.21, 47.16, 46.76]
    (one,) = (
        one
        for one in results("mqa")
        if one.comparison == "MQA-XXL against MHA-XXL" and one.metric.startswith("average")
    )
    assert "46.76" in one.conditions


def test_mla_paper() -> None:
    """DeepSeek-V2, appendix D."""
    assert published("mqa", "7B dense", "MQA against MHA")["MMLU, 5-shot"] == (45.2, 37.9)
    assert published("gqa", "7B dense", "GQA with 8 groups against MHA") == {
        "BBH, 3-shot": (37.0, 35.6),
        "MMLU, 5-shot": (45.2, 41.2),
        "C-Eval, 5-shot": (42.9, 37.7),
        "CMMLU, 5-shot": (43.5, 38.4),
    }
    small, large = (published("mla", name, "MLA against MHA") for name in ("small MoE", "large MoE"))
    assert small["cache elements a token"] == (110_600, 15_600)
    assert large["cache elements a token"] == (860_200, 34_600)
    # 15.6 / 110.6 = 14% and 34.6 / 860.2 = 4%, as the paper says and the lever's row repeats.
    assert "4% (large model) to 14% (small model)" in lever("mla").buys.text
    worse = [one.metric for one in results("mla") if one.measures == "quality" and one.worse]
    assert worse == ["C-Eval, 5-shot"]
    assert "Lower on one of eight" in lever("mla").quality_risk.text


def test_sparse_row_counts_its_own_table() -> None:
    """Of DeepSeek's 14 benchmarks AIME, Codeforces, both BrowseComp, SimpleQA, SWE Multilingual, Terminal rose."""
    rows = results("sparse")
    better = [one for one in rows if one.change and not one.worse]
    worse = [one for one in rows if one.worse]
    assert (len(rows), len(better), len(worse)) == (14, 7, 6)
    assert "7 higher, 6 lower, 1 equal" in lever("sparse").quality_risk.text


def test_four_bit_row_is_what_its_results_say() -> None:
    """77.33 - 60.00 = 17.33, 50.67 - 40.00 = 10.67, 75.33 - 35.33 = 40.00 points of AIME; GSM8K at most 0.33."""
    rows = [one for one in results("int4") if one.comparison.startswith("4-bit")]
    assert sorted(one.change or 0 for one in rows if one.metric == "AIME 2025") == [-40.0, -17.33, -10.67]
    assert min(one.change or 0 for one in rows if one.metric == "GSM8K") == -0.33
    assert "GSM8K within 0.4 points, AIME 2025 between 11 and 40 points lower" in lever("int4").quality_risk.text


def test_sharing_row_is_what_its_results_say() -> None:
    """13.54 for MQA; 13.60, 13.77 and 13.95 with 2, 3 and 4 layers a cache."""
    changes = [one.change for one in results("share") if re.fullmatch(r"MQA with CLA\d against MQA", one.comparison)]
    assert changes == [0.06, 0.23, 0.41, -5120]
    assert "+0.06 to +0.12 perplexity" in lever("share").quality_risk.text
    assert "(+0.23, +0.41)" in lever("share").quality_risk.text


def test_direction() -> None:
    one = ALL[0]
    assert (one.metric, one.change, one.worse) == ("average of 7 tasks", -0.1, True)
    alone = next(one for one in results("hybrid") if one.baseline is None)
    assert (alone.value, alone.change, alone.worse) == (2.65, None, None)


def test_what_was_not_read_in_the_source_is_marked() -> None:
    for one in ALL:
        assert ("transcription" in one.how_checked) == (one.check == "transcript")
        assert ("memory" in one.how_checked) == (one.check == "memory")


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("mha", "mha"),
        ("gqa:4", "gqa"),
        ("MQA", "mqa"),
        ("mla", "mla"),
        ("mla:256+32", "mla"),
        ("sliding:4K", "sliding"),
        ("sliding:1K/6", "sliding"),
        ("share:2", "share"),
        ("hybrid:8", "hybrid"),
        ("hybrid:4:gdn", "hybrid"),
        ("linear", "linear"),
        ("linear:mamba2", "linear"),
    ],
)
def test_variants(text: str, id: str) -> None:
    variant(model("meta-llama/Llama-3.3-70B-Instruct"), text)
    assert lever_of(text, "bf16") == (id,)


def test_every_known_variant_has_a_lever() -> None:
    with pytest.raises(UnitError) as caught:
        variant(model("meta-llama/Llama-3.3-70B-Instruct"), "nonsense")
    names = re.findall(r"(?:^|, )([a-z]+)", str(caught.value).split("known are ")[1])
    assert len(set(names)) == 8
    for name in names:
        assert lever_of(name, "bf16") == (name,)


@pytest.mark.parametrize("name", KV_FORMATS)
def test_formats_of_eight_bits_or_fewer_have_a_lever(name: str) -> None:
    kv = KV_FORMATS[name]
    found = lever_of("", name)
    assert bool(found) == (min(kv.k.bits, kv.v.bits) <= 8)
    # A lever a width: two where keys and values differ in kind.
    widths = {8: "fp8", 2: "kivi2"}
    assert set(found) == {widths.get(int(bits), "int4") for bits in (kv.k.bits, kv.v.bits) if bits <= 8}


@pytest.mark.parametrize(
    ("variant_text", "format_name", "expected"),
    [
        ("", "bf16", ()),
        ("", "float32", ()),
        ("", "fp8_e4m3", ("fp8",)),
        ("", "q8_0/q4_0", ("fp8", "int4")),
        ("", "bf16/q4_0", ("int4",)),
        ("", "KIVI", ("kivi2",)),
        ("gqa:8", "turboquant_3bit_nc", ("gqa", "int4")),
        ("mla", "fp8_ds_mla", ("mla", "fp8")),
    ],
)
def test_variant_and_format_together(variant_text: str, format_name: str, expected: tuple[str, ...]) -> None:
    assert lever_of(variant_text, format_name) == expected


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lever("slidng"), "'slidng' is not known; did you mean sliding"),
        (lambda: lever("kivi"), "did you mean kivi2"),
        (lambda: results("xyz"), "known are mha, gqa"),
        (lambda: lever_of("gga:8", "bf16"), "variant: 'gga' is not known; did you mean gqa"),
        (lambda: lever_of("gqa:8", "fp9"), "cache format 'fp9'"),
    ],
)
def test_unknown_names(call: object, says: str) -> None:
    with pytest.raises(UnitError, match=re.escape(says)):
        call()  # type: ignore[operator]


def damaged(tmp_path: Path, name: str, line: int, column: str, value: str | None) -> Path:
    """A copy of a data file with one cell changed, or with the row cut before that cell."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    at = table[0].index(column)
    if value is None:
        del table[line - 1][at:]
    else:
        table[line - 1][at] = value
    path = tmp_path / name
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(table)
    return path


@pytest.mark.parametrize(
    ("line", "column", "value", "says"),
    [
        (3, "buys", "", "levers.csv, line 3 (gqa): buys: is empty"),
        (3, "recall_source", " ", "levers.csv, line 3 (gqa): recall_source: is empty"),
        (4, "id", "gqa", "levers.csv, line 4 (gqa): id: 'gqa' is already"),
        (4, "variants", "gqa", "levers.csv, line 4 (mqa): variants: 'gqa' is already"),
        (10, "formats", "fp8 fp9", "levers.csv, line 10 (fp8): formats: 'fp9' is not a cache format"),
        (5, "formats", None, "levers.csv, line 5 (mla): formats: the column is missing"),
    ],
)
def test_damaged_levers(tmp_path: Path, line: int, column: str, value: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_levers(damaged(tmp_path, "levers.csv", line, column, value))


@pytest.mark.parametrize(
    ("line", "column", "value", "says"),
    [
        (2, "lever", "gga", "quality.csv, line 2 (gga): lever: 'gga' is not known; one of mha"),
        (5, "value", "about 40", "quality.csv, line 5 (gqa): value: 'about 40' is not a number"),
        (5, "baseline", "inf", "quality.csv, line 5 (gqa): baseline: 'inf' is not a number"),
        (5, "better", "more", "quality.csv, line 5 (gqa): better: 'more' is not known; one of higher, lower"),
        (5, "measures", "mood", "one of quality, memory, speed"),
        (5, "check", "trust me", "one of source, transcript, memory"),
        (5, "source", "", "quality.csv, line 5 (gqa): source: is empty"),
        (5, "conditions", None, "quality.csv, line 5 (gqa): conditions: the column is missing"),
    ],
)
def test_damaged_results(tmp_path: Path, line: int, column: str, value: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_results(damaged(tmp_path, "quality.csv", line, column, value), IDS)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"levers\.csv could not be read .*; it belongs in"):
        read_levers(tmp_path / "levers.csv")


def test_rows_are_frozen() -> None:
    assert isinstance(ALL[0], QualityResult)
    assert all(type(one).__dataclass_params__.frozen for one in (ALL[0], levers()[0], levers()[0].does))  # type: ignore[attr-defined]
    assert module.results("gqa") == results("gqa")
