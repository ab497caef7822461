"""Weights by name from the safetensors files of a checkpoint, without reading the rest of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError
from lutlab.lazy import torch
from lutlab.models.files import weight_files


class Shards:
    """The files of one checkpoint."""

    def __init__(self, folder: Path, base: str) -> None:
        """Read the names in every file.

        Args:
            folder: folder with model.safetensors, or shards and their index.
            base: the part of a model's names that a checkpoint of the bare decoder leaves out (`model`, `transformer`).

        Raises:
            LutlabError: a file is missing or truncated.
        """
        self._folder, self._base = folder, base
        self._file: dict[str, Path] = {}
        for path in weight_files(folder):
            if path.suffix == ".safetensors":
                with _open(path) as file:
                    self._file |= dict.fromkeys(file.keys(), path)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint holds a weight that the model calls `name`."""
        return self._stored(name) is not None

    def check(self, names: Collection[str], blocks: str) -> None:
        """The checkpoint must hold the weights `names`, and its decoder blocks must find a place among them.

        Args:
            names: names of the weights in the model.
            blocks: the model's name of its decoder blocks' list.

        Raises:
            LutlabError: weights are missing, or of blocks that the model lacks.
        """
        lacking = [name for name in names if name not in self]
        if lacking:
            raise LutlabError(
                f"{self._folder} lacks {len(lacking)} weights that its config.json asks for, first {min(lacking)}: the "
                "checkpoint is incomplete or belongs to another config; lutlab would otherwise evaluate random weights"
            )
        claimed = {self._stored(name) for name in names}
        pattern = re.compile(rf"\b{blocks.rpartition('.')[2]}\.\d+\..*weight$")
        superfluous = [n for n in self._file if n not in claimed and pattern.search(n)]
        if superfluous:
            raise LutlabError(
                f"{self._folder} holds {len(superfluous)} weights of decoder blocks that its config.json has no place "
                f"for, first {min(superfluous)}: the config belongs to another checkpoint (num_hidden_layers?)"
            )

    def read(
        self, wanted: Mapping[str, torch.Tensor], dtype: torch.dtype, device: str
    ) -> dict[str, torch.Tensor]:
        """The weights named as the model names them; `check` has found them all.

        Args:
            wanted: name -> a tensor of the shape expected, which may be on the meta device.
            dtype: floating-point weights are converted to it.
            device: device of the tensors.

        Raises:
            LutlabError: a file is damaged, or a weight is of another shape, or not finite.
        """
        places: dict[Path, list[tuple[str, str]]] = {}
        for name in wanted:
            stored = self._stored(name)
            places.setdefault(self._file[stored], []).append((name, stored))
        found = {}
        for path, names in places.items():
            with _open(path) as file:
                for name, stored in names:
                    # a copy: the file's pages are given back when it is closed
                    tensor = file.get_tensor(stored).to(device=device, dtype=dtype, copy=True)
                    _check(tensor, wanted[name].shape, f"{path}: weight {stored}")
                    found[name] = tensor
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in which a tensor that the checkpoint holds is stored."""
        stored = self._stored(name)
        with _open(self._file[stored]) as file:
            return tuple(file.get_slice(stored).get_shape())

    def as_stored(self, name: str) -> torch.Tensor:
        """A tensor that the checkpoint holds, in its own shape and dtype.

        Raises:
            LutlabError: a file is damaged.
        """
        return self.mapped(name).clone()

    def mapped(self, name: str) -> torch.Tensor:
        """A tensor like `as_stored`'s that is mapped, not read: pages of the file come into memory at their first use.

        Nothing may write to the file while the tensor, or a view of it, is there.

        Raises:
            LutlabError: a file is damaged.
        """
        stored = self._stored(name)
        with _open(self._file[stored]) as file:
            return file.get_tensor(stored)

    def _stored(self, name: str) -> str | None:
        """The checkpoint's name of a weight."""
        for candidate in (name, name.removeprefix(f"{self._base}.")):
            if candidate in self._file:
                return candidate
        return None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise LutlabError(
            f"cannot read {path} ({type(error).__name__}: {error}): the file is damaged or truncated, fetch it again"
        ) from error


def _check(tensor: torch.Tensor, expected: torch.Size, what: str) -> None:
    if tensor.shape != expected:
        raise LutlabError(
            f"{what} holds {list(tensor.shape)} instead of {list(expected)}: the checkpoint belongs to another config"
        )
    if not torch.isfinite(tensor).all():
        raise LutlabError(
            f"{what} holds NaN or infinite values; the checkpoint is damaged, or overflowed when it was saved in half "
            "precision: fetch it again or use its float32 form"
        )
