"""Writes ``savings.md`` and its figures: ``python docs/savings.py`` (a test holds them up to date).

Every number and picture on the page comes from the library; nothing is typed in.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handoff.experiment import RowSpec
from handoff.explain import Comparison, Prompt, explain, shorthand
from handoff.explain.text import render_plain, strip_of
from handoff.index.spans import VIRTUAL, Seq
from handoff.report.figure_strip import draw_strip

HERE = Path(__file__).parent

INTRO = """# Hit length is not savings

<!-- Written by docs/savings.py; do not edit. -->

A server reports *cached tokens*: the length of the prefix-cache hit. What a hit is worth is the
compute that it makes unnecessary. The two differ, and always for a reason that can be named.

For every position of a prompt `handoff` keeps exactly one class (`reused`, `moved`, `fresh`, or
lost for one reason), and

* hit tokens, as the framework reports them = reused + moved + replay;
* saved FLOPs = FLOPs of the same prompt without a hit, minus FLOPs really spent (both with the
  logits of the last position; every layer group counted on its own);
* token weights = saved FLOPs minus the reused and moved tokens' share of the cold FLOPs.

With the last one the way from the shared prefix to the saved compute closes exactly: shared prefix,
less every reason, is the hit; the hit, less replay, plus token weights, is the saving. Per request
`hit² <= saved <= hit` (as ratios) holds unless one of effects 2 to 5 is at work.

The five effects below are shown with Llama-3.1-8B's FLOPs, one effect at a time.
"""

TIME = """## And time is not compute

FLOPs do not say how long a prefill takes: every step reads all weights once, so one token is not
free. The ledger keeps a roofline time beside the FLOPs (`ttft_s`, `cold_ttft_s`); its assumptions
stand in `handoff/ledger/roofline.py`. On an H200, for a prompt of 4,096 tokens of which all but the
last few are cached:

| computed | hit % | saved FLOPs % | saved time % | time |
|---:|---:|---:|---:|---:|
"""

OUTRO = """
Two more things are kept apart, because servers count them differently: tokens computed again after
a preemption are no prompt class (they are `recomputed_tokens` of an entry of their own), and
positions that belong to no content (rejected drafts, padding) are `overhead_tokens`.
"""


@dataclass(frozen=True)
class Effect:
    """One effect: words before and after its figure, the prompts and the engine that show it."""

    title: str
    before: str
    after: str
    prompts: list[Prompt]
    adapter: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def comparison(self) -> Comparison:
        """The last prompt's account."""
        return explain(
            self.prompts, [RowSpec(self.adapter, self.adapter, self.values)], probe=False
        )


def pieces(name: str, *parts: tuple[str, int]) -> Prompt:
    """A prompt made of named pieces; the same name is the same text wherever it stands."""
    tokens = Seq()
    for piece, length in parts:
        tokens.add_run(VIRTUAL + ord(piece) * (1 << 32), length)
    return Prompt(name, tokens)


EFFECTS = (
    Effect(
        "Early tokens cost less",
        "A token attends to everything before it, so the first half of a prompt is the cheap half. "
        "Of this prompt of {prompt} tokens {hit_percent} % are reused and {saved_percent} % of the "
        "compute is saved. The longer the prompt, the wider the gap.",
        "This is `token weights`: {weights} % of the cold FLOPs here. Over a whole run it may be "
        "positive, because long prompts weigh more than short ones.",
        shorthand(50_000, 50_000),
        "vllm",
    ),
    Effect(
        "Replay: granted, but computed again",
        "A model whose window layers keep only the last tokens of a cached prefix restores them by "
        "computing the end of the hit again (vLLM and SGLang, bounded replay). The server reports "
        "{hit} cached tokens; positions start at {start}.",
        "{replay} tokens are replayed: matched {raw}, reported {hit}, saved {start}. What is "
        "computed in the replay is an approximation, so outputs may differ from a cold run.",
        shorthand(2100, 100),
        "vllm",
        {
            "groups": [
                {"type": "full", "block_size": 64},
                {"type": "swa_mla_replay", "window": 128, "block_size": 64},
            ]
        },
    ),
    Effect(
        "A layer group that cannot go along",
        "All layers of a model must resume at the same position. In a hybrid model the attention "
        "layers hold {matched}, but the recurrent layers have no state there, so "
        "the hit is {hit} tokens and the attention layers compute what they hold a second time.",
        "The lost tokens carry the reason `group` and the name of the limiting group; the lane of "
        "the other group says *computed again*.",
        shorthand(1500, 700),
        "vllm",
        {
            "groups": [
                {"type": "full", "block_size": 528},
                {"type": "mamba", "block_size": 528},
            ]
        },
    ),
    Effect(
        "Layers that would not have computed the prefix anyway",
        "In a YoCo model with decoder truncation (DeepInfer) the consumer layers compute only the "
        "last tokens of a prompt, hit or not. A hit of {hit_percent} % saves {saved_percent} % of "
        "the compute: it saves producer layers only.",
        "Such positions are `unneeded` in that group's lane: a flag of the lane, no class. The "
        "producer layers did reuse them.",
        shorthand(1867, 181),
        "deepinfer",
        {
            "yoco_prefill_truncation_mode": "compact",
            "yoco_prefill_keep_tokens": 140,
            "prefill_store_extra_state": 268,
        },
    ),
    Effect(
        "Moved chunks: a gain that is no prefix",
        "llama.cpp can shift a cached chunk to another place (`--cache-reuse`). Here a paragraph "
        "of 300 tokens was deleted: the shared prefix ends at {shared}, but {moved} later tokens "
        "are moved in place of being computed, and the server reports {hit} cached tokens.",
        "A moved chunk attended to the deleted text when it was computed. Its keys are rotated to "
        "the new positions, its contents are not renewed: the saving is real, the result is an "
        "approximation, and the ledger counts it as `moved`, never as `reused`.",
        [
            pieces("before", ("a", 700), ("b", 300), ("c", 800)),
            pieces("after", ("a", 700), ("c", 800), ("d", 40)),
        ],
        "llamacpp",
        {"cache_reuse": 256},
    ),
)


