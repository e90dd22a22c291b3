"""The runner, its environment and the Step checker, on a toy engine."""

from __future__ import annotations

import pytest

from handoff.conformance.contract import check_adapter, random_stream, serve
from handoff.index.spans import LATE, VIRTUAL, Seq
from handoff.runner import Environment, run
from handoff.types import (
    Bind,
    Deduction,
    Group,
    GroupAnswer,
    Handoff,
    Layer,
    Layout,
    Open,
    Pool,
    Request,
    Row,
    Step,
)
from handoff.types.checks import StepChecker
from handoff.workload.arrivals import Arrival, When

from ...toy import Toy, ToyEngine, ToyOptions


def request(name: str, prompt: list[int], outputs: int, at: float = 0.0) -> Request:
    return Request(name, Seq(prompt), outputs, Seq.virtual(VIRTUAL + 99, outputs), arrival=at)


def test_the_toy_keeps_the_contract() -> None:
    check_adapter(Toy())  # type: ignore[arg-type]


def test_conditions_and_clock() -> None:
    seen: list[str] = []
    arrivals = [
        Arrival("a", When(), request("a", [1, 2, 3], 4)),
        Arrival("late", When(), request("late", [9], 1, at=100.0)),
        Arrival("b", When("after", "a"), request("b", [1, 2, 3], 1)),
        Arrival("c", When("with", "b"), request("c", [1, 2], 1)),
        Arrival("d", When("during_decode", "a", 2), request("d", [1], 1)),
        Arrival("big", When("after", "b"), request("big", list(range(2000)), 1)),
        Arrival("after-big", When("after", "big"), request("after-big", [5], 1)),
    ]
    outcome = run(
        ToyEngine(ToyOptions()),
        arrivals,
        on_submit=lambda r, now: seen.append(f"{r.id} {now:.2f}"),
        step_seconds=lambda step: 0.5,
    )
    # a emits at 0.5, 1.0 (d joins), 1.5, 2.0; b and c once a is done; d is served first.
    assert seen[:4] == ["a 0.00", "d 1.00", "b 2.00", "c 2.00"]
    assert outcome.refused == {"big": "needs 2001 cells"}
    assert outcome.finished["late"] == 100.5 and outcome.first_token["a"] == 0.5
    assert set(outcome.finished) == {"a", "b", "c", "d", "late", "after-big"}


def test_a_request_that_waits_in_vain_is_refused() -> None:
    arrivals = [
        Arrival("a", When(), request("a", [1], 1)),
        Arrival("x", When("during_decode", "y"), request("x", [1], 1)),
        Arrival("y", When("after", "x"), request("y", [1], 1)),
    ]
    outcome = run(ToyEngine(ToyOptions()), arrivals)
    assert set(outcome.refused) == {"x", "y"} and set(outcome.finished) == {"a"}


def test_acceptance_is_the_longest_right_prefix() -> None:
    env = Environment(seed=0, num_drafts=2, acceptance=1.0)
    env.add(Request("a", Seq([1]), 9, Seq(range(10, 19))))
    env.see(Step(0, 0, -1, (Open(0, "a", Seq([1])),)))
    assert env.answer(Row(0, 0, Seq([1]))).tokens == (10,)
    right = env.answer(Row(0, 1, Seq([10, LATE, LATE]), drafts=2, emits=3))
    assert right.tokens == (11, 12, 13) and right.drafts == (14, 15)
    wrong = env.answer(Row(0, 4, Seq([13, 14, 99]), drafts=2, emits=3))
    assert wrong.tokens == (14, 15)
    assert env.answer(Row(0, 6, Seq([15]), emits=0)).tokens == ()
    padded = env.answer(Row(0, 6, Seq([15, LATE]), drafts=1, emits=2))
    assert padded.tokens[0] == 16


