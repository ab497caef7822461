"""llama.cpp by llama-cpp-python: a model's file (gguf_model.py), decoding (decoder.py), products (products.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lutlab.peers.contract import Peer, Product
from lutlab.registry import register


@register("peer", "llama_cpp")
class LlamaCpp(Peer):
    """See the top of this file."""

    modules: ClassVar[tuple[str, ...]] = ("llama_cpp", "gguf")
    install: ClassVar[str] = "llama-cpp-python gguf"

    @classmethod
    def cpu_products(
        cls, shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """See Peer: formats of about 4, 3 and 2 bits, in the buffers that llama.cpp itself takes for them."""
        from lutlab.peers.llama_cpp.products import TYPES, Products

        found = []
        for kind in TYPES:
            one = Products(kind, shape, m, threads, copies)
            assert one.error < 0.05, one.error
            name = f"llama-cpp-python {cls.version()} {kind}"
            name += " repacked" if "REPACK" in one.buffer else ""
            found.append(
                Product(name, one.bytes, one.copies, one.run, error=one.error, activations="int8")
            )
        return found
