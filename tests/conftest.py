"""Shared by all tests: where the packaged recordings are, and hypothesis without deadlines."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

RECORDINGS = Path(__file__).parent / "conformance" / "recordings"

settings.register_profile(
    "handoff", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("handoff")
