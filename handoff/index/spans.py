"""Token sequences as spans in normal form.

A sequence is a list of *pieces*. A piece is either a run of consecutive virtual numbers (a trace
block, an output nobody spelled out) or an ``array`` of real token ids. Virtual numbers start at
``VIRTUAL`` (2**40), a range no vocabulary reaches, so "never equal to a real id" needs no test.

Normal form: adjoining runs that continue each other are one piece, and real ids that stand side by
side are one array. The same tokens therefore always have the same pieces, hence the same ``key``.

A ``Seq`` only ever grows at its end. A prefix is the pair (sequence, length), so tree nodes keep a
reference and two positions instead of a copy, and growing a sequence never disturbs them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator

__all__ = ["LATE", "VIRTUAL", "Seq", "common"]

VIRTUAL = 1 << 40
"""First virtual token number; everything below is a real token id."""

LATE = -1
"""Placeholder for a token that no answered Step has produced yet."""

Piece = int | array  # first number of a virtual run | array("q") of real ids


class Seq:
    """An append-only sequence of token ids; O(pieces) memory whatever its length.

    >>> s = Seq([5, 6]); s.append(VIRTUAL); s.append(VIRTUAL + 1); len(s), s.num_pieces
    (4, 2)
    >>> s.tokens(1, 3) == [6, VIRTUAL]
    True
    """

    __slots__ = ("_length", "_offs", "_pieces")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._pieces: list[Piece] = []
        self._offs: list[int] = []  # first position of each piece
        self._length = 0
        for token in tokens:
            self.append(token)

    @classmethod
    def virtual(cls, start: int, length: int) -> Seq:
        """Guarantees a sequence of ``length`` consecutive virtual numbers from ``start`` on."""
        seq = cls()
        seq.add_run(start, length)
        return seq

    @classmethod
    def of(cls, ids: Iterable[int]) -> Seq:
        """A sequence of real token ids (each below ``VIRTUAL``), in one array."""
        seq = cls()
        values = array("q", ids)
        if values:
            seq._pieces.append(values)
            seq._offs.append(0)
            seq._length = len(values)
        return seq

    # -- growing ----------------------------------------------------------------------------

    def append(self, token: int) -> None:
        """Add one token at the end, keeping the normal form."""
        if token >= VIRTUAL:
            self.add_run(token, 1)
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, array):
            last.append(token)
        else:
            self._pieces.append(array("q", (token,)))
            self._offs.append(self._length)
        self._length += 1

    def add_run(self, start: int, length: int) -> None:
        """Add the virtual numbers ``start .. start + length - 1``; ``start >= VIRTUAL``."""
        if length <= 0:
            return
        if self._pieces:
            last = self._pieces[-1]
            if type(last) is int and last + (self._length - self._offs[-1]) == start:
                self._length += length
                return
        self._pieces.append(start)
        self._offs.append(self._length)
        self._length += length

    def extend(self, other: Seq, start: int = 0, stop: int | None = None) -> None:
        """Add ``other[start:stop]`` at the end."""
        for piece, first, last in other.parts(start, len(other) if stop is None else stop):
            if type(piece) is int:
                self.add_run(piece + first, last - first)
                continue
            ids = piece[first:last]  # type: ignore[index]
            tail = self._pieces[-1] if self._pieces else None
            if isinstance(tail, array):
                tail.extend(ids)
            else:
                self._pieces.append(ids)
                self._offs.append(self._length)
            self._length += last - first

    # -- reading ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    @property
    def num_pieces(self) -> int:
        """Number of pieces of the normal form."""
        return len(self._pieces)

    def __getitem__(self, position: int) -> int:
        if position < 0:
            position += self._length
        if not 0 <= position < self._length:
            raise IndexError(position)
        at = bisect_right(self._offs, position) - 1
        piece = self._pieces[at]
        offset = position - self._offs[at]
        return piece + offset if type(piece) is int else piece[offset]  # type: ignore[index]

    def parts(self, start: int, stop: int) -> Iterator[tuple[Piece, int, int]]:
        """Pieces that cover ``[start, stop)`` with their offsets ``[first, last)`` inside."""
        stop = min(stop, self._length)
        if start >= stop:
            return
        at = bisect_right(self._offs, start) - 1
        while start < stop:
            begin = self._offs[at]
            end = self._offs[at + 1] if at + 1 < len(self._offs) else self._length
            upto = min(end, stop)
            yield self._pieces[at], start - begin, upto - begin
            start = upto
            at += 1

    def copy(self) -> Seq:
        """A sequence of its own with the same tokens; arrays are copied."""
        seq = Seq()
        seq._pieces = [piece if type(piece) is int else piece[:] for piece in self._pieces]  # type: ignore[index]
        seq._offs = self._offs.copy()
        seq._length = self._length
        return seq

    def slice(self, start: int, stop: int) -> Seq:
        """A sequence of its own with the tokens ``[start, stop)``; arrays are copied."""
        seq = Seq()
        seq.extend(self, start, stop)
        return seq

    def tokens(self, start: int = 0, stop: int | None = None) -> list[int]:
        """The token ids ``[start, stop)`` spelled out; O(length): for executor and excerpts."""
        out: list[int] = []
        for piece, first, last in self.parts(start, self._length if stop is None else stop):
            if type(piece) is int:
                out.extend(range(piece + first, piece + last))
            else:
                out.extend(piece[first:last])  # type: ignore[index]
        return out

    def key(self, start: int, stop: int) -> Hashable:
        """Equal for equal tokens ``[start, stop)`` of equal length, different otherwise.

        The first number if the tokens lie in one virtual run, the bytes of the ids if they are all
        real, else a tuple of both kinds. Compare keys of one length only.
        """
        at = bisect_right(self._offs, start) - 1
        begin = self._offs[at]
        end = self._offs[at + 1] if at + 1 < len(self._offs) else self._length
        piece = self._pieces[at]
        if stop <= end:
            if type(piece) is int:
                return piece + start - begin
            return piece[start - begin : stop - begin].tobytes()  # type: ignore[index]
        return tuple(
            (piece + first, last - first) if type(piece) is int else piece[first:last].tobytes()  # type: ignore[index]
            for piece, first, last in self.parts(start, stop)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seq):
            return NotImplemented
        return self._length == other._length and (
            self._offs == other._offs and self._pieces == other._pieces
        )

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        head = ", ".join(
            f"{piece - VIRTUAL:+}v x {last - first}"
            if type(piece) is int
            else f"{last - first} ids"
            for piece, first, last in self.parts(0, self._length)
        )
        return f"Seq({self._length}: {head})"


def common(a: Seq, i: int, b: Seq, j: int, limit: int) -> int:
    """Length of the common run of ``a[i:]`` and ``b[j:]``, at most ``limit``; O(pieces).

    >>> common(Seq([1, 2, 3]), 0, Seq([9, 1, 2, 4]), 1, 10)
    2
    """
    limit = min(limit, len(a) - i, len(b) - j)
    if limit <= 0:
        return 0
    apieces, aoffs, bpieces, boffs = a._pieces, a._offs, b._pieces, b._offs
    na, nb = len(aoffs), len(boffs)
    x = bisect_right(aoffs, i) - 1
    y = bisect_right(boffs, j) - 1
    done = 0
    while done < limit:
        pa, pb = i + done, j + done
        enda = aoffs[x + 1] if x + 1 < na else a._length
        endb = boffs[y + 1] if y + 1 < nb else b._length
        step = min(enda - pa, endb - pb, limit - done)
        u, v = apieces[x], bpieces[y]
        if type(u) is int:
            if type(v) is not int or u + pa - aoffs[x] != v + pb - boffs[y]:
                return done
        elif type(v) is int:
            return done
        else:
            equal = _equal_ids(u, pa - aoffs[x], v, pb - boffs[y], step)  # type: ignore[arg-type]
            if equal < step:
                return done + equal
        done += step
        if pa + step == enda:
            x += 1
        if pb + step == endb:
            y += 1
    return done


def _equal_ids(u: array, i: int, v: array, j: int, n: int) -> int:
    """Length of the common run of two arrays, found by slices that double, then halve."""
    done, step = 0, 32
    while done < n:
        step = min(step, n - done)
        if u[i + done : i + done + step] == v[j + done : j + done + step]:
            done += step
            step *= 2
        elif step == 1:
            return done
        else:
            n = done + step
            step //= 2
    return done
