"""Rows from text: a pasted server command line, or ``ADAPTER:OPTION=VALUE,...``.

A server's flag becomes the option of the same name (kebab case to snake case); a few flags say the
same in other words, below. A flag that changes what is cached but is not modelled is an error that
names it; one that has nothing to do with the cache is listed as ignored.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from .adapter import known_options, load, make_options
from .errors import BadInput, Unsupported
from .experiment import RowSpec
from .workload.document import read_value

__all__ = ["Pasted", "parse_row", "parse_server"]

Values = Mapping[str, Any]


class Pasted(NamedTuple):
    """A server command as a row; ``ignored`` are flags that do not change what is cached."""

    row: RowSpec
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class _Server:
    """How one server spells its options.

    ``renamed``: flag -> option; ``off``: flags without a value that switch an option off;
    ``nested``: flags whose JSON value holds several options; ``left_out``: flags (or beginnings of
    flags, with ``*``) that change what is cached and are not modelled; ``switches``: further flags
    that take no value.
    """

    adapter: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    off: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, Callable[[Mapping[str, Any]], Values]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def _speculative(config: Mapping[str, Any]) -> Values:
    """vLLM's ``--speculative-config``; keys that do not concern the cache are dropped."""
    names = {"method": "speculative_method", "num_speculative_tokens": "num_speculative_tokens"}
    return {option: config[key] for key, option in names.items() if key in config}


def _connector(config: Mapping[str, Any]) -> Values:
    return {"kv_connector": config.get("kv_connector")}


VLLM = _Server(
    "vllm",
    renamed={"num_gpu_blocks_override": "num_gpu_blocks", "dcp": "decode_context_parallel_size"},
    off={"no_async_scheduling": "async_scheduling"},
    nested={"speculative_config": _speculative, "kv_transfer_config": _connector},
    left_out=("kv_offloading_*", "data_parallel_size", "dp", "pipeline_parallel_size", "pp"),
    switches=("enforce_eager", "trust_remote_code", "enable_lora", "disable_log_requests"),
)
SGLANG = _Server(
    "sglang",
    left_out=(
        "hicache_storage_*",
        "disaggregation_*",
        "dp_size",
        "dp",
        "data_parallel_size",
        "enable_dp_attention",
        "pp_size",
        "pipeline_parallel_size",
        "enable_session_radix_cache",
    ),
    switches=("trust_remote_code", "enable_metrics", "disable_cuda_graph"),
)
LLAMACPP = _Server(
    "llamacpp",
    renamed={
        "np": "parallel",
        "c": "ctx_size",
        "b": "batch_size",
        "ub": "ubatch_size",
        "sps": "slot_prompt_similarity",
        "cram": "cache_ram",
        "kvu": "kv_unified",
        "ctxcp": "ctx_checkpoints",
        "swa_checkpoints": "ctx_checkpoints",
        "draft": "spec_draft_n_max",
        "draft_max": "spec_draft_n_max",
        "draft_n": "spec_draft_n_max",
    },
    off={
        "no_cache_prompt": "cache_prompt",
        "no_kv_unified": "kv_unified",
        "no_kvu": "kv_unified",
        "no_context_shift": "context_shift",
        "no_cache_idle_slots": "cache_idle_slots",
    },
    left_out=("mmproj", "mmproj_url", "embedding", "embeddings", "rerank", "reranking"),
    switches=("jinja", "metrics", "slots", "props", "no_webui", "mlock", "no_mmap"),
)
SERVERS = {
    "vllm serve": VLLM,
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.api_server": VLLM,
    "sglang.launch_server": SGLANG,
    "sglang serve": SGLANG,
    "llama-server": LLAMACPP,
}

CACHE_WORDS = re.compile(
    r"cache|kv|radix|prefix|page_size|block_size|swa|sliding|mamba|speculative|spec_|draft|eagle"
    r"|chunk|slot|lora|checkpoint|schedul|preempt|retract|offload"
)
"""A flag with one of these in its name may change what is cached."""
HARMLESS = re.compile(
    r"kv_cache_dtype|cache_type|cache_dir|download_dir|lora_modules|max_lora_rank|lora_paths"
    r"|max_loras_per_batch|slot_save_path|scheduler_cls|draft_model|model_draft|speculative_draft"
    r"|gpu_layers_draft|chat_template|schedule_conservativeness_log|(?:^|_)threads"
    r"|lora_dtype|kv_offload$"
)
"""... but these concern number formats, files or weights."""


