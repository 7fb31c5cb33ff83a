"""Ollama: what it chooses by itself, and the llama-server that it starts."""

from __future__ import annotations

from kvcore.engines.ollama.engine import OLLAMA, Ollama

__all__ = ["OLLAMA", "Ollama"]
