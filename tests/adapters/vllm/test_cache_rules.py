"""Keys, pool, hits, windows, copies by hand; the number in a name is the rule book's section."""

from __future__ import annotations

import pytest

from handoff.errors import Unsupported
from handoff.index.spans import Seq
from handoff.types import Bind, Copy, Cut, Image, Request

from .play import FULL, FULL64, MAMBA64, SWA32, Play, words

EAGLE = {"method": "eagle", "k": 2, "drafts": "none"}


# -- 1: the six questions -----------------------------------------------------------------------


def test_1_a_look_up_changes_nothing() -> None:
    play = Play()
    play.serve(words(1, 33))
    before = play.engine.observe()
    match = play.engine.probe(Request("x", Seq.of(words(1, 40)), 1))
    assert (match.raw_tokens, match.hit_tokens) == (32, 32)
    assert play.engine.observe() == before


def test_1_blocks_are_shared_in_place_and_write_starts_behind_the_hit() -> None:
    play = Play()
    play.serve(words(1, 33))
    answer = play.serve(words(1, 33))
    group = answer.groups[0]
    assert (answer.hit_tokens, answer.start, answer.known_tokens) == (32, 32, 33)
    assert list(group.table) == [1, 2, 3] and (group.write, group.fresh) == (32, 2)
    binds = [op for op in play.steps[-1].ops if isinstance(op, Bind)]
    assert [(b.column, b.ids, b.fresh) for b in binds] == [(0, (1, 2), False), (2, (3,), True)]
    assert not play.ops(Copy)


# -- 2: sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "scheduler_block", "hash_block", "alignment", "fine"),
    [
        ({"groups": [FULL]}, 16, 16, 16, False),
        ({"groups": [FULL], "dcp": 2}, 32, 32, 32, False),
        ({"groups": [{"type": "full", "block_size": 32}, SWA32]}, 32, 16, 32, False),
        ({"groups": [FULL64, MAMBA64]}, 64, 64, 64, False),
        ({"groups": [FULL64, MAMBA64], "prefix_match_unit": 16}, 64, 16, 16, True),
        ({"groups": [FULL64, {**SWA32, "block_size": 48}], "caching": False}, 192, 192, 192, False),
    ],
)
def test_2_sizes(
    config: dict, scheduler_block: int, hash_block: int, alignment: int, fine: bool
) -> None:
    sizes = Play(**config).engine.sizes
    assert sizes.scheduler_block == scheduler_block
    assert sizes.hash_block == hash_block
    assert (sizes.alignment, sizes.fine_grained) == (alignment, fine)


def test_2_one_group_refuses_another_unit() -> None:
    with pytest.raises(Unsupported, match="prefix_match_unit 8"):
        Play(prefix_match_unit=8)


# -- 3: keys ------------------------------------------------------------------------------------


def test_3_salt_and_lora_separate_and_find_themselves() -> None:
    play = Play(num_blocks=40)
    play.serve(words(1, 33))
    for more in ({"salt": "s"}, {"lora": "l"}, {"salt": "s", "lora": "l"}):
        assert play.serve(words(1, 33), **more).hit_tokens == 0
        assert play.serve(words(1, 33), **more).hit_tokens == 32
    assert play.serve(words(1, 33), salt="").hit_tokens == 32  # an empty salt is none


@pytest.mark.parametrize(
    ("image", "hit"),
    [
        (Image("A", 20, 8), 32),
        (Image("A", 21, 8), 16),
        (Image("B", 20, 8), 16),
        (Image("B", 40, 4), 16),
        (Image("A", 10, 8), 0),
    ],
)
def test_3_items_enter_with_identifier_and_offset(image: Image, hit: int) -> None:
    play = Play()
    play.serve(words(1, 50), images=(Image("A", 20, 8),))
    assert play.serve(words(1, 33), images=(image,)).hit_tokens == hit


