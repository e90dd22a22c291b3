from itertools import pairwise

from handoff.adapter import ORDER
from handoff.report.palette import ASCII, CLASSES, FLAGS, THEMES, dark_ink, fill, framework_mark
from handoff.types import REASONS


def test_every_class_has_a_look_of_its_own() -> None:
    assert set(CLASSES) == {"reused", "moved", "fresh", *REASONS}
    looks = list(CLASSES.values())
    assert len({look.colour for look in looks}) == len(looks)
    assert len({look.char for look in looks}) == len(looks)
    assert FLAGS["unneeded"].char not in {look.char for look in looks}


def test_neighbours_of_a_family_differ_without_colour() -> None:
    looks = list(CLASSES.values())
    for one, other in pairwise(looks):
        if one.family == other.family:
            assert one.hatch != other.hatch, (one.name, other.name)


def test_only_fresh_changes_with_the_theme() -> None:
    for name in CLASSES:
        assert (fill(name, "light") == fill(name, "dark")) is (name != "fresh")


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_can_be_read_on_every_ground() -> None:
    for theme in THEMES.values():
        for ground in (theme.background, theme.card):
            assert contrast(theme.ink, ground) >= 7
            assert contrast(theme.muted, ground) >= 4.5
    for look in CLASSES.values():
        ink = "#000000" if dark_ink(look.colour) else "#FFFFFF"
        assert contrast(ink, look.colour) >= 4.5, look.name


def test_frameworks_differ_in_shape_and_dash() -> None:
    marks = [framework_mark(name) for name in (*ORDER, "someone-elses")]
    assert len({mark.marker for mark in marks}) == len(marks)
    assert len({mark.dash for mark in marks}) == len(marks)


def test_ascii_replacements_do_not_collide() -> None:
    letters = {look.char for look in CLASSES.values()}
    assert not set(ASCII.values()) & letters
