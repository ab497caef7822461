"""Uniform codes, and binary ones of one bit, as blocks of ggml's types: codes and scales as they are.

A type of ggml stores a block of neighbours of a row as one float16 scale d and integers:

    type   block  bits    weights                      from codes c with scale s and zero point z
    Q1_0   128    1.125   d (2c - 1)                   binary codes, q=1, no offset: d = alpha
    Q2_0   64     2.25    d (c - 1),   c in 0 .. 3     q=2, z = 1; or z = 2, with d = -s and every code 3 - c
    Q4_0   32     4.5     d (c - 8),   c in 0 .. 15    q=4, z = 8
    Q5_0   32     5.5     d (c - 16),  c in 0 .. 31    q=5, z = 16
    Q8_0   32     8.5     d c,         c in -128..127  q=8, z = 128
    Q4_1   32     5       d c + m                      q=4, any z: m = -s z, rounded to float16
    Q5_1   32     6       d c + m                      q=5, likewise

A group of ours is one block, or several with the same scale. Where z is another one, all codes of a group move by the
difference, if they stay in range: what a type holds is decided by the values d l, l integers, d of either sign.
Q1_0 and Q2_0 are llama.cpp's youngest: llama-cpp-python 0.3.36 reads both.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.base.errors import LutlabError
from lutlab.base.groups import expand, group_length
from lutlab.base.lazy import np, torch
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.gguf.blocks import TYPES, Type, blocks
from lutlab.gguf.file import Encoded
from lutlab.gguf.names import interleaved

# Narrowest first.
WITHOUT_OFFSET = tuple(TYPES[name] for name in ("Q1_0", "Q2_0", "Q4_0", "Q5_0", "Q8_0"))
WITH_OFFSET = {kind.bits: kind for kind in (TYPES["Q4_1"], TYPES["Q5_1"])}


@dataclass(frozen=True)
class Affine:
    """A weight with float16 scales, scale * levels or scale * codes + offset; rows of q and k in GGUF's order.

    Attributes:
        codes: [N, K] uint8.
        scale: [N, G] float16.
        levels: [N, K] int32, codes less zero points, or signs; None: the offset is no multiple of the scale.
        offset: [N, G] float64, exact; None of signs.
        bits: bits of the codes.
        group_size: weights that share a scale; -1: a row.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    levels: torch.Tensor | None
    offset: torch.Tensor | None
    bits: int
    group_size: int

    def in_blocks(self, per_group: torch.Tensor, block: int) -> np.ndarray:
        """[N, G] -> [N, K / block]."""
        return expand(per_group, self.group_size, self.codes.shape[1])[:, ::block].numpy()


def affine(tensor: UniformTensor | BCQTensor, heads: int | None = None) -> Affine:
    """A weight as GGUF's types have theirs.

    Args:
        tensor: uniform codes, or binary ones of q=1 without offset.
        heads: number of heads of q or k; None of other layers.

    Raises:
        LutlabError: groups of reordered channels, scales that need float32, or other binary codes.
    """
    levels = offset = None
    if isinstance(tensor, BCQTensor):
        if tensor.bits > 1 or tensor.offset is not None:
            raise LutlabError(
                "binary codes of several bits, or with an offset, have no type in GGUF: keep this model with "
                "lutlab.save"
            )
        scale, levels = tensor.alpha[0], 2 * tensor.codes.int() - 1
    else:
        scale, zero = tensor.scale, tensor.zero_point
        if tensor.offset is not None:
            offset = tensor.offset.double()
        elif zero is not None:
            columns = tensor.codes.shape[1]
            levels = tensor.codes.int() - expand(zero.int(), tensor.group_size, columns)
            offset = -scale.double() * zero
    if tensor.order is not None:
        raise LutlabError(
            "its groups are of reordered channels (act_order), and GGUF's of neighbours: quantize with "
            "method.static_groups=true or without act_order, or keep this model with lutlab.save"
        )
    half = scale.half()
    if not torch.equal(half.double(), scale.double()):
        lost = ((half.double() - scale.double()) / scale.double()).abs().nan_to_num(0).max()
        raise LutlabError(
            f"its scales are {scale.dtype}, and float16, which GGUF's types hold, would change them by up to "
            f"{float(lost):.1e} of their value: quantize with scale_dtype=fp16, or keep this model with lutlab.save"
        )

    def ordered(rows: torch.Tensor) -> torch.Tensor:
        return rows.cpu() if heads is None else interleaved(rows.cpu(), heads)

    return Affine(
        ordered(tensor.codes),
        ordered(half),
        None if levels is None else ordered(levels),
        None if offset is None else ordered(offset),
        tensor.bits,
        tensor.group_size,
    )


def holding(weight: Affine) -> list[Type]:
    """The types that hold a weight exactly, narrowest first."""
    return [kind for kind in WITHOUT_OFFSET if _sign(weight, kind)]


def exact(weight: Affine, kind: Type) -> Encoded:
    """A weight in a type that holds it exactly."""
    sign = _sign(weight, kind)
    assert weight.levels is not None  # no type holds it exactly otherwise
    codes = (weight.levels * sign + kind.zero) // kind.step
    return encoded(weight, kind, codes, weight.scale * sign)


def fills(weight: Affine, kind: Type) -> bool:
    """Whether groups are whole blocks of a type."""
    columns = weight.codes.shape[1]
    return columns % kind.group == group_length(weight.group_size, columns) % kind.group == 0


def _sign(weight: Affine, kind: Type) -> int:
    """1 or -1, by which levels must be multiplied to be a type's; 0: it does not hold the weight."""
    if weight.levels is None or not fills(weight, kind):
        return 0
    if kind.step > 1 and bool(((weight.levels + kind.zero) % kind.step).any()):
        return 0
    highest = kind.step * (2**kind.bits - 1) - kind.zero
    for sign in (1, -1):
        low, high = sorted(sign * int(level) for level in weight.levels.aminmax())
        if -kind.zero <= low and high <= highest:
            return sign
    return 0


def encoded(weight: Affine, kind: Type, codes: torch.Tensor, *scales: torch.Tensor) -> Encoded:
    """Blocks of codes [N, K] with their scales [N, G], as bytes [N, bytes of a row]."""
    grouped = codes.to(torch.uint8).view(len(codes), -1, kind.group).numpy()
    data = blocks(kind, grouped, *(weight.in_blocks(scale, kind.group) for scale in scales))
    return Encoded(data.reshape(len(data), -1), kind.name.lower())
