"""Rotary position embedding, and the rotation by a difference that moves a cached key.

Dimension i is paired with i + D/2. Rotations add, so a key made at position p and rotated by
``delta`` equals the key made at ``p + delta``.
"""

from __future__ import annotations

import torch

__all__ = ["frequencies", "rotate"]


def frequencies(head_dim: int, theta: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """Angles per position, float64 ``[head_dim / 2]``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return theta**-exponent


def rotate(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """``x [tokens, heads, dim]`` rotated by ``positions [tokens]`` (may be negative).

    The rotation is done in float32 or better and rounded once.
    """
    angles = positions.to(torch.float64)[:, None, None] * freqs
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    low, high = x.to(wide).chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
