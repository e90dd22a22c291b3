"""Tensors of the store: who shares memory, what a fresh bind voids, what an operation touches."""

from __future__ import annotations

import numpy as np
import torch

from handoff.model.rope import frequencies
from handoff.model.spec import reference_spec
from handoff.store.pages import KVPages
from handoff.types import NULL, Group, Layer, Layout, Pool

LAYOUT = Layout(
    (Pool("kv", 6), Pool("ram", 4, "host")),
    (Group("full", "kv", 4), Group("other", "kv", 2), Group("state", "kv", 1, "state")),
    (Layer("full"), Layer("other"), Layer("state"), Layer("full", reads=0)),
)


def pages(**options: bool) -> KVPages:
    return KVPages(LAYOUT, reference_spec(LAYOUT, depth=1), torch.float64, **options)


def test_layers_and_groups_have_memory_of_their_own() -> None:
    store = pages()
    k, v = store.of(0)
    assert k.shape == v.shape == (6, 4, 2, 16) and store.of(1)[0].shape == (6, 2, 2, 16)
    assert store.of(3)[0] is k  # a reading layer has none
    assert store.states.of(2).shape == (6, 1, 64)
    assert not k.any()


def test_a_fresh_bind_poisons_every_group_of_the_pool() -> None:
    store = pages(poison=True)
    store.void("kv", [2])
    for tensor in (*store.of(0), *store.of(1), store.states.of(2)):
        assert tensor[2].isnan().all() and not tensor[1].isnan().any()
    plain = pages()
    plain.void("kv", [2])
    assert not plain.of(0)[0].isnan().any()


def test_store_copy_shift_and_zero_go_by_slots() -> None:
    store = pages()
    k, v = (torch.randn(3, 2, 16, dtype=torch.float64) for _ in range(2))
    store.store(0, k, v, np.array([5, NULL, 6]))
    keys, values = (each.flatten(0, 1) for each in store.of(0))
    assert torch.equal(keys[5], k[0]) and torch.equal(values[6], v[2]) and not keys[7].any()
    store.copy(0, "kv", "ram", [(5, 9, 2)])
    assert torch.equal(store.of(0, "ram")[1].flatten(0, 1)[10], v[2])
    store.shift(0, [(5, 1)], 3, frequencies(16, 10_000.0))
    assert not torch.equal(keys[5], k[0]) and torch.equal(values[5], v[0])
    store.zero(0, [(5, 2)])
    assert not keys.any() and not values.any() and store.of(0, "ram")[0].any()


def test_states_by_id_and_the_zero_state() -> None:
    states = pages().states
    rows = torch.randn(2, 64, dtype=torch.float64)
    states.save(2, [4, 1], rows)
    assert torch.equal(states.load(2, [1, NULL, 4])[0], rows[1])
    assert not states.load(2, [1, NULL, 4])[1].any()
