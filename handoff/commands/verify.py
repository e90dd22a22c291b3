"""``handoff verify``: the truth test and the planted faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from handoff.adapter import ORDER
from handoff.errors import BadInput
from handoff.experiment import stream_of
from handoff.workload.scenario import builtin, load_scenario

from .progress import say

if TYPE_CHECKING:
    from handoff.verify import Approximate, Planted, VerifyReport

__all__ = ["verify_command"]


def verify_command(
    names: Sequence[str],
    *,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    dtype: str,
    device: str,
    seed: int,
    as_json: bool,
) -> int:
    """Truth test and planted faults; 0 if everything agrees and every fault is caught.

    Without names: all built-in scenarios, and the streams that bring every mechanism about.
    """
    if dtype not in ("float32", "float64"):
        raise BadInput(f"--dtype is float32 or float64, not {dtype}")
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device is cpu or cuda, not {device}")
    if (dtype, device) == ("float64", "cuda"):
        raise BadInput("--dtype float64 needs --device cpu: the GPU kernels sum in float32")
    streams = [stream_of(load_scenario(name)) for name in names or builtin()]
    import torch

    from handoff.stress import stress_streams
    from handoff.verify import verify

    if not names:
        streams += stress_streams()
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no CUDA device here")
    torch.set_num_threads(1)  # the models are small: threads only wait for each other
    found = verify(
        streams,
        adapters,
        sets=sets,
        dtype=dtype,
        device=device,
        seed=seed,
        complete=not names and set(ORDER) <= set(adapters),
        progress=say,
    )
    if as_json:
        print(json.dumps(found.as_json(), indent=2, sort_keys=True, ensure_ascii=False))
    else:
        _show(found)
    return 0 if found.ok else 1


def _show(found: VerifyReport) -> None:
    """The three comparisons, apart, and what became of every planted fault."""
    print(
        f"Logits against a cold run under the same rule ({found.dtype}, allowed {found.tolerance}):"
    )
    for name, exact in found.exact.items():
        verdict = "equal" if exact.ok else "DIFFER"
        print(
            f"  {name:14}{exact.requests:6,} requests {exact.rows:8,} rows  "
            f"largest error {exact.max_rel_error:.1e}  {verdict}"
        )
    if found.approximate:
        print("Against the untruncated model, where a rule approximates:")
    for name, measured in found.approximate.items():
        print(f"  {name:14}{_measured(measured)}")
    caught = len(found.planted) - len(found.uncaught)
    kinds = len({each.fault for each in found.planted})
    print(f"Planted faults: {caught:,} of {len(found.planted):,} caught, {kinds} kinds.")
    catchers = Counter((each.fault, _catchers(each)) for each in found.planted)
    for (fault, catcher), count in sorted(catchers.items()):
        print(f"  {fault:44}{count:3}  caught by {catcher}")
    for adapter, fault, why in found.not_applicable:
        print(f"  not applicable to {adapter}: {fault} ({why})")
    if found.complete and found.unplanted:
        print(f"  PLANTED NOWHERE: {', '.join(found.unplanted)}")
    for each in found.uncaught:
        print(f"  NOT CAUGHT: {json.dumps(asdict(each), default=str)}")


def _measured(found: Approximate) -> str:
    """One line about the rows of one adapter that descend from an approximation."""
    if not found.rows:
        return "no rows"
    causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in sorted(found.tainted.items()))
    return (
        f"{found.rows:6,} rows  largest error {found.max_rel_error:.1e}"
        f"  mean KL {found.mean_kl:.1e} nats  same top token {100 * found.top1:.1f} %"
        f"  (computed tokens by cause: {causes or 'none'})"
    )


def _catchers(each: Planted) -> str:
    """Who noticed a planted fault."""
    said = [name for name in ("tags", "logits") if getattr(each, name) is not None]
    return " and ".join(said) or "nobody"
