"""Toy's start-up log: its release and model, the memory for its cache and what that makes."""

from __future__ import annotations

from typing import Any

from kvcore.engines.log import LogReading, LogRules, N, amount, pattern


class ToyLog(LogRules):
    """See kvcore.engines.log.LogRules."""

    patterns = (
        pattern("toy", "toy ", r"(?P<engine_version>[0-9.]{1,20}) serves (?P<model>\S{1,200})", "1.2", begins=True),
        pattern("toy", "toy: memory ", rf"{amount('available_kv')} in pages of (?P<block_size>{N})", "1.2"),
        pattern("toy", "toy: ", rf"(?P<kv_cache_size_tokens>{N}) tokens", "1.2", closes=True),
    )

    def version(self, reading: LogReading) -> tuple[str | None, tuple[str, ...]]:
        """See LogRules.version."""
        return reading.engine_version, ()

    def options(self, reading: LogReading) -> dict[str, Any]:
        """See LogRules.options."""
        return {"page": reading.facts.get("block_size")}


TOY_LOG = ToyLog()
