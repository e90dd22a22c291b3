"""From a request as a server receives it to the block manager's view of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.errors import BadInput, Unsupported
from handoff.types import Request

from .keys import Item
from .options import Options
from .request import LlmRequest, Retention, RetentionRange

__all__ = ["FIRST_SALT", "Intake", "retention_of"]

FIRST_SALT = 1000
_NOBODY = -1


class Intake:
    """Gives names numbers: a key holds a LoRA task id and a salt id (RULES 2).

    LoRA names that are numbers keep them. Salt ids count from 1000 in order of appearance; upstream
    hashes the salt, which can only change ties (RULES 13).
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._salts: dict[str, int] = {}
        self._loras: dict[str, int] = {}

    def salt_id(self, salt: str | None, keep: bool = True) -> int | None:
        """The number of a salt; ``keep`` remembers a new one, else it gets one nobody has."""
        if salt is None or (not keep and salt not in self._salts):
            return None if salt is None else _NOBODY
        return self._salts.setdefault(salt, FIRST_SALT + len(self._salts))

    def lora_id(self, lora: str | None, keep: bool = True) -> int | None:
        """The task id of a LoRA; ids of names start above those that are numbers themselves."""
        if lora is None or lora.isdigit():
            return None if lora is None else int(lora)
        if not keep and lora not in self._loras:
            return _NOBODY
        return self._loras.setdefault(lora, (1 << 32) + len(self._loras))

    def request(self, request: Request, seq: int, keep: bool = True) -> LlmRequest:
        """A fresh request of the block manager; raises ``BadInput`` or ``Unsupported``.

        Without ``keep`` nothing is remembered: for a look-up that must leave no trace.
        """
        if request.options.get("beam_width", 1) != 1:
            raise Unsupported(f"{request.id}: beam_width > 1: beams reorder")
        return LlmRequest(
            request.id,
            request.prompt,
            request.max_tokens,
            self._options.tokens_per_block,
            lora=request.lora,
            lora_id=self.lora_id(request.lora, keep),
            salt=self.salt_id(request.salt, keep),
            items=tuple(
                Item(image.identifier, ((image.start, image.length),)) for image in request.images
            ),
            retention=retention_of(request.options.get("kv_cache_retention_config")),
            seqs=(seq,),
        )


def retention_of(config: Mapping[str, Any] | None) -> Retention:
    """A ``KvCacheRetentionConfig`` under upstream's field names; ``BadInput`` if malformed."""
    if config is None:
        return Retention()
    try:
        ranges = tuple(
            RetentionRange(
                int(entry["token_start"]),
                None if entry.get("token_end") is None else int(entry["token_end"]),
                int(entry["priority"]),
                entry.get("duration_ms"),
            )
            for entry in config.get("token_range_retention_configs", ())
        )
        retention = Retention(
            ranges,
            int(config.get("decode_retention_priority", Retention().decode_priority)),
            config.get("decode_duration_ms"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"kv_cache_retention_config: {type(error).__name__}: {error}") from None
    return retention.check()
