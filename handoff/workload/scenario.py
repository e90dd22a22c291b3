"""Scenarios: small streams of requests, each a question with its expected answer.

The request form is that of the public field cases: prompts are concatenations of spans of named
streams, ``when`` says what a request waits for. The same schema serves the built-in files, a user's
own YAML and the field cases.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, Seq
from handoff.lines import read_text
from handoff.types import Image, Request

from .arrivals import Arrival, When
from .document import read_document

__all__ = [
    "LARGEST_POOL",
    "Expectation",
    "RequestSpec",
    "Row",
    "Scenario",
    "Span",
    "builtin",
    "load_scenario",
]

STREAM = 1 << 32
"""Virtual numbers set apart for each named stream; a span may not be longer."""
LATEST = float(1 << 43)
"""Seconds that a clock still tells apart; later ones are no times."""
LARGEST_POOL = 1 << 28
"""Tokens: 32 TiB of an 8B model's keys and values."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Span(_Strict):
    """``len`` tokens of one stream; exactly one of the four sources.

    * ``shared``: the first ``len`` tokens of the endless stream of that name (from ``skip`` on).
    * ``unique``: tokens that occur nowhere else.
    * ``output_of``: the first ``len`` tokens that a request generated.
    * ``image``: placeholder tokens of an image with that identity.
    """

    shared: str | None = None
    unique: str | None = None
    output_of: str | None = None
    image: str | None = None
    len: int = Field(ge=1, lt=STREAM)
    skip: int = Field(default=0, ge=0, lt=STREAM)

    @model_validator(mode="after")
    def _one_source(self) -> Span:
        given = [s for s in (self.shared, self.unique, self.output_of, self.image) if s is not None]
        if len(given) != 1:
            raise ValueError("a span needs exactly one of shared, unique, output_of, image")
        return self


class RequestSpec(_Strict):
    """One request, or an action if it has no spans."""

    id: str = Field(min_length=1)
    when: str = "start"
    spans: tuple[Span, ...] = ()
    tokens: tuple[Annotated[int, Field(ge=0, lt=VIRTUAL)], ...] | None = None
    output_len: int = Field(default=1, ge=0, lt=STREAM)
    at: float = Field(default=0.0, ge=0, lt=LATEST)
    salt: str | None = None
    lora: str | dict[str, Any] | None = None
    priority: int = 0
    action: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_content(self) -> RequestSpec:
        if (self.action is None) is not bool(self.spans or self.tokens):
            raise ValueError(f"request {self.id} needs spans (or tokens), or an action")
        if isinstance(self.lora, dict) and not isinstance(_lora_name(self.lora), (str, int)):
            raise ValueError(f"request {self.id}: lora needs a name (text) or an id (number)")
        return self


class Row(_Strict):
    """One row of the table: an adapter with option values of its own."""

    adapter: str
    label: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)


class Expectation(_Strict):
    """What must come out for one row: exact numbers by request."""

    hit: dict[str, int] = Field(default_factory=dict)
    start: dict[str, int] = Field(default_factory=dict)
    compute: dict[str, int] = Field(default_factory=dict)
    moved: dict[str, int] = Field(default_factory=dict)
    explain: dict[str, list[str]] = Field(default_factory=dict)


