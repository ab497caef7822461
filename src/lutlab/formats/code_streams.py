"""Uniform codes in streams of bits, rows side by side, as OPTQ's kernel reads them.

    W[n, k] = s[group of k, n] * (code[n, k] - zero[group of k, n])                             LUT-GEMM Eq. 5

Code j of 32 takes bits j*q .. j*q + q-1 of q words, lowest bit first (code_words.py draws it).

    words [ceil(K / 32), q, S] int32, S = N rounded up to 32;  scales [G, 2, S]: s, zero, both float16 or both float32
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lutlab.formats.code_words import pack_words, unpack_words
from lutlab.formats.lut_gemm import stride
from lutlab.formats.uniform import PackedUniform
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    import torch

WORD = 32
EXACT_IN_HALF = 2048  # integers up to here


@dataclass(frozen=True)
class PackedCodeStreams:
    """words [W, q, S] int32, scales [G, 2, S]; shape (N, K). The module draws them.

    order: [K] int32, column j of the codes holds input channel order[j]; None: channel j.
    """

    words: torch.Tensor
    scales: torch.Tensor
    shape: tuple[int, int]
    group_size: int
    order: torch.Tensor | None = None

    uniform = True
    offset = None

    @property
    def bits(self) -> int:
        """Q."""
        return self.words.shape[1]

    @property
    def alpha(self) -> torch.Tensor:
        """The scales, whose dtype a case of the kernel asks for."""
        return self.scales

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Buffers that a kernel reads, by the names that plans use."""
        return {"words": self.words, "scales": self.scales}

    def to(self, device: torch.device | str) -> PackedCodeStreams:
        """The same on a device."""
        order = None if self.order is None else self.order.to(device)
        return replace(
            self, words=self.words.to(device), scales=self.scales.to(device), order=order
        )


def pack(packed: PackedUniform) -> PackedCodeStreams:
    """From the stored form."""
    import torch

    found = packed.unpack()
    rows, columns = packed.shape
    codes = torch.nn.functional.pad(found.codes, (0, -columns % WORD, 0, stride(rows) - rows))
    words = pack_words(codes, found.bits).view(stride(rows), -1, found.bits)
    exact = found.scale.dtype == torch.float16 and bool(
        (found.zero_point.abs() <= EXACT_IN_HALF).all()
    )
    scales = found.scale.new_zeros(
        found.scale.shape[1], 2, stride(rows), dtype=torch.float16 if exact else torch.float32
    )
    scales[:, 0, :rows], scales[:, 1, :rows] = found.scale.t(), found.zero_point.t()
    return PackedCodeStreams(
        words=words.permute(1, 2, 0).contiguous(),
        scales=scales,
        shape=packed.shape,
        group_size=packed.group_size,
        order=packed.order,
    )


def unpack(packed: PackedCodeStreams) -> PackedUniform:
    """The inverse of pack, bit for bit where its scales were not widened for the zero points."""
    import torch

    rows, columns = packed.shape
    words = packed.words.permute(2, 0, 1)[:rows].reshape(rows, -1).contiguous()
    codes = unpack_words(words, packed.bits, columns)
    scale, zero = (packed.scales[:, i, :rows].t().contiguous() for i in range(2))
    zero = zero.to(torch.int16)
    q, g = packed.bits, packed.group_size
    return PackedUniform.pack(UniformTensor(codes, scale, zero, q, g, packed.order))
