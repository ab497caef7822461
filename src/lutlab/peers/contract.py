"""What a peer is: public code in an environment that has it, and what lutlab compares with it.

    @register("peer", "gptqmodel")
    class GPTQModel(QuantizesModels, RunsGPTQ): ...

A peer extends a class for each thing that it can be compared in, and is found by it (benchmarks/peers). Its
environment need not have lutlab, whose sources it reads by `surroundings`: at the top of a peer's file stands nothing
beyond the standard library, numpy and torch are imported by the functions that call the peer.
"""

from __future__ import annotations

import importlib.metadata
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError, not_installed
from lutlab.base.lazy import torch
from lutlab.measure.timing import Contestant

Tensors = dict[str, "torch.Tensor"]


@dataclass
class Product(Contestant):
    """A contestant with what a table says beside its times.

    Attributes:
        error: error of the product, relative to one in float64.
        activations: type that it rounds activations to.
    """

    error: float = 0.0
    activations: str = "fp32"


@dataclass(frozen=True)
class Block:
    """The linear layers of one block, for a peer that quantizes them one by one.

    Attributes:
        weights: layer -> [N, K] float32.
        inputs: name -> [tokens, K] float32.
        readers: name of an input -> the layers that read it.
        q: bits a weight.
        g: group size.
        batch: tokens that are accumulated at a time.
    """

    weights: Mapping[str, torch.Tensor]
    inputs: Mapping[str, torch.Tensor]
    readers: Mapping[str, tuple[str, ...]]
    q: int
    g: int
    batch: int


class Peer:
    """Public code, never instantiated; a peer extends the classes below that say what it can be compared in.

    Attributes:
        modules: modules of it that are imported.
        install: names that pip installs, the package first.
    """

    modules: ClassVar[tuple[str, ...]]
    install: ClassVar[str]

    @classmethod
    def lacking(cls) -> str:
        """Why it cannot be called in this environment; empty where it can."""
        return not_installed(cls.modules, cls.install)

    @classmethod
    def version(cls) -> str:
        """Version of the first package that is installed for it."""
        return importlib.metadata.version(cls.install.partition(" ")[0])


class QuantizesModels(Peer):
    """A peer whose entry point quantizes a whole model.

    Attributes:
        ways: methods by name, each as the arguments of its entry point beside q and g.
        gradient: whether it goes backward through the model, or a block.
    """

    ways: ClassVar[Mapping[str, Mapping[str, Any]]]
    gradient: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def quantize(
        folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
    ) -> Tensors:
        """Quantize a model by its public entry point.

        Args:
            folder: model in full precision.
            options: arguments, those of one of `ways`.
            q: bits a weight.
            g: group size.
            ids: calibration windows, [samples, S] int64.

        Returns:
            The state dict, with dequantized weights.
        """


class RunsGPTQ(Peer):
    """A peer whose GPTQ can be called layer by layer."""

    @staticmethod
    @abstractmethod
    def gptq(block: Block, time: Callable[[str, Callable[[], Any]], Any]) -> Tensors:
        """Quantize a block's layers by GPTQ alone, timing `accumulate` and, under the peer's name, the way to codes.

        Args:
            block: layers and their inputs.
            time: calls a function under a name, and returns what it returns.

        Returns:
            Layer -> dequantized weight [N, K].
        """


class MultipliesOnCPU(Peer):
    """A peer with low-bit products on a CPU."""

    @staticmethod
    @abstractmethod
    def cpu_products(
        shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """Its low-bit products y [m, N] = x [m, K] W [N, K]^T on a CPU, checked.

        Args:
            shape: (N, K).
            m: rows of x.
            g: group size of formats that leave it open.
            threads: number of threads.
            copies: bytes of a weight -> the number of copies that are cold.

        Raises:
            LutlabError: a product is wrong.
        """


class MultipliesOnGPU(Peer):
    """A peer with low-bit products on a GPU.

    Attributes:
        gpu_bits: q that its product takes.
    """

    gpu_bits: ClassVar[tuple[int, ...]]

    @staticmethod
    @abstractmethod
    def gpu_product(
        shape: tuple[int, int], q: int, g: int, x: torch.Tensor, copies: Callable[[int], int]
    ) -> tuple[Contestant, torch.Tensor, torch.Tensor]:
        """Its low-bit product on the GPU of x [m, K].

        Args:
            shape: (N, K).
            q: bits a weight.
            g: group size.
            x: activations in float16.
            copies: bytes of a weight -> the number of copies that are cold.

        Returns:
            The product, the x that it multiplies, and the dequantized weight [N, K], by which it is checked.
        """


def checked(product: Product, most: float) -> Product:
    """A product whose error is no more than its format explains.

    Raises:
        LutlabError: it is larger, so that its time would say nothing.
    """
    if not product.error <= most:
        raise LutlabError(
            f"{product.name} is {product.error:.1e} from the product in float64, and its format explains {most:.0e}: "
            "it computes something else; leave it out, or look at its version"
        )
    return product


def surroundings(threads: int) -> dict[str, str]:
    """Environment variables of a peer's process: so many threads, and lutlab's sources, of which it imports these."""
    sources = Path(__file__).resolve().parents[2]
    return os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(sources)}
