"""What a user of Toy may set."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.deployment import Request
from kvcore.engines.base import Option, check_whole, longest_request, own_values
from kvcore.engines.releases import followed
from kvcore.model.model import Model

VERSION = "1.2"
OPTIONS = (
    Option(flag="--page", field="page", kind="integer", help="tokens a page of Toy"),
    Option(flag="--at-once", field="at_once", kind="integer", help="most requests at once", means="max_num_seqs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySettings:
    """Toy's own flags under their own names; `cache` is the format of the cache."""

    length: int
    cache: str
    ranks: int = 1
    page: int = 16
    at_once: int | None = None
    version: str = VERSION

    def __post_init__(self) -> None:
        check_whole("toy", self, {"page": (1, 4096), "at_once": (1, 10**6)})


def make_settings(model: Model, asked: Request) -> ToySettings:
    """Settings for a request; EngineError for a release or an option that is not known."""
    return ToySettings(
        length=longest_request("toy", model, asked),
        cache=model.model_dtype if asked.kv_dtype == "auto" else asked.kv_dtype,
        ranks=asked.tp,
        version=followed("toy", asked.engine_version or VERSION, "1.0 and newer", first=(1, 0)),
        **own_values("toy", OPTIONS, asked),
    )
