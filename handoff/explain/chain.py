"""One admission as a chain: from what was ever computed down to the first position computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from handoff.ledger.classes import WORDS
from handoff.ledger.entries import Entry

__all__ = ["Link", "chain", "losses", "story"]


class Link(NamedTuple):
    """``tokens`` go for ``reason`` (or come, if ``moved``); ``left`` remain after it."""

    reason: str
    tokens: int
    left: int
    rule: str = ""
    group: str | None = None
    note: str = ""

    @property
    def words(self) -> str:
        """Why, in one clause; the adapter's own note if it gave one."""
        why = self.note or WORDS.get(self.reason, "")
        if self.group and self.group not in why:
            why = f"{why} ({self.group})"
        return why

    @property
    def cited(self) -> str:
        """``(rule 5)``, or nothing where an adapter cites no rule."""
        return f" (rule {self.rule})" if self.rule else ""


def chain(entry: Entry) -> list[Link]:
    """The links in order: the borders outside the index, then the framework's own rules.

    The first link starts from ``shared_tokens``; the last one ends at ``start``.
    """
    left = entry.raw_tokens
    links = []
    for reason, start, stop, rule, group, note in entry.deductions:
        left = start
        links.append(Link(reason, stop - start, left, rule, group, note))
    moved = entry.hit_tokens - left
    if moved > 0 and entry.moved:
        links.append(Link("moved", moved, entry.hit_tokens, note="chunks found elsewhere, shifted"))
    if entry.start < entry.hit_tokens:
        links.append(Link("replay", entry.hit_tokens - entry.start, entry.start))
    return links


def story(entry: Entry) -> list[str]:
    """The whole account of one admission, a sentence a line; all numbers of the answers in it."""
    if entry.status.startswith("refused"):
        return [f"{entry.title}: {entry.request} is {entry.status}."]
    n = entry.prompt_tokens
    lines = [
        f"{entry.title}, {entry.describe or 'defaults'}: {entry.request} has {n:,} tokens,"
        f" {entry.shared_tokens:,} of them computed before; {entry.hit_tokens:,} are reported as"
        f" cached, computing starts at {entry.start:,}, {entry.computed_tokens:,} are computed."
    ]
    if entry.shared_tokens and entry.hit_tokens < n and not entry.moved:
        cap = min(entry.shared_tokens, entry.known_tokens - 1)
        lines.append(
            f"At most {cap:,} tokens could be reused; a hit comes in units of {entry.unit:,}."
        )
    if entry.answers.get("matcher"):
        lines.append(f"Matched by: {entry.answers['matcher']}.")
    lines += _links(entry)
    lines += _groups(entry)
    lines += _more(entry)
    return lines


def losses(entries: Iterable[Entry]) -> list[str]:
    """What several requests of a row lost together, by reason; nothing if at most one lost any."""
    losing = [entry for entry in entries if entry.attempt == 0 and entry.lost]
    if len(losing) < 2:
        return []
    total: Counter[str] = Counter()
    for entry in losing:
        total.update(entry.lost)
    parts = ", ".join(f"{reason} {tokens:,}" for reason, tokens in total.items())
    return [f"{losing[0].title}: {len(losing):,} requests lost tokens; all together {parts}."]


def _links(entry: Entry) -> list[str]:
    lines = []
    for link in chain(entry):
        verb = "added" if link.reason == "moved" else "lost"
        lines.append(
            f"{link.reason} {link.tokens:,}{link.cited}: {link.words};"
            f" {verb}, leaves {link.left:,}."
        )
    return lines


def _groups(entry: Entry) -> list[str]:
    groups = entry.answers.get("groups", [])
    lines = []
    if len(groups) > 1:
        matched = ", ".join(f"{each['group']} {each['matched']:,}" for each in groups)
        lines.append(f"Matched by each group before they are reconciled: {matched}.")
    for each in groups:
        if "copied" in each:
            copied = sum(copy[2] for copy in each["copied"])
            lines.append(
                f"{each['group']}: {each['fresh']:,} blocks are shared whole, {copied:,} tokens are"
                f" copied into block number {each['fresh'] + 1:,} of the table."
            )
        if each["visible"]:
            lines.append(
                f"{each['group']}: sees nothing below {each['visible']:,}, so outputs may differ"
                " from those of a plain cold run."
            )
    return lines


def _more(entry: Entry) -> list[str]:
    lines = []
    if entry.answers.get("references"):
        lines.append(f"References: {entry.answers['references']}.")
    if entry.answers.get("elsewhere"):
        lines.append(f"Another place holds {entry.answers['elsewhere']:,} tokens of this prompt.")
    for tier, tokens in entry.answers.get("external", {}).items():
        lines.append(f"{tokens:,} tokens of the hit come from {tier}; they must be loaded.")
    if entry.estimate_tokens is not None:
        lines.append(
            f"The scheduler's estimate was {entry.estimate_tokens:,}, the truth"
            f" {entry.hit_tokens:,}; nothing is dropped by the correction."
        )
    if entry.cold_flops:
        saved = entry.saved_flops / entry.cold_flops
        lines.append(
            f"Saved compute: {100 * saved:.1f} % of a cold prefill's FLOPs, for a hit of"
            f" {100 * entry.hit_tokens / entry.prompt_tokens:.1f} % of its tokens."
        )
    lines += [f"Not what a cold run would hold (rule {rule})." for rule in entry.unsound]
    return lines
