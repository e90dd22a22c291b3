"""Invariants that hold after every Step of any stream, and cells against a plain oracle."""

from __future__ import annotations

from typing import Any

from handoff.adapters.llamacpp.cells import MANY, NONE, Cells
from handoff.adapters.llamacpp.copies import Saved
from handoff.adapters.llamacpp.hostpool import HostPool
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.index.spans import Seq, common
from handoff.types import NULL, Request

from .serving import HYBRID, RECURRENT, SMALL, WINDOW, Server, text

# -- streams ------------------------------------------------------------------------------------

PIECES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(1, 90)), min_size=1, max_size=3
)
"""Prompts are built of stretches of four texts, so that they share heads, middles and tails."""

REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "pieces": PIECES,
            "outputs": st.integers(0, 40),
            "together": st.booleans(),
            "lora": st.sampled_from([None, None, None, "A"]),
            "options": st.fixed_dictionaries(
                {},
                optional={
                    "id_slot": st.integers(0, 1),
                    "n_cmpl": st.integers(1, 2),
                    "cache_prompt": st.just(False),
                    "n_cache_reuse": st.sampled_from([4, 16]),
                },
            ),
        }
    ),
    min_size=2,
    max_size=8,
)

SERVERS = st.fixed_dictionaries(
    {
        "memory": st.sampled_from([SMALL, WINDOW, HYBRID, RECURRENT]),
        "parallel": st.sampled_from([-1, 1, 2, 3]),
        "kv_unified": st.sampled_from([None, True]),
        "cache_ram": st.sampled_from([0, 1, -1]),
        "cache_reuse": st.sampled_from([0, 8]),
        "ubatch_size": st.sampled_from([16, 64]),
        "batch_size": st.sampled_from([64, 128]),
        "ctx_checkpoints": st.sampled_from([0, 2, 32]),
        "checkpoint_min_step": st.sampled_from([0, 8192]),
        "swa_full": st.booleans(),
        "context_shift": st.booleans(),
        "ctx_size": st.sampled_from([512, 1024]),
        "spec_type": st.sampled_from(["none", "none", "draft-simple"]),
    }
)


def _build(given_options: dict[str, Any]) -> Server:
    values = dict(given_options)
    memory = values.pop("memory")
    return _Checked(memory, values)


class _Checked(Server):
    """A server whose invariants are checked after every answer."""

    def complete(self, result: Any) -> None:
        super().complete(result)
        check(self)


def _requests(server: Server, drawn: list[dict[str, Any]]) -> list[list[Request]]:
    """Groups of requests that arrive at once."""
    groups: list[list[Request]] = []
    for each in drawn:
        prompt = [t for stream, skip, count in each["pieces"] for t in text(stream, count, skip)]
        options = dict(each["options"])
        slots = server.options.num_slots
        if options.get("id_slot", 0) >= slots:
            del options["id_slot"]
        if options.get("n_cmpl", 1) > slots:
            del options["n_cmpl"]
        request = server.request(prompt, each["outputs"], lora_name=each["lora"], **options)
        if each["together"] and groups:
            groups[-1].append(request)
        else:
            groups.append([request])
    return groups


@settings(max_examples=120)
@given(SERVERS, REQUESTS)
def test_slots_hold_their_tokens_and_nothing_leaks(
    options: dict[str, Any], drawn: list[dict[str, Any]]
) -> None:
    if options["cache_reuse"] or any("n_cache_reuse" in each["options"] for each in drawn):
        for each in drawn:  # a shift of cells that children share is left out by name
            each["options"].pop("n_cmpl", None)
    server = _build(options)
    for group in _requests(server, drawn):
        for report in server.together(group):
            assert report.ended
        check(server)
        assert not server.engine.observe()["busy"]


def check(server: Server) -> None:
    """Everything that is true between two Steps."""
    inner = server.engine.server
    for slot in inner.slots:
        assert slot.length <= server.options.slot_limit
        counts = [item.num_tokens for item in slot.checkpoints]
        assert len(counts) <= server.options.ctx_checkpoints and len(set(counts)) == len(counts)
        assert server.options.has_checkpoints or not counts
        if not slot.busy:
            _check_idle(server, slot)
    for cells in inner.memory.kv.values():
        check_cells(cells)
    if inner.ram is not None:
        ram = inner.ram
        assert ram.limit_bytes is None or ram.num_bytes <= ram.limit_bytes
    _check_host(server)


def _check_idle(server: Server, slot: Any) -> None:
    """An idle slot's memory holds its list; a window may have lost what lies far back."""
    memory = server.engine.server.memory
    for name, cells in memory.kv.items():
        assert cells.pos_max(slot.id) == slot.length - 1
        if name == "full":
            assert slot.length == 0 or cells.pos_min(slot.id) == 0
    if memory.states is not None:
        assert memory.states.pos[slot.id] == slot.length - 1


