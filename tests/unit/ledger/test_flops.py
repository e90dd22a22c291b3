"""Closed forms against loops, presets against numbers worked by hand, roofline against division."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.errors import BadInput, Unsupported
from handoff.index.spans import Seq
from handoff.ledger.costs import Costs, place
from handoff.ledger.flops import Work, layer_work, visible_keys, visible_pairs
from handoff.ledger.roofline import BANDWIDTH, COMPUTE, DEVICES, Roofline, device
from handoff.model.presets import (
    NOT_NEGATIVE,
    POSITIVE,
    LayerShape,
    from_config,
    load_model,
    preset,
    preset_names,
)
from handoff.types import Group, Layer, Layout, Pool, Row, Spans, Step

limits = st.one_of(st.none(), st.integers(1, 9))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), limits, limits)
def test_pairs_and_keys_equal_the_loop(
    start: int, length: int, visible: int, window: int | None, local: int | None
) -> None:
    seen: list[range] = []
    for p in range(start, start + length):
        low = max(visible, p - window + 1 if window else 0, p // local * local if local else 0)
        seen.append(range(low, p + 1))
    found = {"visible": visible, "window": window, "local": local}
    pairs = visible_pairs(start, start + length, **found)  # type: ignore[arg-type]
    assert pairs == sum(len(keys) for keys in seen)
    keys = visible_keys(start, start + length, **found)  # type: ignore[arg-type]
    distinct = {key for keys in seen for key in keys}
    assert keys == (max(distinct) - min(distinct) + 1 if distinct else 0)


def test_a_layer_that_reads_another_layers_kv_stores_none() -> None:
    shape = LayerShape(projection=10, kv_projection=6, mlp=100, pair=4, kv_bytes=8)
    work = layer_work(shape, 2, 5)
    assert work == Work(
        projections=2 * 3 * 16, attention=4 * 12, mlp=600, read=5 * 8, written=3 * 8
    )
    reader = layer_work(shape, 2, 5, own_kv=False)
    assert (reader.projections, reader.written, reader.read) == (60, 0, 40)
    assert layer_work(shape, 2, 5, write=4).written == 8
    assert layer_work(shape, 4, 5, visible=5, write=5) == Work(projections=32, mlp=200)


def test_llama_by_hand() -> None:
    model = preset("llama-3.1-8b")
    assert model.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2 == 131_072
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336
    assert model.parameters == 32 * layer + 4096 * 128256
    cold = Costs(model, plain()).cold(1000)
    assert cold.projections + cold.mlp == 2 * 1000 * 32 * layer
    assert cold.attention == 32 * 4 * 32 * 128 * (1000 * 1001 // 2)
    assert cold.head == 2 * 4096 * 128256
    assert cold.written == 1000 * 131_072


def test_qwen_and_mixtral_by_hand() -> None:
    qwen = preset("qwen3-8b")
    assert qwen.kv_bytes_per_token == 36 * 2 * 8 * 128 * 2
    mixtral = preset("mixtral-8x7b").layers[0]
    assert mixtral.kv_projection == 2 * 4096 * 1024
    assert mixtral.mlp == 4096 * 8 + 2 * 3 * 4096 * 14336  # router, two of eight experts
    assert round(preset("mixtral-8x7b").parameters / 1e9, 1) == 46.6


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("llama-3.1-8b", 8.03, 8.03),
        ("qwen3-8b", 8.19, 8.19),
        ("gpt-oss-20b", 20.9, 3.6 + 0.58),  # the active ones are published without embeddings
        ("mixtral-8x7b", 46.7, 12.9),
        ("deepseek-v3", 671.0, 37.0),
    ],
)
def test_published_parameters_in_billions(name: str, total: float, active: float) -> None:
    model = preset(name)
    used = sum(layer.projection + layer.kv_projection + layer.mlp for layer in model.layers)
    embedding = model.head  # of these models it is not tied, and as large
    assert (model.parameters + embedding) / 1e9 == pytest.approx(total, rel=0.003)
    assert (used + model.head + embedding) / 1e9 == pytest.approx(active, rel=0.02)


def test_gemma_ties_its_embedding() -> None:
    assert preset("gemma-3-12b").parameters / 1e9 == pytest.approx(11.77, rel=0.003)


def test_windows_of_gemma_and_gpt_oss() -> None:
    gemma = [layer.window for layer in preset("gemma-3-12b").layers]
    assert gemma.count(1024) == 40 and gemma[5] is None and gemma[4] == 1024
    oss = [layer.window for layer in preset("gpt-oss-20b").layers]
    assert oss == [128, None] * 12
    work = Costs(preset("gpt-oss-20b"), plain()).cold(1000)
    window_pairs = 128 * 129 // 2 + (1000 - 128) * 128
    assert work.attention == 12 * 4 * 64 * 64 * (window_pairs + 1000 * 1001 // 2)


def test_latent_attention_of_deepseek() -> None:
    layer = preset("deepseek-v3").layers[10]
    assert layer.kv_bytes == (512 + 64) * 2 and preset("deepseek-v3").kv_bytes_per_token == 70_272
    assert layer.pair == 2 * 128 * (192 + 128)
    assert layer.projection == 1536 * (7168 + 128 * 192) + 128 * 128 * 7168
    assert layer.kv_projection == 7168 * 576 + 512 * 128 * 256
    assert layer.mlp == 7168 * 256 + (1 + 8) * 3 * 7168 * 2048
    assert preset("deepseek-v3").layers[2].experts == 0


def test_states_of_the_hybrid() -> None:
    layers = preset("qwen3-next").layers
    assert [layer.kind for layer in layers[:4]] == ["state", "state", "state", "kv"]
    state = layers[0]
    assert state.state_bytes == (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3) * 2
    assert state.recurrent == 2 * 8192 * 4 + 6 * 32 * 128 * 128
    assert layers[3].projection == 3 * 2048 * 16 * 256  # query, its gate, output


def test_pool_sizes() -> None:
    assert preset("llama-3.1-8b").pool_bytes(8192) == 2**30
    gemma = preset("gemma-3-12b")
    assert gemma.pool_bytes(65536, 32768) == 2 * 8192 * (8 * 32768 + 40 * 1024)
    assert (
        preset("qwen3-next").pool_bytes(4, 4)
        == 4 * 24576 + 36 * preset("qwen3-next").layers[0].state_bytes
    )


def test_models_from_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 32,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    path.write_text(json.dumps(config))
    model = load_model(str(path))
    assert [layer.window for layer in model.layers] == [4, None]
    assert model.layers[0].kv_bytes == 2 * 2 * 4 * 2 and model.head == 256
    mixed = {**config, "num_experts": 4, "num_experts_per_tok": 1, "decoder_sparse_step": 2}
    assert [layer.experts for layer in from_config(mixed).layers] == [0, 4]
    assert [layer.experts for layer in from_config({**mixed, "mlp_only_layers": [1]}).layers] == [
        0,
        0,
    ]
    with pytest.raises(Unsupported, match="mamba_d_state"):
        from_config({**config, "mamba_d_state": 128})
    path.write_text(json.dumps({"num_hidden_layers": 2}))
    with pytest.raises(BadInput, match="hidden_size"):
        load_model(str(path))
    with pytest.raises(BadInput, match="Did you mean llama"):
        load_model("llama-3.1-8")
    assert len(preset_names()) == 7


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({name: value}, name) for name in POSITIVE for value in (0, -1, "8", 1.5, [1], True)),
        *(({name: value}, name) for name in NOT_NEGATIVE for value in (-1, "8", 1.5, True)),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ({"hidden_size": 1 << 60}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 99}, "num_attention_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": 2}, "layer_types"),
        ({"mlp_only_layers": 2}, "mlp_only_layers"),
        ({"text_config": [1]}, "text_config"),
        ({"text_config": {"hidden_size": -1}}, "hidden_size"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_config_is_named_with_its_file(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    config = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "vocab_size": 16,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    load_model(str(path))
    path.write_text(json.dumps({**config, **changes}))
    with pytest.raises(BadInput, match=rf"config\.json, field {field}: "):
        load_model(str(path))


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{", "[" * 100_000])
def test_what_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"config\.json: (is not a JSON object|cannot be read)"):
        load_model(str(path))


# -- layouts -----------------------------------------------------------------------------------


def plain() -> Layout:
    return Layout((Pool("kv", 8),), (Group("full", "kv", 16),), (Layer("full"),))


def yoco() -> Layout:
    groups = (Group("ring", "r", 1, window=4, ring=True, columns=8), Group("full", "kv", 16))
    layers = (Layer("full"), Layer("full"), Layer("full", 1, 1), Layer("full", 1, 1))
    return Layout((Pool("r", 8), Pool("kv", 8)), groups, layers)


def test_layers_go_to_the_group_of_their_kind_and_window() -> None:
    groups = (
        Group("full", "kv", 16),
        Group("swa", "kv", 16, window=1024),
        Group("m", "kv", 16, "state"),
    )
    layout = Layout((Pool("kv", 8),), groups, (Layer("full"), Layer("swa"), Layer("m")))
    gemma = place(preset("gemma-3-12b"), layout)
    assert sorted((each.group, count) for each, count in gemma.items()) == [(0, 8), (1, 40)]
    hybrid = place(preset("qwen3-next"), layout)
    assert {each.group: count for each, count in hybrid.items()} == {0: 12, 2: 36}
    assert set(place(preset("gpt-oss-20b"), plain()).values()) == {12}


def test_later_stages_follow_the_pattern_and_make_no_kv() -> None:
    placed = place(preset("llama-3.1-8b"), yoco())
    assert {(each.stage, each.own_kv): count for each, count in placed.items()} == {
        (0, True): 16,
        (1, False): 16,
    }
    costs = Costs(preset("llama-3.1-8b"), yoco())
    layer = preset("llama-3.1-8b").layers[0]
    kept = Spans(compute=(0, 90), write=(0, 0), visible=(0, 0))
    spared = costs.cold(100).flops - costs.cold(100, kept).flops
    per_layer = 2 * 90 * (layer.projection + layer.mlp) + layer.pair * 90 * 91 // 2
    assert spared == 16 * per_layer
    assert costs.slot_bytes("full") == 16 * layer.kv_bytes and costs.slot_bytes("ring") == 0


@given(
    st.sampled_from(preset_names()),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.integers(0, 5000),
)
def test_chunks_add_up_and_saving_lies_between_hit_squared_and_hit(
    name: str, length: int, one: int, two: int
) -> None:
    costs = Costs(preset(name), plain())
    hit, cut = sorted((one % length, two % length))
    cold = costs.cold(length)
    spent = costs.row(hit, length, heads=1)
    parts = costs.row(hit, cut).plus(costs.row(cut, length, heads=1))
    assert parts.flops == spent.flops
    spans = Spans(compute=(hit,), write=(hit,), visible=(0,))
    assert costs.row(hit, length, spans, heads=1) == spent  # the general path, group by group
    saved = (cold.flops - cold.head) - (spent.flops - spent.head)
    whole = cold.flops - cold.head
    assert hit * hit * whole <= saved * length * length
    assert saved * length <= hit * whole


def test_roofline_is_the_slower_of_arithmetic_and_traffic() -> None:
    model, h200 = preset("llama-3.1-8b"), device("h200")
    costs = Costs(model, plain(), h200)
    one = costs.seconds(costs.row(1000, 1001, heads=1))
    traffic = model.parameters * 2 + 1001 * 131_072 + 131_072
    assert one == pytest.approx(traffic / (BANDWIDTH * h200.bandwidth))
    long = costs.row(0, 8192, heads=1)
    assert costs.seconds(long) == pytest.approx(long.flops / (COMPUTE * h200.flops))
    by_hand = 2 * 8e9 * 8192 / (0.7 * 790e12)  # what servers reach in practice
    assert costs.seconds(long) == pytest.approx(by_hand, rel=0.15)
    assert costs.cold_seconds(8192, None, 2048) > costs.seconds(long) * 0.99
    assert [found.name for found in DEVICES] == ["H200", "H100", "A100", "L40S", "CPU"]
    assert "989 TFLOP/s at 60%" in h200.assumptions
    with pytest.raises(BadInput, match="H100"):
        device("H10")


def test_experts_are_read_as_far_as_they_are_used() -> None:
    model = preset("mixtral-8x7b")
    weights_read = Roofline(device("H100"), model).weights_read
    expert = 3 * 4096 * 14336
    always = model.parameters - 32 * 8 * expert
    assert weights_read(1) == pytest.approx(2 * (always + 32 * 2 * expert))
    assert weights_read(2) == pytest.approx(2 * (always + 32 * 3.5 * expert))
    assert weights_read(500) == pytest.approx(2 * model.parameters)


def test_a_step_reads_its_weights_once() -> None:
    costs = Costs(preset("llama-3.1-8b"), plain(), device("H200"))
    rows = tuple(Row(seq, 100, Seq([1])) for seq in range(8))
    alone = costs.step_seconds(Step(0, 0, -1, rows=rows[:1]))
    spread = tuple(row._replace(spans=Spans((100,), (100,), (0,))) for row in rows[4:])
    together = costs.step_seconds(Step(0, 0, -1, rows=rows[:4] + spread))
    assert alone < together < 1.02 * alone
    assert costs.step_seconds(Step(0, 0, -1)) == 0
