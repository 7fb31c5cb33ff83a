"""Models for tests: catalogued configurations as Models, and small ones by hand."""

from __future__ import annotations

import csv
import json
from functools import cache
from typing import Any

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.model import Model, model_from_config
from kvcore.paths import DATA
from kvcore.ranks import weights
from kvcore.ranks.weights import RankWeights


@cache
def catalogue_rows() -> tuple[dict[str, str], ...]:
    with (DATA / "models" / "catalogue.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def config(model_id: str) -> dict[str, Any]:
    """The catalogued configuration of that id, a fresh dictionary each time."""
    row = next(row for row in catalogue_rows() if row["model_id"].lower() == model_id.lower())
    raw: dict[str, Any] = json.loads((DATA / "models" / "configs" / row["file"]).read_text("utf-8"))
    return raw


@cache
def model(model_id: str) -> Model:
    return model_from_config(config(model_id), model_id)


def every_model() -> tuple[str, ...]:
    """The ids of the catalogue."""
    return tuple(row["model_id"] for row in catalogue_rows())


def one_of_each_kind() -> tuple[str, ...]:
    """The first catalogued model of each combination of kinds of memory: 18 of them."""
    found: dict[frozenset[str], str] = {}
    for model_id in every_model():
        found.setdefault(frozenset(kind for kind, _ in model(model_id).kinds), model_id)
    return tuple(found.values())


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def llama(**changes: Any) -> dict[str, Any]:
    """A small Llama configuration with keys changed; None as a value is JSON's null, `...` removes the key."""
    merged = LLAMA | changes
    return {key: value for key, value in merged.items() if value is not ...}


def settings(model: Model, deployment: Deployment) -> Any:
    """The settings that the deployment's own engine makes of it."""
    return engine(deployment.engine).settings(model, deployment)


def rank_weights(model: Model, deployment: Deployment) -> tuple[RankWeights, ...]:
    """The weights of each stage as the deployment's own engine loads them."""
    return weights.rank_weights(model, deployment, engine(deployment.engine))
