from itertools import pairwise

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from handoff.report.palette import CLASSES
from handoff.report.strip import Run, at_most, cells, clip, lens, median_request, scale, strip

from . import ledgers

CLASS_LISTS = st.lists(
    st.tuples(st.sampled_from(sorted(CLASSES)), st.integers(1, 20_000)), min_size=1, max_size=12
)


def runs_of(parts: list[tuple[str, int]]) -> list[Run]:
    return [Run(*run) for run in ledgers.runs_of(parts)]


def test_up_to_the_width_each_token_is_one_cell() -> None:
    runs = runs_of([("reused", 3), ("draft", 2), ("fresh", 1)])
    assert cells(runs, 6) == ["reused"] * 3 + ["draft"] * 2 + ["fresh"]
    assert len(cells(runs, 80)) == 6


def test_small_losses_keep_a_cell_and_the_longest_run_pays() -> None:
    runs = runs_of([("reused", 99_000), ("draft", 1), ("alignment", 1), ("fresh", 998)])
    drawn = cells(runs, 20)
    assert len(drawn) == 20
    assert drawn.count("draft") == drawn.count("alignment") == 1
    assert drawn.count("reused") == 17


@given(CLASS_LISTS, st.integers(24, 120))
def test_cells_fill_the_width_in_order_with_every_class(
    parts: list[tuple[str, int]], width: int
) -> None:
    runs = runs_of(parts)
    drawn = cells(runs, width)
    assert len(drawn) == min(width, runs[-1].stop)
    merged = [
        name for name, following in zip(drawn, [*drawn[1:], ""], strict=True) if name != following
    ]
    plain = [
        run.name
        for run, following in zip(runs, [*runs[1:], Run("", 0, 0)], strict=True)
        if run.name != following.name
    ]
    assert merged == plain


@given(CLASS_LISTS)
def test_the_scale_is_monotone_and_spans_the_strip(parts: list[tuple[str, int]]) -> None:
    runs = runs_of(parts)
    place = scale(runs)
    edges = [place(run.start) for run in runs] + [place(runs[-1].stop)]
    assert abs(edges[0]) < 1e-9 and abs(edges[-1] - 100) < 1e-6
    assert all(b - a >= 0.59 for a, b in pairwise(edges))


def test_many_runs_are_binned_and_losses_win() -> None:
    parts = [("reused", 90), ("moved", 10)] * 400
    parts[7] = ("evicted", 1)
    runs = runs_of(parts)
    binned = at_most(runs, 50)
    assert len(binned) <= 50
    assert binned[0].start == 0 and binned[-1].stop == runs[-1].stop
    assert all(a.stop == b.start and a.name != b.name for a, b in pairwise(binned))
    assert {run.name for run in binned} == {"reused", "moved", "evicted"}


def test_clip_keeps_what_lies_inside() -> None:
    runs = runs_of([("reused", 10), ("draft", 10), ("fresh", 10)])
    assert clip(runs, 5, 20) == [Run("reused", 5, 10), Run("draft", 10, 20)]


def test_the_lens_frames_all_differences(chat: pd.DataFrame) -> None:
    one = strip(chat, "chat", "turn-2")
    assert one.lens is not None
    start, stop = one.lens
    assert start < 1715 and 1867 < stop <= 2048
    assert stop - start <= 0.35 * 2048
    assert one.differences == (1867,)


def test_no_lens_where_the_whole_shows_everything() -> None:
    rows = ledgers.frame([ledgers.entry("vllm", ledgers.SHORT["vllm"], request="r")])
    assert strip(rows, "chat", "r").lens is None
    wide = ledgers.frame([ledgers.entry("vllm", [("reused", 16), ("evicted", 900), ("fresh", 84)])])
    assert strip(wide, "chat", "turn-2").lens is None


def test_the_lens_stays_inside_a_prompt_of_any_length() -> None:
    for prompt in (121, 5_000, 100_000):
        for unit, adapter in ((1, "llamacpp"), (256, "deepinfer")):
            hit = (prompt - 1) // unit * unit
            parts = [(kind, n) for kind, n in (("reused", hit), ("fresh", prompt - hit)) if n]
            one = strip(ledgers.frame([ledgers.entry(adapter, parts)]), "chat", "turn-2")
            if one.lens is not None:
                assert 0 <= one.lens[0] < one.lens[1] <= prompt
                assert lens(one.rows, prompt) == one.lens


def test_the_median_request_is_one_on_which_rows_disagree(both: pd.DataFrame) -> None:
    assert median_request(both) in [("chat", "turn-2"), ("same-twice", "r2")]
    cold = ledgers.frame([ledgers.entry("vllm", [("fresh", 10)])])
    assert median_request(cold) is None


def test_words_for_screen_readers(chat: pd.DataFrame) -> None:
    row = strip(chat, "chat", "turn-2").rows[0]
    assert row.words() == "1,840 reused; 16 draft; 11 alignment; 181 fresh"


def test_the_sample_is_a_request_on_which_the_rows_differ() -> None:
    same = [("reused", 16), ("fresh", 4)]
    entries = [ledgers.entry(a, same, request="all") for a in ("vllm", "sglang", "llamacpp")]
    entries += [
        ledgers.entry("vllm", [("alignment", 16), ("fresh", 4)], request="two"),
        ledgers.entry("sglang", same, request="two"),
    ]
    assert median_request(ledgers.frame(entries)) == ("chat", "two")
    replay = [("reused", 8), ("replay", 8), ("fresh", 4)]
    computed = [ledgers.entry(a, same, request="same") for a in ("vllm", "sglang")]
    computed += [
        ledgers.entry("vllm", same, request="again"),
        ledgers.entry("sglang", replay, request="again"),
    ]
    assert median_request(ledgers.frame(computed)) == ("chat", "again")
