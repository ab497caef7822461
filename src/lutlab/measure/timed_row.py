"""A row whose products are timed: the copies of its weights, and the check of each product against float64.

Copies of the weights are so many that together they are in no cache when their turn comes. The error of a product,
|y - x W^T| / |x W^T|, is within a limit, and a fact of the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutlab.errors import LutlabError
from lutlab.kernels.contract import Execution
from lutlab.lazy import torch
from lutlab.measure import products
from lutlab.measure.drawn import relative_error
from lutlab.measure.timing import COLD, Contestant, copies_for
from lutlab.specs import ProductRun

# |y - x W^T| / |x W^T| beyond which a product is wrong; in 16 bits it may be summed in 16 bits, as LUT-GEMM does.
_ERRORS = {"int8": 0.0, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_INT16_ERROR = 1e-3
_MOST_COPIES = 4096


@dataclass
class TimedRow:
    """A row, and the facts of its record, which grow as contestants are made.

    Attributes:
        spec: the row.
        cold: bytes of all copies of a contestant's weights.
        facts: facts of a record: relative_errors by name; on a GPU cublas_us, microseconds of each layout in the short
            race.
        kind: state of the weights in the caches, cold or resident, with which cuBLAS's layouts race.
    """

    spec: ProductRun
    cold: int
    facts: dict[str, Any]
    kind: str = COLD

    @property
    def cpu(self) -> bool:
        """Whether the row's device is the CPU."""
        return self.spec.device == "cpu"

    def copies(self, size: int) -> int:
        """The number of copies of weights of so many bytes; tiny ones are not all cold."""
        return min(copies_for(size, self.cold), _MOST_COPIES)

    def executed(self, execution: Execution, x: torch.Tensor) -> Contestant:
        """A kernel's product with x [M, K], with as many copies of its weights as are cold.

        Raises:
            LutlabError: it is no kernel: none takes the weight.
        """
        from lutlab.kernels.dispatch import Dequantized

        rows, dtype = len(x), x.dtype
        name = execution.describe(rows, dtype)
        if isinstance(execution, Dequantized):
            raise LutlabError(f"there is no kernel to time: {name}")
        size = execution.bytes_read(rows, dtype)
        copies = [execution, *(execution.copy() for _ in range(self.copies(size) - 1))]
        return Contestant(name, size, len(copies), lambda i: copies[i](x))

    def checked(self, one: Contestant, x: torch.Tensor, weight: torch.Tensor) -> Contestant:
        """The contestant, if its first and last copy multiply by the weight; the error is a fact of the record.

        Args:
            one: its run returns x W^T.
            x: [M, K].
            weight: [N, K].

        Raises:
            LutlabError: the product is wrong.
        """
        dtype = str(x.dtype).removeprefix("torch.")
        limit = _INT16_ERROR if self.spec.kernel == "int16" else _ERRORS[dtype]
        for copy in {0, one.copies - 1}:
            error = relative_error(one.run(copy), x, weight)
            if not error <= limit:  # of nan too
                raise LutlabError(
                    f"{one.name} is wrong: |y - x W^T| is {error:.1e} of |x W^T|, at most {limit:.0e} was expected "
                    f"in {dtype}; its speed would say nothing"
                )
            errors = self.facts.setdefault("relative_errors", {})
            errors[one.name] = max(error, errors.get(one.name, 0.0))
        return one


def cold_bytes(device: str) -> tuple[int, dict[str, Any]]:
    """Bytes of all copies of a contestant's weights on a device, and the facts of a record on it."""
    if device == "cpu":
        from lutlab.kernels.cpu.qigen.qigen_model import caches

        cache, times = caches().l3, products.CPU_CACHES
    else:
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        times = products.GPU_CACHES
    cold = min(times * cache, products.COLD_LIMIT)
    return cold, {"cache_bytes": cache, "cold_bytes": cold}
