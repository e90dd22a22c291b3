"""Finders: how far a cached prefix reaches for one kind of cache group (RULES 5).

A finder looks up groups of identical spec together: a block counts only if all of them have it. It
changes nothing. (single_type_kv_cache_manager.py)
"""

from __future__ import annotations

from .base import Found, Lookup, SpecSet, spec_sets
from .full import find_full, reach_full
from .local import find_local
from .mamba import find_mamba
from .window import find_window

__all__ = ["FINDERS", "Found", "Lookup", "SpecSet", "reach_full", "spec_sets"]

FINDERS = {
    "full": find_full,
    "rswa": find_full,
    "swa": find_window,
    "swa_mla_replay": find_window,
    "local": find_local,
    "mamba": find_mamba,
}