def test_3_prompt_embeddings_hide_the_token_ids() -> None:
    play = Play()
    play.serve(words(1, 33), options={"prompt_embeds": "e"})
    assert play.serve(words(1, 33), options={"prompt_embeds": "e"}).hit_tokens == 32
    assert play.serve(words(1, 33)).hit_tokens == 0


def test_3_outputs_are_keyed_like_prompts() -> None:
    play = Play()
    play.serve(words(1, 30), says=words(2, 3))
    assert play.serve([*words(1, 30), *words(2, 10)]).hit_tokens == 32


def test_3_real_hashes_of_a_recorded_vector() -> None:
    engine = Play(groups=[{"type": "full", "block_size": 4}]).engine
    prompt = Seq.of(range(1000, 1013))  # 13 tokens: three complete blocks
    hashes = engine.block_hashes(Request("r", prompt, 1))
    assert len(hashes) == 3
    assert hashes[0].hex().startswith("63dba3bfc8235753fca2ec71e462bd17")
    assert hashes[1] != engine.block_hashes(Request("r", prompt, 1, salt="s"))[1]
    with pytest.raises(Unsupported, match="tensor's bytes"):
        engine.block_hashes(Request("r", prompt, 1, options={"prompt_embeds": "e"}))


# -- 4: the pool --------------------------------------------------------------------------------


def test_4_freed_tail_first_unkeyed_in_front() -> None:
    play = Play(num_blocks=8)
    assert list(play.serve(words(1, 33)).groups[0].table) == [1, 2, 3]
    assert play.queue == [3, 4, 5, 6, 7, 2, 1]


def test_4_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    play = Play(num_blocks=12)
    play.serve(words(1, 80))
    play.serve(words(2, 120))
    assert play.events("evict")[0].ids == (5, 4)
    assert play.serve(words(1, 80)).hit_tokens == 48


def test_4_duplicates_are_kept_and_the_first_is_hit() -> None:
    play = Play()
    for _ in range(2):
        play.submit(words(1, 32))  # 31 tokens may be hit: the second block is computed twice
    play.finish()
    tables = [list(play.handoff(name).groups[0].table) for name in ("r1", "r2")]
    assert tables == [[1, 2], [1, 3]]
    assert list(play.serve(words(1, 40)).groups[0].table[:2]) == [1, 2]


def test_4_a_hit_moves_to_the_back_only_when_it_is_freed() -> None:
    play = Play(num_blocks=8)
    play.serve(words(1, 33))
    play.submit(words(1, 33), 2)
    play.turn()
    assert play.queue == [4, 5, 6, 7]
    play.finish()
    assert play.queue == [3, 4, 5, 6, 7, 2, 1]


# -- 5 and 16: hit lengths ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "first", "second", "hit"),
    [
        ({}, 32, 32, 16),
        ({}, 33, 33, 32),
        ({}, 40, 31, 16),
        ({"spec": EAGLE}, 33, 33, 16),
        ({"spec": EAGLE}, 49, 48, 16),
        ({"spec": EAGLE}, 97, 96, 64),
        ({"spec": {**EAGLE, "drop": False}}, 33, 33, 32),
        ({"spec": EAGLE, "groups": [FULL, SWA32], "retention": None}, 97, 96, 80),
        ({}, 15, 15, 0),
    ],
)
def test_16_hits_by_hand(config: dict, first: int, second: int, hit: int) -> None:
    play = Play(**config)
    play.serve(words(1, first))
    assert play.serve(words(1, second)).hit_tokens == hit


def test_16_the_next_turn_hits_what_was_computed() -> None:
    play = Play()
    play.serve(words(1, 40), says=words(2, 10))
    answer = play.serve([*words(1, 40), *words(2, 10), *words(3, 20)])
    assert (answer.hit_tokens, answer.known_tokens - answer.start) == (48, 22)


def test_5_deductions_tell_cap_floor_and_drop_in_order() -> None:
    play = Play(spec=EAGLE)
    play.serve(words(1, 49))
    answer = play.serve(words(1, 48))
    told = [(d.reason, d.start, d.stop) for d in answer.deductions]
    assert told == [("last_token", 47, 48), ("alignment", 32, 47), ("draft", 16, 32)]


