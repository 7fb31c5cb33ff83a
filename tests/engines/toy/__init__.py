"""The smallest engine that answers everything, as CONTRIBUTING.md says one is added."""

from tests.engines.toy.engine import TOY

__all__ = ["TOY"]
