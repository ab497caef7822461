"""A model as the C step reads it (kernels/cpu/step.py): its struct, and everything that the struct points to.

quantized layers    their execution's stream, where it lies: nothing is copied. Those of one geometry that read the
                    same x are one launch
dense layers        the weight in the narrowest dtype that holds it exactly, the model's own where it is that
where a y is not finite, the rows of that product become the dense product's, as in the model's own modules
                    (kernels/cpu/overflow.py): the C step calls back
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lutlab.base.groups import group_length
from lutlab.base.lazy import PreTrainedModel, nn
from lutlab.embeddings import QuantEmbedding
from lutlab.formats.uniform import PackedUniform
from lutlab.generate.architecture import ACTIVATIONS, DECODERS, Decoder
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step
from lutlab.kernels.cpu.overflow import mend
from lutlab.kernels.cpu.rows.linear import CpuLinear
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of
from lutlab.kernels.cpu.rows.rows_gemv import BATCH, THREAD_BYTES, Part, longs
from lutlab.models.families import decoder_blocks, family_of, weight_of
from lutlab.modules import QuantLinear

Pointed = torch.Tensor | ctypes.Structure | ctypes.Array  # what a struct may point to


@dataclass(frozen=True)
class Placed:
    """A layer's place: its rows in y, its channels, and its execution or dense weight [N, K padded]."""

    at: int
    rows: int
    channels: int
    weight: CpuLinear | torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        if isinstance(self.weight, CpuLinear):
            return self.weight.bytes_read(1, torch.float32)
        return self.weight.nbytes

    @property
    def dtype(self) -> str:
        """Dtype of a dense weight; bits of a packed one."""
        if isinstance(self.weight, CpuLinear):
            return f"{self.weight.rows.bits} bits"
        return str(self.weight.dtype).removeprefix("torch.")


