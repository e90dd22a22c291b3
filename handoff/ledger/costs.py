"""What the rows of one engine cost on one model: the join of a layout with a model's layers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

from handoff.model.presets import LayerShape, Model
from handoff.types import Group, Layout, Spans, Step

from .flops import Work, layer_work
from .roofline import Device, seconds

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
        self.device = device
        self._layout = layout
        self._placed = place(model, layout)
        self._slot_bytes = [0] * len(layout.groups)
        for placed, count in self._placed.items():
            size = placed.shape.kv_bytes or placed.shape.state_bytes
            if placed.own_kv:
                self._slot_bytes[placed.group] += count * size

    def slot_bytes(self, group: str) -> int:
        """Bytes of one position (or one state) in all layers of a group."""
        names = [each.name for each in self._layout.groups]
        return self._slot_bytes[names.index(group)]

    def parts(self, start: int, stop: int, spans: Spans | None) -> dict[str, Work]:
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
            name = self._layout.groups[placed.group].name
            out[name] = out.get(name, Work()).plus(work.times(count))
        return out

    def row(self, start: int, stop: int, spans: Spans | None = None, heads: int = 0) -> Work:
        """The work of positions ``[start, stop)`` of one row, ``heads`` of them with logits."""
        total = Work(head=2 * heads * self.model.head, positions=stop - start)
        for work in self.parts(start, stop, spans).values():
            total = total.plus(work)
        return total

    def cold(self, length: int, spans: Spans | None = None) -> Work:
        """A prompt without any hit, in one row, with the logits of its last position."""
        return self.row(0, length, spans, heads=1)

    def seconds(self, work: Work) -> float:
        """Roofline time of a step that does just this; 0 without a device."""
        return 0.0 if self.device is None else seconds(self.device, self.model, work)

    def cold_seconds(self, length: int, spans: Spans | None, chunk: int) -> float:
        """Roofline time of a cold prompt in chunks of ``chunk`` tokens (at least 512)."""
        total, chunk = 0.0, max(chunk, 512)
        for start in range(0, length, chunk):
            stop = min(length, start + chunk)
            total += self.seconds(self.row(start, stop, spans, heads=int(stop == length)))
        return total

    def step_seconds(self, step: Step) -> float:
        """Roofline time of a whole Step (weights are read once for all of its rows)."""
        total = Work()
        for row in step.rows:
            total = total.plus(self.row(row.start, row.stop, row.spans, row.emits))
        return self.seconds(total) if step.rows else 0.0
