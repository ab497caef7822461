"""The engine of CPUs: one foreign call a step into generated C, attention, norms and rotations included.

Everything is computed in float32, whatever the model's dtype; dense weights and the head are read in the narrowest
dtype that holds them exactly. Prompts are read 64 tokens at a time. Threads go by the work of each part of a step, so
that small models stay on one; no number depends on how many there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lutlab.errors import LutlabError
from lutlab.generate.architecture import Architecture, Block, architecture_of, obstacle
from lutlab.generate.contract import Engine
from lutlab.generate.cpu_products import Products
from lutlab.kernels.codegen.compiler import NoCompiler
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step
from lutlab.kernels.cpu.rows_gemv import THREAD_BYTES
from lutlab.registry import register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 64  # tokens of prompts that share one reading of the weights
ROUNDS = 5  # of steps whose time is taken apart
PARTS = ("matmul", "attention", "other")


@register("engine", "cpu_step")
class CpuStep(Engine):
    """A decoder, its cache of keys and values, and the structs that C reads them by.

    Args beside the contract's:
        threads: at most so many; None: torch.get_num_threads(), as it is at each call.
    """

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
        self.model, self.batch, self.length = model, batch, length
        self.vocabulary = model.config.vocab_size
        self.positions = [0] * batch
        self._threads, self._most_threads = threads, threads or torch.get_num_threads()
        self._dtype = getattr(torch, cache) if cache else model.dtype
        isa = detect()
        self._library = step.load(isa)
        with torch.no_grad():
            self._products = Products(batch)
            self._architecture = architecture_of(model)
            self._c = self._filled(isa)

    @classmethod
    def obstacle(cls, model: PreTrainedModel, cache: str) -> str:
        """See Engine."""
        if model.device.type != "cpu":
            return f"it runs on CPUs, and the model is on {model.device}"
        if any(one._forward_hooks or one._forward_pre_hooks for one in model.modules()):
            return "its modules have hooks (of a model that ranks share, of streamed blocks), which C would not call"
        if model.dtype not in step.TYPES:
            return f"it computes in float32, and the model is of {model.dtype}"
        try:
            step.load(detect())
        except NoCompiler as error:
            return str(error)
        return obstacle(model.config)

    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Engine."""
        self.check_prompts(prompts)
        self.positions = [0] * self.batch
        ids = torch.cat([prompt.to(torch.int64) for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ends = lengths.cumsum(0)
        rows = torch.repeat_interleave(torch.arange(self.batch), lengths)
        positions = torch.arange(len(ids)) - (ends - lengths)[rows]
        for first in range(0, len(ids), CHUNK):
            some = slice(first, first + CHUNK)
            wanted = ends[(ends > first) & (ends <= first + CHUNK)] - 1 - first
            self._forward(ids[some], rows[some], positions[some], wanted)
        self.positions = lengths.tolist()
        return self._logits[:, : self.vocabulary].clone()

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """See Engine."""
        self.check_step(ids)
        ids = ids.to(torch.int64).contiguous()
        self._forward(ids, self._rows, torch.tensor(self.positions), self._rows)
        self.positions = [position + 1 for position in self.positions]
        return self._logits[:, : self.vocabulary].clone()

    def rewind(self, tokens: int = 0) -> None:
        """See Engine."""
        self.check_rewind(tokens)
        self.positions = [tokens] * self.batch

    def write(
        self, layer: int, row: int, first: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put keys and values that were computed elsewhere into the cache; whoever calls sets `positions`.

        Args:
            layer: of the model.
            row: of the cache.
            first: position of the first token.
            keys: [kv heads, T, size], rotated as transformers keeps them.
            values: [kv heads, T, size].

        Raises:
            LutlabError: one is larger than the cache can hold.
        """
        there = slice(first, first + keys.shape[1]), slice(0, keys.shape[2])
        for cache, new in ((self._keys, keys), (self._values, values)):
            kept = cache[(layer, row, slice(None), *there)]
            kept.copy_(new)
            if bool((kept.isinf() & new.isfinite()).any()):
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
        at = torch.full((self.batch,), context)
        found = []
        self.positions = [0] * self.batch
        for _ in range(ROUNDS):
            seconds = (ctypes.c_double * len(PARTS))()
            self._c.seconds = seconds
            try:
                self._forward(torch.zeros_like(at), self._rows, at, self._rows)
            finally:
                self._c.seconds = None
            found.append(list(seconds))
        return dict(zip(PARTS, min(found, key=sum), strict=True))

    def bytes_read(self, context: int) -> dict[str, int]:
        """See Engine."""
        launches = self._products.placed.values()
        weights = sum(one.nbytes for many in launches for one in many) - self._head_bytes
        windows = (block.window or context for block in self._architecture.blocks)
        seen = sum(min(window, context) for window in windows)
        token = 2 * self._c.kv_heads * self._c.room * self._dtype.itemsize
        return {
            "weights": weights,
            "head": self._head_bytes,
            "cache": self.batch * seen * token,
        }

    def facts(self) -> dict[str, Any]:
        """See Engine."""
        work = max(
            sum(one.nbytes for one in many) * self.batch for many in self._products.placed.values()
        )
        return {
            "engine": "cpu_step",
            "kernel": self._products.names(),
            "cache": str(self._dtype).removeprefix("torch."),
            "cache_bytes": self._keys.nbytes + self._values.nbytes,
            "head": self._head_dtype,
            "threads": min(self._threads_now(), max(1, work // THREAD_BYTES)),
        }

    def _threads_now(self) -> int:
        wanted = self._threads or torch.get_num_threads()
        return min(wanted, self._most_threads) if self._library.openmp else 1

    def _forward(
        self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor
    ) -> None:
        """One call: tokens into the cache, and the logits of those wanted into their rows.

        Args:
            ids: [m] int64, contiguous, as the others.
            rows: [m] of the cache.
            positions: [m] in those rows.
            wanted: indices of them, of rows that follow each other.
        """
        self._c.threads = self._threads_now()
        first = int(rows[wanted[0]]) if len(wanted) else 0
        held = self._library.forward(
            ctypes.byref(self._c),
            len(ids),
            *(one.data_ptr() for one in (ids, rows, positions, wanted)),
            len(wanted),
            self._logits[first].data_ptr(),
        )
        if failed := self._products.failed:
            self._products.failed = None
            raise failed
        if not held:
            raise self._too_large()

    def _too_large(self) -> LutlabError:
        return LutlabError(
            f"a key or value is larger than cache={str(self._dtype).removeprefix('torch.')} can hold: take "
            "cache=float32"
        )

    # ---- the structs ----

    def _filled(self, isa: Any) -> step.Model:
        """The model's struct; all that it points to is kept."""
        a, products, model = self._architecture, self._products, self.model
        body = model.get_submodule
        lanes = step.lanes(isa)
        blocks = [self._layer(block) for block in a.blocks]
        layers = (step.Layer * len(blocks))(*(layer for layer, _ in blocks))
        products.keep(layers)
        head, _ = products.linear([model.get_output_embeddings()])
        last = products.placed[ctypes.addressof(head.products[0])]
        self._head_bytes = sum(one.nbytes for one in last)
        self._head_dtype = last[0].dtype
        tokens, tokens_type, tokens_width = products.table(body(a.tokens))
        c = step.Model(
            layers=len(blocks),
            hidden=a.hidden,
            heads=a.heads,
            kv_heads=a.kv_heads,
            size=a.head_dim,
            room=a.head_dim + -a.head_dim % lanes,
            inner=blocks[0][1],
            norm_first=a.norm_first,
            activation=step.ACTIVATIONS.index(a.activation),
            neighbours=a.neighbours,
            layer=layers,
            tokens=tokens,
            tokens_type=tokens_type,
            tokens_width=tokens_width,
            positions_from=a.positions_from,
            head=head,
            last_norm=products.norm(body(a.last_norm) if a.last_norm else None, a.rms),
            cache=step.TYPES[self._dtype],
            batch=self.batch,
            length=self.length,
            thread_bytes=THREAD_BYTES,
            mend=step.MEND(products.mend),
        )
        if a.positions:
            c.positions, c.positions_type, _ = products.table(body(a.positions))
        for name, path in (("project_in", a.project_in), ("project_out", a.project_out)):
            if path:
                setattr(c, name, products.linear([body(path)])[0])
        if a.rotary:
            self._rotations(c, a)
        self._allocate(c)
        return c

    def _layer(self, block: Block) -> tuple[step.Layer, int]:
        """The struct of a block, and how wide its feed-forward is."""
        a, products, body = self._architecture, self._products, self.model.get_submodule
        attention, starts = products.linear([body(path) for path in block.attention])
        if len(starts) == 1:  # queries, keys and values of one layer
            starts = [0, a.heads * a.head_dim, (a.heads + a.kv_heads) * a.head_dim]
        up, wide = products.linear([body(path) for path in block.up])
        down = body(block.down)
        inner = products.channels(down)
        if a.gated and len(wide) == 1:  # gate and up of one layer
            wide = [0, inner]
        norms = [products.norm(body(path), a.rms) for path in block.norms]
        of_head = [products.norm(body(path), a.rms) for path in block.head_norms] or [
            step.Norm()
        ] * 2
        layer = step.Layer(
            *norms,
            *of_head,
            attention,
            products.linear([body(block.out)])[0],
            up,
            products.linear([down])[0],
            *starts,
            wide[0],
            wide[1] if a.gated else -1,
            block.scale,
            block.window or self.length,
        )
        return layer, inner

    def _rotations(self, c: step.Model, a: Architecture) -> None:
        """Cosines and sines of all positions, from the model's own module, which knows its scaling."""
        positions = torch.arange(self.length)[None]
        tables = self.model.get_submodule(a.rotary)(torch.zeros(1), positions)
        cosine, sine = (t[0, :, : t.shape[-1] // 2].contiguous() for t in tables)
        c.rotary = 2 * cosine.shape[1]
        c.cosine, c.sine = self._products.keep(cosine), self._products.keep(sine)

    def _allocate(self, c: step.Model) -> None:
        """Cache, buffers, and the logits."""
        most, a = max(CHUNK, self.batch), self._architecture
        layers = [c.layer[index] for index in range(c.layers)]
        shape = c.layers, self.batch, c.kv_heads, self.length, c.room
        self._keys = torch.zeros(shape, dtype=self._dtype)
        self._values = torch.zeros(shape, dtype=self._dtype)
        group = a.heads // a.kv_heads
        outputs = [one.rows for layer in layers for one in (layer.out, layer.down)]
        floats = {
            "x": most * a.hidden,
            "normed": most * max(a.hidden, c.tokens_width),
            "mixed": most * max(layer.attention.rows for layer in layers),
            "queries": most * a.heads * c.room,
            "attended": most * a.heads * a.head_dim,
            "wide": most * max(layer.up.rows for layer in layers),
            "y": most * max(*outputs, c.project_in.rows, c.project_out.rows),
            "scratch": self._products.scratch,
            "scores": self._most_threads * group * self.length,
            "sums": self._most_threads * group * c.room,
        }
        for name, count in floats.items():
            setattr(c, name, self._products.keep(torch.zeros(count)))
        c.keys, c.values = self._keys.data_ptr(), self._values.data_ptr()
        self._rows = torch.arange(self.batch)
        self._logits = torch.empty(self.batch, c.head.rows)
