"""``handoff run``: serve scenarios or a trace, write ledger and report, print the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from handoff.errors import BadInput
from handoff.saved import save, write_file
from handoff.session import Result, RunPlan, execute, forget_parts

from .progress import say

__all__ = ["run_command"]


def run_command(
    plan: RunPlan,
    *,
    perfetto: Path | None = None,
    prometheus: Path | None = None,
    as_json: bool = False,
) -> int:
    """Serve everything, write ledger and report, print the tables; 0, or 1 if a check failed."""
    assert plan.out is not None
    found = execute(plan, say)
    failed: BadInput | None = None
    try:  # written first: a closed pipe behind the tables must not cost the results
        paths = _write(found, plan.out, perfetto, prometheus)
    except BadInput as error:
        failed = error
    _show(found, as_json=as_json)
    if failed is not None:
        raise failed
    say(f"{found.seconds:.1f} s. Wrote {', '.join(str(path) for path in paths)}")
    if found.stopped is not None:
        say("stopped early; the rows that were finished are kept. Go on with --resume")
        raise found.stopped
    forget_parts(plan)
    return 0 if found.fine else 1


def _show(found: Result, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_summary(found), indent=2, sort_keys=True))
        return
    from rich.console import Console

    from handoff.report.tables import render_run

    render_run(Console(), found.ledger.to_pandas(), found.info)


def _write(found: Result, out: Path, perfetto: Path | None, prometheus: Path | None) -> list[Path]:
    """Ledger, facts, report and exports; ``BadInput`` names what cannot be written."""
    frame = found.ledger.to_pandas()
    paths = save(found, out)
    if perfetto is not None:
        from handoff.report.perfetto import write_perfetto

        paths.append(write_file(perfetto, lambda: write_perfetto(perfetto, frame, found.steps)))
    if prometheus is not None:
        from handoff.report.prometheus import prometheus as exported

        paths.append(write_file(prometheus, lambda: prometheus.write_text(exported(frame))))
    return paths


def _summary(found: Result) -> dict[str, Any]:
    """Totals per row and scenario, expectations and checks, for ``--json``."""
    from handoff.report.totals import totals

    frame = found.ledger.to_pandas()
    return {
        "run": found.info.model_dump(mode="json"),
        "scenarios": {
            name: {
                total.run: {
                    "requests": total.requests,
                    "refused": total.refused,
                    "prompt_tokens": total.prompt,
                    "shared_tokens": total.shared,
                    "hit_tokens": total.hit,
                    "reused_tokens": total.reused,
                    "moved_tokens": total.moved,
                    "fresh_tokens": total.fresh,
                    "lost_tokens": {k: v for k, v in total.lost.items() if v},
                    "computed_tokens": total.computed,
                    "cold_flops": total.cold_flops,
                    "saved_flops": total.saved_flops,
                    "evidence": total.evidence,
                }
                for total in totals(frame[frame["scenario"] == name])
            }
            for name in found.ledger.scenarios
        },
    }
