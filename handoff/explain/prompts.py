"""Prompts as a user gives them, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, Seq, common
from handoff.lines import read_json, read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Difference", "Prompt", "compare", "read_prompt", "shorthand", "told_apart"]

GRAIN = 4
"""Tokens that must be equal in a row to count as equal again; fewer are chance."""
STREAM = 1 << 32
"""Virtual numbers set apart for what is shared and for each tail."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in order of submission; ``outputs`` tokens are generated behind it."""

    name: str
    tokens: Seq
    outputs: int = 1
    salt: str | None = None
    lora: str | None = None


class Difference(NamedTuple):
    """Where ``prompt`` leaves the earlier prompt ``other`` that it shares most with.

    * ``position``: length of the common prefix; ``one`` is a prefix of the other if it is the
      length of either.
    * ``before``, ``after``: the tokens there (``None`` past an end or for virtual tokens).
    * ``again``: later tokens of the prompt that stand in the other one too, ``shift`` positions
      further on (negative: further back) in their longest run.
    """

    prompt: str
    other: str
    position: int
    before: int | None
    after: int | None
    again: int
    shift: int

    def words(self, length: int) -> str:
        """The difference in a sentence, for a prompt of ``length`` tokens."""
        if self.position == length:
            return f"All of it stands at the beginning of {self.other}."
        text = f"First difference at position {self.position:,}"
        if self.after is not None and self.before is not None:
            text += f" (token {self.before:,} became {self.after:,})"
        elif self.after is not None:
            text += f" (where {self.other} ends)"
        text += "."
        if self.again:
            sign = "+" if self.shift > 0 else "−"
            where = f"moved by {sign}{abs(self.shift):,}" if self.shift else "at the same positions"
            tokens = "1 later token is" if self.again == 1 else f"{self.again:,} later tokens are"
            text += f" {tokens} equal again, {where}."
        return text


def read_prompt(path: Path, tokenizer: Path | None = None) -> Prompt:
    """A prompt from JSON token ids, or from text with a local ``tokenizer.json``."""
    if path.suffix == ".json":
        ids = read_json(path)
        if isinstance(ids, dict):
            ids = ids.get("token_ids", ids.get("input_ids"))
        if not isinstance(ids, list) or not ids or not all(_is_id(each) for each in ids):
            raise BadInput("is no list of token ids (integers from 0)", file=path)
        return Prompt(path.stem, Seq.of(ids))
    text = read_text(path)
    if tokenizer is None:
        raise BadInput("is text: give --tokenizer tokenizer.json", file=path)
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception as error:
        raise BadInput(f"is no tokenizer file: {error}", file=tokenizer) from None
    ids = found.encode(text).ids
    if not ids:
        raise BadInput("is an empty prompt", file=path)
    return Prompt(path.stem, Seq.of(ids))


def told_apart(prompts: Sequence[Prompt], paths: Sequence[Path]) -> list[Prompt]:
    """The prompts under names that differ: file names, else paths, else paths with a number."""
    for names in ([prompt.name for prompt in prompts], [str(path) for path in paths]):
        if len(set(names)) == len(names):
            break
    else:
        names = [f"{name} ({at})" for at, name in enumerate(names, 1)]
    return [replace(prompt, name=name) for prompt, name in zip(prompts, names, strict=True)]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < VIRTUAL


def shorthand(shared: int, tail: int, count: int = 2) -> list[Prompt]:
    """``count`` prompts that share their first ``shared`` tokens; ``tail`` private ones each."""
    if not (0 <= shared < STREAM and 0 <= tail < STREAM):
        raise BadInput(f"prompts of {shared:,} + {tail:,} tokens: each part is below {STREAM:,}")
    prompts = []
    for number in range(count):
        tokens = Seq.virtual(VIRTUAL, shared)
        tokens.add_run(VIRTUAL + (number + 1) * STREAM, tail)
        prompts.append(Prompt(f"prompt-{number + 1}", tokens))
    return prompts


def compare(prompts: Sequence[Prompt]) -> Difference | None:
    """The last prompt against the earlier one that shares the longest prefix; ``None`` for one."""
    if len(prompts) < 2:
        return None
    last = prompts[-1]

    def shared(other: Prompt) -> int:
        return common(last.tokens, 0, other.tokens, 0, len(last.tokens))

    other = max(reversed(prompts[:-1]), key=shared)
    position = shared(other)
    again, shift = _again(other.tokens, last.tokens, position)
    return Difference(
        last.name,
        other.name,
        position,
        _shown(other.tokens, position),
        _shown(last.tokens, position),
        again,
        shift,
    )


def _shown(tokens: Seq, position: int) -> int | None:
    if position >= len(tokens) or tokens[position] >= VIRTUAL:
        return None
    return tokens[position]


def _again(old: Seq, new: Seq, start: int) -> tuple[int, int]:
    """(tokens of ``new[start:]`` that stand in ``old[start:]``, shift of the longest such run)."""
    if min(len(old), len(new)) - start < GRAIN:
        return 0, 0
    import numpy as np

    a = np.array(old.tokens(start), dtype=np.int64)
    b = np.array(new.tokens(start), dtype=np.int64)
    places = _places(a, b)
    total = longest = shift = at = 0
    for j in np.flatnonzero(places >= 0):
        if j < at:
            continue
        i = int(places[j])
        limit = min(len(a) - i, len(b) - int(j))
        unequal = np.flatnonzero(a[i : i + limit] != b[j : j + limit])
        run = int(unequal[0]) if len(unequal) else limit
        at = int(j) + run
        total += run
        if run > longest:
            longest, shift = run, int(j) - i
    return total, shift


def _places(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position of ``b`` a place in ``a`` where the next ``GRAIN`` tokens stand, or -1."""
    import numpy as np

    def names(values: NDArray[np.int64]) -> NDArray[np.uint64]:
        total = np.zeros(len(values) - GRAIN + 1, dtype=np.uint64)
        for offset in range(GRAIN):
            part = values[offset : offset + len(total)].astype(np.uint64)
            total = total * np.uint64(0x9E3779B97F4A7C15) + part
        return total

    known, wanted = names(a), names(b)
    order = np.argsort(known, kind="stable")
    found = np.searchsorted(known[order], wanted)
    found[found == len(order)] = 0
    places = order[found]
    equal = known[places] == wanted
    for offset in range(GRAIN):  # a name may be shared by chance, tokens decide
        equal &= a[places + offset] == b[offset : offset + len(places)]
    return np.where(equal, places, -1)
