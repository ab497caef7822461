"""A model whose blocks stay in its files: one is open at a time, and only pages that are looked at are read.

Blocks in the sense of models/resident.py, quantized ones among them. Embeddings and norms are in memory from the
beginning; an output head of its own is the file's pages too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lutlab.checkpoint.transformers import empty_layers
from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedConfig, nn, torch
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.files import Shards
from lutlab.models.streamed import assign, finish, outside, release, skeleton


class Mapped:
    """The model and its blocks, which are shapes on the meta device while they are not open."""

    def __init__(
        self,
        folder: Path,
        config: PreTrainedConfig,
        layers: Mapping[str, Mapping[str, Any]],
        dtype: torch.dtype,
    ) -> None:
        """Read embeddings and norms.

        Args:
            folder: folder with safetensors.
            config: the model's config.
            layers: path -> layout of each quantized layer.
            dtype: dtype of everything that is not quantized.

        Raises:
            LutlabError: config, layouts and files do not belong together, or a file is damaged.
        """
        self.model = skeleton(config, dtype)
        for name, module in empty_layers(self.model, layers):
            self.model.set_submodule(name, module)
        self._folder, self._path = folder, family_of(config).blocks
        self._shards = Shards(folder, self.model.base_model_prefix)
        tied = self.model.all_tied_weights_keys
        self._shards.check([n for n in self.model.state_dict() if n not in tied], self._path)
        names = {module: name for name, module in self.model.named_modules()}
        head = self.model.get_output_embeddings()
        for module in outside(self.model):
            own = {f"{names[module]}.{n}": p for n, p in module.named_parameters(recurse=False)}
            own = {name: self._stored(name, p) for name, p in own.items() if name not in tied}
            if module is not head:
                own = {name: tensor.clone() for name, tensor in own.items()}
            assign(module, f"{names[module]}.", own)
        finish(self.model, "cpu")

    def __len__(self) -> int:
        return len(decoder_blocks(self.model))

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """A block whose tensors are the files' pages; closed, it is shapes only again.

        Raises:
            LutlabError: a file is damaged, or a tensor is not what config.json says.
        """
        block, prefix = decoder_blocks(self.model)[index], f"{self._path}.{index}."
        parameters = dict(block.named_parameters())
        found = {
            name: self._stored(prefix + name, tensor, packed=name not in parameters)
            for name, tensor in block.state_dict().items()
        }
        try:
            assign(block, prefix, {prefix + name: tensor for name, tensor in found.items()})
            yield block
        finally:
            release(block)

    def _stored(self, name: str, expected: torch.Tensor, *, packed: bool = False) -> torch.Tensor:
        """A tensor of the files; what is not packed has the model's dtype."""
        found = self._shards.mapped(name)
        if found.shape != expected.shape or (packed and found.dtype != expected.dtype):
            raise LutlabError(
                f"{self._folder}: {name} is {found.dtype} {list(found.shape)} in the files, but config.json says "
                f"{expected.dtype} {list(expected.shape)}: the two belong to different models; copy the folder again"
            )
        return found if packed else found.to(expected.dtype)
