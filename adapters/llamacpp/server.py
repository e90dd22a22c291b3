"""The server's slots: offering, launching, starting and ending tasks (RULES 2, 3, 8, 9, 10)."""

from __future__ import annotations

from itertools import count
from typing import Any

from handoff.errors import Unsupported
from handoff.types import Event, Handoff

from .answer import handoff_of
from .checkpoints import Checkpoint, make_room, wanted
from .hit import Hit, plan_hit
from .log import EVENTS, Line, f3
from .memory import Memory
from .options import Options
from .ram_cache import Entry, RamCache
from .slots import Choice, Slot, Task, choose

__all__ = ["Server"]

MIB = 1 << 20


class Server:
    """Slots, memory, RAM cache; everything that happens outside of batches.

    ``log`` is the server's own log since it was last taken; ``handoffs`` wait for their first row.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.memory = Memory(options)
        self.slots = [Slot(index) for index in range(options.num_slots)]
        self.ram: RamCache | None = None
        if options.cache_ram != 0:
            self.ram = RamCache(options.ram_bytes, options.total_cells, self._drop_entry)
        self.log: list[Line] = []
        self.events: list[Event] = []
        self.handoffs: dict[int, Handoff] = {}
        self.ended: list[int] = []
        """Slots that were freed since waiting tasks were last looked at."""
        self.ticks = count()

    # -- log -----------------------------------------------------------------------------------

    def say(self, what: str, slot: Slot | None = None, *numbers: Any) -> None:
        """Write a log line, and the event it stands for."""
        request = slot.task.request if slot is not None and slot.task else None
        self.log.append(Line(what, None if slot is None else slot.id, numbers, request))
        if what in EVENTS:
            kind, rule = EVENTS[what]
            ids = () if slot is None else (slot.id,)
            tokens = numbers[-1] if numbers and isinstance(numbers[-1], int) else 0
            self.events.append(Event(kind, None, ids, None, request, tokens, rule))

    # -- choosing and launching ----------------------------------------------------------------

    def offer(self, task: Task) -> bool:
        """Try to give a task its slots; False if it has to wait (RULES 2, 9)."""
        choice = choose(self.slots, task.prompt, task.id_slot, self.options.slot_prompt_similarity)
        if choice is None:
            return False
        self._say_choice(choice)
        slot = choice.slot
        slot.loaded = slot.loaded and slot.busy
        words = choice.words(slot.length, self.ram is not None)
        if choice.update and self.ram is not None and not task.decision:
            self._swap(slot, task)
        if slot.busy:
            return False
        spare = [other for other in self.slots if not other.busy and other is not slot]
        if len(task.children) > len(spare):
            return False
        helpers = spare[: len(task.children)]
        for child, helper in zip(task.children, helpers, strict=True):
            self._launch(helper, child, parent=slot)
        self._launch(slot, task)
        slot.chosen = words
        if self.ram is not None and self.options.cache_idle_slots:
            self._save_idle()
        return True

    def _say_choice(self, choice: Choice) -> None:
        if choice.how == "lcp":
            self.say("lcp", choice.slot, f3(choice.similarity), f3(choice.keep))
        else:
            self.say(choice.how, choice.slot)

    def _launch(self, slot: Slot, task: Task, parent: Slot | None = None) -> None:
        """The task takes the slot; a change of adapters empties it (RULES 10)."""
        slot.task = task
        slot.phase = "started" if parent is None else "waiting"
        slot.parent = parent
        slot.num_outputs = 0
        slot.drafts = slot.ahead = slot.replay = ()
        slot.truncated = False
        slot.isolated = 0
        default = dict.fromkeys(self.options.lora, 1.0)
        if slot.isolates(task):
            self.say("lora", slot)
            slot.isolated = slot.lcp(task.prompt)
            self.empty(slot)
        slot.scales = default if task.scales is None else task.scales

    def _save_idle(self) -> None:
        """Save every other idle slot; with unified KV clear it as well (RULES 2)."""
        assert self.ram is not None
        for slot in self.slots:
            if slot.busy:
                continue
            if self._save(slot):
                self.ram.trim()
                self._say_state()
            if self.options.unified:
                self.clear(slot)

    # -- RAM prompt cache ----------------------------------------------------------------------

    def _swap(self, slot: Slot, task: Task) -> None:
        """Save the slot, load what fits the prompt better, trim (RULES 2.5, 8)."""
        assert self.ram is not None
        self._save(slot)
        better = self.ram.better(slot, task.prompt)
        if better is not None:
            entry, keep, similarity = better
            self.say("pc_load", None, f3(keep), f3(similarity))
            self._load(slot, entry)
        self.ram.trim()
        self._say_state()

    def _save(self, slot: Slot) -> bool:
        """Copy the slot into the RAM cache; whether an entry was made."""
        if not slot.length:
            return False
        assert self.ram is not None
        num_bytes = self.memory.num_bytes(slot.id)
        self.say("pc_save", None, slot.length, f3(num_bytes / MIB))
        if self.ram.holds(slot):
            self.say("pc_have")
            return False
        held = num_bytes + sum(item.saved.num_bytes for item in slot.checkpoints)
        if not self.ram.make_room(slot, held):
            self.say("pc_toobig")
            return False
        entry = Entry(slot.text, slot.length, self.memory.save(slot.id), origin=slot.origin)
        entry.checkpoints = self.cloned(slot.checkpoints)
        self.ram.add(entry)
        self.events.append(Event("offload", None, (slot.id,), tokens=slot.length, rule="8.1"))
        return True

    def _load(self, slot: Slot, entry: Entry) -> None:
        """Move an entry into a slot; a running one goes on in the foreign text (RULES 11.4)."""
        assert self.ram is not None
        task, running = slot.task, self.memory.open_seq[slot.id] is not None
        if running and slot.phase != "generating":
            raise Unsupported(f"slot {slot.id} is named while its prompt is computed, and swapped")
        if running:
            self.memory.close(slot.id)
            self.events.append(Event("unsound", None, (slot.id,), tokens=entry.length, rule="11.4"))
        if self.memory.load(slot.id, entry.saved):
            self.memory.remove(slot.id, entry.length)
            self.drop_checkpoints(slot)
            slot.text = entry.text.slice(0, entry.length)
            slot.length = entry.length
            slot.origin = entry.origin
            self.ram.take(entry)
            slot.loaded = True
            slot.checkpoints = entry.checkpoints
            self.memory.drop(entry.saved)
        else:
            self.say("loadfail", slot)
            self.clear(slot)
        if running:
            assert task is not None
            self.reopen(slot, task)

    def cloned(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Copies of checkpoints with host cells of their own."""
        return [
            Checkpoint(
                item.pos_min,
                item.pos_max,
                item.num_tokens,
                item.task,
                self.memory.clone(item.saved),
                item.text,
                item.origin,
            )
            for item in checkpoints
        ]

    def _drop_entry(self, why: str, entry: Entry) -> None:
        self.say(f"pc_{why}", None, entry.length)
        self.memory.drop(entry.saved)
        for item in entry.checkpoints:
            self.memory.drop(item.saved)

    def _say_state(self) -> None:
        assert self.ram is not None
        size = f3(self.ram.num_bytes / MIB)
        self.say(
            "pc_state",
            None,
            len(self.ram.entries),
            size,
            self.ram.limit_tokens,
            self.ram.token_limit,
        )

    # -- starting a prompt ---------------------------------------------------------------------

    def start(self, slot: Slot) -> None:
        """Match the prompt and cut the slot to the hit (RULES 3), or answer at once."""
        task = slot.task
        assert task is not None
        self.say("new", slot, task.num_prompt)
        if not task.num_prompt:
            self.release(slot)
            return
        if task.num_prompt >= self.options.slot_limit:
            self.say("error", slot, "exceed_context_size_error")
            self.release(slot)
            return
        hit = plan_hit(slot, task, self.options, self.memory)
        elsewhere = self._elsewhere(slot, task)
        self._cut_to(slot, hit)
        before = slot.origin
        moved_at = hit.chunks[0].target if hit.chunks else None
        slot.origin = before.cut(hit.tokens, moved_at)
        slot.text = task.prompt.slice(0, task.num_prompt)
        slot.length = hit.tokens
        slot.phase = "prompt"
        seq = self.memory.open(slot.id, task.request, task.prompt, slot.lora)
        answer = handoff_of(self, slot, task, hit, seq, elsewhere)
        self.handoffs[seq] = answer
        for rule in answer.unsound:
            self.events.append(
                Event("unsound", None, (slot.id,), seq, task.request, hit.tokens, rule)
            )

    def _cut_to(self, slot: Slot, hit: Hit) -> None:
        """Move, restore and drop as the hit says; the memory then holds just that (RULES 3, 4)."""
        for chunk in hit.chunks:
            self.say("shift", slot, chunk.length, chunk.source, chunk.target)
            self.memory.remove(slot.id, chunk.target, chunk.source)
            delta = chunk.target - chunk.source
            self.memory.move(slot.id, chunk.source, chunk.source + chunk.length, delta)
        if hit.reset:
            self.say("reset", slot)
        if hit.restore is not None:
            item = hit.restore
            if not self.memory.load(slot.id, item.saved):
                raise Unsupported(f"no room to restore a checkpoint of slot {slot.id}")
            self.say(
                "ck<", slot, item.pos_min, item.pos_max, item.num_tokens, hit.tokens + hit.full
            )
        for item in [item for item in slot.checkpoints if item.pos_max > hit.pos_next]:
            slot.checkpoints.remove(item)
            self.memory.drop(item.saved)
            self.say("ck-inv", slot, item.pos_min, item.pos_max, item.num_tokens)
        if hit.full:
            self.say("full", slot)
        if slot.length > hit.tokens:
            slot.chosen += f"; {slot.length - hit.tokens:,} tokens of its list are dropped"
        self.memory.remove(slot.id, hit.tokens)

    def _elsewhere(self, slot: Slot, task: Task) -> int:
        """The best prefix held by another slot or a RAM entry."""
        best = max((other.lcp(task.prompt) for other in self.slots if other is not slot), default=0)
        for entry in self.ram.entries if self.ram is not None else ():
            best = max(best, entry.lcp(task.prompt))
        return best

    # -- checkpoints ---------------------------------------------------------------------------

    def checkpoint(self, slot: Slot, start: int) -> bool:
        """Make a checkpoint before the batch ``[start, length)`` is computed (RULES 5.2)."""
        task = slot.task
        assert task is not None
        pos_min, pos_max = self.memory.pos_min(slot.id), self.memory.pos_max(slot.id)
        last = slot.checkpoints[-1].num_tokens if slot.checkpoints else None
        step = self.options.checkpoint_min_step
        made = (
            self.makes_checkpoints(task)
            and pos_min >= 0
            and wanted(
                start,
                slot.length,
                task.num_prompt,
                self.options.micro_batch,
                task.user_starts,
                last,
                step,
            )
        )
        self.say("mem", slot, pos_min, pos_max, int(made))
        if not made:
            return False
        limit = self.options.ctx_checkpoints
        for why, item in make_room(slot.checkpoints, task.id, start, limit, step):
            self.memory.drop(item.saved)
            self.say(f"ck-{why}", slot, item.pos_min, item.pos_max, item.num_tokens)
        saved = self.memory.save(slot.id, partial=True)
        origin = slot.origin.grown(start, slot.lora)
        slot.checkpoints.append(
            Checkpoint(pos_min, pos_max, start, task.id, saved, slot.text, origin)
        )
        self.say("ck+", slot, len(slot.checkpoints), pos_min, pos_max, start)
        return True

    def makes_checkpoints(self, task: Task) -> bool:
        """Whether checkpoints are made for a task at all (RULES 5)."""
        return self.options.has_checkpoints and not task.decision

    def reopen(self, slot: Slot, task: Task) -> None:
        """Open a running slot's sequence anew on a changed list; the sampled token follows it."""
        known = slot.text.slice(0, slot.length)
        if slot.phase == "generating":
            known.append(slot.sampled)
        self.memory.open(slot.id, task.request, known, slot.lora)

    # -- ends ----------------------------------------------------------------------------------

    def release(self, slot: Slot) -> None:
        """The task ends; the slot keeps its content unless it was a child's (RULES 9, 10)."""
        task, child = slot.task, slot.parent is not None
        assert task is not None
        self.say("stop", slot, slot.length, int(slot.truncated), slot.num_outputs)
        seq = self.memory.open_seq[slot.id]
        self.memory.close(slot.id)
        slot.t_last = next(self.ticks)
        if seq is not None:
            slot.origin = slot.origin.grown(slot.length, slot.lora)
            self.events.append(Event("finish", None, (slot.id,), seq, task.request, slot.length))
        if child:
            self.clear(slot)
        elif seq is not None:
            for group in self.memory.layout.groups:
                self.events.append(
                    Event("insert", group.name, (), seq, task.request, slot.length, "2")
                )
        slot.task = slot.parent = None
        slot.phase = "idle"
        self.ended.append(slot.id)
        for other in self.slots:
            if other.parent is slot and other.phase == "waiting":  # its parent gave up
                self.say("error", other, "server_error")
                self.release(other)

    def clear(self, slot: Slot) -> None:
        """Tokens, checkpoints and KV of a slot go."""
        self.say("clear", slot, slot.length)
        self.empty(slot)

    def empty(self, slot: Slot) -> None:
        """``clear`` without a word in the log."""
        self.drop_checkpoints(slot)
        slot.forget()
        self.memory.remove(slot.id, 0)

    def drop_checkpoints(self, slot: Slot) -> None:
        """A slot's checkpoints go."""
        for item in slot.checkpoints:
            self.memory.drop(item.saved)
        slot.checkpoints = []

    def restart(self) -> None:
        """A server started anew: empty slots, an empty RAM cache, no memory of order."""
        for slot in self.slots:
            assert not slot.busy, "a restart waits for the running tasks"
            self.empty(slot)
            slot.t_last, slot.scales = -1, None
        while self.ram is not None and self.ram.entries:
            entry = self.ram.entries[-1]
            self.ram.take(entry)
            self._drop_entry("restart", entry)
        for cells in self.memory.kv.values():
            cells.head = [0] * cells.streams
        self.events.append(Event("reset", rule="1"))
