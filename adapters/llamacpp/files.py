"""Slot files: save, restore and erase a slot on request (RULES 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from handoff.index.spans import Seq

from .checkpoints import Origin
from .copies import Saved
from .server import Server
from .slots import Slot

__all__ = ["SlotFiles", "file_bytes"]

_FILE_HEADER, _TOKEN, _EXTRA_TOKENS = 12, 4, 4


@dataclass(frozen=True, slots=True)
class _File:
    text: Seq
    length: int
    saved: Saved
    origin: Origin

    @property
    def num_bytes(self) -> int:
        return file_bytes(self.length, self.saved.num_bytes)


def file_bytes(tokens: int, state_bytes: int) -> int:
    """Bytes of a slot file (RULES 8.4)."""
    return _FILE_HEADER + _TOKEN * (tokens + _EXTRA_TOKENS) + state_bytes - 8


@dataclass(slots=True)
class SlotFiles:
    """Files by name; only idle slots are saved, restored or erased."""

    server: Server
    files: dict[str, _File] = field(default_factory=dict)

    def save(self, slot: Slot, name: str) -> tuple[int, int]:
        """Write list and state; returns tokens and bytes."""
        old = self.files.pop(name, None)
        if old is not None:
            self.server.memory.drop(old.saved)
        saved = self.server.memory.save(slot.id)
        file = _File(slot.text.slice(0, slot.length), slot.length, saved, slot.origin)
        self.files[name] = file
        return file.length, file.num_bytes

    def restore(self, slot: Slot, name: str) -> tuple[int, int] | None:
        """Replace list and state and drop all checkpoints; a failure clears the slot."""
        file = self.files.get(name)
        if file is None or not self.server.memory.load(slot.id, file.saved):
            self.server.clear(slot)
            return None
        self.server.memory.remove(slot.id, file.length)
        self.server.drop_checkpoints(slot)
        slot.text = file.text.slice(0, file.length)
        slot.length = file.length
        slot.origin = file.origin
        return file.length, file.num_bytes

    def erase(self, slot: Slot) -> int:
        """Clear the slot; returns the tokens it held."""
        held = slot.length
        self.server.clear(slot)
        return held
