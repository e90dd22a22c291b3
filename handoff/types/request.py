"""What a user sends: content, isolation and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from handoff.index.spans import Seq

__all__ = ["Image", "Request"]


class Image(NamedTuple):
    """Placeholder positions ``[start, start + length)`` of a multimodal item."""

    identifier: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it reaches a server.

    * ``prompt``: content ids; image and embedding positions hold ids derived from (identifier,
      offset), so a wrong image changes content. Adapters match as upstream does (a vLLM block key
      sees placeholder ids and the item's identifier).
    * ``max_tokens``: outputs wanted, >= 0. The last output is sampled but never computed.
    * ``outputs``: scripted outputs; only the runner reads them. ``None``: the sampler decides.
    * ``salt``, ``lora``: isolation keys (``None`` = none).
    * ``arrival``: seconds on the virtual clock. ``priority``: upstream's number as it stands (lower
      runs earlier in vLLM, higher in SGLang unless told otherwise).
    * ``options``: further request options under upstream's names (``id_slot``, ``extra_key`` ...);
      adapters refuse none, they read the ones they know.
    """

    id: str
    prompt: Seq
    max_tokens: int
    outputs: Seq | None = None
    salt: str | None = None
    lora: str | None = None
    images: tuple[Image, ...] = ()
    arrival: float = 0.0
    priority: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.max_tokens >= 0
        assert self.outputs is None or len(self.outputs) >= self.max_tokens
