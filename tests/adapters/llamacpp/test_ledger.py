"""What the ledger says of llama-server: losses no Handoff deducts, and the server's counters."""

from __future__ import annotations

from typing import Any

from handoff.adapter import Isolates, load
from handoff.experiment import RowSpec, Stream, run_row
from handoff.ledger.entries import Entry
from handoff.workload.scenario import RequestSpec, Span, build_arrivals

ONE = {"parallel": 1, "cache_ram": 0}
TWO = {"parallel": 2, "cache_ram": 0}


def spec(name: str, text: str, length: int = 64, /, **more: Any) -> RequestSpec:
    return RequestSpec(id=name, spans=(Span(shared=text, len=length),), output_len=2, **more)


def served(values: dict[str, Any], *specs: RequestSpec) -> dict[str, Entry]:
    """Entries of requests that come one after the other, by request."""
    chained = [
        each if at == 0 else each.model_copy(update={"when": f"after:{specs[at - 1].id}"})
        for at, each in enumerate(specs)
    ]
    stream = Stream("test", lambda: build_arrivals(tuple(chained)))
    work = run_row(RowSpec("llamacpp", "llamacpp", values), stream, pool_tokens=2048)
    return {entry.request: entry for entry in work.entries}


def test_rule_10_a_salt_is_ignored_so_text_of_another_tenant_was_evicted() -> None:
    assert isinstance(load("llamacpp"), Isolates)
    entries = served(
        ONE, spec("a", "s", salt="A"), spec("between", "t", salt="A"), spec("b", "s", salt="B")
    )
    assert entries["b"].lost == {"evicted": 64}
    assert [(lost.reason, lost.rule) for lost in entries["b"].deductions] == [("evicted", "12")]


def test_rule_10_text_of_another_tenant_in_a_slot_not_chosen() -> None:
    named = {"options": {"id_slot": 0}}
    entries = served(TWO, spec("a", "s", salt="A"), spec("b", "s", salt="B", **named))
    assert entries["b"].lost == {"slot_choice": 64}


def test_rule_10_adapters_isolate() -> None:
    entries = served(ONE, spec("a", "s", lora="A"), spec("b", "t"), spec("c", "s", lora="B"))
    assert entries["c"].lost == {"isolation": 64}


def test_rule_9_children_add_nothing_to_the_servers_counters() -> None:
    entries = served(
        {**TWO, "kv_unified": True}, spec("a", "s"), spec("b", "s", options={"n_cmpl": 2})
    )
    assert entries["b"].counters == {"cache_n": 63, "prompt_n": 1}
    child = entries["b#1"]
    assert (child.hit_tokens, child.counters) == (64, {})
