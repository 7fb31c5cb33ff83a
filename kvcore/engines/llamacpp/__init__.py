"""llama.cpp: cells, streams, sliding and recurrent caches, and the lines that it logs about them.

Sources: llama.cpp as vendored in llama-cpp-python 0.3.36 and built in xllamacpp 2026.10.11549.
"""

from __future__ import annotations

from kvcore.engines.llamacpp.engine import LLAMACPP, LlamaCpp

__all__ = ["LLAMACPP", "LlamaCpp"]
