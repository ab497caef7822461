"""GGUF's types whose weights are scale * (codes - zero point), scale * codes + offset, or signs: their blocks unpacked.

    Q4_0 Q5_0 Q8_0     d (c - 8), d (c - 16), d (c - 128)           32 weights a block, d float16
    Q4_1 Q5_1          d c + m                                      32, d and m float16
    Q2_K Q4_K Q5_K     (d s) c - (dmin t)                           16 or 32 of a block of 256 share s and t
    Q3_K Q6_K          (d s) (c - 4), (d s) (c - 32)                16 of a block of 256 share s
    Q1_0               d b, b in {-1, +1}                           128
    Q2_0               d (c - 1)                                    64
    TQ1_0 TQ2_0        d (c - 1)                                    256

Nothing is rounded: d s and dmin t, of at most 19 bits, are float32 numbers, and dequantized a weight is the float32
that the package gguf makes. The other types of ggml take their weights from tables of values that have no such form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lutlab.lazy import np, torch
from lutlab.tensors import BCQTensor, UniformTensor

# (bits, bytes): a stretch of so many bytes holds as many codes in their lowest bits, then as many in the next ones.
_Codes = tuple[int, int]


class _Type(NamedTuple):
    """A type's block: its parts in order with their bytes; where codes are, and their upper bits; group; zero point."""

    parts: Mapping[str, int]
    low: _Codes
    group: int
    zero: int | None = None
    high: _Codes | None = None


_TYPES = {
    "Q4_0": _Type({"d": 2, "low": 16}, (4, 16), 32, 8),
    "Q4_1": _Type({"d": 2, "m": 2, "low": 16}, (4, 16), 32),
    "Q5_0": _Type({"d": 2, "high": 4, "low": 16}, (4, 16), 32, 16, (1, 1)),
    "Q5_1": _Type({"d": 2, "m": 2, "high": 4, "low": 16}, (4, 16), 32, None, (1, 1)),
    "Q8_0": _Type({"d": 2, "low": 32}, (8, 1), 32, 128),
    "Q2_K": _Type({"scales": 16, "low": 64, "d": 2, "m": 2}, (2, 32), 16),
    "Q3_K": _Type({"high": 32, "low": 64, "scales": 12, "d": 2}, (2, 32), 16, 4, (1, 32)),
    "Q4_K": _Type({"d": 2, "m": 2, "scales": 12, "low": 128}, (4, 32), 32),
    "Q5_K": _Type({"d": 2, "m": 2, "scales": 12, "high": 32, "low": 128}, (4, 32), 32, None, (1, 32)),
    "Q6_K": _Type({"low": 128, "high": 64, "scales": 16, "d": 2}, (4, 64), 16, 32, (2, 32)),
    "Q1_0": _Type({"d": 2, "low": 16}, (1, 1), 128),
    "Q2_0": _Type({"d": 2, "low": 16}, (2, 1), 64, 1),
    "TQ1_0": _Type({"low": 52, "d": 2}, (2, 32), 256, 1),
    "TQ2_0": _Type({"low": 64, "d": 2}, (2, 32), 256, 1),
}  # fmt: skip
AFFINE = tuple(_TYPES)
_SIGNS = "Q1_0"


def unpacked(data: np.ndarray, kind: str) -> UniformTensor | BCQTensor:
    """The weight [N, K] that blocks of one of AFFINE hold.

    Args:
        data: [N, bytes of a row] uint8.
        kind: name of the type.
    """
    layout = _TYPES[kind]
    blocks = data.reshape(len(data), -1, sum(layout.parts.values()))
    ends = np.cumsum(list(layout.parts.values()))[:-1]
    parts = dict(zip(layout.parts, np.split(blocks, ends, axis=2), strict=True))
    codes, bits = _codes(parts, layout, kind)
    scale, offset = _scales(parts, kind)
    codes = torch.from_numpy(codes.reshape(len(data), -1))
    scale = torch.from_numpy(scale.reshape(len(data), -1))
    if kind == _SIGNS:
        return BCQTensor(codes, scale[None], None, 1, layout.group)
    if offset is not None:
        offset = torch.from_numpy(offset.reshape(len(data), -1))
        return UniformTensor(codes, scale, None, bits, layout.group, offset=offset)
    zero = torch.full(scale.shape, layout.zero, dtype=torch.int16)
    return UniformTensor(codes, scale, zero, bits, layout.group)


def values(tensor: UniformTensor | BCQTensor) -> torch.Tensor:
    """[N, K] float32, the weight of a type without an offset."""
    rows, groups = tensor.codes.view(len(tensor.codes), -1, tensor.group_size).float(), None
    if isinstance(tensor, BCQTensor):
        rows, groups = 2 * rows - 1, tensor.alpha[0]
    else:
        rows, groups = rows - tensor.zero_point.float()[:, :, None], tensor.scale
    return (rows * groups.float()[:, :, None]).flatten(1)


def _codes(parts: Mapping[str, np.ndarray], layout: _Type, kind: str) -> tuple[np.ndarray, int]:
    """Codes [N, blocks, weights] uint8, and their bits."""
    if kind == "TQ1_0":
        return _trits(parts["low"]), 2
    bits = layout.low[0]
    found = _spread(parts["low"], *layout.low)
    if layout.high:
        found = found | (_spread(parts["high"], *layout.high) << bits)
        bits += layout.high[0]
    if kind == "Q8_0":  # signed numbers
        found = found ^ 0x80
    return found, bits


def _spread(packed: np.ndarray, bits: int, stretch: int) -> np.ndarray:
    """[N, blocks, bytes] uint8 -> [N, blocks, codes] uint8, as _Codes says."""
    stretches = packed.reshape(*packed.shape[:2], -1, 1, stretch)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((stretches >> shifts) & (2**bits - 1)).reshape(*packed.shape[:2], -1).astype(np.uint8)


def _trits(packed: np.ndarray) -> np.ndarray:
    """Digits 0, 1, 2 of numbers below 243, which are stored as 256/243 of it: 48 bytes of five, then 4 of four."""
    found = []
    for first, last, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([3**i for i in range(digits)], dtype=np.uint8)[:, None]
        shifted = packed[:, :, None, first:last] * powers  # modulo 256: digits before are gone
        found.append(
            ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(*packed.shape[:2], -1)
        )
    return np.concatenate(found, axis=2)


def _scales(parts: Mapping[str, np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Scales and offsets [N, blocks, groups], float16 where the file has them so, else float32."""
    d, m = _halves(parts["d"]), _halves(parts["m"]) if "m" in parts else None
    if "scales" not in parts:
        return d, m
    found, least = _sub_scales(parts["scales"], kind)
    return d.astype(np.float32) * found, m if m is None else -(m.astype(np.float32) * least)


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(packed).view("<f2").astype(np.float16)


def _sub_scales(packed: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Factors of d, and of dmin, of the groups of each block, float32."""
    if kind == "Q6_K":
        return packed.view(np.int8).astype(np.float32), None
    if kind == "Q2_K":
        return (packed & 15).astype(np.float32), (packed >> 4).astype(np.float32)
    if kind == "Q3_K":
        low, high = _spread(packed[:, :, :8], 4, 8), _spread(packed[:, :, 8:], 2, 4)
        return (low | (high << 4)).astype(np.float32) - 32, None
    first, second, third = (packed[:, :, at : at + 4] for at in (0, 4, 8))
    found = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=2)
    least = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=2)
    return found.astype(np.float32), least.astype(np.float32)
