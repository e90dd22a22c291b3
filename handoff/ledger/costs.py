"""What the rows of one engine cost on one model: the join of a layout with a model's layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from handoff.model.presets import LayerShape, Model
from handoff.types import Group, Layout, Spans, Step

from .flops import Work, layer_work, visible_keys, visible_pairs
from .roofline import Device, Roofline

__all__ = ["Costs", "Placed", "place"]


class Placed(NamedTuple):
    """Where layers of one shape live: group (index into the layout's), stage, own KV or not."""

    shape: LayerShape
    group: int
    stage: int
    own_kv: bool


def place(model: Model, layout: Layout) -> dict[Placed, int]:
    """How many layers of each kind the model has, by group and stage of the layout.

    The group is the one of the same kind and window; if there is none, one of the same kind (the
    engine then keeps these layers' KV as that group's), preferably the one that the layout's own
    pattern has at that depth. Stage and shared KV follow the pattern at the same relative depth.
    """
    owning = {layer.group for layer in layout.layers}
    groups = [group for group in layout.groups if not owning or group.name in owning]
    found: Counter[Placed] = Counter()
    for depth, shape in enumerate(model.layers):
        here = layout.layers[depth * len(layout.layers) // len(model.layers)]
        group = max(groups, key=partial(_fit, shape, here.group))
        kv = shape.kind == "kv"
        stage = here.stage if kv else 0
        own_kv = not kv or here.reads is None
        found[Placed(shape, layout.groups.index(group), stage, own_kv)] += 1
    return dict(found)


def _fit(shape: LayerShape, here: str, group: Group) -> tuple[bool, bool, bool]:
    """How well a group suits a layer; ``here`` is the pattern's group at that depth."""
    return group.kind == shape.kind, group.window == shape.window, group.name == here


class Costs:
    """FLOPs, bytes and roofline seconds of rows of one engine on one model."""

    def __init__(self, model: Model, layout: Layout, device: Device | None = None) -> None:
        self.model = model
        self._roofline = Roofline(device, model) if device is not None else None
        self._groups = [group.name for group in layout.groups]
        self._placed = place(model, layout)
        self._slot_bytes = dict.fromkeys(self._groups, 0)
        for placed, count in self._placed.items():
            if placed.own_kv:
                size = placed.shape.kv_bytes + placed.shape.state_bytes
                self._slot_bytes[self._groups[placed.group]] += count * size
        self._plain = _Plain(self._placed)

    def slot_bytes(self, group: str) -> int:
        """Bytes of one position (or one state) in all layers of a group."""
        return self._slot_bytes[group]

    def parts(self, start: int, stop: int, spans: Spans | None = None) -> dict[str, Work]:
        """The work of positions ``[start, stop)`` of one row, by group."""
        out: dict[str, Work] = {}
        for placed, count in self._placed.items():
            first, visible, write = start, 0, start
            if spans is not None:
                first = max(start, spans.compute[placed.stage])
                visible = spans.visible[placed.group]
                write = spans.write[placed.group]
            work = layer_work(
                placed.shape, first, stop, visible=visible, write=write, own_kv=placed.own_kv
            )
            name = self._groups[placed.group]
            out[name] = out.get(name, Work()).plus(work.times(count))
        return out

    def row(self, start: int, stop: int, spans: Spans | None = None, heads: int = 0) -> Work:
        """The work of positions ``[start, stop)`` of one row, ``heads`` of them with logits."""
        head = Work(head=2 * heads * self.model.head, positions=stop - start)
        if spans is None:
            return self._plain.row(start, stop).plus(head)
        for work in self.parts(start, stop, spans).values():
            head = head.plus(work)
        return head

    def cold(self, length: int, spans: Spans | None = None) -> Work:
        """A prompt without any hit, in one row, with the logits of its last position."""
        return self.row(0, length, spans, heads=1)

    def seconds(self, work: Work) -> float:
        """Roofline time of a step that does just this; 0 without a device."""
        return 0.0 if self._roofline is None else self._roofline.seconds(work)

    def cold_seconds(self, length: int, spans: Spans | None, chunk: int) -> float:
        """Roofline time of a cold prompt in chunks of ``chunk``; each reads the weights."""
        total = 0.0
        for start in range(0, length, chunk):
            stop = min(length, start + chunk)
            total += self.seconds(self.row(start, stop, spans, heads=int(stop == length)))
        return total

    def step_seconds(self, step: Step) -> float:
        """Roofline time of a whole Step (weights are read once for all of its rows)."""
        if self._roofline is None or not step.rows:
            return 0.0
        plain = [(row.start, row.stop) for row in step.rows if row.spans is None]
        total = self._plain.rows(plain)
        for row in step.rows:
            if row.spans is not None:
                total = total.plus(self.row(row.start, row.stop, row.spans))
        heads = sum(row.emits for row in step.rows)
        positions = sum(stop - start for start, stop in plain)
        return self.seconds(total.plus(Work(head=2 * heads * self.model.head, positions=positions)))


class _Plain:
    """Rows without spans: what all layers together cost, by window."""

    def __init__(self, placed: dict[Placed, int]) -> None:
        one = Work()  # a position without attention
        by_window: dict[tuple[int | None, int | None], tuple[int, int]] = {}
        self._state_bytes = 0
        for (shape, _, _, own_kv), count in placed.items():
            attention_free = replace(shape, pair=0)
            one = one.plus(layer_work(attention_free, 0, 1, own_kv=own_kv).times(count))
            self._state_bytes += count * shape.state_bytes
            if shape.kind == "kv":
                limits = shape.window, shape.local
                pair, size = by_window.get(limits, (0, 0))
                by_window[limits] = pair + count * shape.pair, size + count * shape.kv_bytes
        self._one = one._replace(read=0, written=one.written - self._state_bytes)
        self._by_window = list(by_window.items())

    def row(self, start: int, stop: int) -> Work:
        """The work of one row, logits left out and positions not counted."""
        return self.rows([(start, stop)])

    def rows(self, rows: Sequence[tuple[int, int]]) -> Work:
        """The work of several rows of different sequences."""
        count = sum(stop - start for start, stop in rows)
        pairs = keys = 0
        for (window, local), (pair, size) in self._by_window:
            for start, stop in rows:
                if window is None and local is None:
                    pairs += pair * ((stop * (stop + 1) - start * (start + 1)) // 2)
                    keys += size * stop
                else:
                    pairs += pair * visible_pairs(start, stop, window=window, local=local)
                    keys += size * visible_keys(start, stop, window=window, local=local)
        resumed = sum(start > 0 for start, _ in rows)
        work = self._one.times(count)
        return work._replace(
            attention=pairs,
            read=keys + resumed * self._state_bytes,
            written=work.written + len(rows) * self._state_bytes,
        )
