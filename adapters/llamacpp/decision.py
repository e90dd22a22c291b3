"""Grouped decisions: several questions about one text share its head (RULES 9; /v1/systemone)."""

from __future__ import annotations

from collections.abc import Sequence

from handoff.index.spans import Seq, common

__all__ = ["group_questions"]


def group_questions(prompts: Sequence[Seq], most: int) -> list[tuple[list[int], int]]:
    """Groups of at most ``most`` prompts in request order, with the head each group shares.

    A group of one, or one without a common head, is not grouped (shared 0, one prompt each). The
    head leaves every prompt a token to compute.
    """
    groups: list[tuple[list[int], int]] = []
    for first in range(0, len(prompts), most):
        members = list(range(first, min(first + most, len(prompts))))
        head = prompts[first]
        shared = min(
            min(common(head, 0, prompts[at], 0, len(head)), len(prompts[at]) - 1) for at in members
        )
        if len(members) > 1 and shared > 0:
            groups.append((members, shared))
        else:
            groups.extend(([at], 0) for at in members)
    return groups
