"""GGUF's types whose weights are scale * (codes - zero point), scale * codes + offset, or signs: their blocks as codes.

    Q4_0 Q5_0 Q8_0     d (c - 8), d (c - 16), d (c - 128)           32 weights a block, d float16
    Q4_1 Q5_1          d c + m                                      32, d and m float16
    Q2_K Q4_K Q5_K     (d s) c - (dmin t)                           16 or 32 of a block of 256 share s and t
    Q3_K Q6_K          (d s) (c - 4), (d s) (c - 32)                16 of a block of 256 share s
    Q1_0               d b, b in {-1, +1}                           128
    Q2_0               d (c - 1)                                    64
    TQ1_0 TQ2_0        d (c - 1)                                    256

Nothing is rounded: d s and dmin t, of at most 19 bits, are float32 numbers, and dequantized a weight is the float32
that the package gguf makes, but that a -0 is a 0. The other types of ggml take their weights from tables of values
that have no such form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lutlab.base.lazy import np, torch
from lutlab.base.tensors import BCQTensor, UniformTensor

# (bits, bytes): a stretch of so many bytes holds as many codes in their lowest bits, then as many in the next ones.
_Codes = tuple[int, int]


class Type(NamedTuple):
    """A type's block: its parts in order with their bytes; where codes are, and their upper bits; group; zero point."""

    name: str
    parts: Mapping[str, int]
    low: _Codes
    group: int
    zero: int = 0
    high: _Codes = (0, 1)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.low[0] + self.high[0]

    @property
    def step(self) -> int:
        """Scales from a code to the next; weights are scale * (step * code - zero)."""
        return 2 if self.name == _SIGNS else 1

    @property
    def stored_bits(self) -> float:
        """Bits a weight, with the scales, of a type whose block is one group."""
        return 8 * sum(self.parts.values()) / self.group


_SIGNS = "Q1_0"
TYPES = {
    kind.name: kind
    for kind in (
        Type("Q4_0", {"d": 2, "low": 16}, (4, 16), 32, 8),
        Type("Q4_1", {"d": 2, "m": 2, "low": 16}, (4, 16), 32),
        Type("Q5_0", {"d": 2, "high": 4, "low": 16}, (4, 16), 32, 16, (1, 1)),
        Type("Q5_1", {"d": 2, "m": 2, "high": 4, "low": 16}, (4, 16), 32, 0, (1, 1)),
        Type("Q8_0", {"d": 2, "low": 32}, (8, 1), 32, 128),
        Type("Q2_K", {"scales": 16, "low": 64, "d": 2, "m": 2}, (2, 32), 16),
        Type("Q3_K", {"high": 32, "low": 64, "scales": 12, "d": 2}, (2, 32), 16, 4, (1, 32)),
        Type("Q4_K", {"d": 2, "m": 2, "scales": 12, "low": 128}, (4, 32), 32),
        Type("Q5_K", {"d": 2, "m": 2, "scales": 12, "high": 32, "low": 128}, (4, 32), 32, 0, (1, 32)),
        Type("Q6_K", {"low": 128, "high": 64, "scales": 16, "d": 2}, (4, 64), 16, 32, (2, 32)),
        Type("Q1_0", {"d": 2, "low": 16}, (1, 1), 128, 1),
        Type("Q2_0", {"d": 2, "low": 16}, (2, 1), 64, 1),
        Type("TQ1_0", {"low": 52, "d": 2}, (2, 32), 256, 1),
        Type("TQ2_0", {"low": 64, "d": 2}, (2, 32), 256, 1),
    )
}  # fmt: skip


def unpacked(data: np.ndarray, kind: str) -> UniformTensor | BCQTensor:
    """The weight [N, K] that blocks of one of TYPES hold.

    Args:
        data: [N, bytes of a row] uint8.
        kind: name of the type.
    """
    layout = TYPES[kind]
    rows = data.reshape(len(data), -1, sum(layout.parts.values()))
    ends = np.cumsum(list(layout.parts.values()))[:-1]
    parts = dict(zip(layout.parts, np.split(rows, ends, axis=2), strict=True))
    codes = torch.from_numpy(_codes(parts, layout).reshape(len(data), -1))
    scales, offsets = _scales(parts, kind)
    scale = torch.from_numpy(scales.reshape(len(data), -1))
    if kind == _SIGNS:
        return BCQTensor(codes, scale[None], None, 1, layout.group)
    if offsets is not None:
        offset = torch.from_numpy(offsets.reshape(len(data), -1))
        return UniformTensor(codes, scale, None, layout.bits, layout.group, offset=offset)
    zero = torch.full(scale.shape, layout.zero, dtype=torch.int16)
    return UniformTensor(codes, scale, zero, layout.bits, layout.group)


