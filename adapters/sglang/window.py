"""Two layouts beside the tree: DSV4.1 request window and encoder part (rules 7, 11).

Sources: the window layout and replay length of DeepSeek V4.1 (``encoder_swa_replay``),
``managers/schedule_batch.py`` (``prepare_encoder_info_extend``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["EncoderDeduction", "WindowLayout", "deduct_encoder", "replay_len", "window_layout"]

REPLAY = 128
"""Cached tokens that run again in front of an extend (rule 7, "Encoder SWA replay")."""


def replay_len(hit: int) -> int:
    """Cached tokens to run again after a hit of ``hit`` tokens, an even number."""
    assert hit % 2 == 0, f"the request window needs an even hit, not {hit}"
    return min(hit, REPLAY)


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """Where the rows of one batch read and write window KV.

    The batch sees a buffer of ``groups * window`` history rows and then its own rows, ``size`` in
    all. ``write_loc[i]``: row of token i; ``indices[i]``: rows it reads, newest first, padded with
    -1 to the window; ``lengths[i]``: how many. History row j comes from ring row
    ``history_src[j]``, holds position ``history_pos[j]`` and is readable if ``history_valid[j]``.
    ``commit[i]``: token i is written to the ring afterwards.
    """

    write_loc: list[int]
    lengths: list[int]
    indices: list[list[int]]
    history_valid: list[int]
    history_src: list[int]
    history_pos: list[int]
    commit: list[int]
    size: int


def _runs(requests: Sequence[int], positions: Sequence[int]) -> list[tuple[int, int]]:
    """``[first, stop)`` of each stretch of one request with consecutive positions."""
    starts = [
        at
        for at in range(len(requests))
        if at == 0 or requests[at] != requests[at - 1] or positions[at] != positions[at - 1] + 1
    ]
    return list(zip(starts, [*starts[1:], len(requests)], strict=True))


def window_layout(
    window: int,
    capacity: int,
    zero_row: int,
    groups: int,
    requests: Sequence[int],
    positions: Sequence[int],
    floors: Sequence[int] | None,
) -> WindowLayout:
    """Lay out one batch over rings of ``capacity`` rows per request slot (rule 7).

    Ring row = slot * capacity + position mod capacity; positions below a token's floor are not
    readable; history that does not exist points at ``zero_row``.
    """
    base = groups * window
    out = WindowLayout([], [], [], [], [], [], [], base + len(requests))
    runs = _runs(requests, positions)
    assert len(runs) <= groups, f"{len(runs)} runs, {groups} history groups"
    for group in range(groups):
        first, stop = runs[group] if group < len(runs) else (0, 0)
        start = positions[first] if stop > first else 0
        floor = floors[first] if floors is not None and stop > first else 0
        for position in range(start - window, start):
            valid = stop > first and position >= max(floor, 0)
            row = requests[first] * capacity + position % capacity if valid else zero_row
            out.history_valid.append(int(valid))
            out.history_src.append(row)
            out.history_pos.append(position)
        for token in range(first, stop):
            position = positions[token]
            floor = floors[token] if floors is not None else 0
            length = min(window, position - floor + 1)
            rows = []
            for seen in range(position, position - length, -1):
                back = position - seen
                inside = token - back >= first
                rows.append(
                    base + token - back if inside else group * window + seen - start + window
                )
            out.write_loc.append(base + token)
            out.lengths.append(length)
            out.indices.append(rows + [-1] * (window - length))
            out.commit.append(int(stop - token <= capacity))
    return out


@dataclass(frozen=True, slots=True)
class EncoderDeduction:
    """Lengths of a batch without the encoder's part (rule 11).

    ``cached[i]``: the encoder's KV of request i is there already. ``encoder_loc`` and
    ``decoder_loc`` divide the new slots; ``kept[i]`` = ``[first, stop)`` of the positions whose
    tokens stay in the input.
    """

    prefix_lens: list[int]
    extend_lens: list[int]
    seq_lens: list[int]
    cached: list[bool]
    decoder_loc: list[int]
    encoder_loc: list[int]
    kept: list[tuple[int, int]]


def deduct_encoder(
    prefix_lens: Sequence[int],
    extend_lens: Sequence[int],
    encoder_lens: Sequence[int],
    out_cache_loc: Sequence[int],
) -> EncoderDeduction:
    """Take the encoder's part from the extend or from the prefix, never from both (rule 11)."""
    out = EncoderDeduction([], [], [], [], [], [], [])
    slot = 0
    for prefix, extend, encoder in zip(prefix_lens, extend_lens, encoder_lens, strict=True):
        slots = out_cache_loc[slot : slot + extend]
        slot += extend
        cached = prefix >= encoder
        assert cached or prefix == 0, f"prefix {prefix} ends inside the encoder part of {encoder}"
        new = 0 if cached else encoder
        out.cached.append(cached)
        out.prefix_lens.append(prefix - encoder if cached else 0)
        out.extend_lens.append(extend - new)
        out.seq_lens.append(prefix + extend - encoder)
        out.encoder_loc.extend(slots[:new])
        out.decoder_loc.extend(slots[new:])
        out.kept.append((prefix + new, prefix + extend))
    return out
