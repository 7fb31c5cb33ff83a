"""What a language model's KV cache costs: exact sizes, engine rules, plans, and start-up logs explained.

>>> import kvcore
>>> kvcore.size("meta-llama/Llama-3.3-70B-Instruct", "128K").resident_bytes
42949672960

The functions are documented in docs/api.md; each is imported when it is first used, so that `import kvcore` is light.
No streamlit or plotly here, and torch only inside kvcore.live. `kvcore --help` lists the commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcore.api import compare, engine, load, plan, read_log, size
    from kvcore.errors import KVCoreError

__version__ = "0.2.0"
__all__ = ["KVCoreError", "compare", "engine", "load", "plan", "read_log", "size"]


def __getattr__(name: str) -> Any:
    """A name of the public API, from the module that has it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("kvcore.errors" if name == "KVCoreError" else "kvcore.api")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