class CpuModel:
    """The struct of a model whose family has a Decoder, its cache and its products.

    Args:
        model: model whose weights the struct points to.
        cache: dtype of keys and values.
        batch: rows of the cache.
        length: tokens of a row.
        most: tokens of a call at most.
        threads: most threads of a call.

    Attributes:
        struct: the model in C, with pointers into all that is held here.
        keys: [layers, batch, kv heads, length, room], as `values`.
        head: the product that gives the logits.
        placed: layers of each launch, by the address of its struct.
        failed: error of a call back, to be raised once C has returned.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: PreTrainedModel,
        cache: torch.dtype,
        batch: int,
        length: int,
        most: int,
        threads: int,
    ) -> None:
        self.placed: dict[int, list[Placed]] = {}
        self.failed: BaseException | None = None
        self._isa, self._batch = detect(), batch
        self._scratch = 0  # floats, for up to BATCH rows of x
        self._mended: set[str] = set()
        self._kept: list[Pointed] = []
        this = weakref.proxy(self)  # the struct would keep itself alive
        config, decoder = model.config, DECODERS[model.config.model_type]
        body, blocks = model.get_submodule(decoder.body), decoder_blocks(model)
        size = cast("int", blocks[0].get_submodule(decoder.attention).head_dim)  # no buffer
        tokens, tokens_type, tokens_width = self._table(body.get_submodule(decoder.tokens))
        head, _ = self._linear([model.get_output_embeddings()])
        self.struct = c = step.Model(
            layers=len(blocks),
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=getattr(config, decoder.kv_heads),
            size=size,
            room=size + -size % step.lanes(self._isa),
            norm_first=not decoder.norm_first or getattr(config, decoder.norm_first),
            activation=step.ACTIVATIONS.index(ACTIVATIONS[getattr(config, decoder.activation)]),
            neighbours=decoder.neighbours,
            tokens=tokens,
            tokens_type=tokens_type,
            tokens_width=tokens_width,
            positions_from=decoder.positions_from,
            head=head,
            last_norm=self._norm(getattr(body, decoder.last_norm), decoder.rms),
            cache=step.TYPES[cache],
            batch=batch,
            length=length,
            thread_bytes=THREAD_BYTES,
            mend=step.MEND(lambda *launch: this._mend(*launch)),
        )
        layers = [self._layer(model, decoder, index) for index in range(len(blocks))]
        c.layer = (step.Layer * len(layers))(*layers)
        if decoder.positions:
            c.positions, c.positions_type, _ = self._table(body.get_submodule(decoder.positions))
        for name, path in zip(("project_in", "project_out"), decoder.projections, strict=False):
            if (module := getattr(body, path)) is not None:
                setattr(c, name, self._linear([module])[0])
        if decoder.rotary:
            self._rotations(body.get_submodule(decoder.rotary))
        self._buffers(most, threads)
        shape = c.layers, batch, c.kv_heads, length, c.room
        self.keys, self.values = torch.zeros(shape, dtype=cache), torch.zeros(shape, dtype=cache)
        c.keys, c.values = self.keys.data_ptr(), self.values.data_ptr()
        self.head = self.placed[ctypes.addressof(head.products[0])][0]

    def names(self) -> list[str]:
        """Names of the kernels that multiply, for a record."""
        names = {self._name(layer) for launch in self.placed.values() for layer in launch}
        return sorted(names | self._mended)

    # ---- the structs of modules ----

    def _layer(self, model: PreTrainedModel, decoder: Decoder, index: int) -> step.Layer:
        """The struct of a block; notes how wide its feed-forward is."""
        c, config, block = self.struct, model.config, decoder_blocks(model)[index]
        inputs = family_of(config).inputs
        layers = [[block.get_submodule(path) for path in group.layers] for group in inputs]
        module: Any = block.get_submodule(decoder.attention)
        (attention, starts), (out, _), (up, wide), (down, _) = map(self._linear, layers)
        if len(starts) == 1:  # queries, keys and values of one layer
            starts = [0, c.heads * c.size, (c.heads + c.kv_heads) * c.size]
        (narrowing,) = layers[-1]
        quantized = isinstance(narrowing, QuantLinear)
        c.inner = narrowing.in_features if quantized else weight_of(narrowing).shape[1]
        if decoder.gated and len(wide) == 1:  # gate and up of one layer
            wide = [0, c.inner]
        norms = [self._norm(block.get_submodule(path), decoder.rms) for path in decoder.norms]
        heads = [self._norm(module.get_submodule(path), decoder.rms) for path in decoder.head_norms]
        window = getattr(config, decoder.window) if decoder.window else None
        if decoder.window_where and getattr(config, decoder.window_where)[index] != "local":
            window = None
        return step.Layer(
            *norms,
            *(heads or [step.Norm(), step.Norm()]),
            attention,
            out,
            up,
            down,
            *starts,
            wide[0],
            wide[1] if decoder.gated else -1,
            module.scaling if decoder.scaled else 1.0,
            window or c.length,
        )

    def _keep(self, value: Pointed) -> int:
        """Hold a tensor or a ctypes object as long as the structs live; its address."""
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            return value.data_ptr()
        return ctypes.addressof(value)

    def _linear(self, layers: Sequence[nn.Module]) -> tuple[step.Linear, list[int]]:
        """The struct of layers that read the same x, and where each one's rows begin in y."""
        at, placed = 0, []
        for layer in layers:
            rows, channels, weight = self._weight(layer)
            placed.append(Placed(at, rows, channels, weight))
            at += blocks_of(rows) * ROWS if isinstance(weight, CpuLinear) else rows
        launches: list[list[Placed]] = []
        for place in placed:
            if launches and _together(launches[-1][0].weight, place.weight):
                launches[-1].append(place)
            else:
                launches.append([place])
        products = (step.Product * len(launches))(*map(self._product, launches))
        for product, launch in zip(products, launches, strict=True):
            self.placed[ctypes.addressof(product)] = launch
        self._keep(products)
        bias = self._bias(layers, placed, at)
        return step.Linear(products, len(launches), at, bias), [place.at for place in placed]

    def _norm(self, module: Any, rms: bool) -> step.Norm:
        """The struct of a norm: torch's LayerNorm, a family's own RMSNorm, or None for no norm."""
        if module is None:
            return step.Norm()
        size = module.weight.shape if rms else torch.Size(module.normalized_shape)
        ones, zeros = torch.ones(size), torch.zeros(size)
        weight = ones if module.weight is None else module.weight.detach().float()
        if rms:
            return step.Norm(step.RMS_NORM, self._keep(weight), None, module.variance_epsilon)
        bias = zeros if module.bias is None else module.bias.detach().float()
        return step.Norm(step.LAYER_NORM, self._keep(weight), self._keep(bias), module.eps)

    def _table(self, module: nn.Module) -> tuple[int, int, int]:
        """A table of embeddings: its address, the number of its dtype, its width."""
        if isinstance(module, QuantEmbedding):
            return self._coded_table(module)
        weight = weight_of(module).contiguous()
        return self._keep(weight), step.TYPES[weight.dtype], weight.shape[1]

    def _coded_table(self, table: QuantEmbedding) -> tuple[int, int, int]:
        """A table of tokens in uniform codes, a byte each."""
        packed = table.packed
        assert isinstance(packed, PackedUniform), "quantize_embeddings makes no other"
        zero = cast("torch.Tensor", packed.zero_point)  # RTN always makes one
        tensors = packed.unpack().codes, packed.scale.float(), zero.float()
        group = group_length(packed.group_size, table.in_features)
        coded = step.CodedTable(*map(self._keep, tensors), group)
        return self._keep(coded), step.CODED, table.in_features

    def _rotations(self, rotary: nn.Module) -> None:
        """Cosines and sines of all positions, from the model's own module, which knows its scaling."""
        c = self.struct
        tables = rotary(torch.zeros(1), torch.arange(c.length)[None])
        cosine, sine = (t[0, :, : t.shape[-1] // 2].contiguous() for t in tables)
        c.rotary = 2 * cosine.shape[1]
        c.cosine, c.sine = self._keep(cosine), self._keep(sine)

    def _buffers(self, most: int, threads: int) -> None:
        """Floats for `most` tokens and for each thread."""
        c = self.struct
        layers = [c.layer[index] for index in range(c.layers)]
        group = c.heads // c.kv_heads
        outputs = [linear.rows for layer in layers for linear in (layer.out, layer.down)]
        floats = {
            "x": most * c.hidden,
            "normed": most * max(c.hidden, c.tokens_width),
            "mixed": most * max(layer.attention.rows for layer in layers),
            "queries": most * c.heads * c.room,
            "attended": most * c.heads * c.size,
            "wide": most * max(layer.up.rows for layer in layers),
            "y": most * max(*outputs, c.project_in.rows, c.project_out.rows),
            "scratch": self._scratch,
            "scores": threads * step.RUN * group * c.length,
            "sums": threads * step.RUN * group * c.room,
        }
        for name, count in floats.items():
            setattr(c, name, self._keep(torch.zeros(count)))

    # ---- products ----

    def _mend(self, product: int, x: int, x_stride: int, m: int, y: int, y_stride: int) -> None:
        """Called by the step where a kernel's y is not finite: put right the rows that are not."""
        try:
            launch = self.placed[product]
            first = launch[0].at
            width = launch[-1].at - first + blocks_of(launch[-1].rows) * ROWS
            outputs = _floats(y, m, y_stride, width)
            for layer in launch:
                assert isinstance(layer.weight, CpuLinear), "C calls back for kernels alone"
                inputs = _floats(x, m, x_stride, layer.channels)
                part = outputs[:, layer.at - first : layer.at - first + layer.rows]
                if mend(part, inputs, layer.weight.dense()):
                    name = layer.weight.kernel.describe()
                    self._mended.add(f"dequantize for rows that overflow ({name}), torch matmul")
        except BaseException as error:  # raised again when the step has returned to Python
            self.failed = error

    def _weight(self, layer: nn.Module) -> tuple[int, int, CpuLinear | torch.Tensor]:
        """Rows, channels, and execution or dense weight of a layer."""
        if isinstance(layer, QuantLinear):
            execution = layer.ready(self._batch, torch.float32)
            if isinstance(execution, CpuLinear):
                return layer.out_features, layer.in_features, execution
            weight = execution.dense()
        else:
            weight = weight_of(layer)
        return *weight.shape, step.dense_rows(weight, self._isa)

    def _product(self, launch: list[Placed]) -> step.Product:
        first = launch[0].weight
        nbytes = sum(layer.nbytes for layer in launch)
        if isinstance(first, torch.Tensor):
            return step.Product(
                weight=self._keep(first),
                type=step.TYPES[first.dtype],
                channels=launch[0].channels,
                width=first.shape[1],
                rows=launch[0].rows,
                bytes=nbytes,
                at=launch[0].at,
            )
        parts = [
            Part(self._keep(layer.weight.rows.stream), blocks_of(layer.rows))
            for layer in launch
            if isinstance(layer.weight, CpuLinear)  # as all are, by _together
        ]
        array = (Part * len(parts))(*parts)
        self._keep(array)
        self._scratch = max(self._scratch, BATCH * first.rows.columns)
        return step.Product(
            gemv=ctypes.cast(first.kernel.library.gemv, ctypes.c_void_p).value,
            parts=array,
            count=len(parts),
            geometry=self._keep(longs(first.rows.places)),
            order=None if first.channels is None else self._keep(first.channels),
            ahead=first.kernel.prefetch_bytes,
            bytes=nbytes,
            at=launch[0].at,
        )

    def _bias(self, layers: Sequence[nn.Module], placed: list[Placed], rows: int) -> int | None:
        if all(layer.bias is None for layer in layers):
            return None
        bias = torch.zeros(rows)
        for layer, place in zip(layers, placed, strict=True):
            if isinstance(layer.bias, torch.Tensor):
                bias[place.at : place.at + place.rows] = layer.bias.detach()
        return self._keep(bias)

    def _name(self, layer: Placed) -> str:
        if isinstance(layer.weight, CpuLinear):
            return layer.weight.describe(1, torch.float32)
        return f"dense {layer.dtype}, {self._isa.name}"


def _together(a: CpuLinear | torch.Tensor, b: CpuLinear | torch.Tensor) -> bool:
    """Whether one call of a kernel multiplies both."""
    if not (isinstance(a, CpuLinear) and isinstance(b, CpuLinear)):
        return False
    orders = [order for order in (a.channels, b.channels) if order is not None]
    same = a.channels is b.channels or (len(orders) == 2 and torch.equal(*orders))
    return (
        same
        and a.kernel.library is b.kernel.library
        and a.kernel.prefetch_bytes == b.kernel.prefetch_bytes
        and a.rows.places == b.rows.places
    )


def _floats(address: int, rows: int, stride: int, width: int) -> torch.Tensor:
    """A view [rows, width] of C's floats."""
    count = (rows - 1) * stride + width
    flat = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
    return flat.as_strided((rows, width), (stride, 1))
