"""Planted faults are caught, and a planter that plants nothing is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from handoff.engine.faults import FAULTS
from handoff.engine.planting import Fault, Recorder, Scan, Site
from handoff.experiment import merge_info, rows_of, run_row, stream_of
from handoff.report.info import RunInfo
from handoff.report.trust import truth
from handoff.stress import stress_streams
from handoff.types import Step
from handoff.verify import VerifyReport, verify
from handoff.workload.scenario import load_scenario

torch.set_num_threads(1)

STREAMS = {stream.name: stream for stream in stress_streams()}


@pytest.fixture(scope="module")
def vllm() -> VerifyReport:
    names = ("crowd", "pressure", "windows", "turns", "drafts", "replay")
    return verify([STREAMS[name] for name in names], ["vllm"])


def test_exact_rows_agree_and_approximate_ones_are_apart(vllm: VerifyReport) -> None:
    exact, approximate = vllm.exact["vllm"], vllm.approximate["vllm"]
    assert exact.ok and exact.max_rel_error < 1e-5 and exact.rows > 500
    assert approximate.tainted == {"hidden": 318} and approximate.max_rel_error > 1e-3


def test_a_run_reports_the_error_of_approximate_rows_beside_the_exact_ones() -> None:
    stream = stream_of(load_scenario("deleted-paragraph"))
    rows = rows_of(stream.scenario, ["llamacpp"], {})
    infos = merge_info([run_row(row, stream, execute=True).info for row in rows])
    found = [info.truth for info in infos if info.truth and info.truth.approximate_rows]
    assert len(found) == 1 and found[0].ok and found[0].max_error < 1e-5
    assert found[0].approximate_max_error > 1e-3
    text = truth(RunInfo(command="", date="", rows=tuple(infos), executed=True))
    assert f"by up to {found[0].approximate_max_error:.2g} of the largest logit" in text


def test_every_planted_fault_is_caught_and_names_its_catcher(vllm: VerifyReport) -> None:
    assert not vllm.uncaught and len({each.fault for each in vllm.planted}) >= 20
    kinds = {each.name for each in FAULTS}
    for each in vllm.planted:
        if each.fault in kinds:  # a planner's fault: the tags find it without tensors
            assert each.tags, each
        if each.fault in ("rotation", "last slot", "window edge", "early state"):
            assert each.logits and not each.tags  # an executor's: tags are no tensors
    found = vllm.as_json()
    assert found["ok"] and found["faults"]["caught"] == found["faults"]["planted"]
    assert {each["fault"] for each in found["faults"]["not_applicable"]} >= {"shift sign"}


@pytest.mark.parametrize("adapter", ["sglang", "llamacpp", "tensorrt_llm", "deepinfer"])
def test_the_other_adapters(adapter: str) -> None:
    names = ("crowd", "turns", "moved")
    report = verify([STREAMS[name] for name in names], [adapter])
    assert report.ok, (report.exact, report.uncaught)
    assert len(report.planted) >= 12


def test_a_planter_that_is_disabled_is_noticed() -> None:
    """No fault finds a place: every kind is said to be planted nowhere, and that fails."""
    idle = [replace(fault, mutate=lambda site: None) for fault in FAULTS]
    stream = stream_of(load_scenario("eagle"))
    for complete in (True, False):
        report = verify([stream], ["vllm"], faults=idle, broken=(), complete=complete)
        assert {fault.name for fault in FAULTS} <= set(report.unplanted)
        assert not report.uncaught and report.ok is not complete


def test_a_planter_that_plants_nothing_is_noticed() -> None:
    def harmless(site: Site) -> Step | None:
        return replace(site.step, iteration=site.step.iteration + 1) if site.rows else None

    nothing = Fault("nothing", "changes a number that nobody reads", "", harmless)
    stream = stream_of(load_scenario("eagle"))
    report = verify([stream], ["vllm"], faults=[nothing], broken=())
    assert [each.fault for each in report.uncaught] == ["nothing"] and not report.ok


def test_a_fault_must_change_something() -> None:
    stream = stream_of(load_scenario("short-prompt"))
    from handoff.adapter import load
    from handoff.runner import run

    adapter, recorder = load("vllm"), Recorder()
    engine = adapter.engine(adapter.options())
    run(engine, stream.arrivals(), sinks=[recorder])
    idle = Fault("idle", "does nothing", "", lambda site: site.step)
    with pytest.raises(AssertionError, match="changed nothing"):
        Scan(engine.layout, [idle]).step(recorder.feed[0])  # type: ignore[arg-type]