def test_5_a_window_needs_its_last_blocks_only() -> None:
    play = Play(groups=[{**SWA32}], retention=None)
    play.serve(words(1, 97))
    answer = play.serve(words(1, 97))
    assert answer.hit_tokens == 96
    assert list(answer.groups[0].table)[:4] == [-1, -1, -1, -1]


def test_5_the_shorter_group_limits_a_hybrid_hit() -> None:
    play = Play(groups=[FULL, SWA32])  # retention 0: only the end of a prompt is kept
    play.serve(words(1, 120))
    answer = play.serve([*words(1, 100), *words(2, 20)])
    assert answer.hit_tokens == 0
    assert [(d.reason, d.group) for d in answer.deductions] == [("group", "swa")]
    assert [g.matched for g in answer.groups] == [96, 0]


def test_5_chunked_local_needs_the_current_chunk() -> None:
    local = {"type": "local", "chunk": 64, "block_size": 16}
    play = Play(groups=[FULL, local])
    play.serve(words(1, 100))
    answer = play.serve(words(1, 100))
    assert answer.hit_tokens == 96
    assert list(answer.groups[1].table)[:4] == [-1] * 4


# -- 7: windows and retention -------------------------------------------------------------------


def test_7_the_second_sibling_makes_a_junction_the_third_hits() -> None:
    play = Play(groups=[FULL, SWA32])
    hits = [play.serve([*words(1, 100), *words(n, 20)]).hit_tokens for n in (2, 3, 4)]
    assert hits == [0, 0, 96]


def test_7_dense_retention_hits_at_once() -> None:
    play = Play(groups=[FULL, SWA32], retention=None)
    hits = [play.serve([*words(1, 100), *words(n, 20)]).hit_tokens for n in (2, 3)]
    assert hits == [0, 96]


def test_7_blocks_leave_the_window_while_the_request_runs() -> None:
    play = Play(groups=[SWA32], num_blocks=40)
    play.submit(words(1, 90), 3)
    play.turn()
    play.turn()
    (cut,) = play.ops(Cut)
    assert (cut.first, cut.last) == (0, 3)  # 90 - 32 + 1 = 59 tokens are behind the window
    assert play.queue[:3] == [3, 2, 1]  # unkeyed under retention 0


def test_7_asynchronous_decode_blocks_get_keys_with_their_output() -> None:
    play = Play(scheduler="async")
    play.submit(words(1, 30), 8)
    told = []
    for _ in range(4):
        play.turn()
        told.append(max((e.tokens for e in play.events("insert")), default=0))
    assert told == [16, 16, 32, 32]  # token 32 is computed in the third step, keyed at its output


def test_7_r_swa_keeps_the_prompt_and_a_window_of_the_output() -> None:
    play = Play(groups=[{**SWA32, "type": "rswa"}])
    play.submit(words(1, 40), 60)
    play.finish()
    cuts = [(op.first, op.last) for op in play.ops(Cut) if isinstance(op, Cut)]
    assert cuts == [(3, 4)]  # columns 0 to 2 hold the prompt; 98 - 32 = 66 tokens are behind
    assert play.steps[-1].rows[0].spans is not None
    assert play.steps[-1].rows[0].spans.visible == (64,)


# -- 8: fine-grained hits -----------------------------------------------------------------------


def test_8_a_hit_inside_a_block_is_copied_on_write() -> None:
    play = Play(groups=[FULL64, MAMBA64], prefix_match_unit=16)
    play.serve(words(1, 118))
    answer = play.serve([*words(1, 112), *words(2, 8)])
    assert (answer.hit_tokens, answer.unit) == (112, 16)
    assert all(group.copied and group.copied[0][2] == 48 for group in answer.groups)
    step = next(s for s in play.steps if answer in s.handoffs)
    assert [op.group for op in step.ops if isinstance(op, Copy)] == ["full", "mamba"]
