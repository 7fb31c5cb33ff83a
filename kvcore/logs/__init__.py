"""Start-up logs of serving engines: what they say, what we would have predicted, and the difference in words.

patterns.py is the table of lines, reading.py goes from text to facts, predict.py from facts to an engine's answer,
explain.py compares, words.py and hypotheses.py say why, command.py is the whole as the command line gives it.
"""

from kvcore.errors import LogError
from kvcore.logs.command import LogResult, explain_all, log_result, model_of, scenario_of
from kvcore.logs.explain import Explanation, Figure, explain
from kvcore.logs.reading import Cache, LogReading, read_log
from kvcore.logs.values import Amount, Decimals

__all__ = [
    "Amount",
    "Cache",
    "Decimals",
    "Explanation",
    "Figure",
    "LogError",
    "LogReading",
    "LogResult",
    "explain",
    "explain_all",
    "log_result",
    "model_of",
    "read_log",
    "scenario_of",
]
