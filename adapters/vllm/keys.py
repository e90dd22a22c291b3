"""Names of prefixes: what upstream's chained block hashes stand for, without hashing.

Two prefixes have the same key exactly if they have the same tokens, LoRA, salt, embeddings and
multimodal items at the same places (RULES 3; kv_cache_utils.py, request.py). A key is one integer:

    number of the first sequence that had the prefix | cache group | length of the prefix

The sequences hang in a tree that never forgets; a request walks it once, piece by piece, and then
knows the keys of all its prefixes as a few arithmetic progressions. The real hash chain is computed
only for those who ask (``hashes.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator

from handoff.index.spans import VIRTUAL, Seq, common
from handoff.types import Image, Request

__all__ = ["KeyTree", "PrefixKeys", "group_of", "prefix_length"]

_LENGTH_BITS = 32
_GROUP_BITS = 8
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_GROUP_MASK = (1 << _GROUP_BITS) - 1
_MARKED = VIRTUAL << 20  # numbers for "this token, overlapped by these items"


def prefix_length(key: int) -> int:
    """Number of tokens of the prefix that a key stands for."""
    return key & _LENGTH_MASK


def group_of(key: int) -> int:
    """Number of the cache group that a key belongs to: groups never share blocks."""
    return key >> _LENGTH_BITS & _GROUP_MASK


class _Node:
    """Tokens ``[start, stop)`` of ``seq``; ``base`` + length is the key of a prefix ending here."""

    __slots__ = ("base", "kids", "seq", "start", "stop")

    def __init__(self, seq: Seq, start: int, stop: int, base: int) -> None:
        self.seq = seq
        self.start = start
        self.stop = stop
        self.base = base
        self.kids: dict[int, _Node] = {}


class KeyTree:
    """All sequences ever seen, one root for each isolation (LoRA, salt, prompt embeddings)."""

    __slots__ = ("_marks", "_names", "_piece", "_roots")

    def __init__(self, hash_block_size: int) -> None:
        self._piece = hash_block_size
        self._roots: dict[Hashable, _Node] = {}
        self._names = 0
        self._marks: dict[Hashable, int] = {}

    def keys(self, request: Request) -> PrefixKeys:
        """Guarantees the keys of the request's prompt; outputs are added as they come.

        A LoRA is part of every piece and a salt of the first, so each separates the whole chain.
        With prompt embeddings the token ids do not count, only the rows (their content ids).
        """
        embeds = request.options.get("prompt_embeds") is not None
        isolation = (request.lora, request.salt or None, embeds)
        root = self._roots.get(isolation)
        if root is None:
            root = self._roots[isolation] = _Node(Seq(), 0, 0, 0)
        return PrefixKeys(self, root, request)

    def mark(self, token: int, position: int, images: tuple[Image, ...]) -> int:
        """The token that stands first in a piece, renamed if multimodal items overlap the piece.

        An item enters with its identifier and its offset relative to the piece.
        """
        stop = position + self._piece
        items = tuple(
            (image.identifier, image.start - position)
            for image in images
            if image.start < stop and image.start + image.length > position
        )
        if not items:
            return token
        return self._marks.setdefault((token, items), _MARKED + 2 * len(self._marks))

    def starts_piece(self, position: int) -> bool:
        """Whether a hash piece starts at the position."""
        return position % self._piece == 0

    def leaf(self, parent: _Node, seq: Seq, start: int, stop: int) -> _Node:
        """A new node under ``parent`` for tokens nobody had before, with a new name."""
        self._names += 1
        node = _Node(seq, start, stop, self._names << _LENGTH_BITS + _GROUP_BITS)
        parent.kids[seq[start]] = node
        return node


class PrefixKeys:
    """The keys of one request's prefixes.

    ``seq`` is what the keys see; without multimodal items it is simply all known tokens.
    """

    __slots__ = ("_bases", "_images", "_node", "_stops", "_tree", "seq")

    def __init__(self, tree: KeyTree, root: _Node, request: Request) -> None:
        self._tree = tree
        self._node = root
        self._stops: list[int] = []  # prefixes of length <= _stops[i] (and > the one before) ...
        self._bases: list[int] = []  # ... have the key _bases[i] + length
        self._images = request.images
        if self._images:
            self.seq = Seq()
            for token in request.prompt.tokens():
                self.append(token)
        else:
            self.seq = request.prompt.copy()

    def append(self, token: int) -> None:
        """Note a token that became known."""
        if self._images and self._tree.starts_piece(len(self.seq)):
            token = self._tree.mark(token, len(self.seq), self._images)
        self.seq.append(token)

    def key(self, length: int, group: int = 0) -> int:
        """Key of the prefix of that length (>= 1) in a cache group."""
        self._reach(length)
        base = self._bases[bisect_left(self._stops, length)]
        return base + (group << _LENGTH_BITS) + length

    def runs(self, group: int, block_size: int, first: int, stop: int) -> Iterator[range]:
        """Keys of the blocks ``[first, stop)`` of a group, as consecutive ranges."""
        if first >= stop:
            return
        last = stop * block_size
        self._reach(last)
        stops = self._stops
        at = (first + 1) * block_size  # length of the next prefix
        index = bisect_left(stops, at)
        while at <= last:
            upto = min(stops[index], last)
            if at <= upto:
                base = self._bases[index] + (group << _LENGTH_BITS)
                yield range(base + at, base + upto + 1, block_size)
                at += (upto - at) // block_size * block_size + block_size
            index += 1

    def _reach(self, length: int) -> None:
        """Extend the names to the prefix of ``length`` tokens, walking or growing the tree."""
        done = self._stops[-1] if self._stops else 0
        if done >= length:
            return
        seq, node = self.seq, self._node
        while done < length:
            while node.stop < done:  # another request split this node meanwhile
                node = node.kids[seq[node.stop]]
            if done < node.stop:
                run = common(seq, done, node.seq, done, min(length, node.stop) - done)
                if run == 0:
                    node = self._split(node, done)
                else:
                    done = self._note(node, done + run)
            elif node.seq is seq and not node.kids:
                node.stop = length
                done = self._note(node, length)
            else:
                kid = node.kids.get(seq[done])
                if kid is None:
                    node = self._tree.leaf(node, seq, done, length)
                    done = self._note(node, length)
                else:
                    node = kid
        self._node = node

    def _note(self, node: _Node, stop: int) -> int:
        """Prefixes up to ``stop`` are named by ``node``."""
        if self._bases and self._bases[-1] == node.base:
            self._stops[-1] = stop
        else:
            self._bases.append(node.base)
            self._stops.append(stop)
        return stop

    @staticmethod
    def _split(node: _Node, at: int) -> _Node:
        """Cut a node; the head keeps its identity, both keep the name (keys hold the length)."""
        tail = _Node(node.seq, at, node.stop, node.base)
        tail.kids = node.kids
        node.kids = {node.seq[at]: tail}
        node.stop = at
        return node
