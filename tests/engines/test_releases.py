"""What a release of an engine may be called, by one rule and with one refusal."""

from __future__ import annotations

import pytest

from kvcore.deployment import Deployment
from kvcore.engines.releases import is_among, release
from kvcore.errors import EngineError
from kvcore.hardware.gpus import accelerator
from kvcore.sources import catalogue
from tests.models import settings

# Engine, releases that are followed, others.
RELEASES = (
    ("vllm", ("0.4", "v0.19.1", "0.20.0rc1", "0.8.5.post1", "0.11.0rc2.dev98+g393de22d2", "1.0"), ("0.3.3",)),
    ("sglang", ("0.4.6.post1", "v0.5.23", "0.5"), ("0.3.6", "0.6.0", "1.0")),
    ("tensorrt-llm", ("0.8.0", "1.4.0rc4", "v1.2"), ("0.7.1", "2.0")),
    ("transformers", ("5.0.0", "v5.24.0", "5.1.dev0"), ("4.57.1", "6.0")),
    ("llama.cpp", ("2026.10.11549", "xllamacpp 2026.10.11549", "llama-cpp-python==0.3.36"), ("b5000", "0.3.35")),
    ("ollama", ("fb307609",), ("0.24.0",)),
)
NO_VERSIONS = ("1.5K", "5.1e", "0.", "1", "v.1", "0.33.0\n", " 0.33.0", "1!0.33", "nightly", "0.33.0; ls", "9" * 90)


def ask(engine: str, version: str) -> None:
    gpu = accelerator("h100-sxm")
    wanted = Deployment(gpu=gpu, context=1024, engine=engine, engine_version=version)
    settings(catalogue.load("Qwen/Qwen3-0.6B"), wanted)


@pytest.mark.parametrize(("engine", "known", "others"), RELEASES)
def test_releases(engine: str, known: tuple[str, ...], others: tuple[str, ...]) -> None:
    for version in known:
        ask(engine, version)
    for version in (*others, *NO_VERSIONS):
        with pytest.raises(EngineError) as refused:
            ask(engine, version)
        start = f"{engine}: the rules of version {version[:40]!r} are not followed; known are "
        assert str(refused.value).startswith(start)


def test_a_candidate_is_read_as_its_release() -> None:
    assert release("0.33.0rc1") == release("v0.33") == release("0.33.0.post1+cu130") == (0, 33, 0)


def test_one_of_several_specifiers_has_to_hold() -> None:
    found = [is_among(release(version), "<0.8.5;>=0.9") for version in ("0.8.4", "0.8.5.post1", "0.9.0rc1", "0.33")]
    assert found == [True, False, True, True]
