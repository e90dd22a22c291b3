"""Tokens that descend from a moved chunk are found by the tag pass and counted in the ledger."""

from __future__ import annotations

from handoff.experiment import RowSpec, Stream, run_row
from handoff.workload.scenario import RequestSpec, Span, build_arrivals


def test_a_moved_chunk_taints_the_next_ordinary_hit() -> None:
    whole = (Span(shared="a", len=300), Span(shared="b", len=100), Span(shared="c", len=400))
    cut = (whole[0], whole[2], Span(unique="q", len=20))
    specs = (
        RequestSpec(id="before", spans=whole),
        RequestSpec(id="after", when="after:before", spans=cut),
        RequestSpec(id="again", when="after:after", spans=cut),
    )
    stream = Stream("moved", lambda: build_arrivals(specs))
    work = run_row(RowSpec("llamacpp", "llamacpp", {"cache_reuse": 256}), stream)
    before, after, again = work.entries
    assert (before.tainted_tokens, after.moved, after.tainted_tokens) == (0, 400, 400)
    assert (again.hit_tokens, again.moved) == (719, 0)
    assert again.tainted_tokens == 400 + 19  # the chunk, and what was computed behind it
