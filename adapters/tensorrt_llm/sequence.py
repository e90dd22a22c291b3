"""The blocks of one sequence in one window, and how far they are in the tree.

(RULES 5, 8 and 11b; kvCacheManager.cpp, GenerationRequest)
"""

from __future__ import annotations

from .blocks import Block
from .tree import Node, ReuseTree

__all__ = ["WindowSequence"]


class WindowSequence:
    """The blocks of one sequence in one window.

    ``blocks`` are shared by all beams (a hole is ``None``), ``own`` are the columns behind them
    with one block per beam. ``ids`` is the list that upstream reports: an id stays in it when its
    block leaves the window. ``removed`` counts blocks that left at the front.
    """

    __slots__ = ("_moves", "_node", "_settled", "blocks", "ids", "own", "removed", "traversed")

    def __init__(self) -> None:
        self.blocks: list[Block | None] = []
        self.own: list[list[Block]] = []
        self.ids: list[int] = []
        self.removed = 0
        self.traversed = False
        self._settled = self._moves = 0
        self._node: Node | None = None

    # A held block is not evicted. Unless blocks were moved (a request that ends in the middle of a
    # prompt stores a shared block under a shorter key), columns found in the tree stay there.

    def settled(self, tree: ReuseTree) -> tuple[int, Node]:
        """Where storing goes on: the first column to look at and the node in front of it."""
        pruned = self._node is None or self._node.parent is None
        if pruned or self._moves != tree.moves:
            self._settled, self._node, self._moves = 0, tree.root, tree.moves
        assert self._node is not None
        return self._settled, self._node

    def settle(self, column: int, node: Node) -> None:
        """``column`` is in the tree at ``node``; counts if all columns before it are."""
        if column == self._settled:
            self._settled, self._node = column + 1, node

    def unsettle(self) -> None:
        """Columns or keys changed: storing looks at all of them again."""
        self._node = None

    def hole_edge(self) -> int:
        """Column behind the last hole, 0 if there is none."""
        for column in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[column] is None:
                return column + 1
        return 0

    def columns(self) -> int:
        """Number of table columns of a beam."""
        return len(self.blocks) + len(self.own)

    def tables(self, beams: int) -> list[list[int]]:
        """Block ids as upstream reports them, one list per beam; a traversed hole is -1."""
        return [self.ids + [column[beam].ident for column in self.own] for beam in range(beams)]
