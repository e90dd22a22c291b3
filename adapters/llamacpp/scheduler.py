"""The server's loop: tasks, context shifts, batches, samples (RULES 6; update_slots)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from handoff.types import RowResult

from .batches import Work, split_at
from .checkpoints import cut_after
from .family import feed_children, open_child
from .options import Options
from .server import Server
from .shift import shift_context
from .slots import Slot, Task

__all__ = ["MicroBatch", "Scheduler"]


@dataclass(slots=True)
class MicroBatch:
    """Work computed in one pass, and whether it ends a view of the batch."""

    work: list[Work]
    last: bool


@dataclass(slots=True)
class _Batch:
    """A batch under way: what is not yet placed, and the view that is being computed."""

    rest: list[Work]
    done: int = 0
    limit: int = 0
    view: deque[MicroBatch] = field(default_factory=deque)
    viewed: list[Work] = field(default_factory=list)


class Scheduler:
    """Queue and loop; ``next_micro_batch`` and ``sample`` are called in turn by the engine."""

    def __init__(self, options: Options, server: Server) -> None:
        self.options = options
        self.server = server
        self.queue: deque[Task] = deque()
        self.waiting: deque[Task] = deque()
        self.batch: _Batch | None = None
        self.iteration = -1
        self.cancelled: set[int] = set()
        """Slots whose client hung up; freed at the next loop."""
        self.results: dict[int, RowResult] = {}
        """Answers of the present view by slot."""

    # -- the loop ------------------------------------------------------------------------------

    def next_micro_batch(self) -> MicroBatch | None:
        """The next pass, of a new loop if the last batch is done; None if nothing is to do."""
        while True:
            if self.batch is None and not self._loop():
                return None
            batch = self.batch
            assert batch is not None
            if batch.view or self._view(batch):
                return batch.view.popleft()
            self.batch = None

    def _loop(self) -> bool:
        """One pass of the loop up to a batch; False if there is nothing to do."""
        while True:
            self._cancel()
            self._offer()
            self._shift()
            work = self._decodes()
            self._prompts(work)
            if work:
                self.iteration += 1
                self.batch = _Batch(work, limit=self.options.batch)
                return True
            if not self.queue:
                return False

    def cancel(self, slot: Slot) -> None:
        """The client of a slot's task hung up; upstream sees it between two batches."""
        self.cancelled.add(slot.id)

    def _cancel(self) -> None:
        for slot in self.server.slots:
            if slot.id in self.cancelled and slot.busy:
                self.server.release(slot)
        self.cancelled.clear()
        self._wake()

    def _offer(self) -> None:
        """Every queued task in order; those that find no slot wait (RULES 2.4)."""
        while self.queue:
            task = self.queue.popleft()
            if not self.server.offer(task):
                self.waiting.append(task)

    def _wake(self) -> None:
        """For each slot that was freed, one waiting task comes back (pop_deferred_task)."""
        for slot in self.server.ended:
            if self.waiting:
                named = (task for task in self.waiting if task.id_slot == slot)
                task = next(named, self.waiting[0])
                self.waiting.remove(task)
                self.queue.appendleft(task)
        self.server.ended.clear()

    def _shift(self) -> None:
        for slot in self.server.slots:
            if slot.phase == "generating" and slot.length + 1 >= self.options.slot_limit:
                shift_context(self.server, slot)
        self._wake()

    # -- building a batch ----------------------------------------------------------------------

    def _decodes(self) -> list[Work]:
        """The sampled token of each generating slot, and its drafts."""
        work: list[Work] = []
        for slot in self.server.slots:
            if slot.phase != "generating" or not self._together(slot, work):
                continue
            guesses = () if slot.replay else self._drafts(slot)
            slot.ahead = slot.replay or guesses
            work.append(Work(slot.id, slot.length, 1 + len(slot.ahead), len(guesses)))
            if guesses:
                self.server.memory.keep_state(slot.id)
            slot.text.append(slot.sampled)
            slot.length += 1
        return work

    def _drafts(self, slot: Slot) -> tuple[int, ...]:
        """The guesses that are verified: bounded by context and by what is still wanted."""
        task = slot.task
        assert task is not None
        room = self.options.slot_limit - slot.length - 2
        wanted = min(self.options.num_drafts, room, task.max_tokens - slot.num_outputs - 1)
        return slot.drafts[: max(0, wanted)]

    def _together(self, slot: Slot, work: Sequence[Work]) -> bool:
        """Whether a slot may join the batch: same adapters and task type as its first slot."""
        if not work:
            return True
        first = self.server.slots[work[0].slot]
        assert first.task is not None and slot.task is not None
        return first.scales == slot.scales and first.task.decision == slot.task.decision

    def _prompts(self, work: list[Work]) -> None:
        """Prompt tokens of the slots that have some left, in slot order."""
        room = self.options.batch - sum(item.count for item in work)
        for slot in self.server.slots:
            if room <= 0:
                break
            if slot.phase not in ("started", "prompt") or not self._together(slot, work):
                continue
            if slot.phase == "started":
                self.server.start(slot)
                if slot.phase != "prompt":
                    continue
            start = slot.length
            self.server.say("rm", slot, start)
            self.server.memory.remove(slot.id, start)
            stop = self._cut(slot, start + room)
            slot.length = stop
            if slot.task is not None and not slot.task.decision:
                self.server.checkpoint(slot, start)
            work.append(Work(slot.id, start, stop - start))
            room -= stop - start
        self._wake()

    def _cut(self, slot: Slot, limit: int) -> int:
        """Where this batch of a prompt ends (RULES 5.1, 9)."""
        task = slot.task
        assert task is not None
        start, total = slot.length, task.num_prompt
        stop = min(total, limit)
        if task.decision and task.children and start < task.shared < stop:
            stop = task.shared
        if not self.server.makes_checkpoints(task):
            return stop
        batch, micro = self.options.batch, self.options.micro_batch
        last = slot.checkpoints[-1].num_tokens if slot.checkpoints else None
        places = {total - min(batch, 4 + micro), total - min(batch, 4), *task.user_starts}
        for place in sorted(place for place in places if start < place < stop):
            step = self.options.checkpoint_min_step
            if cut_after(place, total, batch, micro, task.user_starts, last, step):
                return place
        return stop

    # -- computing it --------------------------------------------------------------------------

    def _view(self, batch: _Batch) -> bool:
        """Place the next part of the batch; False if it is done or was given up (RULES 10)."""
        server = self.server
        while batch.rest:
            part, rest = split_at(batch.rest, batch.limit)
            passes = server.memory.split(part)
            if server.memory.fits(passes):
                batch.view = deque(MicroBatch(work, False) for work in passes)
                batch.view[-1].last = True
                batch.viewed, batch.rest = part, rest
                batch.done += sum(work.count for work in part)
                batch.limit = self.options.batch
                return True
            if batch.limit == 1:
                self._give_up()
                return False
            if not self._purge_idle():
                batch.limit //= 2
            server.say("retry", None, batch.done, batch.limit, 1)
        return False

    def _purge_idle(self) -> bool:
        """Clear the first idle slot that holds something; only a shared pool gains by it."""
        if not self.options.unified:
            return False
        for slot in self.server.slots:
            if not slot.busy and slot.length:
                self.server.say("purge_slot", slot, slot.length)
                self.server.clear(slot)
                return True
        return False

    def _give_up(self) -> None:
        """No room for a single token: every running request fails, its slot is cleared."""
        self.server.say("decode_error", None, "Context size has been exceeded.")
        for slot in self.server.slots:
            if slot.busy:
                self.server.say("error", slot, "server_error")
                self.server.release(slot)
                self.server.clear(slot)
        self._wake()

    # -- sampling ------------------------------------------------------------------------------

    def sample(self, micro_batch: MicroBatch, results: Sequence[RowResult]) -> None:
        """Take the answers of one pass; the last pass of a view lets the slots go on."""
        for work, result in zip(micro_batch.work, results, strict=True):
            if self.emits(work):
                self.results[work.slot] = result
        if not micro_batch.last:
            return
        assert self.batch is not None
        viewed = {work.slot for work in self.batch.viewed}
        server = self.server
        children: dict[int, list[Slot]] = {}
        for slot in server.slots:
            if slot.id in viewed and slot.phase == "prompt" and self._prompt_done(slot):
                children[slot.id] = list(feed_children(server, slot))
        born = {child.id: slot for slot, kids in children.items() for child in kids}
        for slot in server.slots:
            if slot.id in born:
                self._first_of_child(slot, self.results[born[slot.id]])
            elif slot.id in self.results:
                self._go_on(slot, self.results[slot.id])
        self.results.clear()
        self._wake()

    def emits(self, work: Work) -> int:
        """How many positions of a row give logits."""
        slot = self.server.slots[work.slot]
        if slot.phase == "generating":
            last = work.start + work.count == slot.length + len(slot.ahead)
            return 1 + work.drafts if last else 0
        assert slot.task is not None
        return int(work.start + work.count == slot.task.num_prompt)

    def _prompt_done(self, slot: Slot) -> bool:
        assert slot.task is not None
        return slot.id in self.results and slot.length == slot.task.num_prompt

    def _first_of_child(self, slot: Slot, result: RowResult) -> None:
        tokens = result.tokens[:1]
        if tokens:
            open_child(self.server, slot, tokens[0])
        self._emit(slot, tokens)

    def _go_on(self, slot: Slot, result: RowResult) -> None:
        """A slot takes its tokens: accepted drafts are in the list, the last one is sampled."""
        task = slot.task
        if task is None:
            return
        tokens = () if task.decision else result.tokens
        if slot.phase == "prompt":
            slot.phase = "generating"
        elif slot.replay:
            tokens = (*slot.replay, *tokens)
            self._accept(slot, slot.replay)
            slot.replay = ()
        elif slot.ahead:
            accepted = len(tokens) - 1
            if accepted < len(slot.ahead) and self.server.memory.states is not None:
                self._go_back(slot, tokens)
                return
            self._accept(slot, tokens[:accepted])
            self.server.memory.remove(slot.id, slot.length)
        slot.drafts = tuple(result.drafts)
        self._emit(slot, tokens)

    @staticmethod
    def _accept(slot: Slot, tokens: Sequence[int]) -> None:
        """Tokens that were computed ahead join the list."""
        for token in tokens:
            slot.text.append(token)
        slot.length += len(tokens)

    def _go_back(self, slot: Slot, tokens: Sequence[int]) -> None:
        """A rejection on a recurrent memory: nothing is sent, the row is computed once more.

        The state returns to what it was before the row; the next one feeds the same token again
        with those behind it that are now known (recordings, kind draft; no rule book section).
        """
        slot.length -= 1
        slot.text = slot.text.slice(0, slot.length)
        self.server.memory.return_state(slot.id, slot.length)
        slot.replay = tuple(tokens)

    def _emit(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Count tokens until a stop is met (RULES 10); the rest of them is not sent."""
        task, options = slot.task, self.options
        assert task is not None
        stops = task.options.get("stop_tokens", ())
        full = not options.shifts_context and slot.length + 1 >= options.slot_limit
        ended = not tokens
        for token in tokens:
            slot.num_outputs += 1
            slot.sampled = token
            slot.truncated = slot.truncated or full
            ended = (
                full
                or slot.num_outputs >= task.max_tokens
                or token in stops
                or (token == options.eos_token and not task.options.get("ignore_eos", False))
            )
            if ended:
                break
        if ended:
            self.server.release(slot)