def test_a_resumed_request_generates_again_what_its_planner_dropped() -> None:
    env = Environment(seed=0, num_drafts=0, acceptance=0.0)
    prompt, outputs = Seq.of([1, 2, 3]), Seq.of([7, 8, 9])
    env.add(Request("a", prompt, 3, outputs))

    def opened(seq: int, ids: list[int]) -> None:
        env.see(Step(0, 0, -1, ops=(Open(seq, "a", Seq.of(ids)),)))

    def answered(seq: int, start: int) -> tuple[int, ...]:
        return env.answer(Row(seq, start, Seq.of([0]))).tokens

    opened(1, [1, 2, 3])
    assert answered(1, 2) == (7,) and answered(1, 3) == (8,)
    opened(2, [1, 2, 3, 7])  # the 8 came too late and was dropped
    assert answered(2, 3) == (8,) and env.wanted("a") == 1
    opened(3, [1, 3, 7, 8])  # a context shift: everything is kept
    assert answered(3, 4) == (9,) and env.emitted["a"] == outputs


def test_sampled_outputs_depend_on_seed_request_and_index_only() -> None:
    def sampled(seed: int) -> list[int]:
        env = Environment(seed, 0, 0.0)
        env.add(Request("a", Seq([1]), 3))
        return [env.output("a", k) for k in range(3)]

    assert sampled(1) == sampled(1) != sampled(2)


LAYOUT = Layout((Pool("p", 4),), (Group("g", "p"),), (Layer("g"),))
OPEN = Open(0, "a", Seq([1, 2]))


def tells(write: int = 0, visible: int = 0) -> Handoff:
    """A cold admission that tells where group g is written and seen from."""
    answer = GroupAnswer("g", 0, (), 0, write, visible)
    return Handoff(0, "a", 2, 2, 0, 0, 0, groups=(answer,))


def test_the_checker_lets_a_fitting_step_pass() -> None:
    StepChecker(LAYOUT).step(Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1, 2])),), (tells(),)))


@pytest.mark.parametrize(
    "step",
    [
        Step(0, 0, -1, (), (Row(0, 0, Seq([1])),)),
        Step(1, 0, -1),
        Step(0, 0, -1, (OPEN, OPEN)),
        Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1])), Row(0, 1, Seq([2])))),
        Step(0, 0, -1, (OPEN, Bind(0, "g", 0, (4,), True))),
        Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1]), drafts=1, emits=1),)),
        Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1])),), (Handoff(0, "a", 2, 2, 1, 1, 1),)),
        Step(0, 0, -1, (OPEN,), (), (Handoff(0, "a", 2, 2, 1, 1, 1),)),
        Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1, 2])),), (tells(write=1),)),
        Step(0, 0, -1, (OPEN,), (Row(0, 0, Seq([1, 2])),), (tells(visible=1),)),
    ],
)
def test_the_checker_finds_steps_that_do_not_fit(step: Step) -> None:
    with pytest.raises(AssertionError):
        StepChecker(LAYOUT).step(step)


@pytest.mark.parametrize(
    "change",
    [
        {"hit_tokens": 3},
        {"start": 5},
        {"known_tokens": 4},
        {"deductions": (Deduction("alignment", 3, 5, "1"),)},
        {"deductions": (Deduction("because", 4, 6, "1"),)},
    ],
)
def test_a_handoff_with_wrong_sums_cannot_be_built(change: dict[str, object]) -> None:
    right = dict(
        seq=0, request="a", prompt_tokens=9, known_tokens=9, raw_tokens=6, hit_tokens=4, start=4
    )
    right["deductions"] = (Deduction("alignment", 4, 6, "1"),)
    Handoff(**right)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        Handoff(**{**right, **change})  # type: ignore[arg-type]


def test_streams_are_related_and_reproducible() -> None:
    first, second = (random_stream(3, concurrent=True) for _ in range(2))
    assert [repr(a.request) for a in first] == [repr(a.request) for a in second]
    serve(ToyEngine(ToyOptions()), first)
