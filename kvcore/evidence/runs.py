"""Engines that were really run: their flags and logs (data/engines), and what we predict for them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvcore.deployment import Request, as_options
from kvcore.engines.layout import Capacity
from kvcore.engines.registry import engine
from kvcore.logs.predict import longest_that_fits
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA

_FOLDER = DATA / "engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """One file of records of one engine, and what each row of it states: a `start`, sizes of `caches`, or a `plan`.

    `version` is that of all rows, "" where each states its own.
    """

    file: str
    engine: str
    states: str
    version: str
    source: str

    def rows(self) -> list[dict[str, Any]]:
        """The rows, in the order of the file."""
        return [json.loads(line) for line in (_FOLDER / self.file).read_text("utf-8").splitlines()]


@cache
def records() -> tuple[Records, ...]:
    """Every file of records: runs, then plans."""
    with (_FOLDER / "records.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Records(**row) for row in csv.DictReader(file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One start of an engine on a CPU: configuration, flags, log lines, and what the engine itself planned.

    `asked_len` is the longest request that was asked for, None where the engine chose one, and `options` the engine's
    own by the field of its settings. `groups` are its cache groups (layers, type, block size, bytes of a page and of a
    request); None or empty where the engine refused before planning. `concurrency_exact` is from its metrics, "" where
    those were not read. `model_name` and `made_small` say whose configuration it is, and whether its sizes that no
    cache depends on were made small.
    """

    name: str
    engine: str
    model_name: str
    made_small: bool
    status: str
    version: str
    flags: tuple[str, ...]
    asked_len: int | None
    kv_dtype: str
    options: Mapping[str, Any]
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
    source: str

    def model(self) -> Model:
        """The model of the recorded configuration."""
        return model_from_config(self.config, self.name)

    def settings(self) -> Any:
        """The engine's settings as they were asked for; the longest request that fits where it chose one.

        Raises EngineError for what the engine refuses.
        """
        model = self.model()
        settings = self._settings(model, self.asked_len)
        if self.asked_len is None:
            longest = longest_that_fits(engine(self.engine), model, settings, self.kv_memory_bytes)
            settings = self._settings(model, longest)
        return settings

    def _settings(self, model: Model, length: int | None) -> Any:
        asked = Request(
            context=length, kv_dtype=self.kv_dtype, platform="cpu", engine_version=self.version,
            options=as_options(self.options),
        )  # fmt: skip
        return engine(self.engine).settings(model, asked)

    def predicted(self) -> Capacity:
        """The pool that this memory makes; EngineError for what the engine refuses."""
        return engine(self.engine).capacity(self.model(), self.settings(), self.kv_memory_bytes)


@cache
def recordings() -> tuple[Recording, ...]:
    """Every recorded start, in the order of the files."""
    return tuple(_recording(file, row) for file in records() if file.states == "start" for row in file.rows())


def _recording(file: Records, row: Mapping[str, Any]) -> Recording:
    return Recording(
        name=row["name"],
        engine=file.engine,
        model_name=row["model"],
        made_small=row["made_small"],
        status=row["status"],
        version=release(row),
        flags=tuple(row["flags"]),
        asked_len=row["asked_len"],
        kv_dtype=row["kv_dtype"],
        options=row["settings"],
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
        source=file.source,
    )


def release(row: Mapping[str, Any]) -> str:
    """The engine's release without the name of the package that brought it."""
    return str(row["version"]).rpartition(" ")[2]
