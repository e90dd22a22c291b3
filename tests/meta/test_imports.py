"""Imports point one way: a layer may use what is below it, never what is above."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FOUNDATION = {"errors", "types", "index", "store.blocks", "lines"}
PLUGIN = {"adapter", "conformance.recording"}
EXECUTION = {"kernels", "model", "engine", "store.pages", "store.states"}
TORCH = (
    "kernels.",
    "engine.",
    "store.pages",
    "store.states",
    "model.rope",
    "model.transformer",
    "model.weights",
    "bench_kernels",
)

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "types": {"index"},
    "index": set(),
    "lines": {"errors"},
    "store.blocks": set(),
    "store": FOUNDATION | {"store"},
    "adapter": FOUNDATION | PLUGIN,
    "conformance.recording": FOUNDATION | PLUGIN,
    "adapters": FOUNDATION | PLUGIN,
    "kernels": FOUNDATION | {"kernels"},
    "store.pages": FOUNDATION | {"kernels", "model.spec", "store"},
    "store.states": FOUNDATION | {"kernels", "model.spec", "store"},
    "model": FOUNDATION | {"model", "kernels", "store"},
    "engine": FOUNDATION | {"engine", "kernels", "model", "store"},
    "workload": FOUNDATION | {"workload"},
    "runner": FOUNDATION | PLUGIN | {"workload"},
    "ledger": FOUNDATION | {"ledger", "model", "adapter", "workload"},
    "report": FOUNDATION | PLUGIN | {"report", "ledger", "model"},
}
"""What a module may import, by longest matching name; modules not named here sit on top."""


@cache
def modules() -> dict[str, Path]:
    found = {}
    for folder, prefix in ((ROOT / "handoff", ""), (ROOT / "adapters", "adapters.")):
        for path in sorted(folder.rglob("*.py")):
            name = prefix + ".".join(path.relative_to(folder).with_suffix("").parts)
            found[name.removesuffix(".__init__").removesuffix("__init__")] = path
    return found


def imported(name: str, path: Path) -> set[str]:
    """Modules of handoff that a file imports at run time, without the package's name."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package[: len(package) - node.level + 1]
                base = ".".join(["handoff", *up, *([base] if base else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            whole = {name.removeprefix("handoff.") for name in inside} <= set(modules())
            found |= inside if whole else inside | {base}
    return found


def without_type_checking(tree: ast.Module) -> ast.Module:
    """The tree less ``if TYPE_CHECKING`` bodies, which are not run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


def below(name: str, allowed: set[str]) -> bool:
    return any(name == part or name.startswith(part + ".") for part in allowed)


ALL = modules()


@pytest.mark.parametrize("name", sorted(ALL))
def test_import_direction(name: str) -> None:
    rule = max((r for r in MAY_IMPORT if below(name, {r})), key=len, default=None)
    own = (
        {name.split(".", 2)[0] + "." + name.split(".", 2)[1]}
        if name.startswith("adapters.")
        else set()
    )
    for target in imported(name, ALL[name]):
        if not target.startswith("handoff."):
            continue
        inner = target.removeprefix("handoff.")
        if inner not in ALL and inner.rpartition(".")[0] in ALL:
            inner = inner.rpartition(".")[0]  # a name inside a module
        if rule is None or inner not in ALL:
            continue
        assert below(inner, MAY_IMPORT[rule] | own | {rule} - {"adapters"}), (
            f"{name} must not import {target}"
        )


@pytest.mark.parametrize("name", sorted(ALL))
def test_torch_only_where_something_is_executed(name: str) -> None:
    if (name + ".").startswith(TORCH) or name in TORCH:
        return
    tree = without_type_checking(ast.parse(ALL[name].read_text()))
    for node in tree.body:  # imports inside a function are loaded when something is executed
        roots = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        assert not any(root.split(".")[0] in ("torch", "triton") for root in roots), name


def test_the_core_never_names_a_framework() -> None:
    """No branch of the core tests a framework's name (STYLE: policy is the adapter's)."""
    names = {"vllm", "sglang", "llamacpp", "tensorrt_llm", "deepinfer"}
    core = ("types", "index", "store", "kernels", "model", "engine", "runner", "ledger")
    for name, path in ALL.items():
        if not below(name, set(core)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                words = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
                assert not words & names, f"{name}, line {node.lineno}"