def blocks(kind: Type, codes: np.ndarray, *scales: np.ndarray) -> np.ndarray:
    """Bytes [N, blocks, bytes] uint8 of a type whose block is one group: the inverse of unpacked.

    Args:
        kind: type whose block is one group.
        codes: [N, blocks, weights] uint8.
        scales: d, and m where the type has it, each [N, blocks] float16.
    """
    halves = (scale[..., None].astype("<f2").view(np.uint8) for scale in scales)
    parts = dict(zip("dm", halves, strict=False))
    codes = codes ^ _sign_bit(kind)
    parts["low"] = _gathered(codes & (2 ** kind.low[0] - 1), *kind.low)
    if kind.high[0]:
        parts["high"] = _gathered(codes >> kind.low[0], *kind.high)
    return np.concatenate([parts[part] for part in kind.parts], axis=-1)


def values(data: np.ndarray, kind: str) -> torch.Tensor:
    """[N, K] float32, the weights of rows [N, bytes] uint8 of a type without sub-scales and offsets."""
    tensor, layout = unpacked(data, kind), TYPES[kind]
    scale = tensor.alpha[0] if isinstance(tensor, BCQTensor) else tensor.scale
    levels = layout.step * tensor.codes.view(*scale.shape, -1).float() - layout.zero
    return (levels * scale.float()[:, :, None]).flatten(1)


def _codes(parts: Mapping[str, np.ndarray], layout: Type) -> np.ndarray:
    """Codes [N, blocks, weights] uint8."""
    if layout.name == "TQ1_0":
        return _trits(parts["low"])
    codes = _spread(parts["low"], *layout.low)
    if layout.high[0]:
        codes = codes | (_spread(parts["high"], *layout.high) << layout.low[0])
    return codes ^ _sign_bit(layout)


def _sign_bit(layout: Type) -> int:
    """The bit in which signed numbers differ from codes that begin at 0."""
    return 0x80 if layout.bits == 8 else 0


def _spread(packed: np.ndarray, bits: int, stretch: int) -> np.ndarray:
    """[N, blocks, bytes] uint8 -> [N, blocks, codes] uint8, as _Codes says."""
    stretches = packed.reshape(*packed.shape[:2], -1, 1, stretch)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((stretches >> shifts) & (2**bits - 1)).reshape(*packed.shape[:2], -1).astype(np.uint8)


def _gathered(codes: np.ndarray, bits: int, stretch: int) -> np.ndarray:
    """The inverse of _spread."""
    stretches = codes.reshape(*codes.shape[:2], -1, 8 // bits, stretch)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(stretches << shifts, axis=-2).reshape(*codes.shape[:2], -1)


def _trits(packed: np.ndarray) -> np.ndarray:
    """Digits 0, 1, 2 of numbers below 243, which are stored as 256/243 of it: 48 bytes of five, then 4 of four."""
    digits = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([3**i for i in range(count)], dtype=np.uint8)[:, None]
        shifted = packed[:, :, None, first:last] * powers  # modulo 256: digits before are gone
        digits.append(
            ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(*packed.shape[:2], -1)
        )
    return np.concatenate(digits, axis=2)


def _scales(parts: Mapping[str, np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Scales and offsets [N, blocks, groups], float16 where the file has them so, else float32."""
    d, m = _halves(parts["d"]), _halves(parts["m"]) if "m" in parts else None
    if "scales" not in parts:
        return d, m
    factors, least = _sub_scales(parts["scales"], kind)
    scale = d.astype(np.float32) * factors
    return scale, None if m is None or least is None else -(m.astype(np.float32) * least)


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
    factors = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=2)
    least = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=2)
    return factors.astype(np.float32), least.astype(np.float32)
