"""Releases of an engine that are newer than the rules that are known."""

from __future__ import annotations

from kvcore.deployment import Deployment
from kvcore.engines.registry import engine
from kvcore.engines.releases import release


def newer_note(deployment: Deployment) -> str:
    """`The rules of vllm 0.33.0 are followed: …` where a newer release was asked for, else ""."""
    newest, asked = engine(deployment.engine).release, deployment.engine_version
    if asked is None or release(asked) <= release(newest):
        return ""
    return (
        f"The rules of {deployment.engine} {newest} are followed, the newest that are known here: "
        f"{asked.removeprefix('v')[:40]} may do otherwise."
    )
