"""How a pool is filled: requests of a length that an engine holds in given memory, fast enough for a whole grid.

One filler for each engine keeps what does not depend on the length; every figure is the engine's own capacity. A pool
is a number of bytes on one GPU of each pipeline stage: the stages' bytes differ, and so does what they need.
"""

from kvcore.planning.fill.base import Fill, Filler
from kvcore.planning.fill.make import filler

__all__ = ["Fill", "Filler", "filler"]
