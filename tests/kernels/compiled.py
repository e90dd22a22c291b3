"""Run in a process of its own: every kernel and tile compiles for real GPUs, without one.

Checks what a person would look for in the binary: no spills, shared memory within the device's
limit, tensor-core instructions, asynchronous copies. Prints one JSON object: entry -> registers and
shared bytes; ``--write FILE`` keeps it as the golden table.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from handoff.kernels import triton_cache
from handoff.kernels.tiles import FLOAT32, TILES, Tile
from handoff.kernels.triton_attention import attend_kernel, combine_kernel

SHARED_LIMIT = {90: 232_448, 80: 166_912}
"""Bytes of shared memory a block may use (227 KiB, 163 KiB)."""

POINTERS = ("out_ptr", "top_ptr", "weight_ptr", "q_ptr", "k_ptr", "v_ptr")
ARRAYS = ("table_ptr", "tile_ptr", "q_start_ptr", "first_ptr", "origin_ptr", "visible_ptr")
STRIDES = ("q_token", "q_head", "k_block", "k_slot", "k_head", "v_block", "v_slot", "v_head")


def source(tile: Tile, dim: int, kind: str, *, split: bool, window: int = 0) -> ASTSource:
    """The kernel as a launcher would specialise it: addresses and strides divisible by 16."""
    signature = {name: f"*{kind}" for name in POINTERS}
    signature |= {"top_ptr": "*fp32", "weight_ptr": "*fp32"}
    if split:
        signature["out_ptr"] = "*fp32"
    signature |= {name: "*i32" for name in ARRAYS}
    signature |= {"scale": "fp32"}
    signature |= {
        n: "i32" for n in ("split_size", "split_first", "tokens", "heads", *STRIDES, "table_row")
    }
    constants: dict[str, Any] = {
        "GROUP": 4, "HEAD_DIM": dim, "DIM": dim, "PAGE": 16, "ROWS": tile.rows, "KEYS": tile.keys,
        "WINDOW": window, "SPLIT": split, "UPCAST": False,
        "PRECISION": "ieee" if kind == "fp32" else "tf32",
    }  # fmt: skip
    names = attend_kernel.arg_names
    signature |= dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in names}
    divisible = [["tt.divisibility", 16]]
    attributes = {
        (names.index(name),): divisible for name in (*POINTERS, *ARRAYS, *STRIDES, "heads")
    }
    return ASTSource(attend_kernel, ordered, constants, attributes)


def build(what: ASTSource, arch: int, warps: int, stages: int) -> Any:
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(what, target=target, options={"num_warps": warps, "num_stages": stages})


def usage(binary: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) a thread uses; stack means spills here."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def gate() -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for arch, dims in TILES.items():
        for dim, tiles in dims.items():
            for tile in tiles:
                for split in (False, True) if arch == 90 else (False,):
                    what = source(tile, dim, "bf16", split=split)
                    made = build(what, arch, tile.warps, tile.stages)
                    name = f"sm_{arch} D{dim} {tile.rows}x{tile.keys} split={int(split)}"
                    table[name] = look(name, made, arch, tensor_cores=True, tile=tile)
    for arch, (dim, (tile,)) in itertools.product((90, 80), FLOAT32.items()):
        name = f"sm_{arch} D{dim} float32"
        made = build(source(tile, dim, "fp32", split=False), arch, tile.warps, tile.stages)
        table[name] = look(name, made, arch, tensor_cores=False, tile=tile)
    window = TILES[90][64][-1]
    made = build(
        source(window, 64, "bf16", split=False, window=1024), 90, window.warps, window.stages
    )
    table["sm_90 D64 window"] = look("window", made, 90, tensor_cores=True, tile=window)
    for name, what in movers().items():
        table[f"sm_90 {name}"] = look(
            name, build(what, 90, 4, 3), 90, tensor_cores=False, tile=None
        )
    return table


def movers() -> dict[str, ASTSource]:
    """``combine`` and the kernels that move and turn content: 8 KV heads of 128 in bf16."""
    bf16, longs, floats = "*bf16", "*i64", "*fp32"
    width = {"WIDTH": 1024, "LANES": 1024}
    lists = {"like": bf16, "page_ptr": longs, "run_ptr": longs}
    shapes: dict[str, tuple[Any, dict[str, str], dict[str, int]]] = {
        "combine": (
            combine_kernel,
            {"out_ptr": bf16, "part_ptr": floats, "top_ptr": floats, "weight_ptr": floats,
             "rows": "i32", "splits": "i32"},
            {"HEAD_DIM": 128, "DIM": 128},
        ),
        "write": (
            triton_cache.write_kernel,
            {"k_pages": bf16, "v_pages": bf16, "k_ptr": bf16, "v_ptr": bf16, "slot_ptr": longs,
             "k_token": "i32", "v_token": "i32"},
            width,
        ),
        "copy": (
            triton_cache.copy_kernel,
            {"like": bf16, "source_ptr": longs, "target_ptr": longs, "run_ptr": longs},
            width,
        ),
        "zero": (triton_cache.zero_kernel, lists, width),
        "shift": (
            triton_cache.shift_kernel,
            {**lists, "cos_ptr": floats, "sin_ptr": floats},
            {"HEADS": 8, "HALF": 64, "LANES": 64},
        ),
        "gather": (
            triton_cache.gather_kernel,
            {"out_ptr": bf16, "page_ptr": bf16, "slot_ptr": longs},
            width,
        ),
        "scan": (
            triton_cache.scan_kernel,
            {"out_ptr": bf16, "decay_ptr": bf16, "gain_ptr": bf16, "initial_ptr": bf16,
             "q_start_ptr": longs},
            {"WIDTH": 4096, "LANES": 128},
        ),
    }  # fmt: skip
    return {
        name: ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
        for name, (kernel, signature, constants) in shapes.items()
    }


def look(
    name: str, made: Any, arch: int, *, tensor_cores: bool, tile: Tile | None
) -> dict[str, int]:
    registers, stack = usage(made.asm["cubin"])
    assert stack == 0, f"{name}: {stack} bytes are spilled"
    assert made.metadata.shared <= SHARED_LIMIT[arch], f"{name}: {made.metadata.shared} shared"
    ptx = made.asm["ptx"]
    if tensor_cores and tile is not None:
        wide = arch == 90 and tile.rows >= 64
        assert ("wgmma" if wide else "mma.sync") in ptx, f"{name}: no tensor-core instruction"
        assert "cp.async" in ptx, f"{name}: no asynchronous copy"
    return {"registers": registers, "shared": made.metadata.shared}


if __name__ == "__main__":
    assert "TRITON_INTERPRET" not in os.environ
    found = gate()
    text = json.dumps(found, indent=1)
    if "--write" in sys.argv:
        Path(sys.argv[sys.argv.index("--write") + 1]).write_text(text + "\n")
    print(text)
