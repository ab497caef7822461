"""Weights by name from the safetensors files of a checkpoint, without reading the rest of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lutlab.errors import LutlabError
from lutlab.models.files import weight_files

if TYPE_CHECKING:
    import torch


class Shards:
    """The files of one checkpoint."""

    def __init__(self, folder: Path, base: str) -> None:
        """Read the names in every file.

        Args:
            folder: with model.safetensors, or shards and their index.
            base: the part of a model's names that a checkpoint of the bare decoder leaves out (`model`, `transformer`).

        Raises:
            LutlabError: a file is missing or truncated.
        """
        from safetensors import SafetensorError, safe_open

        self._folder, self._base = folder, base
        self._file: dict[str, Path] = {}
        for path in weight_files(folder):
            if path.suffix != ".safetensors":
                continue
            try:
                with safe_open(path, framework="pt") as file:
                    self._file |= dict.fromkeys(file.keys(), path)
            except (OSError, SafetensorError) as error:
                raise LutlabError(
                    f"cannot read {path} ({type(error).__name__}: {error}): the file is damaged or truncated, fetch "
                    "it again"
                ) from error

    def read(
        self, wanted: Mapping[str, torch.Tensor], dtype: torch.dtype, device: str
    ) -> dict[str, torch.Tensor]:
        """The weights named as the model names them.

        Args:
            wanted: name -> a tensor of the shape expected, which may be on the meta device.
            dtype: floating-point weights are converted to it.
            device: where they go.

        Raises:
            LutlabError: a weight is missing, of another shape, or not finite.
        """
        import torch
        from safetensors import safe_open

        places: dict[Path, list[tuple[str, str]]] = {}
        for name in wanted:
            stored = self._stored(name)
            places.setdefault(self._file[stored], []).append((name, stored))
        found = {}
        for path, names in places.items():
            with safe_open(path, framework="pt") as file:
                for name, stored in names:
                    tensor = file.get_tensor(stored)
                    expected = wanted[name]
                    if tensor.shape != expected.shape:
                        raise LutlabError(
                            f"{path}: weight {stored} holds {list(tensor.shape)} instead of {list(expected.shape)}: the "
                            "checkpoint belongs to another config"
                        )
                    if not torch.isfinite(tensor).all():
                        raise LutlabError(
                            f"{path}: weight {stored} holds NaN or infinite values; the checkpoint is damaged, or "
                            "overflowed when it was saved in half precision: fetch it again or use its float32 form"
                        )
                    # a copy: the file's pages are given back when it is closed
                    found[name] = tensor.to(device=device, dtype=dtype, copy=True)
        return found

    def _stored(self, name: str) -> str:
        """The checkpoint's name of a weight."""
        for candidate in (name, name.removeprefix(f"{self._base}.")):
            if candidate in self._file:
                return candidate
        raise LutlabError(
            f"{self._folder} lacks the weight {name} that its config.json asks for: the checkpoint is incomplete or "
            "belongs to another config; lutlab would otherwise evaluate random weights"
        )
