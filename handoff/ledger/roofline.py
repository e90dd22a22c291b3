"""Roofline seconds: how long a step takes if compute and memory run at a stated part of their peak.

Assumptions, printed with every time: bf16 weights and KV, one device that holds the whole model, no
communication, 60 % of the peak FLOP/s and 80 % of the peak bandwidth, linear maps and attention one
after the other, each as slow as the slower of its arithmetic and its traffic. Linear maps read all
weights once a step (of a mixture of experts those that the step's positions are expected to use);
attention reads the visible keys once a row and writes the new ones.
"""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass

from handoff.errors import BadInput
from handoff.model.presets import Model

from .flops import Work

__all__ = ["DEVICES", "Device", "Roofline", "device"]

COMPUTE, BANDWIDTH = 0.6, 0.8
"""Parts of the peaks that are reached."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peak dense bf16 FLOP/s, bytes a second, and memory in GiB, from vendors' data sheets."""

    name: str
    flops: float
    bandwidth: float
    memory_gib: float

    @property
    def assumptions(self) -> str:
        """The figures behind a time, in one line."""
        return (
            f"{self.name}: {self.flops / 1e12:,.0f} TFLOP/s at {COMPUTE:.0%},"
            f" {self.bandwidth / 1e12:.2f} TB/s at {BANDWIDTH:.0%}, one device, bf16"
        )


DEVICES = (
    Device("H200", 989e12, 4.8e12, 141e9 / 2**30),
    Device("H100", 989e12, 3.35e12, 80e9 / 2**30),
    Device("A100", 312e12, 2.039e12, 80e9 / 2**30),
    Device("L40S", 362e12, 0.864e12, 48e9 / 2**30),
    Device("CPU", 4e12, 0.3e12, 512.0),  # one 64-core server socket, eight memory channels
)


def device(name: str) -> Device:
    """The device of that name, in any case; ``BadInput`` lists them."""
    for found in DEVICES:
        if found.name.lower() == name.lower():
            return found
    close = difflib.get_close_matches(name.upper(), [found.name for found in DEVICES], 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise BadInput(f"no device {name!r}.{hint} Known: {', '.join(d.name for d in DEVICES)}")


class Roofline:
    """Times of steps of one model on one device."""

    def __init__(self, device: Device, model: Model) -> None:
        self.device = device
        self.model = model
        self._dense = (
            model.head + sum(layer.weights for layer in model.layers)
        ) * model.weight_bytes
        routed: Counter[float] = Counter()
        for layer in model.layers:
            if layer.experts:
                size = layer.experts * layer.expert * model.weight_bytes
                routed[layer.active / layer.experts] += size
        self._routed = dict(routed)  # part of the experts that one position uses -> bytes of all

    def weights_read(self, positions: int) -> float:
        """Bytes of weights that a step over ``positions`` reads (expected, for experts)."""
        total = float(self._dense)
        for used, size in self._routed.items():
            total += size * (1 - (1 - used) ** positions)
        return total

    def seconds(self, work: Work) -> float:
        """Roofline time of one step that does ``work``."""
        mixing = work.attention + work.recurrent
        compute, bandwidth = COMPUTE * self.device.flops, BANDWIDTH * self.device.bandwidth
        maps = max((work.flops - mixing) / compute, self.weights_read(work.positions) / bandwidth)
        return maps + max(mixing / compute, (work.read + work.written) / bandwidth)
