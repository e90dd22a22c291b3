"""What one window can serve, before and after its rules.

(RULES 3 and 4.) The walk over the first P - 1 tokens is upstream's match. Beside it stands the
*reach*: the longest prefix of the prompt that lies in the tree at all, token by token, last token
included; the difference is what the rules take away.
"""

from __future__ import annotations

from typing import NamedTuple

from .options import Options
from .request import LlmRequest
from .tree import Node
from .window import Walk, WindowManager

__all__ = ["WindowMatch", "look_up"]


class WindowMatch(NamedTuple):
    """``reach``: findable before any rule; ``alone``: the hit if this were the only window."""

    window: int
    reach: int
    alone: int
    walk: Walk


_NOTHING = Walk([], 0, None, False)


def look_up(
    manager: WindowManager, request: LlmRequest, options: Options, cap: int | None
) -> WindowMatch:
    """Walks one window, capped by the hit of the larger ones; changes nothing."""
    if not options.enable_block_reuse:
        return WindowMatch(manager.window, 0, 0, _NOTHING)
    keys = request.lookup_keys(manager.prompt_limit)
    partial = options.enable_partial_reuse
    walk = manager.walk(request, keys, partial, cap)
    alone = manager.walk(request, keys, partial, None) if walk.capped else walk
    return WindowMatch(manager.window, _reach(manager, request, alone), alone.tokens, walk)


def _reach(manager: WindowManager, request: LlmRequest, walk: Walk) -> int:
    """The walk's whole blocks and the longest common run with any block below them."""
    partial = bool(walk.found) and walk.found[-1].partial
    num_whole = len(walk.found) - partial
    whole = num_whole * manager.size
    if whole >= request.prompt_len:
        return whole
    node = _node_behind(manager, request, walk, num_whole)
    limit = min(manager.size, request.prompt_len - whole)
    extra = request.key_at(whole, limit).extra
    for tokens, children in node.sharing(request.tokens, whole, limit, extra):
        if any(manager.window in child.values for child in children):
            return max(walk.tokens, whole + tokens)
    return walk.tokens


def _node_behind(manager: WindowManager, request: LlmRequest, walk: Walk, num_whole: int) -> Node:
    """The node of the last whole block; behind a hole it is found from the root."""
    last = walk.found[num_whole - 1].block if num_whole else None
    if last is not None and last.node is not None:
        return last.node
    node = manager.tree.root
    for key in request.full_keys(num_whole * manager.size):
        node = node.children[key]
    return node
