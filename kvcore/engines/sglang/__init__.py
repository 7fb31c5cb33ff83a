"""SGLang 0.5.23: pools of token slots, sized once from the memory that is left.

settings.py is what a user may set, cells.py and states.py what one slot of each pool takes, pools.py how many slots
there are, memory.py the budget, lines.py the log, engine.py the answers.
"""

from kvcore.engines.sglang.engine import SGLANG, SGLang
from kvcore.engines.sglang.settings import SglangSettings

__all__ = ["SGLANG", "SGLang", "SglangSettings"]
