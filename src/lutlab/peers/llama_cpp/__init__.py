"""llama.cpp by llama-cpp-python: a model's file (gguf_model.py), decoding (decoder.py), products (products.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lutlab.peers.contract import MultipliesOnCPU, Product, checked
from lutlab.registry import register


@register("peer", "llama_cpp")
class LlamaCpp(MultipliesOnCPU):
    """See the top of this file."""

    modules: ClassVar[tuple[str, ...]] = ("llama_cpp", "gguf")
    install: ClassVar[str] = "llama-cpp-python gguf"

    @classmethod
    def cpu_products(
        cls, shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """See MultipliesOnCPU: formats of about 4, 3 and 2 bits, in the buffers that llama.cpp itself takes."""
        from lutlab.peers.llama_cpp.products import TYPES, Products

        found = []
        for kind in TYPES:
            one = Products(kind, shape, m, threads, copies)
            name = f"llama-cpp-python {cls.version()} {kind}"
            name += " repacked" if "REPACK" in one.buffer else ""
            product = Product(
                name, one.bytes, one.copies, one.run, error=one.error, activations="int8"
            )
            found.append(checked(product, 0.05))
        return found