def check_cells(cells: Cells) -> None:
    """No cell has two owners unless it is shared, and tables and cells tell the same story."""
    owners: dict[int, set[int]] = {}
    for seq, table in enumerate(cells.tables):
        for position, cell in enumerate(table):
            if cell == NULL:
                assert position < cells.low[seq], "a hole inside of the range"
                continue
            assert position >= cells.low[seq]
            assert cells.pos[cell] == position
            assert cell // cells.size == cells.stream(seq)
            owners.setdefault(cell, set()).add(seq)
    for cell, seqs in owners.items():
        if len(seqs) > 1:
            assert cells.shared[cell] == seqs and cells.owner[cell] == MANY
        else:
            assert cells.owner[cell] == next(iter(seqs)) and cell not in cells.shared
    for stream in range(cells.streams):
        held = [cell for cell in owners if cell // cells.size == stream]
        assert len(held) == cells.used[stream]
        part = cells.pos[stream * cells.size : (stream + 1) * cells.size]
        assert int((part != NONE).sum()) == len(held)


def _check_host(server: Server) -> None:
    """Host cells are held by RAM entries and checkpoints, once each, and by nobody else."""
    inner = server.engine.server
    entries = inner.ram.entries if inner.ram is not None else []
    copies: list[Saved] = [entry.saved for entry in entries]
    for holder in (*inner.slots, *entries):
        copies += [item.saved for item in holder.checkpoints]
    for name, pool in inner.memory.hosts.items():
        held: set[int] = set()
        count = 0
        for copy in copies:
            for part in copy.parts:
                if part.group == name:
                    for first, length in part.host:
                        held.update(range(first, first + length))
                        count += length
        assert len(held) == count and pool.num_free == pool.size - count


@settings(max_examples=60)
@given(st.lists(PIECES, min_size=2, max_size=6), st.sampled_from([1, 2]))
def test_a_plain_hit_is_the_common_prefix_with_the_slot(drawn: list[Any], parallel: int) -> None:
    server = Server(SMALL, parallel=parallel, ctx_size=1024, cache_ram=0)
    for pieces in drawn:
        prompt = Seq([t for stream, skip, n in pieces for t in text(stream, n, skip)])
        if len(prompt) >= server.options.slot_limit:
            continue
        held = [
            common(slot.text, 0, prompt, 0, min(slot.length, len(prompt)))
            for slot in server.engine.server.slots
        ]
        report = server.serve(prompt.tokens())
        assert report.hit == min(held[report.slot], len(prompt) - 1)


# -- cells against an oracle -----------------------------------------------------------------------


class _Plain:
    """The cells of one stream as upstream's loops have them, one cell at a time."""

    def __init__(self, size: int, window: int) -> None:
        self.window = window
        self.cells: list[tuple[int, int] | None] = [None] * size  # (sequence, position)
        self.head = 0

    def positions(self, seq: int) -> list[int]:
        return sorted(cell[1] for cell in self.cells if cell is not None and cell[0] == seq)

    def append(self, seq: int, count: int) -> None:
        used = sum(cell is not None for cell in self.cells)
        head = 0 if self.head > used + 2 * count else self.head
        top = {s: max(self.positions(s), default=-1) for s in range(2)}
        order = [*range(head, len(self.cells)), *range(head)]
        found = []
        for index in order:
            cell = self.cells[index]
            if cell is None or top[cell[0]] + 1 - cell[1] >= self.window:
                found.append(index)
            if len(found) == count:
                break
        assert len(found) == count
        lost: dict[int, int] = {}
        for offset, index in enumerate(found):
            cell = self.cells[index]
            if cell is not None:
                lost[cell[0]] = max(lost.get(cell[0], -1), cell[1])
            self.cells[index] = (seq, top[seq] + 1 + offset)
        for other, highest in lost.items():
            self.remove(other, 0, highest + 1)
        self.head = found[-1] + 1

    def remove(self, seq: int, start: int, stop: int) -> None:
        freed = [
            index
            for index, cell in enumerate(self.cells)
            if cell is not None and cell[0] == seq and start <= cell[1] < stop
        ]
        for index in freed:
            self.cells[index] = None
        if freed:
            self.head = min(self.head, freed[0])

    def shift(self, seq: int, start: int, delta: int) -> None:
        for index, cell in enumerate(self.cells):
            if cell is not None and cell[0] == seq and cell[1] >= start:
                self.cells[index] = (seq, cell[1] + delta)
        self.head = 0


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "cut", "shift"]), st.integers(0, 1), st.integers(1, 8)
        ),
        min_size=1,
        max_size=40,
    )
)
def test_window_cells_agree_with_a_walk_over_single_cells(
    moves: list[tuple[str, int, int]],
) -> None:
    size, window = 24, 6
    cells, plain = Cells(size, 1, 2, window), _Plain(size, window)
    for what, seq, count in moves:
        held = plain.positions(seq)
        if what == "append":
            found = cells.find(0, count)
            assert found is not None
            cells.write(found, [(seq, cells.pos_max(seq) + 1, count)])
            plain.append(seq, count)
        elif what == "cut" and len(held) > count:
            cells.remove(seq, held[-count])
            plain.remove(seq, held[-count], size * 99)
        elif what == "shift" and len(held) > 2 * count and held[0] + count < held[-1]:
            first = held[0]
            cells.remove(seq, first, first + count)
            plain.remove(seq, first, first + count)
            cells.shift(seq, first + count, held[-1] + 1, -count)
            plain.shift(seq, first + count, -count)
        check_cells(cells)
        expected = [NULL] * size
        for index, cell in enumerate(plain.cells):
            if cell is not None:
                expected[index] = cell[1]
        assert cells.pos.tolist() == expected and cells.head[0] == plain.head


@given(st.lists(st.integers(1, 9), max_size=30), st.data())
def test_host_ids_are_handed_out_once(sizes: list[int], data: st.DataObject) -> None:
    pool = HostPool("host", 1000)
    held: list[list[tuple[int, int]]] = []
    for size in sizes:
        held.append(pool.take(size))
        if data.draw(st.booleans()):
            pool.give(held.pop(data.draw(st.integers(0, len(held) - 1))))
        ids = [i for runs in held for first, count in runs for i in range(first, first + count)]
        assert len(set(ids)) == len(ids) and pool.num_free == 1000 - len(ids)
