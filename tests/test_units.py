"""Numbers as people type and read them."""

from __future__ import annotations

import pytest

from kvcore.errors import UnitError
from kvcore.units import format_bytes, format_count, format_tokens, is_whole, parse_bytes, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("8,192", 8192), ("8K", 8192), ("128k", 131072), ("1M", 1048576), ("0", 0), (" 1.5K ", 1536)],
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "-1", "8 thousand", "1e9", "0.3", "nan", "8KB", "9" * 40, "1.0001K", "二", "2000000000"]
)
def test_bad_tokens(text: str) -> None:
    with pytest.raises(UnitError, match="tokens"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("80 GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("1.5GiB", 3 * 2**29), ("512", 512), ("2 tib", 2**41)],
)
def test_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1 GB", "80 G", "1e3 GB", "80 gigabytes", "0x10"])
def test_bad_bytes(text: str) -> None:
    with pytest.raises(UnitError, match="size"):
        parse_bytes(text)


def test_whole_numbers_are_those_that_can_be_read() -> None:
    assert all(is_whole(text) for text in ("0", "8", "999999999999"))
    # str.isdigit says yes to each of the first three; int reads neither the first nor the third.
    assert not any(is_whole(text) for text in ("²", "٣", "9" * 5000, "", " 8", "8\n", "-1", "1.0"))


def test_shown() -> None:
    assert format_bytes(327_680) == "320 KiB"
    assert format_bytes(int(2.5 * 2**30)) == "2.5 GiB"
    assert format_bytes(70_272) == "68.62 KiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1,023 B"
    assert format_count(671_026_404_352) == "671.0B"
    assert format_tokens(131_072) == "128K"
    assert format_tokens(1_048_576) == "1M"
    assert format_tokens(10_000) == "10,000"