SIZES = {"k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}
ANSWERS = ("true", "false", "on", "off", "yes", "no")
"""Words that may follow a switch."""


def parse_server(text: str) -> Pasted:
    """A row from a pasted ``vllm serve``, ``sglang.launch_server`` or ``llama-server`` command.

    >>> pasted = parse_server("vllm serve a/model --block-size 32 --port 8000")
    >>> pasted.row.label, dict(pasted.row.values), pasted.ignored
    ('vllm:block_size=32', {'block_size': 32}, ('--port',))

    Raises ``BadInput`` for an unknown server or value, ``Unsupported`` for a flag that changes what
    is cached but is not modelled.
    """
    server, words = _command(text)
    fields = load(server.adapter).options.model_fields
    values: dict[str, Any] = {}
    ignored = []
    for flag, raw in _flags(words, _switches(server, fields)):
        found = _values(flag, raw, server, fields)
        if found is None:
            ignored.append(flag)
        values |= found or {}
    make_options(load(server.adapter), values)
    said = ",".join(f"{option}={value}" for option, value in values.items()) or "defaults"
    return Pasted(RowSpec(f"{server.adapter}:{said}", server.adapter, values), tuple(ignored))


def _command(text: str) -> tuple[_Server, list[str]]:
    """The server that is started, and the words behind its name."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise BadInput(f"--from: {error} in {text!r}") from None
    for at, word in enumerate(words):
        base = PurePath(word).name
        pair = f"{base} {words[at + 1]}" if at + 1 < len(words) else ""
        for name, behind in ((pair, at + 2), (base, at + 1)):
            if name in SERVERS:
                return SERVERS[name], words[behind:]
    known = ", ".join(SERVERS)
    raise BadInput(f"--from: {text!r} starts none of the known servers: {known}")


def _switches(server: _Server, fields: Mapping[str, FieldInfo]) -> set[str]:
    """Flags that stand alone, unless a word for yes or no follows."""
    options = {name for name, each in fields.items() if bool in _types(each.annotation)}
    spelled = {flag for flag, option in server.renamed.items() if option in options}
    return {*options, *spelled, *server.off, *server.switches}


def _types(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) or (annotation,)


def _flags(words: list[str], switches: set[str]) -> list[tuple[str, str | None]]:
    """Flags with their values; words that belong to no flag (the model) are passed over."""
    found: list[tuple[str, str | None]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-") or _is_number(word):
            continue
        flag, equals, value = word.partition("=")
        if equals:
            found.append((flag, value))
        elif _name(flag) in switches and words[at : at + 1] and words[at].lower() not in ANSWERS:
            found.append((flag, None))
        elif at < len(words) and (not words[at].startswith("-") or _is_number(words[at])):
            found.append((flag, words[at]))
            at += 1
        else:
            found.append((flag, None))
    return found


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _values(
    flag: str, raw: str | None, server: _Server, fields: Mapping[str, FieldInfo]
) -> Values | None:
    """Option values of one flag; ``None`` if it does not concern the cache."""
    name = _name(flag)
    if name in server.nested:
        return server.nested[name](_json(flag, raw))
    if name in server.off:
        return {server.off[name]: False}
    option = server.renamed.get(name, name)
    if option in fields:
        return {option: True if raw is None else _scalar(raw)}
    positive = name.removeprefix("no_")
    if positive != name and raw is None and positive in fields:
        return {positive: False}
    _spelled(flag, name, server, fields)
    if _listed(name, server.left_out) or (CACHE_WORDS.search(name) and not HARMLESS.search(name)):
        title = load(server.adapter).title
        raise Unsupported(
            f"{title}: {flag} changes what is cached and is not modelled. Leave it out, or see:"
            f" handoff adapters {server.adapter} --left-out"
        )
    return None


def _spelled(flag: str, name: str, server: _Server, fields: Mapping[str, FieldInfo]) -> None:
    """Raises ``BadInput`` for a flag that is almost one that matters: a slip of the pen."""
    known = [*fields, *server.renamed, *server.off, *server.nested, *server.switches]
    known += [each for each in server.left_out if not each.endswith("*")]
    if name in known:
        return
    close = difflib.get_close_matches(name, known, 1, cutoff=0.88)
    if close:
        meant = close[0].replace("_", "-")
        raise BadInput(f"--from: {server.adapter} has no flag {flag}. Did you mean --{meant}?")


def _listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns
    )


def _json(flag: str, raw: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(raw or "")
    except ValueError as error:
        raise BadInput(f"--from: {flag} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"--from: {flag} is no JSON object")
    return found


def _scalar(text: str) -> Any:
    """A value as YAML reads it (``off`` is false), with vLLM's ``32k`` and ``32K``, or the text."""
    if size := re.fullmatch(r"(\d+)([kKmM])", text):
        return int(size[1]) * SIZES[size[2]]
    return read_value(text)


def parse_row(text: str) -> RowSpec:
    """``ADAPTER`` or ``ADAPTER:OPTION=VALUE[,OPTION=VALUE]...``; the text is the row's label.

    >>> row = parse_row("vllm:block_size=32,enable_prefix_caching=false")
    >>> row.adapter, dict(row.values)
    ('vllm', {'block_size': 32, 'enable_prefix_caching': False})
    """
    name, _, rest = text.partition(":")
    adapter = load(name.strip())
    values: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+=)", rest) if rest else ():
        option, equals, raw = part.strip().partition("=")
        if not (equals and option):
            raise BadInput(f"--row {text}: give ADAPTER:OPTION=VALUE,OPTION=VALUE")
        values[option] = _scalar(raw)
    known_options(adapter, values)
    make_options(adapter, values)
    return RowSpec(text.strip(), name.strip(), values)
