"""Options are no decoration: each one is read by its adapter; a budget is the pool it states."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from handoff.adapter import ORDER, load, make_options

ADAPTERS = Path(__file__).parents[2] / "adapters"
PADDING = 256  # llama.cpp rounds its context up to so many cells


@cache
def read_names(adapter: str) -> frozenset[str]:
    """Names of attributes that the adapter's package reads."""
    return frozenset(
        node.attr
        for path in (ADAPTERS / adapter).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


@pytest.mark.parametrize("name", ORDER)
def test_no_option_is_accepted_and_never_read(name: str) -> None:
    assert not set(load(name).options.model_fields) - read_names(name)


@pytest.mark.parametrize("name", ORDER)
def test_every_option_says_what_it_does(name: str) -> None:
    fields = load(name).options.model_fields
    assert not [option for option, field in fields.items() if not field.description]


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("pool_tokens", [1600, 4096, 10_000])
def test_a_budget_gives_the_pool_it_states(name: str, pool_tokens: int) -> None:
    """The largest device pool has that many slots, but for an incomplete block and padding."""
    adapter = load(name)
    budget = adapter.budget(pool_tokens, make_options(adapter, {}))
    layout = adapter.engine(make_options(adapter, budget)).layout
    paged = [group for group in layout.groups if group.kind == "kv" and not group.ring]
    blocks = max(group.block_size for group in paged)
    tokens = max(layout.pool(group.pool).blocks * group.block_size for group in paged)
    assert pool_tokens - blocks < tokens <= pool_tokens + max(blocks, PADDING)
