"""The planner: llama-server's slots and loop, one Step per micro-batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from handoff.adapter import check_asked
from handoff.errors import Refused, Unsupported
from handoff.index.spans import Seq
from handoff.types import Handoff, Layout, Match, Request, Row, Step, StepResult

from .asked import FileAction, RequestOptions, SlotAction
from .batches import Work
from .decision import group_questions
from .files import SlotFiles
from .log import Line
from .options import Options
from .probe import probe
from .scheduler import MicroBatch, Scheduler
from .server import Server
from .slots import Task

__all__ = ["LlamaCppEngine"]


class LlamaCppEngine:
    """A llama-server without a model; it computes nothing and reads no clock.

    ``submit`` raises ``Refused`` for a prompt that no slot can hold, after queueing it: upstream
    takes such a task, chooses a slot and answers with an error, and both leave their marks.
    """

    layout: Layout
    depth = 1
    num_drafts: int

    def __init__(self, options: Options) -> None:
        self.options = options
        self.server = Server(options)
        self.scheduler = Scheduler(options, self.server)
        self.files = SlotFiles(self.server)
        self.layout = self.server.memory.layout
        self.num_drafts = options.num_drafts
        self._steps = 0
        self._tasks = 0
        self._flight: deque[MicroBatch] = deque()

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request; ``n_cmpl`` > 1 adds children that share its prompt (RULES 9)."""
        options = request.options
        if request.images:
            raise Unsupported(f"{request.id}: llama.cpp's multimodal prompts are left out")
        check_asked(RequestOptions, options, request.id)
        task = self._task(request.id, request.prompt, request.max_tokens, options)
        task.scales = _scales(request)
        for index in range(1, int(options.get("n_cmpl", 1))):
            name = f"{request.id}#{index}"
            child = self._task(name, request.prompt, request.max_tokens, options)
            child.scales = task.scales
            task.children.append(child)
        if len(task.children) >= self.options.num_slots:
            raise Refused(
                f"{request.id}: n_cmpl {len(task.children) + 1} needs more than"
                f" {self.options.num_slots} slots"
            )
        self.scheduler.queue.append(task)
        if len(request.prompt) >= self.options.slot_limit:
            raise Refused(
                f"{request.id}: {len(request.prompt)} prompt tokens do not fit a slot of"
                f" {self.options.slot_limit} (exceed_context_size_error)"
            )

    def decide(self, name: str, prompts: Sequence[Seq]) -> None:
        """Queue the decision tasks of one request, grouped as upstream does (RULES 9)."""
        for members, shared in group_questions(prompts, self.options.num_slots):
            tasks = [self._task(f"{name}/{at}", prompts[at], 0, {}) for at in members]
            for task in tasks:
                task.decision, task.shared = True, shared
            tasks[0].children = tasks[1:]
            self.scheduler.queue.append(tasks[0])

    def _task(self, name: str, prompt: Seq, max_tokens: int, options: Mapping[str, Any]) -> Task:
        self._tasks += 1
        starts = tuple(options.get("user_starts", ()))
        return Task(self._tasks, name, prompt, max_tokens, options, user_starts=starts)

    def abort(self, request_id: str, now: float) -> None:
        """The client hangs up: the slot keeps all it had fed back (RULES 10)."""
        for queue in (self.scheduler.queue, self.scheduler.waiting):
            for task in [task for task in queue if task.request == request_id]:
                queue.remove(task)
        for slot in self.server.slots:
            name = "" if slot.task is None else slot.task.request
            if request_id in (name, name.rpartition("#")[0]):
                self.scheduler.cancel(slot)

    def act(self, action: str, options: Mapping[str, Any], now: float) -> None:
        """Slot files and ``restart``; a slot must be idle (RULES 10)."""
        if action == "restart":
            self.server.restart()
            return
        if action not in ("slot_save", "slot_restore", "slot_erase"):
            raise Unsupported(f"llama.cpp knows no action {action}")
        check_asked(SlotAction if action == "slot_erase" else FileAction, options, action)
        if options["id_slot"] >= len(self.server.slots):
            raise Refused(f"{action}: no slot {options['id_slot']} of {len(self.server.slots)}")
        slot = self.server.slots[options["id_slot"]]
        if slot.busy:
            raise Unsupported(f"{action} of slot {slot.id} while it runs: upstream lets it wait")
        if action == "slot_save":
            self.files.save(slot, str(options["file"]))
        elif action == "slot_restore":
            self.files.restore(slot, str(options["file"]))
        else:
            self.files.erase(slot)

    # -- steps ---------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """The next micro-batch as a Step, or None until a result or a request comes."""
        if self._flight:
            return None
        micro_batch = self.scheduler.next_micro_batch()
        if micro_batch is None:
            return None
        memory = self.server.memory
        memory.place(micro_batch.work)
        for purge in memory.purged:
            if purge.logged is not None:
                self.server.say("purge", self.server.slots[purge.seq], *purge.logged)
        memory.purged.clear()
        rows = tuple(
            memory.row(work, self._tokens(work), self.scheduler.emits(work))
            for work in micro_batch.work
        )
        self._flight.append(micro_batch)
        return self._make_step(rows)

    def _make_step(self, rows: tuple[Row, ...]) -> Step:
        server = self.server
        ready = [row.seq for row in rows if row.seq in server.handoffs]
        handoffs: tuple[Handoff, ...] = tuple(server.handoffs.pop(seq) for seq in ready)
        step = Step(
            self._steps,
            max(self.scheduler.iteration, 0),
            self._steps - 1,
            tuple(server.memory.ops),
            rows,
            handoffs,
            tuple(server.events),
        )
        self._steps += 1
        server.memory.ops.clear()
        server.events.clear()
        return step

    def _tokens(self, work: Work) -> Seq:
        """Content of a row: the list, then what runs ahead of it."""
        slot = self.server.slots[work.slot]
        stop = work.start + work.count
        known = slot.text.slice(work.start, min(stop, slot.length))
        for position in range(max(work.start, slot.length), stop):
            known.append(slot.ahead[position - slot.length])
        return known

    def complete(self, result: StepResult, now: float) -> None:
        """Take a micro-batch's samples; after the last one of a view the slots go on."""
        if not self._flight:
            return
        self.scheduler.sample(self._flight.popleft(), result.rows)

    def drain(self) -> Step | None:
        """A last Step for operations and events still owed."""
        if not self.server.memory.ops and not self.server.events:
            return None
        return self._make_step(())

    def next_event(self) -> float | None:
        """Nothing happens by time alone."""
        return None

    # -- questions -----------------------------------------------------------------------------

    def probe(self, request: Request) -> Match:
        """What a look-up would find now; slots and RAM cache stay as they are."""
        task = Task(0, request.id, request.prompt, request.max_tokens, request.options)
        task.scales = _scales(request)
        return probe(self.server, task)

    def take_log(self) -> list[Line]:
        """The server's log since the last call."""
        lines, self.server.log = self.server.log, []
        return lines

    def observe(self) -> Mapping[str, Any]:
        """Slots, RAM entries, checkpoints and cells."""
        server = self.server
        return {
            "slots": [slot.length for slot in server.slots],
            "busy": [slot.id for slot in server.slots if slot.busy],
            "checkpoints": [[c.num_tokens for c in slot.checkpoints] for slot in server.slots],
            "ram": [entry.length for entry in server.ram.entries] if server.ram else [],
            "used": {name: list(cells.used) for name, cells in server.memory.kv.items()},
            "head": {name: list(cells.head) for name, cells in server.memory.kv.items()},
        }


def _scales(request: Request) -> Mapping[str, float] | None:
    """The request's adapter scales, zeros left out; None if it has no ``lora`` field."""
    field = request.options.get("lora")
    if isinstance(field, Sequence):
        return {str(item["id"]): float(item["scale"]) for item in field if item["scale"]}
    return None if request.lora is None else {request.lora: 1.0}
