"""Binary-coding quantization (BCQ) in bit planes: q planes of signs, q scales a group, and an offset.

    W[n, k] ~ sum_b alpha[b, n, k // g] * B_b[n, k] + offset[n, k // g],  B_b in {-1, +1}     LUT-GEMM Eq. 2

The layout of LUT-GEMM's own code, transposed to our axes: planes[b, n, w] holds the signs of 32 weights of row n,
bit k % 32 of word k // 32; 1 means +alpha, 0 means -alpha. K = 40, so W = 2 words a row and plane:

    planes[b, n, 0]    bit  31  30  29  ...   2   1   0        planes[b, n, 1]    bit  31 ... 8    7  ...  1   0
                         k  31  30  29  ...   2   1   0                             k  padding 0  39  ... 33  32

    planes [q, N, W] int32, W = ceil(K / 32);  alpha [q, N, G] float16 | float32
    offset [N, G] float16 | float32 | float64, or None;  G = ceil(K / group_size)

A uniform weight s * (codes - zero_point) is BCQ too (Eq. 5): B_b = 2 * bit_b(codes) - 1, and

    alpha_b = 2^(b-1) s,  b = 0 .. q-1          offset z = s * ((2^q - 1) / 2 - zero_point)

exactly, to the last bit of float32. alpha is s with another exponent. z is s times a half-integer of some ten bits, so
it needs ten significant bits more than s: it is stored one width wider than alpha (float16 -> float32 -> float64). Then
every partial sum is a multiple of half of s's last bit, below 2^53 of them: float64 adds without error, and the one
rounding to float32 at the end is the rounding of s * (codes - zero_point). Of s * codes + m the offset is
m + s (2^q - 1) / 2, in float64 where float32 does not hold it, and a weight that would need more bits is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import check_bits, group_count, group_length
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats.contract import Choice, Choices, Format, check_layout, dtype_name

WORD = 32
# Eight codes are handled as one int64, one code a byte, the lowest byte first on every machine torch runs on.
ONES = 0x0101010101010101
GATHER = 0x0102040810204080
# Weights dequantized or packed at a time: bounds the temporaries (float64, 8 bytes a weight) at some 10 MB.
CHUNK_WEIGHTS = 2**20


@register("format", "bcq")
@dataclass(frozen=True)
class PackedBCQ(Format):
    """planes [q, N, W] int32, alpha [q, N, G], offset [N, G] or None; shape (N, K). The module draws the words.

    order: [K] int32, column j of the planes holds input channel order[j]; None: channel j.
    """

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = BCQTensor
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("bcq_gemv",),
        "cuda": ("lut_gemv",),
    }
    scales: ClassVar[tuple[str, ...]] = ("alpha", "offset")
    # To whoever asks what kernels may read; Eq. 5 is not looked for.
    uniform: ClassVar[bool] = False

    planes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    shape: tuple[int, int]
    group_size: int
    order: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32: offset, then + or - alpha_0, alpha_1, ... in float64, rounded once to float32.

        Gradients pass to alpha and offset where these ask for them.
        """
        rows, in_features = self.shape
        out = torch.empty(rows, in_features, dtype=torch.float32, device=self.planes.device)
        group = torch.arange(in_features, device=out.device)
        group = group // group_length(self.group_size, in_features)
        channels = slice(None) if self.order is None else self.order.long()
        for at in _row_chunks(rows, in_features):
            words = self._codewords(at)
            count, groups, levels = words.shape
            row = torch.arange(count, device=out.device).unsqueeze(1)
            index = (row * groups + group) * levels + _codes(self.planes[:, at], in_features)
            out[at][:, channels] = words.view(-1).index_select(0, index.view(-1)).view_as(index)
        return out

    def _codewords(self, at: slice) -> torch.Tensor:
        """The 2^q values a weight of each group can have: [rows, G, 2^q] float32, in the order of codes."""
        alpha = self.alpha[:, at].double().unsqueeze(3)
        words = torch.zeros_like(alpha[0])
        if self.offset is not None:
            words += self.offset[at].double().unsqueeze(2)
        for step in alpha:
            words = torch.cat((words - step, words + step), dim=2)
        return words.float()

    @property
    def bits(self) -> int:
        """Number of planes, q."""
        return len(self.planes)

    @property
    def bcq_bits(self) -> int:
        """Stored bits: this is the binary form."""
        return self.bits_stored

    def layout(self) -> dict[str, Choice]:
        """Sizes, q, g, and the dtypes of the scales."""
        return {
            "out_features": self.shape[0],
            "in_features": self.shape[1],
            "q": self.bits,
            "g": self.group_size,
            "has_order": self.order is not None,
            "alpha_dtype": dtype_name(self.alpha),
            "offset_dtype": dtype_name(self.offset),
        }

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedBCQ:
        """A weight without numbers, in planes and scales of the layout's sizes."""
        choices: Choices = {"q": (), "g": (), "has_order": (False, True)}
        choices |= {"alpha_dtype": ("float16", "float32")}
        choices |= {"offset_dtype": (None, "float16", "float32", "float64")}
        check_layout(layout, choices)
        rows, columns = shape = layout["out_features"], layout["in_features"]
        q, groups = check_bits(layout["q"]), group_count(layout["g"], columns)

        def empty(name: str, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=getattr(torch, name), device=device)

        offset = layout["offset_dtype"]
        return cls(
            planes=empty("int32", q, rows, -(-columns // WORD)),
            alpha=empty(layout["alpha_dtype"], q, rows, groups),
            offset=empty(offset, rows, groups) if offset else None,
            shape=shape,
            group_size=layout["g"],
            order=empty("int32", columns) if layout["has_order"] else None,
        )

    def to_bcq(self) -> PackedBCQ:
        """The weight itself, which is in the binary form."""
        return self

    @classmethod
    def pack(cls, tensor: BCQTensor) -> PackedBCQ:
        """Codes [N, K] uint8 to planes; alpha and offset as they are."""
        shape = rows, in_features = len(tensor.codes), tensor.codes.shape[1]
        size = (tensor.bits, rows, -(-in_features // WORD))
        planes = torch.empty(size, dtype=torch.int32, device=tensor.codes.device)
        for at in _row_chunks(rows, in_features):
            codes = torch.nn.functional.pad(tensor.codes[at], (0, -in_features % WORD))
            eight = codes.view(torch.int64)
            for b in range(tensor.bits):
                # Byte i of eight & ONES is the bit of weight i; times GATHER it lands in bit 56 + i, without carries.
                octets = ((((eight >> b) & ONES) * GATHER) >> 56).to(torch.uint8)
                planes[b, at] = octets.view(torch.int32)
        return cls(planes, tensor.alpha, tensor.offset, shape, tensor.group_size, tensor.order)

    def unpack(self) -> BCQTensor:
        """The inverse of pack, bit for bit."""
        rows, in_features = self.shape
        codes = torch.empty(rows, in_features, dtype=torch.uint8, device=self.planes.device)
        for at in _row_chunks(rows, in_features):
            codes[at] = _codes(self.planes[:, at], in_features)
        return BCQTensor(codes, self.alpha, self.offset, self.bits, self.group_size, self.order)


pack, unpack = PackedBCQ.pack, PackedBCQ.unpack


def from_uniform(tensor: UniformTensor) -> BCQTensor:
    """Eq. 5, exact: dequantized, both are the float32 nearest to scale * (codes - zero_point), or + offset.

    alpha has scale's dtype, except where some 2^(b-1) s is not a float16 (s subnormal and odd, or beyond 65504): then
    all alphas are float32. The offset is one width wider than alpha; float64 also where a zero_point outside of
    0 .. 2^q - 1 needs more than float32's 24 bits. Of a float offset it is float32 where that is exact, else float64.

    Raises:
        LutlabError: a scale is inf or nan, some 2^(b-1) s is not a float32 either, or a float offset and its scale are
            so far apart that float64 would round their sums.
    """
    q = check_bits(tensor.bits)
    scale = tensor.scale.double()
    if not torch.isfinite(scale).all():
        raise LutlabError(
            f"{int((~torch.isfinite(scale)).sum())} of {scale.numel()} scales are inf or nan: "
            "quantize finite weights, or keep scales beyond float16's 65504 in float32 (scale_dtype=fp32)"
        )
    powers = 2.0 ** torch.arange(-1, q - 1, dtype=torch.float64, device=scale.device)
    alpha = scale * powers.view(-1, 1, 1)
    widths = (
        [torch.float16, torch.float32] if tensor.scale.dtype == torch.float16 else [torch.float32]
    )
    fitting = [dtype for dtype in widths if torch.equal(alpha.to(dtype).double(), alpha)]
    if not fitting:
        raise LutlabError(
            f"scales from {scale.abs().min():.3g} to {scale.abs().max():.3g} times 1/2 .. 2^{q - 2} leave float32's "
            "exponents, so Eq. 5 would not be exact: rescale the weights, or quantize them with method=bcq"
        )
    if tensor.offset is None:
        # Adding zero turns -0 (from s = 0) into 0, the sign an empty group's product has.
        offset = scale * ((2**q - 1) / 2 - shifts(tensor.zero_point, None).double()) + 0.0
    else:
        offset = _shifted(scale, tensor.offset.double(), q)
    narrow = fitting[0] == torch.float16 or tensor.offset is not None
    wide = offset.float() if narrow else offset
    if not torch.equal(wide.double(), offset):
        wide = offset
    return BCQTensor(tensor.codes, alpha.to(fitting[0]), wide, q, tensor.group_size, tensor.order)


def shifts(zero_point: torch.Tensor | None, offset: torch.Tensor | None) -> torch.Tensor:
    """The offsets [N, G] of uniform codes, or their zero points where they have no offsets."""
    shift = zero_point if offset is None else offset
    assert shift is not None  # PackedUniform.pack refuses codes with neither
    return shift


def _shifted(scale: torch.Tensor, offset: torch.Tensor, q: int) -> torch.Tensor:
    """The offset of Eq. 5 of scale * codes + offset, all [N, G] float64.

    Raises:
        LutlabError: float64 would round it, or a partial sum of it and the alphas.
    """
    # Every partial sum is a multiple of 2^least, and below 2^most.
    least = torch.minimum(_last_place(offset), _last_place(scale) - 1)
    most = torch.frexp(offset.abs() + scale.abs() * (2**q - 1)).exponent
    far = int((most - least > 53).sum())
    if far:
        raise LutlabError(
            f"{far} of {scale.numel()} offsets are so much larger or smaller than their scales that float64 would "
            "round their sums, so Eq. 5 would not be exact: keep the weight in format uniform, or take method=bcq"
        )
    return offset + scale * (2**q - 1) / 2 + 0.0


def _last_place(values: torch.Tensor) -> torch.Tensor:
    """Exponents of the last set bits of float64 numbers, int32; of 0 more than any."""
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa * 2.0**53).long()
    last = torch.frexp((whole & -whole).double()).exponent - 1
    return torch.where(whole == 0, 2**14, exponent - 53 + last)


def bits_of(tensor: BCQTensor) -> int:
    """Bits that PackedBCQ stores of a tensor."""
    rows, in_features = tensor.codes.shape
    others = (tensor.alpha, tensor.offset, tensor.order)
    words = tensor.bits * rows * -(-in_features // WORD)
    return words * WORD + sum(8 * values.nbytes for values in others if values is not None)


# Bits per weight as the papers count them; g weights share a scale. The keys name paper and place.
PAPER_SIZES = {
    "lut-gemm-eq7": lambda q, g: q * (1 + 16 / g),  # q fp16 scales a group, LUT-GEMM Eq. 7
    "lut-gemm-table6": lambda q, g: q + 16 / g,  # what Tables 5 and 6 print: one fp16 a group
    "nuqmm": lambda q, g: q * (1 + 32 / g),  # q fp32 scales a group, nuQmm section IV
}


def bits_paper(q: int, g: int, in_features: int, formula: str) -> float:
    """Bits per weight by a paper's own formula: no padding, no offset. g = -1: in_features weights share a scale.

    >>> bits_paper(4, 128, 4096, "lut-gemm-eq7")
    4.5

    Raises:
        LutlabError: unknown formula; the message suggests the nearest one.
    """
    if formula not in PAPER_SIZES:
        raise LutlabError(f"unknown size formula '{formula}': {nearest(formula, PAPER_SIZES)}")
    return PAPER_SIZES[formula](check_bits(q), group_length(g, in_features))


def _row_chunks(rows: int, in_features: int) -> list[slice]:
    step = max(1, CHUNK_WEIGHTS // in_features)
    return [slice(first, first + step) for first in range(0, rows, step)]


def _codes(planes: torch.Tensor, in_features: int) -> torch.Tensor:
    """Planes [q, rows, W] int32 -> codes [rows, K] uint8."""
    octet = torch.arange(256, dtype=torch.uint8, device=planes.device).unsqueeze(1)
    place = torch.arange(8, dtype=torch.uint8, device=planes.device)
    spread = ((octet >> place) & 1).view(torch.int64).view(-1)  # octet -> eight bytes of one bit
    q, rows, _ = planes.shape
    codes = torch.zeros((), dtype=torch.int64, device=planes.device)
    for b in range(q):
        octets = planes[b].contiguous().view(torch.uint8).view(-1)
        codes = codes | (spread.index_select(0, octets.int()) << b)
    return codes.view(torch.uint8).view(rows, -1)[:, :in_features]
