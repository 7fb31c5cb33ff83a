"""Who proposes tokens ahead of the model: its own prediction layers, or a draft model beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcore.model.model import Model

# How the model's own prediction layers are spelled.
OWN = "mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposer with weights: `model` is None for the model's own prediction layers.

    `name` is the draft model's id. `weight_format` is that of the draft's weights, None for the stored one.
    """

    name: str = OWN
    # Not hashed: a model has hundreds of layers, and a deployment is often a key.
    model: Model | None = field(default=None, hash=False, repr=False)
    weight_format: str | None = None

    @property
    def own(self) -> bool:
        """Whether it is the model's own prediction layers."""
        return self.model is None

    @property
    def standalone(self) -> bool:
        """Whether it is a model that could serve by itself, and no head."""
        return self.model is not None and not self.model.prediction.eagle

    @property
    def text(self) -> str:
        """Its one spelling: `mtp`, `Qwen/Qwen3-0.6B`, `Qwen/Qwen3-0.6B@fp8`."""
        return self.name if self.weight_format is None else f"{self.name}@{self.weight_format}"


OWN_HEAD = Draft()
