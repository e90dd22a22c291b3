"""Replays ``native`` recordings: event traces of a scheduler that serves several requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request

from .cache import PrefixCache
from .journal import Evicted
from .lookup import Found
from .node import Node
from .replay import Bench, Transfers, gone, run_lengths
from .req import Req
from .slots import Blocks

__all__ = ["FOLLOWED", "INPUTS", "replay_native"]

INPUTS: Mapping[str, Any] = {
    "trace": True,
    "family": True,
    "config": True,
    "requests": True,
    "cores_agree": True,  # the recorder's check of upstream's two tree cores: nothing of ours
}

SNAP_EVERY = 9
STUCK = 3
"""Steps without a batch after which a recording ended."""
WITHOUT_SNAPS = frozenset({"retract2", "preempt", "spec"})
"""Traces recorded on one tree core only, hence without snapshots (recordings' README)."""


def _verified(event: Any) -> Any:
    """Of the events only what a verify step accepted: ``["v", [[req, _, accepted, _], ...]]``."""
    if isinstance(event, list) and event and event[0] == "v":
        return {"[1]": {"[]": {"[2]": True}}}
    return None


FOLLOWED: Mapping[str, Any] = {"events": {"[]": _verified}}


class _Listener(Transfers):
    """Writes events down in the recorder's words."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[list[Any]] = []
        self.waiting: Sequence[Req] = ()
        self.cache: PrefixCache

    def order(self, waiting: Sequence[Req]) -> None:
        self.events.append(["order", [req.id for req in waiting]])

    def touch(self, req: Req, tokens: int) -> None:
        self.events.append(["touch", self._first_like(req), tokens])

    def match(self, req: Req | None, found: Found) -> None:
        event = ["m", None if req is None else req.id, found.limit, found.hit]
        cache = self.cache
        if cache.host is not None or cache.windows is not None:
            event += [found.host, found.host_window]
        if cache.windows is not None or cache.states is not None:
            event += [found.matched, found.branch]
        self.events.append(event)

    def evict(self, evicted: Evicted) -> None:
        event = ["evict", evicted.need_full, evicted.need_window, evicted.full, evicted.window]
        event.append(gone(evicted))
        if self.cache.states is not None:
            event += [evicted.need_states, evicted.states]
        self.events.append(event)

    def extend(self, req: Req, start: int, length: int, blocks: Blocks) -> None:
        event = ["x", req.id, start, length, req.loaded, run_lengths(blocks.tolist())]
        self.events.append(event)

    def decode(self, rows: Sequence[tuple[Req, Blocks]]) -> None:
        names = [req.id for req, _ in rows]
        if self.cache.page == 1:
            blocks: list[Any] = [int(new[0]) for _, new in rows]
        else:
            blocks = [[req.id, int(new[0])] for req, new in rows if len(new)]
        self.events.append(["d", names, blocks])

    def verify(self, rows: Sequence[tuple[Req, int, int, int]]) -> None:
        self.events.append(["v", [[req.id, *numbers] for req, *numbers in rows]])

    def insert(self, req: Req, up_to: int, finished: bool) -> None:
        self.events.append(["ins", req.id, up_to, req.protected, int(finished)])

    def finish(self, req: Req) -> None:
        self.events.append(["fin", req.id, req.outputs, req.reported])

    def retract(self, req: Req, protected: int, allocated: int) -> None:
        self.events.append(["retract", req.id, protected, allocated])

    def note(self, req: Req) -> None:
        """A request was added."""
        self.events.append(["add", req.id])

    def _first_like(self, req: Req) -> str:
        """The recorder knew a touched request by its text: the first in the queue with the same."""
        return next(other.id for other in self.waiting if other.seq == req.seq)


def _tree(cache: PrefixCache) -> list[list[int]]:
    """The tree, depth first, children by namespace, then by first token."""
    out: list[list[int]] = []

    def visit(node: Node) -> None:
        entry = [node.seq[node.start], node.start, node.stop]
        entry += [node.lock, node.hits, node.priority]
        if cache.windows is not None:
            entry += [int(node.window is not None), node.window_lock]
        elif cache.states is not None:
            entry += [int(node.state is not None), node.state_lock]
        if cache.host is not None:
            entry += [int(node.blocks is not None), int(node.host is not None)]
        out.append(entry)
        below(node)

    def rank(kid: Node) -> tuple[Any, int]:
        key: Any = kid.key
        namespace = key[0] if kid.parent is cache.tree.root else None
        return namespace or ("", ""), kid.seq[kid.start]

    def below(node: Node) -> None:
        for kid in sorted(node.kids.values(), key=rank):
            visit(kid)

    below(cache.tree.root)
    return out


def _request(given: Mapping[str, Any]) -> Request:
    prompt, output = (
        [segment * 1000 + at for segment, count in given[name] for at in range(count)]
        for name in ("prompt", "out")
    )
    wanted = given.get("max_new", len(output))
    return Request(
        id=given["id"],
        prompt=Seq.of(prompt),
        max_tokens=wanted,
        outputs=Seq.of(output + [0] * (wanted - len(output))),
        salt=given.get("salt"),
        lora=f"lora-{given['lora']}" if "lora" in given else None,
        priority=given.get("prio", 0),
        options={"stop_token_ids": [output[-1]] if given.get("stop") == "eos" else []}
        | ({"extra_key": given["extra"]} if "extra" in given else {}),
    )


def replay_native(case: Case) -> Mapping[str, Any]:
    """The whole line as our engine records it."""
    line = case.line
    listener = _Listener()
    bench = Bench(case, line["config"], listener)
    cache = listener.cache = bench.cache
    bench.accepted = _accepted(case)
    arrivals: dict[int, list[Request]] = {}
    for given in line["requests"]:
        arrivals.setdefault(given["at"], []).append(_request(given))
    snaps: list[list[Any]] = []
    disabled = cache.disabled
    with_snaps = line["trace"].rsplit("-", 1)[0] not in WITHOUT_SNAPS and not disabled
    step = stuck = 0
    while arrivals or bench.engine.busy:
        for request in arrivals.pop(step, ()):
            bench.submit(request)
            listener.note(bench.engine.scheduler.waiting[-1])
        listener.waiting = bench.engine.scheduler.waiting
        planned = bench.plan()
        if bench.in_flight and (not planned or bench.in_flight == bench.engine.depth):
            bench.answer()
            planned = True
        if planned:
            if moved := listener.moved():
                listener.events.append(["dma", *moved])
            listener.events.append(["st", *bench.sizes()])
            if with_snaps and step % SNAP_EVERY == SNAP_EVERY - 1:
                snaps.append([len(listener.events), _tree(cache)])
        elif listener.waiting and not arrivals:  # nothing runs and the queue's head never fits
            if not with_snaps and not disabled:
                listener.events.append(["st", *bench.sizes()])
            stuck += 1
            if with_snaps or stuck == STUCK:
                break
        step += 1
    if cache.host is not None:
        cache.host.acknowledge()  # copies still pending
    tree = None if disabled else _tree(cache)
    return {**line, "events": listener.events, "snaps": snaps, "tree": tree}


def _accepted(case: Case) -> Any:
    """Looks up what each verify step of the recording accepted, in order."""
    steps = [
        [row[2] for row in event[1]]
        for event in case.followed.get("events", ())
        if event is not None
    ]

    def next_of(step: int, row: int) -> int:
        return int(steps[step][row])

    return next_of
