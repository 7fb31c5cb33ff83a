"""What of an engine decides what one of its ranks holds: data that engines give, so that this package knows none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from kvcore.deployment import Deployment
from kvcore.model.model import Model
from kvcore.model.weight_formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Over how many ranks each kind of matrix is split; 1 is whole.

    `experts_whole`: every rank has whole experts (expert parallel), else a part of each. `vocabulary_pad`: the
    vocabulary is padded to a multiple of it. `width_pad` and `hidden_pad`: likewise the sides of an expert.
    `copies_latent`: the up-projection of latents is held a second time, in 16 bits, for use in attention.
    """

    attention: int = 1
    dense: int = 1
    shared: int = 1
    head: int = 1
    experts: int = 1
    experts_whole: bool = False
    vocabulary_pad: int = 1
    width_pad: int = 1
    hidden_pad: int = 1
    copies_latent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRules:
    """What an engine can split, and what it keeps of a checkpoint on a GPU, whatever the deployment.

    `whole_layers`: every GPU has whole layers, and each further one is one more stage, however it is asked for; else
    matrices are split. `dp_attention` says when replicas of attention may share experts: whenever there are replicas
    ("replicas"), in groups of ranks that a switch makes ("groups"), over all ranks or none ("all"), never ("").
    `uneven_experts`: ranks may hold different numbers of whole experts. `padded_experts` are weight formats in which
    the width of experts is padded, so that nothing has to divide it.

    `table_on_host`: the input layer's table stays in host memory, and towers are in a file of their own that is not
    loaded. `rotary_tables`: sines and cosines of positions that are stretched linearly are kept as a table.
    `keeps_32_bits`: a checkpoint of 32 bits is served so, and not in 16.
    """

    whole_layers: bool = False
    dp_attention: Literal["", "replicas", "groups", "all"] = ""
    context_parallel: bool = False
    uneven_experts: bool = False
    padded_experts: tuple[str, ...] = ()
    table_on_host: bool = False
    rotary_tables: bool = False
    keeps_32_bits: bool = False


class Ranked(Protocol):
    """An engine, as far as its ranks go; see kvcore.engines.base.Engine."""

    name: str
    rules: RankRules

    def stages(self, model: Model, deployment: Deployment) -> tuple[range, ...]:
        """The layers of each pipeline stage; EngineError for more stages than layers."""

    def ways(self, model: Model, deployment: Deployment, wanted: WeightFormat | None = None) -> Ways:
        """Over how many ranks matrices are split; without a format of the weights nothing is padded for it."""

    def refusals(self, model: Model, deployment: Deployment) -> Iterator[str]:
        """Every reason against the split, the plainest first, in sentences without a full stop."""

    def refuses_draft(self, model: Model, deployment: Deployment) -> str:
        """Why this engine does not let the deployment's draft propose; "" where it does, or nothing is asked."""

    def draft_notes(self, model: Model, deployment: Deployment) -> tuple[str, ...]:
        """What it sets aside for the deployment's draft beyond what the draft's layers hold."""
