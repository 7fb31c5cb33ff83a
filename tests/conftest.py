"""What holds for all tests: they say what is right, not how long it took on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")
