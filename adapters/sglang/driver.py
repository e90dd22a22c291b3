"""How SGLang's recordings are replayed: kinds of files and what a driver may see of each.

Four kinds: ``common`` (one request after another), ``native`` (event traces of a running
scheduler), ``dsv41_window`` and ``encoder`` (two functions). Nothing is decided here: the engine
runs, the drivers listen and write down what they heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Kind, Recordings

from .driver_common import INPUTS as COMMON
from .driver_common import replay_common
from .driver_layouts import ENCODER_INPUTS, WINDOW_INPUTS, replay_encoder, replay_window
from .driver_native import FOLLOWED as NATIVE_FOLLOWED
from .driver_native import INPUTS as NATIVE
from .driver_native import replay_native
from .replay import options_of

__all__ = ["RECORDINGS"]


def _none(line: Mapping[str, Any]) -> int:
    """A function call serves no request."""
    return 0


RECORDINGS = Recordings(
    kinds={
        "common": Kind(inputs=COMMON, replay=replay_common),
        "native": Kind(
            inputs=NATIVE,
            replay=replay_native,
            followed=NATIVE_FOLLOWED,
            requests=lambda line: len(line["requests"]),
        ),
        "dsv41_window": Kind(inputs=WINDOW_INPUTS, replay=replay_window, requests=_none),
        "encoder": Kind(inputs=ENCODER_INPUTS, replay=replay_encoder, requests=_none),
    },
    options=options_of,
)
