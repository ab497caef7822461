"""Outliers by a sparse product of their own, as the paper has them: y += S x by cuSPARSE's SpMV, a launch a row of x.

cuSPARSE is torch's: it computes halves in float32 (CuPy's matrices hold no halves, and CuPy refuses cuSPARSE inside the
capture of a graph). y is rounded before S x is added to it, and again afterwards.
"""

from __future__ import annotations

import copy
import warnings

import torch

from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.gpu.lut_gemv.launcher import Product


def csr(packed: PackedMixed, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The outliers [N, K] as torch's sparse CSR matrix in a dtype; row pointers and columns are int32."""
    count = packed.outlier_count.to(device)
    crow = torch.nn.functional.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
    column = packed.outlier_column.to(device).int() & 0xFFFF
    value = packed.outlier_value.to(device, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(crow, column, value, packed.shape, check_invariants=False)


class WithSparse(Product):
    """A product whose outliers are a matrix of their own; made by MixedLinear.bind."""

    sparse: torch.Tensor

    def describe(self) -> str:
        """See Product; and who adds the outliers."""
        return f"{super().describe()}, outliers by a launch of cuSPARSE's SpMV a row of x"

    @property
    def matrix(self) -> tuple[torch.Tensor, ...]:
        """Row pointers, columns and values of the sparse matrix."""
        return self.sparse.crow_indices(), self.sparse.col_indices(), self.sparse.values()

    @property
    def bytes_read(self) -> int:
        """See Product; with the sparse matrix's, and without those of the outliers in the kernel's layout."""
        held = self.weight.buffers
        fused = sum(held[name].nbytes for name in ("outlier_first", "outliers"))
        return super().bytes_read - fused + sum(part.nbytes for part in self.matrix)

    def copy(self) -> WithSparse:
        """See Product."""
        other = super().copy()
        other.sparse = copy.deepcopy(self.sparse)
        return other

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Product."""
        y = super().__call__(x, out)
        rows, columns = self.weight.shape
        for one, of_one in zip(x.view(-1, columns), y.view(-1, rows), strict=True):
            torch.addmv(of_one, self.sparse, one, out=of_one)
        return y