class Scenario(_Strict):
    """A question, the requests that ask it, and what a reader should notice."""

    name: str = Field(min_length=1)
    question: str
    notice: str = ""
    requests: tuple[RequestSpec, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = ()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    pool_tokens: int | None = Field(default=None, ge=1, le=LARGEST_POOL)
    acceptance: float = Field(default=0.7, ge=0, le=1)
    expect: dict[str, Expectation] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ids(self) -> Scenario:
        seen: set[str] = set()
        for spec in self.requests:
            if spec.id in seen:
                raise ValueError(f"request id {spec.id} occurs twice")
            try:
                when = When.parse(spec.when)
            except BadInput as error:
                raise ValueError(f"request {spec.id}: {error}") from None
            if when.target and when.target not in seen:
                raise ValueError(f"request {spec.id} waits for {when.target}, not given before it")
            for span in spec.spans:
                if span.output_of is not None and span.output_of not in seen:
                    raise ValueError(
                        f"request {spec.id} quotes {span.output_of} before it is given"
                    )
            seen.add(spec.id)
        for row, expectation in self.expect.items():
            for part in ("hit", "start", "compute", "moved", "explain"):
                for request in getattr(expectation, part):
                    if request not in seen:
                        raise ValueError(f"expect {row} {part} names no request: {request}")
        return self

    def arrivals(self) -> list[Arrival]:
        """The requests in order of submission, as virtual spans; no two streams share a token."""
        return build_arrivals(self.requests)


def build_arrivals(specs: tuple[RequestSpec, ...]) -> list[Arrival]:
    """Turn request specifications into arrivals; streams get disjoint virtual ranges."""
    streams = _Streams()
    lengths = {spec.id: spec.output_len for spec in specs}
    found = []
    for spec in specs:
        when = When.parse(spec.when)
        if spec.action is not None:
            found.append(Arrival(spec.id, when, None, spec.action, spec.options))
            continue
        prompt, images = streams.prompt(spec, lengths)
        outputs = Seq.virtual(streams.base(f"out:{spec.id}"), spec.output_len)
        lora = spec.lora
        options = dict(spec.options)
        if isinstance(lora, dict):
            options["lora"] = lora
            lora = str(_lora_name(lora))
        request = Request(
            id=spec.id,
            prompt=prompt,
            max_tokens=spec.output_len,
            outputs=outputs,
            salt=spec.salt,
            lora=lora,
            images=images,
            arrival=spec.at,
            priority=spec.priority,
            options=options,
        )
        found.append(Arrival(spec.id, when, request))
    return found


def _lora_name(described: Mapping[str, Any]) -> Any:
    """What tells a LoRA from others: its name, or its number."""
    return described.get("name", described.get("id"))


class _Streams:
    """Gives every named stream a virtual range of its own, in order of first use."""

    def __init__(self) -> None:
        self._bases: dict[str, int] = {}

    def base(self, name: str) -> int:
        return self._bases.setdefault(name, VIRTUAL + (2 * len(self._bases) + 1) * STREAM)

    def prompt(
        self, spec: RequestSpec, lengths: Mapping[str, int]
    ) -> tuple[Seq, tuple[Image, ...]]:
        prompt = Seq(spec.tokens or ())
        images = []
        for span in spec.spans:
            if span.shared is not None:
                prompt.add_run(self.base(f"shared:{span.shared}") + span.skip, span.len)
            elif span.unique is not None:
                prompt.add_run(self.base(f"unique:{span.unique}") + span.skip, span.len)
            elif span.output_of is not None:
                if span.skip + span.len > lengths[span.output_of]:
                    raise BadInput(
                        f"request {spec.id} quotes {span.len} tokens of {span.output_of}, "
                        f"which generates {lengths[span.output_of]}"
                    )
                prompt.add_run(self.base(f"out:{span.output_of}") + span.skip, span.len)
            else:
                images.append(Image(str(span.image), len(prompt), span.len))
                prompt.add_run(self.base(f"image:{span.image}"), span.len)
        return prompt, tuple(images)


def _parse(text: str, file: object) -> Scenario:
    document = read_document(text, file)
    if not isinstance(document.value, dict):
        raise BadInput("is not a mapping", file=file)
    try:  # by way of JSON: there, strict types still read lists as tuples
        plain = json.dumps(document.value, default=str)
        return Scenario.model_validate_json(plain, strict=True)
    except TypeError as error:
        raise BadInput(f"is no scenario: {error}", file=file) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        hint = ""
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            close = difflib.get_close_matches(str(first["loc"][0]), Scenario.model_fields, 1)
            hint = f". Did you mean {close[0]}?" if close else ""
        line = document.line(first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{message}{hint}", file=file, line=line, field=field or None) from None


def builtin() -> dict[str, str]:
    """Built-in scenarios by name: their YAML texts, sorted."""
    folder = resources.files("handoff.scenarios")
    files = [item for item in folder.iterdir() if item.name.endswith(".yaml")]
    return {
        item.name.removesuffix(".yaml"): item.read_text(encoding="utf-8")
        for item in sorted(files, key=lambda item: item.name)
    }


def load_scenario(name: str) -> Scenario:
    """A built-in scenario by name, or one from a YAML file; ``BadInput`` names file and line."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _parse(read_text(path), path)
    texts = builtin()
    if name in texts:
        return _parse(texts[name], f"{name}.yaml")
    close = difflib.get_close_matches(name, texts, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise BadInput(f"no scenario or file {name!r}.{hint} All: handoff scenarios")
