"""Replays native traces: operations on one server, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.errors import BadInput, Unsupported
from handoff.index.spans import Seq
from handoff.types import Request

from .log import Line
from .options import from_command
from .play import Play, Report

__all__ = ["replay_native"]

EOS = 2
USER_TOKEN = 3
"""The one token of the recorded ``user`` delimiter."""

NUM_WORDS = 3000
"""Only tokens below this are spelled ``wNNNN``."""

WITH_MEM = frozenset(
    [
        *("cancel", "cmpl", "ctxshift", "draft", "files", "hybrid", "hybrid_reuse"),
        *("spans", "stop", "swa", "swa_multi"),
    ]
)
"""Kinds that were recorded at the log level that shows the memory's range."""

_QUIET = frozenset(["new", "rm", "mem", "stop"])
"""Lines that only ``multi`` and ``decision`` traces list."""


def tok(k: int, i: int) -> int:
    """Token ``i`` of the recorder's stream ``k``."""
    return 10 + (k * 1000003 + i * 7919 + i * i * 17) % 2990


def token_ids(segments: Sequence[Any]) -> list[int]:
    """A recorded token list: segments ``[k, i, j]`` or single ids."""
    ids: list[int] = []
    for part in segments:
        if isinstance(part, int):
            ids.append(part)
        else:
            k, first, last = part
            ids.extend(tok(k, at) for at in range(first, last))
    return ids


def replay_native(case: Case) -> Mapping[str, Any]:
    """A whole trace."""
    line = case.line
    options = from_command(line)
    # A draft model that is the model itself is always right; on random weights no other ever is.
    right = f"-md @{line['model']} " in f"{line['args']} "
    trace = _Trace(Play(options, case.watch, right), line, case.followed)
    steps = [trace.play_step(at, step) for at, step in enumerate(line["steps"])]
    return {
        **{key: line[key] for key in ("trace", "kind", "model", "args", "lora")},
        "steps": steps,
    }


