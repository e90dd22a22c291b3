from itertools import combinations

import pandas as pd
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from handoff.report.canvas import WIDTH, Box, Picture, apart, nice_ticks, text_width
from handoff.report.figure_blocks import block_map, tables_of
from handoff.report.figure_curves import pool_curve, pool_points, staircase
from handoff.report.figure_ratio import hit_vs_saved, waterfall_figure
from handoff.report.figure_strip import strip_figure
from handoff.report.palette import THEMES

from . import ledgers


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share more than a hairline."""
    return (
        one.left < other.right - 0.5
        and other.left < one.right - 0.5
        and one.top < other.bottom - 0.5
        and other.top < one.bottom - 0.5
    )


def assert_readable(picture: Picture) -> None:
    """No two texts overlap, and none leaves the sheet."""
    height = picture.figure.get_size_inches()[1] * 72
    for box in picture.boxes:
        assert box.left >= -0.5 and box.right <= WIDTH + 0.5, box
        assert box.top >= 0 and box.bottom <= height, box
    for one, other in combinations(picture.boxes, 2):
        assert not overlap(one, other), (one, other)


def strip_of(prompt: int) -> pd.DataFrame:
    """Five different hits and all kinds of small losses in a prompt of that length."""
    shared = max(1, prompt - max(1, prompt // 12))
    entries = []
    for adapter, (*_, unit) in ledgers.FRAMEWORKS.items():
        hit = (shared - 1) // unit * unit
        last = 1 if shared - hit > 1 else 0
        parts = [("reused", hit), ("alignment", shared - hit - last), ("last_token", last)]
        if adapter == "deepinfer" and hit > 10:
            parts = [("reused", hit - hit // 9), ("replay", hit // 9), *parts[1:]]
        parts.append(("fresh", prompt - shared))
        found = [part for part in parts if part[1]]
        lanes = {"full": found, "window": found} if adapter == "sglang" else {}
        entries.append(ledgers.entry(adapter, found, lanes=lanes))
    return ledgers.frame(entries)


@pytest.mark.parametrize("prompt", [5, 40, 120, 121, 700, 2048, 9999, 100_000])
def test_strips_of_any_length_can_be_read(prompt: int) -> None:
    picture = strip_figure(strip_of(prompt), "chat", "turn-2")
    assert_readable(picture)
    assert picture.title.startswith(f"{prompt:,} tokens")
    assert "vLLM: " in picture.alt


def test_the_examples_of_the_design(both: pd.DataFrame) -> None:
    for request, scenario in (("turn-2", "chat"), ("r2", "same-twice")):
        picture = strip_figure(both, scenario, request)
        assert_readable(picture)
    texts = [box.text for box in strip_figure(both, "chat", "turn-2").boxes]
    for text in ("vLLM", "hit 1,840", "first difference 1,867", "consumer", "slot_choice"):
        assert text in texts


def test_many_short_runs_cost_no_more_than_few() -> None:
    parts = [("reused", 60), ("moved", 40)] * 1000
    frame = ledgers.frame([ledgers.entry("llamacpp", parts)])
    picture = strip_figure(frame, "chat", "turn-2")
    assert len(picture.figure.axes[0].patches) < 1000


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_every_theme_draws_every_figure(both: pd.DataFrame, theme: str) -> None:
    for draw in (strip_figure, waterfall_figure, hit_vs_saved):
        picture = draw(both, theme=theme)
        assert_readable(picture)
        assert picture.svg().startswith("<?xml")


def test_the_same_figure_gives_the_same_bytes(both: pd.DataFrame) -> None:
    assert strip_figure(both).svg() == strip_figure(both).svg()
    assert waterfall_figure(both).png() == waterfall_figure(both).png()


def test_the_waterfall_shows_the_numbers_of_the_table(chat: pd.DataFrame) -> None:
    picture = waterfall_figure(chat, window="All 2 requests")
    texts = [box.text for box in picture.boxes]
    for text in ("45.5", "−0.4", "43.4", "slot_choice", "transcribed"):
        assert text in texts
    assert "tier" not in texts  # rows empty in all columns are dropped


def test_many_rows_stand_in_tiers() -> None:
    entries = [
        ledgers.entry("vllm", ledgers.TURN_2["vllm"], run=f"vllm:block_size={2**at}")
        for at in range(13)
    ]
    assert_readable(waterfall_figure(ledgers.frame(entries)))


def test_outliers_of_the_band_are_named() -> None:
    entries = [
        ledgers.entry("deepinfer", [("reused", 100), ("replay", 700), ("fresh", 200)]),
        ledgers.entry("llamacpp", [("fresh", 5000), ("moved", 5000)], shared_tokens=0),
        ledgers.entry("vllm", [("reused", 800), ("fresh", 200)]),
    ]
    picture = hit_vs_saved(ledgers.frame(entries), cost=lambda n: 1000 * n + n * n / 2)
    assert_readable(picture)
    words = " ".join(box.text for box in picture.boxes)
    assert "1 × moved chunks" in words and "1 × replay" in words
    assert picture.title.endswith("; 1 below and 1 above the band")


def test_thousands_of_requests_become_hexagons() -> None:
    entries = [
        ledgers.entry("vllm", [("reused", 10 + at % 90), ("fresh", 100)], request=f"r{at}")
        for at in range(2001)
    ]
    picture = hit_vs_saved(ledgers.frame(entries))
    assert_readable(picture)
    axes = picture.figure.axes[0]
    assert any(type(each).__name__ == "PolyCollection" for each in axes.collections)
    assert axes.get_xlim() == (0, WIDTH)


def curve() -> pd.DataFrame:
    pools = {}
    for size, hit in ((8192, 10), (16384, 20), (32768, 34)):
        parts = [("reused", hit), ("evicted", 34 - hit), ("fresh", 6)]
        parts = [part for part in parts if part[1]]
        entries = [ledgers.entry(adapter, parts) for adapter in ledgers.FRAMEWORKS]
        pools[size] = ledgers.frame(entries)
    return pool_points(pools)


def test_the_pool_curve_says_what_a_larger_pool_brings() -> None:
    best = {8192: 0.6, 16384: 0.8, 32768: 0.85}
    options = {"ceiling": 0.85, "best": best, "pool_tokens": 8192, "bytes_per_token": 131072}
    picture = pool_curve(curve(), **options)
    assert_readable(picture)
    assert picture.title == "4 times the pool: 25.0 to 85.0 % hits; the ceiling is 85.0 %"
    assert "vLLM: 25.0 % at 8,192, 50.0 % at 16,384, 85.0 % at 32,768 tokens." in picture.alt
    with pytest.raises(ValueError, match="two pool sizes"):
        pool_curve(curve()[:2])


def stairs() -> pd.DataFrame:
    rows = [("vllm", 16), ("sglang", 1), ("tensorrt_llm", 32), ("deepinfer", 256)]
    points = [
        (name, name, ledgers.FRAMEWORKS[name][0], length, (length - 1) // unit * unit)
        for name, unit in rows
        for length in range(1, 130)
    ]
    return pd.DataFrame(points, columns=["run", "adapter", "label", "prompt_tokens", "hit_tokens"])


def test_the_staircase_names_the_smallest_prompt() -> None:
    picture = staircase(stairs(), formulas={"vllm": "⌊(L−1)/16⌋ · 16"}, measured=[(40, 32)])
    assert_readable(picture)
    assert picture.title == (
        "The smallest prompt that can hit has 2 to 33 tokens; some rows cannot hit at all"
    )
    assert "vLLM: smallest prompt 17" in picture.alt
    with pytest.raises(ValueError, match="one to six rows"):
        staircase(stairs()[:0])


def admitted(
    request: str, hit: int, prompt: int, table: list[list[int]], **group: object
) -> object:
    columns = sum(number for _, number in table)
    said = {"group": "full", "columns": columns, "table": table, "block_size": 32, "visible": 0}
    answers = {"matcher": "m", "references": "58 blocks", "groups": [said | group]}
    parts = [(kind, n) for kind, n in (("reused", hit), ("fresh", prompt - hit)) if n]
    return ledgers.entry("tensorrt_llm", parts, request=request, answers=answers)


def blocks() -> pd.DataFrame:
    entries = [
        admitted("r1", 0, 160, [[1, 5]], fresh=0, write=0, matched=0),
        admitted(
            "r2", 100, 160, [[1, 3], [6, 2]], fresh=3, write=100, matched=100, copied=[[4, 6, 4]]
        ),
        admitted(
            "r3", 100, 160, [[1, 3], [8, 2]], fresh=3, write=100, matched=100, copied=[[4, 8, 4]]
        ),
    ]
    return ledgers.frame(entries)  # type: ignore[arg-type]


def test_the_block_map_shows_what_is_shared_and_where_writing_starts() -> None:
    frame = blocks()
    assert tables_of(frame, "chat", "tensorrt_llm")[1].ids == (1, 2, 3, 6, 7)
    picture = block_map(frame, "chat", "tensorrt_llm", "r3")
    assert_readable(picture)
    assert picture.title == (
        "r3 shares 3 blocks with r1 and r2, copies 1 block and writes from position 100"
    )
    texts = [box.text for box in picture.boxes]
    assert texts.count("1") == 3 and "copy of 4, 4 tokens" in texts
    assert "written from 100" in texts
    with pytest.raises(ValueError, match="no block table"):
        block_map(frame, "chat", "tensorrt_llm", "r9")


def test_long_tables_are_folded() -> None:
    entries = [
        admitted("r1", 0, 32 * 120, [[1, 120]], fresh=0, write=0, matched=0),
        admitted(
            "r2", 32 * 114, 32 * 120, [[1, 114], [200, 6]], fresh=114, write=32 * 114, matched=0
        ),
    ]
    picture = block_map(ledgers.frame(entries), "chat", "tensorrt_llm", "r2")  # type: ignore[arg-type]
    assert_readable(picture)
    assert "111 blocks" in [box.text for box in picture.boxes]


def test_texts_are_as_wide_as_they_are_measured(both: pd.DataFrame) -> None:
    for text, size, bold in (("TensorRT-LLM", 9.5, True), ("1,867 to 2,048", 7.5, False)):
        before = text_width(text, size, bold)
        text_width.cache_clear()
        strip_figure(both).png()  # drawing must not change the measure
        assert text_width(text, size, bold) == before
        font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
        drawn = TextPath((0, 0), text, size=size, prop=font).get_extents().x1
        assert before == pytest.approx(drawn, rel=0.04)


def test_helpers_of_the_sheet() -> None:
    assert nice_ticks(0, 2048, 6) == [0, 512, 1024, 1536, 2048]
    assert nice_ticks(0, 100_000, 6) == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    assert nice_ticks(0, 5, 6) == [0, 1, 2, 3, 4, 5]
    assert nice_ticks(3, 3) == [3]
    places = apart([10, 11, 50], 8)
    assert all(abs(a - b) >= 8 - 1e-9 for a, b in combinations(places, 2))
    assert sum(places) == pytest.approx(71)
    assert text_width("12", 10) == pytest.approx(2 * text_width("1", 10), rel=0.2)
