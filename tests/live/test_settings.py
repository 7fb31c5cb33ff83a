"""What the environment allows the live engine, and which models visitors may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcore.errors import LiveError
from kvcore.live.settings import Limits, check_source, read_limits
from kvcore.units import GIB


def test_limits_from_the_environment() -> None:
    assert read_limits(
        {
            "KV_LIVE_OFF": "1",
            "KV_LIVE_MAX_SECONDS": "30.5",
            "KV_LIVE_MAX_TOKENS": "512",
            "KV_LIVE_MAX_MEMORY": "2 GiB",
            "KV_LIVE_MAX_WAITING": "3",
            "KV_LIVE_LEASE_SECONDS": "4",
            "KV_LIVE_IDLE_SECONDS": "60",
        }
    ) == Limits(
        off=True,
        max_seconds=30.5,
        max_tokens=512,
        max_memory_bytes=2 * GIB,
        max_waiting=3,
        lease_s=4.0,
        idle_s=60.0,
    )
    plain = read_limits({})
    assert (plain.off, plain.max_seconds, plain.max_tokens, plain.lease_s) == (False, 600.0, 8192, 10.0)
    assert plain.max_memory_bytes > 0
    assert read_limits({"KV_LIVE_OFF": "0"}).off is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KV_LIVE_OFF", "maybe"),
        ("KV_LIVE_MAX_SECONDS", "soon"),
        ("KV_LIVE_MAX_SECONDS", "-1"),
        ("KV_LIVE_MAX_SECONDS", "nan"),
        ("KV_LIVE_MAX_TOKENS", "1.5"),
        ("KV_LIVE_MAX_TOKENS", "0"),
        ("KV_LIVE_MAX_MEMORY", "much"),
        ("KV_LIVE_MAX_MEMORY", "0 GiB"),
        ("KV_LIVE_MAX_WAITING", "99999999999999999999999"),
        ("KV_LIVE_LEASE_SECONDS", "0"),
    ],
)
def test_limits_that_cannot_be_read(name: str, text: str) -> None:
    with pytest.raises(LiveError, match=name):
        read_limits({name: text})


def test_visitors_name_only_models_that_are_offered(tmp_path: Path) -> None:
    """A path is asked of the machine only below the folders that whoever started it names."""
    offered, secret = tmp_path / "models", tmp_path / "secret"
    for folder in (offered / "mine", secret):
        folder.mkdir(parents=True)
    limits = read_limits({"KV_LIVE_FOLDERS": str(offered), "KV_LIVE_HUB": "0"})
    for fine in (None, "", "HuggingFaceTB/SmolLM2-135M-Instruct", str(offered / "mine"), "\0", "x" * 5000):
        check_source(limits, fine)
    for refused in (str(secret), f"{offered}/../secret", "/", ".", str(tmp_path)):
        with pytest.raises(LiveError, match="KV_LIVE_FOLDERS"):
            check_source(limits, refused)
    with pytest.raises(LiveError, match="KV_LIVE_HUB"):
        check_source(limits, "hub:Qwen/Qwen3-0.6B")
    check_source(read_limits({}), "hub:Qwen/Qwen3-0.6B")
    with pytest.raises(LiveError, match="KV_LIVE_FOLDERS"):
        check_source(read_limits({}), str(offered))