class _Trace:
    """One trace under way."""

    def __init__(self, play: Play, line: Mapping[str, Any], followed: Mapping[str, Any]) -> None:
        self.play = play
        self.kind: str = line["kind"]
        self.steps: Sequence[Mapping[str, Any]] = line["steps"]
        self.followed: Sequence[Mapping[str, Any]] = followed.get("steps", [{}] * len(self.steps))

    def play_step(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        """One operation; inputs are not repeated, the core has them."""
        handler: Callable[[int, Mapping[str, Any]], dict[str, Any]] | None = {
            "complete": self._complete,
            "cancel": self._cancel,
            "multi": self._multi,
            "decide": self._decide,
            "save": self._file,
            "restore": self._file,
            "erase": self._file,
            "overlap": self._overlap,
            "queue": self._queue,
            "busy_slot": self._busy_slot,
        }.get(step["op"])
        if handler is None:
            raise BadInput(f"unknown operation {step['op']!r}", field=f"steps[{at}].op")
        self.play.lines = []
        found = handler(at, step)
        found["slots"] = self.play.engine.observe()["slots"]
        return found

    # -- requests ------------------------------------------------------------------------------

    def _request(self, step: Mapping[str, Any], name: str, followed: Any = None) -> Request:
        """A recorded request; what was forced or followed becomes its script."""
        body = dict(step.get("body") or {})
        prompt, output = token_ids(step["prompt"]), token_ids(step["output"])
        said = (followed or {}).get("result", {}).get("out")
        limit = int(body.get("n_predict", max(1, len(output))))
        if self.kind == "draft":
            output = self._model_says(prompt, list(said or ()))
        elif not output:
            output = list(said or (0,))
        if limit > len(output):
            output = [*output, EOS]
            limit = min(limit, len(output)) if self.kind != "draft" else limit
        options = {key: value for key, value in body.items() if key != "n_predict"}
        if "message_delimiters" in body:
            options["user_starts"] = tuple(
                at for at, token in enumerate(prompt) if token == USER_TOKEN
            )
        if "stop" in body:
            stops = (int(word.removeprefix("w")) for word in body["stop"])
            options["stop_tokens"] = tuple(token for token in stops if token < NUM_WORDS)
        script = Seq.of([*output, *[0] * max(0, limit - len(output))])
        return Request(name, Seq.of(prompt), limit, outputs=script, options=options)

    def _model_says(self, prompt: list[int], said: list[int]) -> list[int]:
        """What follows a prompt: the recorded output, and beyond it what the same text led to.

        The model is deterministic, so another request of the trace whose prompt and output begin
        alike tells how the text goes on (accepted drafts that were never sent).
        """
        known = [*prompt, *said]
        for step, followed in zip(self.steps, self.followed, strict=True):
            other = [*token_ids(step["prompt"]), *followed.get("result", {}).get("out", ())]
            if len(other) > len(known) and other[: len(known)] == known:
                known = other
        return known[len(prompt) :]

    def _result(self, report: Report, streamed: bool = False) -> dict[str, Any]:
        """The ``result`` of a request."""
        if report.error is not None:
            return {"err": report.error, "prompt_tokens": report.num_prompt, "hit_tokens": 0}
        found: dict[str, Any] = {"prompt_tokens": report.num_prompt, "hit_tokens": report.hit}
        if not streamed:
            found["computed"] = report.num_prompt - report.hit
        found |= {"slot": report.slot, "kept": report.kept, "n_out": report.num_outputs}
        if report.truncated:
            found["trunc"] = 1
        if report.drafted:
            found["draft"] = [report.drafted, report.accepted]
        return found

    def _stop_reason(self, request: Request, report: Report) -> str | None:
        if not report.outputs or report.error is not None:
            return None
        if report.outputs[-1] in request.options.get("stop_tokens", ()):
            return "word"
        ignored = request.options.get("ignore_eos", False)
        return "eos" if report.outputs[-1] == EOS and not ignored else None

    def _events(self) -> list[list[Any]]:
        full = self.kind in ("multi", "decision")
        return [
            _event(line)
            for line in self.play.lines
            if line.what != "error"
            and (full or line.what not in _QUIET)
            and not (self.kind == "decision" and line.what == "mem")
        ]

    def _ranges(self, report: Report) -> dict[str, Any]:
        found: dict[str, Any] = {"chunks": report.chunks}
        if self.kind in WITH_MEM:
            found["mem"] = report.mem
        return found

    # -- operations ----------------------------------------------------------------------------

    def _complete(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        request = self._request(step, step["req"], self.followed[at])
        report = self.play.serve([request])[0]
        result: Any = self._result(report)
        reason = self._stop_reason(request, report)
        if reason is not None:
            result["stop"] = reason
        forced = token_ids(step["output"])
        if report.error is None and (self.kind == "draft" or report.num_outputs != len(forced)):
            result["out"] = report.outputs
        if int(request.options.get("n_cmpl", 1)) > 1:
            result = self._family(request)
        return {"result": result, **self._ranges(report), "ev": self._events()}

    def _family(self, request: Request) -> list[dict[str, Any]]:
        """Parent and children by slot."""
        found = []
        for index in range(int(request.options["n_cmpl"])):
            name = f"{request.id}#{index}" if index else request.id
            found.append({**self._result(self.play.reports[name]), "index": index})
        return sorted(found, key=lambda result: result["slot"])

    def _cancel(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        """The client hangs up when the slot holds the recorded number of tokens."""
        play = self.play
        name = play.submit(self._request(step, step["req"]))
        report, kept = play.reports[name], int(self.followed[at]["kept"])
        play.until(
            lambda: report.slot >= 0 and play.engine.server.slots[report.slot].length >= kept
        )
        play.engine.abort(name, 0.0)
        play.finish()
        return {**self._ranges(report), "ev": self._events()}

    def _multi(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        requests = [
            self._request({"prompt": prompt, "output": step["output"]}, f"{at}/{index}")
            for index, prompt in enumerate(step["prompts"])
        ]
        reports = self.play.serve(requests)
        return {"result": [self._result(report) for report in reports], "ev": self._events()}

    def _decide(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        prompts = [Seq.of(list(text.encode())) for text in decision_prompts(step["body"])]
        self.play.engine.decide(str(at), prompts)
        self.play.finish()
        usage = {"input_tokens": sum(map(len, prompts)), "output_tokens": 0}
        return {"status": 200, "usage": usage, "ev": self._events()}

    def _file(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        files = self.play.engine.files
        slot = self.play.engine.server.slots[step["slot"]]
        found: dict[str, Any] = {}
        if step["op"] == "save":
            tokens, size = files.save(slot, step["file"])
            found["result"] = {"n_saved": tokens, "n_written": size}
        elif step["op"] == "restore":
            read = files.restore(slot, step["file"])
            if read is None:
                found["result"] = {"err": "invalid_request_error"}
            else:
                found["result"] = {"n_restored": read[0], "n_read": read[1]}
        else:
            found["result"] = {"n_erased": files.erase(slot)}
        self.play.finish()
        if self._events():
            found["ev"] = self._events()
        return found

    def _overlap(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        """A long generation, and others one after the other while it runs."""
        play, long = self.play, step["long"]
        name = play.submit(self._request(long, long["req"]))
        play.until(lambda: bool(play.said(name)))
        inner = []
        for part in step["inner"]:
            before = play.engine.observe()["busy"]
            request = self._request(part, part["req"])
            play.submit(request)
            report = play.reports[request.id]
            play.until(lambda report=report: report.ended)  # type: ignore[misc]
            after = play.engine.observe()["busy"]
            inner.append(
                {"result": self._result(report), "running_before": before, "running_after": after}
            )
        play.finish()
        result = self._result(play.reports[name])
        events = [event for event in self._events() if event[0] in ("lcp", "lru", "byid")]
        return {"long": {"result": result}, "inner": inner, "ev": events}

    def _queue(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        """Requests for one slot, posted while the first runs."""
        play = self.play
        requests = [self._request(part, part["req"]) for part in step["reqs"]]
        play.submit(requests[0])
        play.until(lambda: bool(play.said(requests[0].id)))
        for request in requests[1:]:
            play.submit(request)
        play.finish()
        reports = [play.reports[request.id] for request in requests]
        return {
            "reqs": [{"result": self._result(report)} for report in reports],
            "chunks": [chunk for report in reports for chunk in report.chunks],
            "ev": self._events(),
        }

    def _busy_slot(self, at: int, step: Mapping[str, Any]) -> dict[str, Any]:
        """A request names a slot that generates; when it came is read from the followed log."""
        play = self.play
        name = play.submit(self._request(step["long"], f"{at}/long"))
        report = play.reports[name]
        arrived = _arrival(self.followed[at]["ev"], report.num_prompt)
        slots = play.engine.server.slots
        play.until(lambda: report.slot >= 0 and slots[report.slot].length >= arrived)
        named = play.submit(self._request(step["named"], f"{at}/named"))
        play.finish()
        return {
            "long": {"result": self._result(report, streamed=True)},
            "named": {"result": self._result(play.reports[named])},
            "ev": self._events(),
        }


def _arrival(followed: Sequence[Sequence[Any] | None], num_prompt: int) -> int:
    """Tokens the running slot held when the second request named it.

    Its swap saves the slot: the first save after the second ``byid``. Without a RAM cache nothing
    depends on it. ``followed`` has a gap for every event that is compared.
    """
    events = [event for event in followed if event is not None]
    named = [at for at, event in enumerate(events) if event[0] == "byid"]
    if len(named) < 2:
        raise Unsupported("when the second request came cannot be told from the log")
    for event in events[named[1] :]:
        if event[0] == "pc_save":
            return int(event[1])
    return num_prompt + 1


def _event(line: Line) -> list[Any]:
    """A log line as the native files list it."""
    numbers = line.numbers
    if line.what in ("pc_room", "pc_size", "pc_tok"):
        numbers = ()
    elif line.what == "ck-dup":
        numbers = numbers[-1:]
    elif line.what == "stop":
        numbers = numbers[:2]
    return [line.what, *([] if line.slot is None else [line.slot]), *numbers]


def decision_prompts(body: Mapping[str, Any]) -> list[str]:
    """The texts of a decision request: every question in both orders of its options."""
    prompts = []
    for question in body["questions"].values():
        keys = list(question["criteria"])
        for order in (keys, keys[::-1]):
            options = "".join(f"{chr(ord('A') + at)}={key};" for at, key in enumerate(order))
            prompts.append(f"{body['state']}|{question['instructions']}|{options}")
    return prompts
