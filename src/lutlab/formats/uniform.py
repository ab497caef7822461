"""Uniform weights as they are quantized: integers in a dense stream of bits, a scale and a zero point a group.

    W[n, k] = s[n, k // g] * (codes[n, k] - zero_point[n, k // g])                                  LUT-GEMM Eq. 3

Value i of a row takes bits i*q .. i*q + q-1 of that row's stream, lowest bit first, cut into words of 32. q = 3:

    word 0    bit  31 30 | 29 28 27 | ... |  5  4  3 |  2  1  0        word 1    bit ...  3  2  1 |  0
         value       10  |     9    |     |     1    |     0                value           11   | 10 (its high bit)

values [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32; the last word is filled with zeros.

    qweight [N, ceil(K q / 32)] int32       scale [N, G] float16 | float32       order [K] int32, or None
    qzero   [ceil(N G q / 32)] int32: zero points in q bits, row by row in one stream, where all are in 0 .. 2^q-1;
            else [N, G] int16

RTN, GPTQ and AWQ at q = 4, g = 32 store 4 + (16 + 4) / 32 = 4.625 bits a weight; their BCQ form (Eq. 5, `to_bcq`) is
what kernels with lookup tables read: the same values to the last bit in q alphas and one offset a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.errors import LutlabError
from lutlab.formats import bcq
from lutlab.formats.contract import Format
from lutlab.groups import check_bits, group_count, group_length
from lutlab.registry import register
from lutlab.tensors import BCQTensor, UniformTensor

if TYPE_CHECKING:
    import torch

WORD = 32
# Weights handled at a time: temporaries stay in a core's cache, and are too small for torch to share out among threads.
CHUNK_WEIGHTS = 2**17


@register("format", "uniform")
@dataclass(frozen=True)
class PackedUniform(Format):
    """qweight [N, W] int32, scale [N, G], qzero [Z] int32 or [N, G] int16; shape (N, K). The module draws the words.

    order: [K] int32, column j of the codes holds input channel order[j]; None: channel j.
    """

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = UniformTensor

    qweight: torch.Tensor
    scale: torch.Tensor
    qzero: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    order: torch.Tensor | None = None

    @classmethod
    def pack(cls, tensor: UniformTensor) -> PackedUniform:
        """Codes and zero points to words; scale as it is.

        Raises:
            LutlabError: a scale is inf or nan.
        """
        import torch

        bad = int((~torch.isfinite(tensor.scale)).sum())
        if bad:
            raise LutlabError(
                f"{bad} of {tensor.scale.numel()} scales are inf or nan: quantize finite weights, or keep scales "
                "beyond float16's 65504 in float32 (scale_dtype=fp32)"
            )
        zero, top = tensor.zero_point, 2**tensor.bits - 1
        if bool(((zero >= 0) & (zero <= top)).all()):
            zero = _pack_stream(zero, tensor.bits)
        return cls(
            qweight=pack_words(tensor.codes, tensor.bits),
            scale=tensor.scale,
            qzero=zero,
            shape=tuple(tensor.codes.shape),
            bits=tensor.bits,
            group_size=tensor.group_size,
            order=tensor.order,
        )

    def unpack(self) -> UniformTensor:
        """The inverse of pack, bit for bit."""
        return UniformTensor(
            codes=unpack_words(self.qweight, self.bits, self.shape[1]),
            scale=self.scale,
            zero_point=self.zero_point,
            bits=self.bits,
            group_size=self.group_size,
            order=self.order,
        )

    @property
    def zero_point(self) -> torch.Tensor:
        """[N, G] int16."""
        import torch

        if self.qzero.dtype == torch.int16:
            return self.qzero
        groups = group_count(self.group_size, self.shape[1])
        return _unpack_stream(self.qzero, self.bits, self.shape[0] * groups).view(-1, groups)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, the nearest to scale * (codes - zero_point)."""
        import torch

        rows, in_features = self.shape
        out = torch.empty(rows, in_features, dtype=torch.float32, device=self.qweight.device)
        group = torch.arange(in_features, device=out.device)
        group = group // group_length(self.group_size, in_features)
        channels = slice(None) if self.order is None else self.order.long()
        scale, zero = self.scale.double(), self.zero_point.double()
        step = max(1, CHUNK_WEIGHTS // in_features)
        for first in range(0, rows, step):
            at = slice(first, first + step)
            values = unpack_words(self.qweight[at], self.bits, in_features).double()
            values = (values - zero[at][:, group]).mul_(scale[at][:, group])
            out[at][:, channels] = values.add_(0.0).float()  # -0, of no or a negative scale, is 0
        return out

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer: codes and zero points with their padding, scale, order."""
        buffers = (self.qweight, self.scale, self.qzero, self.order)
        return sum(b.numel() * b.element_size() * 8 for b in buffers if b is not None)

    def to_bcq(self) -> bcq.PackedBCQ:
        """The binary form of Eq. 5, equal to the last bit when dequantized.

        Raises:
            LutlabError: Eq. 5 would not be exact (bcq.from_uniform).
        """
        return bcq.pack(bcq.from_uniform(self.unpack()))


def to_uniform(tensor: BCQTensor) -> UniformTensor | None:
    """The inverse of formats.bcq.from_uniform: a weight with the same values to the last bit, or None if none has.

    A scale of 0 fits any zero_point and gets 0. scale is float16 where that is exact, else float32.
    """
    import torch

    half = tensor.alpha[0].double()
    powers = 2.0 ** torch.arange(tensor.bits, dtype=torch.float64, device=half.device)
    offset = torch.zeros_like(half) if tensor.offset is None else tensor.offset.double()
    scale = 2 * half
    middle = (2**tensor.bits - 1) / 2
    zero_point = torch.where(scale == 0, 0.0, (middle - offset / scale).round())
    uniform = (
        torch.equal(tensor.alpha.double(), half * powers.view(-1, 1, 1))
        and torch.equal(scale * torch.where(scale == 0, 0.0, middle - zero_point), offset)
        and bool((zero_point.abs() < 2**15).all())
    )
    if not uniform:
        return None
    for dtype in (torch.float16, torch.float32):
        if torch.equal(scale.to(dtype).double(), scale):
            return UniformTensor(
                codes=tensor.codes,
                scale=scale.to(dtype),
                zero_point=zero_point.to(torch.int16),
                bits=tensor.bits,
                group_size=tensor.group_size,
                order=tensor.order,
            )
    return None  # 2 alpha_0 is beyond float32


def pack_words(values: torch.Tensor, q: int) -> torch.Tensor:
    """Integers [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32."""
    import torch

    rows, columns = values.shape
    words = torch.empty(rows, -(-columns * q // WORD), dtype=torch.int32, device=values.device)
    step = max(1, CHUNK_WEIGHTS // columns)
    for first in range(0, rows, step):
        some = values[first : first + step].to(torch.uint8)
        eight = _plain(torch.nn.functional.pad(some, (0, -columns % WORD))).view(torch.int64)
        if check_bits(q) < 8:
            for held in (1, 2, 4):  # values in a field
                low, high = _halves(q, held)
                eight = (eight & low) | (eight >> (8 - q) * held & high)
        octets = _plain(eight.unsqueeze(2).view(torch.uint8)[..., :q]).view(len(some), -1)
        words[first : first + step] = octets.view(torch.int32)[:, : words.shape[1]]
    return words


def unpack_words(words: torch.Tensor, q: int, columns: int) -> torch.Tensor:
    """The inverse of pack_words: [rows, columns] uint8."""
    import torch

    rows = len(words)
    values = torch.empty(rows, columns, dtype=torch.uint8, device=words.device)
    missing = -(-columns // WORD) * check_bits(q) - words.shape[1]
    step = max(1, CHUNK_WEIGHTS // columns)
    for first in range(0, rows, step):
        some = _plain(torch.nn.functional.pad(words[first : first + step], (0, missing)))
        octets = some.view(torch.uint8).view(len(some), -1, q)
        eight = torch.nn.functional.pad(octets, (0, 8 - q)).view(torch.int64).squeeze(2)
        if q < 8:
            for held in (4, 2, 1):
                low, high = _halves(q, held)
                eight = (eight & low) | (eight & high) << (8 - q) * held
        values[first : first + step] = eight.view(torch.uint8)[:, :columns]
    return values


def _plain(values: torch.Tensor) -> torch.Tensor:
    """Clone, not contiguous: that keeps odd strides where a dimension is 1, and then no bytes can be viewed."""
    import torch

    return values.clone(memory_format=torch.contiguous_format)


def _halves(q: int, held: int) -> tuple[int, int]:
    """Masks of an int64 in fields of 16 * held bits: their lowest q * held bits, and the next as many."""
    low = sum(((1 << q * held) - 1) << at for at in range(0, 64, 16 * held))
    return low, low << q * held


def _pack_stream(values: torch.Tensor, q: int) -> torch.Tensor:
    """All values of a tensor in one stream: [ceil(count * q / 32)] int32."""
    import torch

    flat = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % WORD))
    return pack_words(flat.view(-1, WORD), q).view(-1)[: -(-values.numel() * q // WORD)].clone()


def _unpack_stream(words: torch.Tensor, q: int, count: int) -> torch.Tensor:
    """The inverse of _pack_stream: [count] int16."""
    import torch

    whole = torch.nn.functional.pad(words, (0, -len(words) % q)).view(-1, q)
    return unpack_words(whole, q, WORD).view(-1)[:count].to(torch.int16)
