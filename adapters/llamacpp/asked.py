"""Request options and options of actions that this adapter reads, and their types.

Names as upstream's JSON bodies spell them (RULES 2, 3, 9, 10); what it does not read is ignored.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["FileAction", "RequestOptions", "SlotAction"]


class _Asked(BaseModel):
    model_config = ConfigDict(strict=True)


class Scale(_Asked):
    """One element of the ``lora`` field."""

    id: str | int
    scale: float


class RequestOptions(_Asked):
    """Options of a completion request. ``lora`` as a mapping describes the request's adapter."""

    id_slot: int | None = None
    n_cmpl: int = Field(default=1, ge=1)
    n_cache_reuse: int = 0
    n_keep: int = 0
    n_discard: int = 0
    ignore_eos: bool = False
    stop_tokens: list[int] | tuple[int, ...] = ()
    user_starts: list[int] | tuple[int, ...] = ()
    lora: list[Scale] | dict[str, Any] | None = None


class SlotAction(_Asked):
    """``slot_erase``."""

    id_slot: int = Field(ge=0)


class FileAction(SlotAction):
    """``slot_save`` and ``slot_restore``."""

    file: str = Field(min_length=1)
