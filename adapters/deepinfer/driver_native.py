"""Native event traces: whoever sits outside adds, forks, aborts, pins; the engine steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from handoff.conformance.recording import Case
from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, Seq
from handoff.types import Request, Step

from .driver_tables import step_tables
from .engine import DeepInferEngine
from .environment import Environment
from .flops import Estimator
from .images import IMAGE, IMAGE_PAD
from .options import from_recorded
from .scheduler import Batch, EngineError, Scheduled
from .sequence import Grant, Sequence

__all__ = ["replay_native"]


def replay_native(case: Case) -> dict[str, Any]:
    """One trace; it ends where the engine raises."""
    return _Trace(case).replay()


def _stream(name: str) -> int:
    """First virtual number of the tokens that belong to a name."""
    return VIRTUAL + (crc32(name.encode()) << 24)


class _Trace:
    def __init__(self, case: Case) -> None:
        self.case = case
        line = case.line
        self.name = str(line["trace"])
        self.options = from_recorded({"engine": line["cfg"]})
        self.engine = DeepInferEngine(self.options)
        self.sequences: dict[str, Sequence] = {}
        self.shown: dict[str, list[int]] = {}
        self.state: dict[str, Any] = {"ref": None, "sref": None}
        self.waiting: list[Step] = []
        watcher = case.watch(self.engine.layout) if case.watch else None
        self.env = Environment(
            self.engine, self.name, lambda name, i: _stream(name + "/out") + i, watcher
        )
        options = self.options
        self.estimator = Estimator(
            options.shape, options.yoco_prefill_truncation_mode, options.keep
        )

    def replay(self) -> dict[str, Any]:
        """The whole line."""
        events = []
        for event, followed in zip(self.case.line["ev"], self.case.followed["ev"]):
            kind, given, arguments = event[0], event[-1], event[1:-1]
            act = getattr(self, f"_{kind}", None)
            if act is None:
                raise BadInput(f"no event {kind!r}", field="ev")
            if kind == "step":
                seen = self._step(given, followed[-1].get("m"))
            else:
                seen = act(*arguments)
            if kind != "end" and "err" not in seen:
                changed = self._changed()
                if changed:
                    seen["s"] = changed
            events.append([kind, *arguments, seen])
        return {**self.case.line, "ev": events}

    # -- what happens outside ---------------------------------------------------------------

    def _add(
        self, name: str, length: int, max_tokens: int, opts: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        opts = opts or {}
        hit, how, *more = opts.get("inj", (0, None))
        source = self.sequences[more[0]] if how == "share" else None
        request = Request(name, self._prompt(name, length, opts, source, hit), max_tokens)
        if source is not None:
            return self._share(request, source, hit)
        seq = self.engine.sequence_of(request)
        seen: dict[str, Any] = {}
        if how == "load":
            if not self.engine.try_allocate(seq):
                return {"no": 1}
            seen = {"bt": list(seq.table), "st": seq.state}
        if how is not None:
            self.engine.inject(seq, _grant(hit, how), opts.get("vs", 0))
        seq.checkpoints = list(opts.get("ck", ()))
        seq.schedulable = not opts.get("hold", False)
        self.sequences[name] = seq
        self.engine.enqueue(seq)
        return seen

    def _prompt(
        self, name: str, length: int, opts: Mapping[str, Any], source: Sequence | None, hit: int
    ) -> Seq:
        """Tokens of its own; the shared part, and images, where the trace says so."""
        tokens = Seq()
        if source is not None:
            tokens.extend(source.tokens, 0, hit)
        tokens.add_run(_stream(name) + len(tokens), length - len(tokens))
        if "mm" not in opts:
            return tokens
        vocab, ids = self.options.shape.vocab_size, tokens.tokens()
        for start, count in opts["mm"]:
            ids[start : start + count] = [vocab + IMAGE] + [vocab + IMAGE_PAD] * (count - 1)
        return Seq(ids[:length])

    def _share(self, request: Request, source: Sequence, hit: int) -> dict[str, Any]:
        probe = self.engine.sequence_of(request)
        probe.is_probe = True
        probe.num_tokens = probe.cached_hit_tokens = hit
        probe.state = source.state
        probe.grant = _grant(hit, "share")
        blocks = source.table[: -(-hit // self.options.block_size)]
        seq = self.engine.fork_seq(request.id, probe, "_h", request.max_tokens, blocks=blocks)
        self.sequences[request.id] = seq
        return {"bt": list(seq.table), "n": seq.num_tokens, "hit": seq.cached_hit_tokens}

    def _fork(
        self, name: str, source: str, branch: str, max_tokens: int, opts: Mapping[str, Any]
    ) -> dict[str, Any]:
        seq = self.engine.fork_seq(
            name,
            self.sequences[source],
            branch,
            max_tokens,
            blocks=opts.get("blocks"),
            replace_last=opts.get("rep"),
            forced=opts.get("sp", -1),
        )
        self.sequences[name] = seq
        return {
            "n": seq.num_tokens,
            "len": seq.length,
            "pl": seq.prompt_len,
            "bt": list(seq.table),
            "st": seq.state,
            "vs": seq.valid_start,
            "hit": seq.cached_hit_tokens,
            "stat": seq.status.value,
            "br": seq.branch,
        }

    def _abort(self, request_id: str) -> dict[str, Any]:
        return {"hit": [seq.id for seq in self.engine.abort_request(request_id)]}

    def _free(self, name: str) -> dict[str, Any]:
        self.engine.scheduler.free(self.sequences[name])
        return {}

    def _release(self, name: str) -> dict[str, Any]:
        self.sequences[name].schedulable = True
        return {}

    def _hold(self, number: int) -> dict[str, Any]:
        return {"b": self.engine.hold(number)}

    def _drop(self, ids: list[int]) -> dict[str, Any]:
        self.engine.drop(ids)
        return {}

    def _end(self) -> dict[str, Any]:
        seen = {"free": list(self.engine.blocks.free)}
        if self.engine.states is not None:
            seen["sfree"] = list(self.engine.states.free)
        return seen

    # -- steps ------------------------------------------------------------------------------

    def _step(self, given: Mapping[str, Any], tables: Mapping[str, Any] | None) -> dict[str, Any]:
        engine = self.engine
        try:
            step = engine.run_step()
        except EngineError as error:
            return {"err": error.label}
        self.env.plan(step)
        batch = engine.newest
        seen: dict[str, Any] = {
            "t": "P" if batch.kind == "prefill" else "D",
            "nb": batch.batched,
            "q": [self._row(batch, scheduled) for scheduled in batch.rows],
        }
        clones = batch.clones
        for key, found in (
            ("clb", [list(pair) for pair in clones.blocks]),
            ("cls", [list(pair) for pair in clones.states]),
            ("ign", [[seq.id, seq.status.value] for seq in batch.ignored]),
            ("fin", [seq.id for seq in batch.finished]),
        ):
            if found:
                seen[key] = found
        if tables is not None:
            seen["m"] = step_tables(self.options, str(self.case.line["kind"]), batch, tables)
        self._answer(step, batch, given, seen)
        if batch.rows:
            seen["n"] = [[s.seq.id, s.seq.num_tokens, s.seq.length] for s in batch.rows]
        return seen

    def _answer(
        self, step: Step, batch: Batch, given: Mapping[str, Any], seen: dict[str, Any]
    ) -> None:
        """Process what upstream processes in this step: the last one under ZOS, else this one."""
        self.waiting.append(step)
        if "conf" in given:
            self.env.confidences = {name: tuple(values) for name, values in given["conf"]}
        late = self.options.asynchronous and batch.kind == "decode"
        processed = False
        while len(self.waiting) > (1 if late else 0):
            done = self.waiting.pop(0)
            emitted = self.env.complete(done)
            processed = bool(done.rows)
        if late and processed and batch.rows:
            seen["zq"] = [[s.q, s.q + s.seq.num_tokens] for s in batch.rows]
        if not late and batch.kind == "decode" and batch.rows and self.options.drafts:
            seen["push"] = emitted
        if "tim" in given:
            self.engine.measured(batch, *given["tim"][1:])

    def _row(self, batch: Batch, scheduled: Scheduled) -> list[Any]:
        seq = scheduled.seq
        table: Any = list(seq.table)
        if self.shown.get(seq.id) == table:
            table = 0
        else:
            self.shown[seq.id] = table
        row = [seq.id, scheduled.q, scheduled.k, seq.length, table, seq.state]
        if batch.kind == "prefill":
            flops = self.estimator.estimate(
                scheduled.q, scheduled.k, True, seq.length, seq.valid_start
            )
            return [*row, scheduled.rest, seq.valid_start, *flops]
        row += [len(seq.drafts), *self.estimator.estimate(scheduled.q, scheduled.k, False)]
        if scheduled.forced is not None:
            row.append({"gold": scheduled.forced})
        return row

    # -- what changed -----------------------------------------------------------------------

    def _changed(self) -> dict[str, Any]:
        """Keys of the engine's state that differ from what was last shown; gone ones are None."""
        scheduler, blocks, states = (self.engine.scheduler, self.engine.blocks, self.engine.states)
        now: dict[str, Any] = {
            "free": len(blocks.free),
            "w": [seq.id for seq in scheduler.waiting],
            "p": [seq.id for seq in scheduler.prompted],
            "r": [seq.id for seq in scheduler.running],
            "ds": scheduler.decode_step,
            "ref": _shared(blocks.counts.counts),
            "sref": None,
        }
        if states is not None:
            now["sf"] = len(states.free)
            now["sref"] = _shared(states.counts.counts)
        changed = {k: v for k, v in now.items() if k not in self.state or self.state[k] != v}
        self.state = now
        return changed


def _shared(counts: list[int]) -> list[list[int]] | None:
    found = [[ident, count] for ident, count in enumerate(counts) if count > 1]
    return found or None


def _grant(hit: int, how: str) -> Grant:
    words = {
        "load": "private blocks and a private state",
        "bare": "a bare number: blocks come at scheduling, nobody fills them",
        "share": "shared blocks and the source's state, one more reference each",
    }
    return Grant(
        raw=hit,
        hit=hit,
        matcher="outside system: a number it was told",
        references=words[how],
        external=True,
    )