def numbers(comparison: Comparison) -> dict[str, str]:
    """What the words of an effect may quote."""
    entry = comparison.answers[0].entry
    groups = entry.answers["groups"]
    return {
        "prompt": f"{entry.prompt_tokens:,}",
        "hit": f"{entry.hit_tokens:,}",
        "raw": f"{entry.raw_tokens:,}",
        "start": f"{entry.start:,}",
        "shared": f"{entry.shared_tokens:,}",
        "moved": f"{entry.moved:,}",
        "replay": f"{entry.count('replay'):,}",
        "matched": f"{max(each['matched'] for each in groups):,} tokens",
        "hit_percent": f"{100 * entry.hit_tokens / entry.prompt_tokens:.1f}",
        "saved_percent": f"{100 * entry.saved_flops / entry.cold_flops:.1f}",
        "weights": f"{100 * entry.token_weights_flops / entry.cold_flops:.1f}",
    }


def page() -> tuple[str, dict[str, str]]:
    """The page's text and its figures by file name."""
    parts, figures = [INTRO], {}
    for at, effect in enumerate(EFFECTS, 1):
        comparison = effect.comparison()
        found = numbers(comparison)
        picture = draw_strip(strip_of(comparison))
        name = f"savings-{at}.svg"
        figures[name] = picture.svg()
        text = render_plain(comparison).rsplit("\nTime to", 1)[0]
        parts.append(
            f"## {at}. {effect.title}\n\n{_fill(effect.before.format(**found))}\n\n"
            f"![{picture.alt}](figures/{name})\n\n"
            f"```text\n{text}\n```\n\n{_fill(effect.after.format(**found))}\n"
        )
    parts.append(TIME + "\n".join(_times()) + "\n" + OUTRO)
    return "\n".join(parts), figures


def _fill(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _times() -> list[str]:
    lines = []
    length = 4096
    for tail in (16, 64, 256, 1024):
        prompts = shorthand(length - tail, tail)
        entry = explain(prompts, [RowSpec("vllm", "vllm")], probe=False).answers[0].entry
        assert entry.ttft_s is not None and entry.cold_ttft_s is not None
        lines.append(
            f"| {entry.computed_tokens:,} | {100 * entry.hit_tokens / length:.1f}"
            f" | {100 * entry.saved_flops / entry.cold_flops:.1f}"
            f" | {100 * (1 - entry.ttft_s / entry.cold_ttft_s):.1f}"
            f" | {1000 * entry.ttft_s:.1f} ms |"
        )
    return lines


def main() -> None:
    """Write the page and its figures beside this file."""
    text, figures = page()
    (HERE / "savings.md").write_text(text, encoding="utf-8")
    (HERE / "figures").mkdir(exist_ok=True)
    for name, svg in figures.items():
        (HERE / "figures" / name).write_text(svg, encoding="utf-8", newline="\n")
    print(f"wrote savings.md and {len(figures)} figures", file=sys.stderr)


if __name__ == "__main__":
    main()
