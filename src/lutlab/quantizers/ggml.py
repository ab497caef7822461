"""llama.cpp's types, rounded by ggml's own C code: what a GGUF file of the same weights and type holds, byte for byte.

    method=ggml method.type=Q4_K                 looks at weights alone: squared errors count by ggml's own guess
    method=ggml_imatrix method.type=IQ2_XS       they count by llama.cpp's importance matrix (ggml_imatrix.py)

The type decides q and g, whatever a row says. A layer has one type, as by llama-quantize --pure: the recipes that go by
llama.cpp's names of files (Q4_K_M, and Q2_K, which keeps some layers wider) are mixtures of types. A layer whose inputs
are no multiple of the type's block is refused, or, by method.fallback, has the type that llama-quantize takes there.

Needs llama-cpp-python; numbers belong to its version, which is in the ids of their cells.

W [N, K] -> BlocksTensor, blocks [N, bytes of a row] uint8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lutlab.base import ggml
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import BlocksTensor
from lutlab.quantizers.contract import Calibrated, Method, finite

# src/llama-quant.cpp of the llama.cpp that llama-cpp-python 0.3.36 brings: tensor_type_fallback …
FALLBACKS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    **{kind: "IQ4_NL" for kind in ggml.TYPES if kind.startswith("IQ")},
}  # fmt: skip
# … and tensor_requires_imatrix
NEED_IMPORTANCE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
if TYPE_CHECKING:
    Type = str
else:
    Type = Literal[tuple(ggml.TYPES)]


@register("method", "ggml")
@dataclass(frozen=True)
class GGML(Method):
    """Options; the module says what they do.

    Attributes:
        type: type of ggml; it decides q and g.
        fallback: a layer that the type's blocks do not divide has the type that llama-quantize takes there (Q4_0 for
            Q2_K and Q3_K, Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, IQ4_NL for IQ types); false: it is refused.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "ggml"
    libraries: ClassVar[tuple[str, ...]] = ("llama_cpp_python",)

    type: Type = "Q4_0"
    fallback: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type in NEED_IMPORTANCE and not isinstance(self, Calibrated):
            raise LutlabError(
                f"llama.cpp makes {self.type} with an importance matrix only: take method=ggml_imatrix"
            )

    @classmethod
    def obstacle(cls) -> str:
        """That llama-cpp-python is not installed."""
        return ggml.lacking()

    def check_width(self, q: Bits, g: int) -> Width:
        """Bits of a code of the type, and weights that share a scale; those of a row only have to be in range."""
        super().check_width(q, g)
        return ggml.TYPES[self.type]

    def layout(self, rows: int, columns: int) -> Mapping[str, Any]:
        """Sizes, and the type of a layer, which follows from its inputs."""
        kind = self.type_for(columns)
        return {"out_features": rows, "in_features": columns, "type": kind}

    def type_for(self, columns: int) -> str:
        """The type of a layer with so many inputs.

        Raises:
            LutlabError: its blocks do not divide them, and there is no fallback, or none that does.
        """
        (block, _), other = ggml.block_of(self.type), FALLBACKS.get(self.type)
        if not columns % block:
            return self.type
        short = f"{self.type} has blocks of {block} weights, and this layer has {columns} inputs: "
        if not other or columns % ggml.block_of(other)[0]:
            raise LutlabError(f"{short}no type of llama.cpp's divides them; skip the layer (skip=)")
        if not self.fallback:
            raise LutlabError(
                f"{short}llama-quantize would take {other} there, as method.fallback=true does; or skip the layer "
                "(skip=)"
            )
        return other

    def quantize(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: torch.Tensor | None = None
    ) -> BlocksTensor:
        """[N, K] float -> BlocksTensor; q and g are the type's. `prepared` is of ggml_imatrix.py.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; the type's blocks do not divide K;
                llama-cpp-python is not installed.
        """
        self.check_width(q, g)
        weight = finite(weight, "a block takes its scale from all of its weights")
        kind = self.type_for(weight.shape[1])
        if absent := self.obstacle():
            raise LutlabError(absent)
        importance = None if prepared is None else prepared.cpu().numpy()
        blocks = ggml.blocks_of(weight.cpu().numpy(), kind, importance, torch.get_num_threads())
        return BlocksTensor(torch.from_numpy(blocks).to(weight.device), kind, weight.shape[1])
