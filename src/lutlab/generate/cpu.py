"""The engine of CPUs: one foreign call a step into generated C, attention, norms and rotations included.

Everything is computed in float32, whatever the model's dtype; dense weights and the head are read in the narrowest
dtype that holds them exactly. Prompts are read 64 tokens at a time. Threads go by the work of each part of a step, so
that small models stay on one; no number depends on how many there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel
from lutlab.base.registry import register
from lutlab.formats.contract import dtype_name
from lutlab.generate.architecture import obstacle
from lutlab.generate.contract import Engine
from lutlab.generate.cpu_model import CpuModel, Placed
from lutlab.kernels.codegen.compiler import NoCompiler
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step

CHUNK = 64  # tokens of prompts that share one reading of the weights
ROUNDS = 5  # of steps whose time is taken apart
PARTS = ("matmul", "attention", "other")


@register("engine", "cpu_step")
class CpuStep(Engine):
    """A decoder, its cache of keys and values, and the structs that C reads them by.

    The weights are those that the model has when the engine is made: give a model that was changed another one.

    Args beside the contract's:
        threads: at most so many; None: torch.get_num_threads(), as it is at each call.
    """

    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(
        self,
        model: PreTrainedModel,
        batch: int,
        length: int,
        cache: str = "",
        threads: int | None = None,
    ) -> None:
        if why := self.obstacle(model, cache):
            raise LutlabError(f"engine cpu_step does not take this model: {why}")
        super().__init__(model, batch, length)
        self._threads, self._most_threads = threads, threads or torch.get_num_threads()
        self._dtype = getattr(torch, cache) if cache else model.dtype
        self._library = step.load(detect())
        most = max(CHUNK, batch)
        self._held = CpuModel(model, self._dtype, batch, length, most, self._most_threads)
        self._c = self._held.struct
        self._at = (ctypes.c_int64 * batch)()
        self._every_row = (ctypes.c_int64 * batch)(*range(batch))

    @classmethod
    def obstacle(cls, model: PreTrainedModel, cache: str) -> str:
        """Reason for not decoding a model: its device, hooks, dtype or family, or that nothing compiles C here."""
        if model.device.type != "cpu":
            return f"it runs on CPUs, and the model is on {model.device}"
        if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
            return "its modules have hooks (of a model that ranks share, of streamed blocks), which C would not call"
        if model.dtype not in step.TYPES:
            return f"it computes in float32, and the model is of {model.dtype}"
        try:
            step.load(detect())
        except NoCompiler as error:
            return str(error)
        return obstacle(model.config)

    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Read all prompts one behind the other, CHUNK tokens a call."""
        self.check_prompts(prompts)
        self.positions = [0] * self.batch
        ids = torch.cat([prompt.to(torch.int64) for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ends = lengths.cumsum(0)
        rows = torch.repeat_interleave(torch.arange(self.batch), lengths)
        positions = torch.arange(len(ids)) - (ends - lengths)[rows]
        logits, done = self._room(), 0
        for first in range(0, len(ids), CHUNK):
            some = slice(first, first + CHUNK)
            last = ends[(ends > first) & (ends <= first + CHUNK)] - 1 - first
            inputs = [tensor[some].data_ptr() for tensor in (ids, rows, positions)]
            room = logits.data_ptr() + done * logits.stride(0) * 4
            self._forward(len(ids[some]), *inputs, last.data_ptr(), len(last), room)
            done += len(last)
        self.positions = lengths.tolist()
        return logits[:, : self.vocabulary]

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """One call of the C step."""
        self.check_step(ids)
        logits = self._step(ids.to(torch.int64).contiguous(), self.positions)
        self.positions = [position + 1 for position in self.positions]
        return logits[:, : self.vocabulary]

    def rewind(self, tokens: int = 0) -> None:
        """Only the positions change: later tokens overwrite what is behind them."""
        self.check_rewind(tokens)
        self.positions = [tokens] * self.batch

    def write(
        self, layer: int, row: int, first: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put keys and values [kv heads, T, size] of elsewhere, rotated, into the cache from position `first` on.

        Whoever calls sets `positions`.

        Raises:
            LutlabError: one is larger than the cache can hold.
        """
        tokens, size = keys.shape[1:]
        for cache, new in ((self._held.keys, keys), (self._held.values, values)):
            slots = cache[layer, row, :, first : first + tokens, :size]
            slots.copy_(new)
            if bool((slots.isinf() & new.isfinite()).any()):
                raise self._too_large()

    def breakdown(self, context: int) -> dict[str, float]:
        """Seconds of `matmul`, `attention` and `other` of a step at a context: the quickest of five. Empties the cache.

        Raises:
            LutlabError: the cache has no room for a token behind so many.
        """
        if not 0 <= context < self.length:
            raise LutlabError(
                f"context={context}: a step needs a place behind it, and the cache holds {self.length} tokens"
            )
        ids, rounds = torch.zeros(self.batch, dtype=torch.int64), []
        self.positions = [0] * self.batch
        for _ in range(ROUNDS):
            seconds = (ctypes.c_double * len(PARTS))()
            self._c.seconds = seconds
            try:
                self._step(ids, [context] * self.batch)
            finally:
                self._c.seconds = None
            rounds.append(list(seconds))
        return dict(zip(PARTS, min(rounds, key=sum), strict=True))

    def bytes_read(self, context: int) -> dict[str, int]:
        """Of the cache each layer's window, with the padding of heads."""
        head = self._held.head.nbytes
        weights = sum(map(_nbytes, self._held.placed.values())) - head
        seen = sum(min(self._c.layer[at].window, context) for at in range(self._c.layers))
        token = 2 * self._c.kv_heads * self._c.room * self._dtype.itemsize
        return {"weights": weights, "head": head, "cache": self.batch * seen * token}

    def facts(self) -> dict[str, Any]:
        """`threads`: those of the launch that reads most."""
        work = self.batch * max(map(_nbytes, self._held.placed.values()))
        return {
            "engine": "cpu_step",
            "kernel": self._held.names(),
            "cache": dtype_name(self._dtype),
            "cache_bytes": self._held.keys.nbytes + self._held.values.nbytes,
            "head": self._held.head.dtype,
            "threads": min(self._threads_now(), max(1, work // self._c.thread_bytes)),
        }

    def _threads_now(self) -> int:
        threads = self._threads or torch.get_num_threads()
        return min(threads, self._most_threads) if self._library.openmp else 1

    def _room(self) -> torch.Tensor:
        """Tensor for logits, with the padding of a packed head."""
        return torch.empty(self.batch, self._c.head.rows)

    def _step(self, ids: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """Logits of a token in every row; ids: [B] int64, contiguous."""
        logits = self._room()
        self._at[:] = [*positions]
        where = self._every_row, self._at, self._every_row
        self._forward(self.batch, ids.data_ptr(), *where, self.batch, logits.data_ptr())
        return logits

    def _forward(self, m: int, *arguments: Any) -> None:
        """One call: m tokens into the cache; the rest as kernels/cpu/step/step.c has it."""
        self._c.threads = self._threads_now()
        fits = self._library.forward(ctypes.byref(self._c), m, *arguments)
        if failed := self._held.failed:
            self._held.failed = None
            raise failed
        if not fits:
            raise self._too_large()

    def _too_large(self) -> LutlabError:
        return LutlabError(
            f"a key or value is larger than cache={str(self._dtype).removeprefix('torch.')} can hold: take "
            "cache=float32"
        )


def _nbytes(launch: list[Placed]) -> int:
    """Bytes that one launch reads."""
    return sum(layer.nbytes for layer in launch)
