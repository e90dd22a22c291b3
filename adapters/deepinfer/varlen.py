"""Variable-length verification: how many drafts each sequence of a decode batch may check.

With a performance curve the engine picks the number of rows that maximises expected tokens a
second (RULES 7; csrc/engine/mtp_varlen.hpp).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence as Items
from statistics import median

import numpy as np

from .sequence import Sequence

__all__ = ["Varlen", "products"]

_MIN_FITS, _KEPT_FITS = 10, 5000
_MIN_SAMPLES, _KEPT_SAMPLES = 5, 9


class Varlen:
    """Chooses rows; learns from measured times. Without a curve every draft is verified."""

    def __init__(self, curve: Items[tuple[int, float]]) -> None:
        self.curve = curve
        self._fits: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT_FITS))
        self._sampler: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT_SAMPLES))
        self._all_sampler: deque[float] = deque(maxlen=_KEPT_SAMPLES)

    def rows(self, batch: list[Sequence]) -> list[int]:
        """Rows of each sequence: 1 and the drafts it verifies."""
        if not self.curve or not batch:
            return [1 + len(seq.drafts) for seq in batch]
        ahead = any(seq.inflight for seq in batch)
        chances = _sorted(batch, previous=not ahead, flying=ahead)
        total = self._best_total(len(batch), [rate for rate, _ in chances])
        rows = [1] * len(batch)
        newest = _sorted(batch, previous=False, flying=ahead)
        for _, index in newest[: total - len(batch)]:
            rows[index] += 1
        return rows

    def _best_total(self, sequences: int, rates: list[float]) -> int:
        """Rows with the strictly largest expected tokens per millisecond; the first one wins."""
        slope, sampler = self.slope(), self._sampler_ms(sequences)
        expected = np.float32(sequences)
        best, chosen = -1.0, sequences
        for total in range(sequences, sequences + len(rates) + 1):
            if total > sequences:
                expected = np.float32(expected + np.float32(rates[total - sequences - 1]))
            point = self.point(total)
            if point is None:
                break
            size, ms = point
            rate = float(expected) / (ms + slope * size + sampler)
            if rate > best:
                best, chosen = rate, total
        return chosen

    def point(self, rows: int) -> tuple[int, float] | None:
        """The first point of the curve that holds ``rows``."""
        return next((point for point in self.curve if point[0] >= rows), None)

    # -- learning ---------------------------------------------------------------------------

    def measured(self, rows: int, sequences: int, forward_ms: float, sampler_ms: float) -> None:
        """Take the times of one decode step."""
        point = self.point(rows)
        if point is not None:
            size, ms = point
            self._fits[size].append((forward_ms - ms) / size)
        self._sampler[sequences].append(sampler_ms)
        self._all_sampler.append(sampler_ms)

    def slope(self) -> float:
        """Milliseconds a row beyond the curve; at least 0."""
        medians = [median(fit) for fit in self._fits.values() if len(fit) >= _MIN_FITS]
        return max(0.0, median(medians)) if medians else 0.0

    def _sampler_ms(self, sequences: int) -> float:
        for samples in (self._sampler[sequences], self._all_sampler):
            if len(samples) >= _MIN_SAMPLES:
                return median(samples)
        return 0.0


def _sorted(batch: list[Sequence], *, previous: bool, flying: bool) -> list[tuple[float, int]]:
    """(chance that a draft is accepted with all before it, index), best first."""
    found = []
    for index, seq in enumerate(batch):
        rates = seq.previous_rates if previous else seq.rates
        if rates is None:
            rates = (1.0 if seq.published or flying else 0.0,) * len(seq.drafts)
        found += [(rate, index) for rate in rates]
    return sorted(found, key=lambda entry: (-entry[0], entry[1]))


def products(confidences: tuple[float, ...]) -> tuple[float, ...] | None:
    """Running product of confidences in 32-bit floats; ``None`` without any."""
    if not confidences:
        return None
    found = np.multiply.accumulate(np.array(confidences, np.float32), dtype=np.float32)
    return tuple(float(rate) for rate in found)
