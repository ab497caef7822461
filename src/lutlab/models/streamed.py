"""Blocks of a model larger than memory: read from safetensors shards (or drawn) when opened, freed when closed.

Peak memory is the embeddings, the head and one block. Everything outside the blocks is in memory from the beginning;
blocks live on the meta device, shapes without storage. After quantization, `serve` reads the quantized blocks from
where they were kept, one at a time, whenever the model is called: any evaluator works, and reads every block once a
batch.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, nn, torch
from lutlab.models.families import decoder_blocks, family_of, model_class
from lutlab.models.files import Shards
from lutlab.models.pretrained import generation_config_of

_M_MMAP_THRESHOLD = -3  # malloc.h
Fill = Callable[["nn.Module", str], None]  # gives a module on the meta device its weights


class Streamed:
    """The blocks of a model of which one at a time is in memory."""

    def __init__(self, model: PreTrainedModel, fill: Fill, device: str) -> None:
        self._blocks = decoder_blocks(model)
        self._path = family_of(model.config).blocks
        self._fill, self._device = fill, device

    def __len__(self) -> int:
        return len(self._blocks)

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """A block with its full-precision weights; closed, it is shapes only again."""
        block = self._blocks[index]
        try:
            self._fill(block, f"{self._path}.{index}.")
            yield block
        finally:
            release(block)

    def fill(self) -> None:
        """Bring all blocks into memory, to stay."""
        for index, block in enumerate(self._blocks):
            self._fill(block, f"{self._path}.{index}.")

    def serve(self, load: Callable[[int, nn.Module, str], object] | None = None) -> None:
        """`load(index, block, device)` makes a block in front of its forward pass; behind it, it is freed.

        None: its full-precision weights make it.
        """
        for index, block in enumerate(self._blocks):

            def before(module: nn.Module, _: object, index: int = index) -> None:
                if load:
                    load(index, module, self._device)
                else:
                    self._fill(module, f"{self._path}.{index}.")

            def after(module: nn.Module, *_: object) -> None:
                release(module)

            block.register_forward_pre_hook(before)
            block.register_forward_hook(after, always_call=True)


def release(block: nn.Module) -> None:
    """Free what a block's state holds: parameters and persistent buffers become shapes on the meta device.

    By way of `_apply`, as `.to()` does it, so that a layer drops what it made of them (QuantLinear's execution).
    """
    computed = {
        id(buffer)
        for module in block.modules()
        for name, buffer in module._buffers.items()
        if name in module._non_persistent_buffers_set
    }
    block._apply(lambda t: t if id(t) in computed else torch.empty_like(t, device="meta"))


def return_freed_memory() -> None:
    """Let freed tensors go back to the operating system from now on, so that the process holds no more than it needs.

    glibc raises the size from which it does so to 32 MB as it meets larger ones, and the heap below that fragments: by
    the size of a weight a block, in a model of a hundred blocks several times the memory of one.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 2**20)


def trim_heap() -> None:
    """Return the free pages of the heap: what is smaller than a map of its own, and stays between others."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def skeleton(
    config: PreTrainedConfig, dtype: torch.dtype, folder: Path | None = None
) -> PreTrainedModel:
    """A model whose parameters are on the meta device; buffers that no checkpoint holds are computed.

    By the model's `_init_weights`, which knows these buffers since transformers 5: its own loading rests on that too.
    generation_config.json of a checkpoint's `folder` says how a text ends.

    Raises:
        LutlabError: that file is damaged.
    """
    with torch.device("meta"):
        model = model_class(config).from_config(config, dtype=dtype)
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
        if module._non_persistent_buffers_set:
            model._init_weights(module)
    if folder is not None and (generation := generation_config_of(folder)) is not None:
        model.generation_config = generation
    return model.eval()


def outside(model: PreTrainedModel) -> list[nn.Module]:
    """The modules with parameters of their own that belong to no block."""
    blocks = set(decoder_blocks(model).modules())
    return [
        module
        for module in model.modules()
        if module not in blocks and any(True for _ in module.parameters(recurse=False))
    ]


def from_shards(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: str
) -> tuple[PreTrainedModel, Streamed]:
    """A model whose blocks are read from the checkpoint in `folder`.

    Raises:
        LutlabError: a file or a weight is missing, truncated, of another shape, or not finite (for blocks: when they
            are opened).
    """
    model = skeleton(config, dtype, folder)
    shards = Shards(folder, model.base_model_prefix)
    tied = model.all_tied_weights_keys
    shards.check([n for n in model.state_dict() if n not in tied], family_of(config).blocks)
    check_tied(folder, model, shards)

    def fill(module: nn.Module, prefix: str) -> None:
        state = {f"{prefix}{name}": value for name, value in module.state_dict().items()}
        assign(module, prefix, shards.read(state, dtype, device))

    names = {module: name for name, module in model.named_modules()}
    for module in outside(model):
        prefix = f"{names[module]}."
        named = {prefix + n: p for n, p in module.named_parameters(recurse=False)}
        untied = {name: parameter for name, parameter in named.items() if name not in tied}
        assign(module, prefix, shards.read(untied, dtype, device))
    return finish(model, device), Streamed(model, fill, device)


def check_tied(folder: Path, model: PreTrainedModel, shards: Shards) -> None:
    """Refuse a checkpoint that holds other values for a weight than for the one that config.json ties it to.

    Raises:
        LutlabError: there is such a weight, or a file is damaged.
    """
    for target, origin in model.all_tied_weights_keys.items():
        if target not in shards or origin not in shards:
            continue
        weight, other = shards.mapped(target), shards.mapped(origin)
        wider = torch.promote_types(weight.dtype, other.dtype)
        if not torch.equal(weight.to(wider), other.to(wider)):
            raise LutlabError(
                f"{folder}: config.json ties {target} to {origin}, but the checkpoint holds other values for it: set "
                "tie_word_embeddings to false there"
            )


def synthetic(
    config: PreTrainedConfig, dtype: torch.dtype, device: str, seed: int
) -> tuple[PreTrainedModel, Streamed]:
    """A model of random weights whose blocks are drawn when they are opened, the same ones every time."""
    model = skeleton(config, dtype)

    def fill(module: nn.Module, prefix: str) -> None:
        _draw(model, [module], f"{seed}:{prefix}", device)

    _draw(model, outside(model), str(seed), device)
    return finish(model, device), Streamed(model, fill, device)


def _draw(model: PreTrainedModel, modules: Iterable[nn.Module], seed: str, device: str) -> None:
    """Random weights as the model's own initialisation gives them."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(zlib.crc32(seed.encode()))
        for root in modules:
            for module in root.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and parameter.is_meta:
                        empty = torch.empty_like(parameter, device="cpu")
                        module._parameters[name] = nn.Parameter(empty, requires_grad=False)
            root.apply(model._init_weights)  # children first: GPT-2's blocks then rescale theirs
            root.to(device)


def finish(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Tie what is tied, put computed buffers on the device."""
    model.tie_weights()
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
    return model


def assign(module: nn.Module, prefix: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put tensors, whose names begin with `prefix`, in the places of a module's parameters and buffers."""
    module.load_state_dict(
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items()},
        assign=True,
        strict=False,
    )
    for parameter in module.parameters():
        parameter.requires_grad_(False)
