import pytest

from handoff.report import words


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.852, "85.2"),
        (0.0, "0.0"),
        (1.0, "100.0"),
        (1e-6, "<0.1"),
        (0.9999, ">99.9"),
        (-0.05, "−5.0"),
        (-1e-6, "−0.0"),
        (None, "–"),
    ],
)
def test_a_share_that_is_not_zero_is_not_printed_as_zero(ratio: float | None, text: str) -> None:
    assert words.percent(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.019, "+1.9"), (-0.059, "−5.9"), (0.0001, "0.0"), (-0.0001, "0.0")]
)
def test_points_carry_their_sign(ratio: float, text: str) -> None:
    assert words.points(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.41, "0.41 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (137.0, "137 s"), (0.0, "0 s")],
)
def test_seconds_have_a_unit_that_fits(value: float, text: str) -> None:
    assert words.seconds(value) == text


def test_counts_and_lists() -> None:
    assert words.count(-1867) == "−1,867"
    assert words.short_count(4 * 2**20) == "4 Mi"
    assert words.short_count(5000) == "5,000"
    assert words.plural(1, "request") == "1 request"
    assert words.join(["a"]) == "a"
    assert words.join(["a", "b", "c"]) == "a, b and c"
    assert (words.all_of(2), words.all_of(5)) == ("both", "all five")
    assert words.number_word(5) == "five"
    assert words.number_word(12_000) == "12,000"
