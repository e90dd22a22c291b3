"""Taking and giving many ids at once is the same as one after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handoff.index.order import LinkedQueue
from handoff.store.blocks import BlockPool

ACTION = st.tuples(st.sampled_from(["pop", "back", "front", "remove"]), st.integers(0, 4))


@given(st.lists(ACTION, max_size=20))
def test_queue_many_equals_one_by_one(actions: list[tuple[str, int]]) -> None:
    many, single = LinkedQueue(12, range(6)), LinkedQueue(12, range(6))
    outside = list(range(6, 12))
    for kind, count in actions:
        if kind == "pop":
            count = min(count, len(single))
            taken = list(single)[:count]
            for ident in taken:
                single.remove(ident)
            assert many.pop_front_many(count) == taken
            outside += taken
        elif kind == "remove":
            taken = list(single)[::2][:count]
            for ident in taken:
                single.remove(ident)
            many.remove_many(taken)
            outside += taken
        else:
            given_back, outside = outside[:count], outside[count:]
            for ident in given_back if kind == "back" else reversed(given_back):
                (single.push_back if kind == "back" else single.push_front)(ident)
            (many.push_back_many if kind == "back" else many.push_front_many)(given_back)
        assert list(many) == list(single) and len(many) == len(single)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=20))
def test_counts_many_equal_one_by_one(actions: list[tuple[bool, int]]) -> None:
    many, single = BlockPool(6), BlockPool(6)
    for shares, count in actions:
        if shares:
            idle = [block for block in range(count) if not single.counts[block]]
            for block in range(count):
                single.share(block)
            assert many.share_many(range(count)) == idle
        else:
            held = [block for block in range(6) if single.counts[block]][:count]
            gone = [block for block in held if single.drop(block)]
            assert many.drop_many(held) == gone
        assert many.counts == single.counts and many.num_held == single.num_held
    taken = [block for block in range(6) if not single.counts[block]]
    many.take_many(taken)
    many.check({block: many.counts[block] for block in range(6)})
    assert all(many.counts[block] == 1 for block in taken)
