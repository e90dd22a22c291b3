"""Upstream's real block hashes, for those who ask for them (RULES 3; kv_cache_utils.py).

Planning uses ``keys.py``; this module computes the same chain with the four hash algorithms.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cbor2
import xxhash

from handoff.types import Image

__all__ = ["block_hashes", "extra_keys", "hash_function", "none_hash"]

HashFunction = Callable[[Any], bytes]
_NO_SEED = "vllm-none-hash"


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _cbor(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


_ALGORITHMS: dict[str, HashFunction] = {
    "sha256": lambda value: hashlib.sha256(_pickled(value)).digest(),
    "sha256_cbor": lambda value: hashlib.sha256(_cbor(value)).digest(),
    "xxhash": lambda value: xxhash.xxh3_128_digest(_pickled(value)),
    "xxhash_cbor": lambda value: xxhash.xxh3_128_digest(_cbor(value)),
}


def hash_function(algorithm: str) -> HashFunction:
    """The function behind a value of ``prefix_caching_hash_algo``."""
    return _ALGORITHMS[algorithm]


def none_hash(algorithm: str, seed: str | None) -> bytes:
    """Parent of the first block: the hash of ``PYTHONHASHSEED`` or of a fixed text.

    Upstream draws random bytes for the xxhash algorithms without a seed; that is refused here.
    """
    if seed is None and not algorithm.startswith("sha256"):
        raise ValueError(f"{algorithm} without PYTHONHASHSEED differs from process to process")
    return hash_function(algorithm)(_NO_SEED if seed is None else seed)


def extra_keys(
    start: int,
    stop: int,
    *,
    lora: tuple[str, str] | None = None,
    images: Sequence[Image] = (),
    salt: str | None = None,
    embeds: Sequence[Sequence[float]] | None = None,
) -> tuple[Any, ...] | None:
    """What goes into the hash of the piece ``[start, stop)`` beside its tokens, in this order.

    LoRA (name, path); each item that overlaps the piece with its offset relative to the piece; the
    salt on the first piece; the hash of the piece's rows of prompt embeddings.
    """
    keys: list[Any] = []
    if lora is not None:
        keys.append(("lora", *lora))
    keys += [
        ("mm", image.identifier, image.start - start)
        for image in images
        if image.start < stop and image.start + image.length > start
    ]
    if salt and start == 0:
        keys.append(("cache_salt", salt))
    if embeds is not None:
        rows = b"".join(struct.pack(f"<{len(row)}f", *row) for row in embeds[start:stop])
        keys.append(("prompt_embeds", hashlib.sha256(rows).digest()))
    return tuple(keys) or None


def block_hashes(
    tokens: Sequence[int],
    block_size: int,
    algorithm: str = "sha256",
    seed: str | None = None,
    **extra: Any,
) -> Iterator[bytes]:
    """The chained hashes of the complete blocks of ``tokens``; ``extra`` as in ``extra_keys``."""
    function, parent = hash_function(algorithm), none_hash(algorithm, seed)
    for start in range(0, len(tokens) - block_size + 1, block_size):
        stop = start + block_size
        keys = extra_keys(start, stop, **extra)
        parent = function((parent, tuple(tokens[start:stop]), keys))
        yield parent
