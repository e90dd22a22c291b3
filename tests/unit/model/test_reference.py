"""The reference model: its spec, seeded weights, embeddings of any id, and rotations."""

from __future__ import annotations

import numpy as np
import torch

from handoff.index.spans import VIRTUAL
from handoff.model.rope import frequencies, rotate
from handoff.model.spec import LayerSpec, ModelSpec, reference_spec
from handoff.model.transformer import normed
from handoff.model.weights import Weights, embed
from handoff.types import Group, Layer, Layout, Pool

torch.set_num_threads(1)


def test_the_pattern_is_repeated_stage_by_stage() -> None:
    layout = Layout(
        (Pool("kv", 4),),
        (Group("full", "kv", 4), Group("window", "kv", 4, window=8)),
        (Layer("full"), Layer("window"), Layer("full", stage=1, reads=0)),
    )
    spec = reference_spec(layout, depth=6)
    assert spec.layers == (
        LayerSpec("full", 0),
        LayerSpec("window", 1, window=8),
        LayerSpec("full", 0),
        LayerSpec("window", 1, window=8),
        LayerSpec("full", 0, 1, reads=2),
        LayerSpec("full", 0, 1, reads=2),
    )
    assert spec.owners(0) == [0, 2] and spec.made_in(spec.layers[4]) == 0
    assert len(reference_spec(layout, depth=3).layers) == 3


def test_weights_are_a_function_of_the_seed() -> None:
    spec = ModelSpec((LayerSpec("full", 0), LayerSpec("full", 0, reads=0)))
    one, two, other = (Weights(spec, seed, torch.float64, "cpu") for seed in (1, 1, 2))
    assert torch.equal(one.layers[1].down, two.layers[1].down)
    assert not torch.equal(one.layers[0].q, other.layers[0].q)
    assert one.layers[1].k is None and one.layers[1].v is None
    assert torch.equal(one.lora("a")[0].qa, two.lora("a")[0].qa)
    assert not torch.equal(one.lora("a")[0].qa, one.lora("b")[0].qa)


def test_any_id_has_an_embedding_of_its_own() -> None:
    weights = Weights(ModelSpec(()), 0, torch.float64, "cpu")
    ids = np.array([*range(500), *range(VIRTUAL, VIRTUAL + 500), -1], np.int64)
    rows = embed(weights, ids)
    assert torch.equal(rows[3:4], embed(weights, ids[3:4]))
    assert len({tuple(row) for row in rows[:, :4].tolist()}) == len(ids)


def test_rotations_add_and_keep_lengths() -> None:
    freqs = frequencies(8, 10_000.0)
    assert freqs.tolist()[:2] == [1.0, 0.1]
    x = torch.randn(3, 2, 8, dtype=torch.float64)
    there = rotate(x, torch.tensor([5, 6, 7]), freqs)
    torch.testing.assert_close(rotate(there, torch.tensor([-5, -6, -7]), freqs), x)
    torch.testing.assert_close(there.norm(dim=-1), x.norm(dim=-1))
    one = torch.zeros(1, 1, 8, dtype=torch.float64)
    one[..., 0] = 1
    turned = rotate(one, torch.tensor([2]), freqs)[0, 0]
    assert abs(turned[0] - np.cos(2)) < 1e-12 and abs(turned[4] - np.sin(2)) < 1e-12


def test_norm_makes_unit_mean_square() -> None:
    x = 7 * torch.randn(4, 16, dtype=torch.float64)
    square = normed(x, 0.0).square().mean(-1)
    torch.testing.assert_close(square, torch.ones_like(square))
