"""One row per token class: its colour, hatch, character and word, used by every picture.

Colour means class; shape and dash mean framework. No class depends on its colour alone: each has a
hatch (or none, unlike its neighbours) and a character. Only ``fresh`` and the neutrals differ
between the themes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from handoff.adapter import ORDER
from handoff.types import REASONS

__all__ = [
    "ASCII",
    "CLASSES",
    "FLAGS",
    "LOSSES",
    "THEMES",
    "WATERFALL",
    "Mark",
    "Palette",
    "Theme",
    "TokenClass",
    "dark_ink",
    "fill",
    "framework_mark",
]

Theme = Literal["light", "dark", "print"]


@dataclass(frozen=True, slots=True)
class TokenClass:
    """How one class of prompt tokens looks and what it means in a few words.

    ``hatch`` is matplotlib's; ``colour`` holds on white and on black alike (``fresh``: see
    ``fill``); ``family`` groups classes in legends and tooltips and is no reason of its own.
    """

    name: str
    colour: str
    hatch: str
    char: str
    family: str
    words: str


@dataclass(frozen=True, slots=True)
class Palette:
    """The neutrals of one theme."""

    background: str
    ink: str
    muted: str
    grid: str
    outline: str
    card: str
    fresh: str
    gain: str
    """For thin lines and words about hits: readable where the class's own blue is not."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Shape and dash of a framework (matplotlib's names); it never has a hue."""

    marker: str
    dash: str | tuple[int, tuple[float, ...]]


_TABLE = (
    TokenClass("reused", "#1F5FC4", "", "█", "gain", "served from cache"),
    TokenClass("moved", "#28A5F6", "///", "▓", "gain", "served from cache, shifted"),
    TokenClass("fresh", "#DDE2E8", "", "·", "no loss", "never computed before"),
    TokenClass("alignment", "#C9A227", "", "a", "trimmed by a rule", "block or page floor"),
    TokenClass("last_token", "#F4DE3A", "|||", "t", "trimmed by a rule", "last token is computed"),
    TokenClass("draft", "#7A5200", "...", "d", "trimmed by a rule", "EAGLE/MTP drop"),
    TokenClass("evicted", "#D9480F", "", "e", "gone", "no longer in the pool"),
    TokenClass("slot_choice", "#F2A88F", "///", "s", "gone", "cached in another slot"),
    TokenClass("tier", "#7C0A0A", "\\\\\\", "x", "gone", "outer tier refused or late"),
    TokenClass("isolation", "#8A5BA8", "---", "i", "closed off", "other salt, LoRA or image"),
    TokenClass("disabled", "#D9A0D8", "///", "o", "closed off", "caching off for the request"),
    TokenClass("not_stored", "#480866", "...", "n", "closed off", "computed, never findable"),
    TokenClass("group", "#1AA38F", "+++", "g", "state or budget", "a layer group could not follow"),
    TokenClass("replay", "#74E6B4", "xxx", "r", "state or budget", "granted, computed again"),
    TokenClass("budget", "#0D603E", "...", "b", "state or budget", "estimate against truth"),
)
CLASSES: Final = {each.name: each for each in _TABLE}
"""Every class of a prompt token by name, in the order of legends."""

FLAGS: Final = {
    "recomputed": TokenClass(
        "recomputed", "#74E6B4", "xxx", "r", "state or budget", "computed again by this layer group"
    ),
    "unneeded": TokenClass("unneeded", "#FFFFFF", "", "-", "no loss", "not computed in any case"),
}
"""What a layer group's lane may say besides a class; ``unneeded`` is a dashed, empty box."""

LOSSES: Final = REASONS
"""The classes that are losses, in the order of tables."""

WATERFALL: Final = tuple(reason for reason in REASONS if reason != "replay")
"""The losses between the shared prefix and the hit, in the one order of all waterfalls."""

THEMES: Final[dict[Theme, Palette]] = {
    "light": Palette(
        "#FFFFFF",
        "#15191E",
        "#5B6570",
        "#D9DEE4",
        "#8C96A1",
        "#F6F8FA",
        CLASSES["fresh"].colour,
        "#1F5FC4",
    ),
    "dark": Palette(
        "#0E1116", "#E8ECF1", "#A3AEBA", "#2B333D", "#7C8895", "#161B22", "#39434F", "#7FB2FF"
    ),
    "print": Palette(
        "#FFFFFF", "#000000", "#3C434B", "#C9CED4", "#5B6570", "#FFFFFF", "#FFFFFF", "#1F5FC4"
    ),
}

ASCII: Final = {"█": "#", "▓": "%", "·": "."}
"""Replacements for terminals that show ASCII only."""

_MARKS = dict(
    zip(
        ORDER,
        (
            Mark("o", "solid"),
            Mark("s", (0, (5, 2))),
            Mark("^", (0, (1, 1.5))),
            Mark("D", (0, (5, 1.5, 1, 1.5))),
            Mark("P", (0, (7, 1.5, 1, 1.5, 1, 1.5))),
        ),
        strict=True,
    )
)
_OTHER = Mark("X", (0, (3, 3)))


def fill(name: str, theme: Theme = "light") -> str:
    """The fill colour of class ``name`` in ``theme``."""
    return THEMES[theme].fresh if name == "fresh" else CLASSES[name].colour


def dark_ink(colour: str) -> bool:
    """Whether dark letters (else white ones) read better on ``colour`` (``#RRGGBB``)."""
    linear = []
    for at in (1, 3, 5):
        part = int(colour[at : at + 2], 16) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (luminance + 0.05) ** 2 > 0.05 * 1.05


def framework_mark(adapter: str) -> Mark:
    """Shape and dash of an adapter; those of third parties share one."""
    return _MARKS.get(adapter, _OTHER)
