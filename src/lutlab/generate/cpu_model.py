"""A model as the C step reads it: struct, cache, buffers (kernels/cpu/step.py), filled from its architecture."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from lutlab.generate.architecture import Architecture, Block
from lutlab.generate.cpu_products import Placed, Products
from lutlab.kernels.cpu import step
from lutlab.kernels.cpu.rows.rows_gemv import THREAD_BYTES
from lutlab.lazy import PreTrainedModel


@dataclass(frozen=True)
class Filled:
    """The struct, and what it points to.

    Attributes:
        keys: [layers, batch, kv heads, length, room], as `values`.
        head: the product that gives the logits.
    """

    struct: step.Model
    architecture: Architecture
    products: Products
    keys: torch.Tensor
    values: torch.Tensor
    head: Placed


@torch.no_grad()
def filled(
    model: PreTrainedModel,
    architecture: Architecture,
    cache: torch.dtype,
    batch: int,
    length: int,
    most: int,
    threads: int,
) -> Filled:
    """The struct of a model.

    Args:
        model: model whose weights it points to.
        architecture: the model's.
        cache: dtype of keys and values.
        batch: rows of the cache.
        length: tokens of a row.
        most: tokens of a call at most.
        threads: most threads of a call.
    """
    a, products, module = architecture, Products(batch), model.get_submodule
    blocks = [_layer(model, a, block, products, length) for block in a.blocks]
    layers = (step.Layer * len(blocks))(*(layer for layer, _ in blocks))
    products.keep(layers)
    head, _ = products.linear([model.get_output_embeddings()])
    tokens, tokens_type, tokens_width = products.table(module(a.tokens))
    c = step.Model(
        layers=len(blocks),
        hidden=a.hidden,
        heads=a.heads,
        kv_heads=a.kv_heads,
        size=a.head_dim,
        room=a.head_dim + -a.head_dim % step.lanes(products.isa),
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
        last_norm=products.norm(module(a.last_norm) if a.last_norm else None, a.rms),
        cache=step.TYPES[cache],
        batch=batch,
        length=length,
        thread_bytes=THREAD_BYTES,
        mend=step.MEND(products.mend),
    )
    if a.positions:
        c.positions, c.positions_type, _ = products.table(module(a.positions))
    for name, path in (("project_in", a.project_in), ("project_out", a.project_out)):
        if path:
            setattr(c, name, products.linear([module(path)])[0])
    if a.rotary:
        _rotations(model, a, c, products)
    _buffers(c, products, most, threads)
    shape = c.layers, batch, c.kv_heads, length, c.room
    keys, values = torch.zeros(shape, dtype=cache), torch.zeros(shape, dtype=cache)
    c.keys, c.values = keys.data_ptr(), values.data_ptr()
    last = products.placed[ctypes.addressof(head.products[0])][0]
    return Filled(c, a, products, keys, values, last)


def _layer(
    model: PreTrainedModel, a: Architecture, block: Block, products: Products, length: int
) -> tuple[step.Layer, int]:
    """The struct of a block, and how wide its feed-forward is."""
    module = model.get_submodule
    attention, starts = products.linear([module(path) for path in block.attention])
    if len(starts) == 1:  # queries, keys and values of one layer
        starts = [0, a.heads * a.head_dim, (a.heads + a.kv_heads) * a.head_dim]
    up, wide = products.linear([module(path) for path in block.up])
    down = module(block.down)
    inner = products.channels(down)
    if a.gated and len(wide) == 1:  # gate and up of one layer
        wide = [0, inner]
    norms = [products.norm(module(path), a.rms) for path in block.norms]
    of_head = [products.norm(module(path), a.rms) for path in block.head_norms]
    layer = step.Layer(
        *norms,
        *(of_head or [step.Norm(), step.Norm()]),
        attention,
        products.linear([module(block.out)])[0],
        up,
        products.linear([down])[0],
        *starts,
        wide[0],
        wide[1] if a.gated else -1,
        block.scale,
        block.window or length,
    )
    return layer, inner


def _rotations(model: PreTrainedModel, a: Architecture, c: step.Model, products: Products) -> None:
    """Cosines and sines of all positions, from the model's own module, which knows its scaling."""
    positions = torch.arange(c.length)[None]
    tables = model.get_submodule(a.rotary)(torch.zeros(1), positions)
    cosine, sine = (t[0, :, : t.shape[-1] // 2].contiguous() for t in tables)
    c.rotary = 2 * cosine.shape[1]
    c.cosine, c.sine = products.keep(cosine), products.keep(sine)


def _buffers(c: step.Model, products: Products, most: int, threads: int) -> None:
    """Floats for `most` tokens and for each thread."""
    layers = [c.layer[index] for index in range(c.layers)]
    group = c.heads // c.kv_heads
    outputs = [one.rows for layer in layers for one in (layer.out, layer.down)]
    floats = {
        "x": most * c.hidden,
        "normed": most * max(c.hidden, c.tokens_width),
        "mixed": most * max(layer.attention.rows for layer in layers),
        "queries": most * c.heads * c.room,
        "attended": most * c.heads * c.size,
        "wide": most * max(layer.up.rows for layer in layers),
        "y": most * max(*outputs, c.project_in.rows, c.project_out.rows),
        "scratch": products.scratch,
        "scores": threads * step.RUN * group * c.length,
        "sums": threads * step.RUN * group * c.room,
    }
    for name, count in floats.items():
        setattr(c, name, products.keep(torch.zeros(count)))
