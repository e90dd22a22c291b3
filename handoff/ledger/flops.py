"""FLOPs and KV bytes of computed positions in closed form; exact integers, no loop over tokens."""

from __future__ import annotations

from typing import NamedTuple

from handoff.model.presets import LayerShape

__all__ = ["Work", "layer_work", "visible_keys", "visible_pairs"]


class Work(NamedTuple):
    """FLOPs by operation, KV bytes and positions of some rows; adds up with ``plus``."""

    projections: int = 0
    attention: int = 0
    mlp: int = 0
    head: int = 0
    recurrent: int = 0
    read: int = 0
    written: int = 0
    positions: int = 0

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return self.projections + self.attention + self.mlp + self.head + self.recurrent

    def plus(self, other: Work) -> Work:
        """The sum, field by field."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> Work:
        """``count`` times the same work."""
        return Work(*(count * part for part in self))


def _ramp(start: int, stop: int, width: int | None) -> int:
    """Sum over n in ``(start, stop]`` of ``min(n, width)``: pairs of a causal window.

    >>> _ramp(0, 5, 3)  # 1 + 2 + 3 + 3 + 3
    12
    """
    if width is None or stop <= width:
        return (stop * (stop + 1) - start * (start + 1)) // 2
    if start >= width:
        return (stop - start) * width
    return _ramp(start, width, None) + (stop - width) * width


def visible_pairs(
    start: int, stop: int, *, visible: int = 0, window: int | None = None, local: int | None = None
) -> int:
    """(query, key) pairs of queries ``[start, stop)`` with the keys they see, themselves included.

    The query at ``p`` sees ``max(visible, p - window + 1, p // local * local) .. p``.

    >>> visible_pairs(2, 5), visible_pairs(2, 5, window=2), visible_pairs(2, 5, visible=3)
    (12, 6, 3)
    """
    start = max(start, visible)
    if start >= stop:
        return 0
    if local is None:
        return _ramp(start - visible, stop - visible, window)
    total = 0
    at = start
    while at < stop:  # one piece a local chunk
        base = at // local * local
        end = min(stop, base + local)
        total += visible_pairs(at, end, visible=max(visible, base), window=window)
        at = end
    return total


def visible_keys(
    start: int, stop: int, *, visible: int = 0, window: int | None = None, local: int | None = None
) -> int:
    """Distinct keys that queries ``[start, stop)`` see."""
    start = max(start, visible)
    if start >= stop:
        return 0
    low = visible
    if window is not None:
        low = max(low, start - window + 1)
    if local is not None:
        low = max(low, start // local * local)
    return stop - low


def layer_work(
    shape: LayerShape,
    start: int,
    stop: int,
    *,
    visible: int = 0,
    write: int | None = None,
    own_kv: bool = True,
) -> Work:
    """One layer over positions ``[start, stop)`` of one sequence.

    ``visible`` is the first position seen, ``write`` the first stored (default: all). A layer that
    reads another layer's KV (``own_kv`` false) neither makes nor stores its own.
    """
    count = stop - start
    if count <= 0:
        return Work()
    weights = shape.projection + (shape.kv_projection if own_kv else 0)
    stored = stop - max(start, start if write is None else write) if own_kv else 0
    keys = pairs = states = 0
    if shape.kind == "kv":
        limits = {"visible": visible, "window": shape.window, "local": shape.local}
        pairs = visible_pairs(start, stop, **limits)  # type: ignore[arg-type]
        keys = visible_keys(start, stop, **limits)  # type: ignore[arg-type]
    else:
        states = 1
    return Work(
        projections=2 * count * weights,
        attention=shape.pair * pairs,
        mlp=2 * count * shape.mlp,
        recurrent=count * shape.recurrent,
        read=keys * shape.kv_bytes + (states if start else 0) * shape.state_bytes,
        written=max(0, stored) * shape.kv_bytes + states * shape.state_bytes,
    )
