"""Start-up logs of serving engines: what they say, what we would have predicted, and the difference in words.

The lines of each engine and the rules about them are in the engine's folder (see kvcore.engines.log). reading.py goes
from text to facts, predict.py from facts to an engine's answer, explain.py compares and says why, command.py is the
whole as the command line gives it.
"""

from kvcore.engines.log import Amount, Cache, Decimals, LogReading
from kvcore.errors import LogError
from kvcore.logs.command import LogResult, explain_all, log_result, model_of, scenario_of
from kvcore.logs.explain import Explanation, LogFigure, explain
from kvcore.logs.reading import read_log

__all__ = [
    "Amount",
    "Cache",
    "Decimals",
    "Explanation",
    "LogError",
    "LogFigure",
    "LogReading",
    "LogResult",
    "explain",
    "explain_all",
    "log_result",
    "model_of",
    "read_log",
    "scenario_of",
]
