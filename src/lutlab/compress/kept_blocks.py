"""Finished blocks and calibration statistics, one safetensors file a block: a killed run goes on where it was.

    <folder>/block-0003.safetensors    the block's state after quantization; the header says which linear layers are
                                       quantized and how (QuantLinear.layout), and their LayerStats
    <folder>/inputs-0003.safetensors   hessian and mean_abs of every shared input of the block

The folder is named after everything that decides its contents, and every file repeats that name. Files appear whole or
not at all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from lutlab.atomic import write_atomically
from lutlab.errors import LutlabError
from lutlab.models.contract import SharedInput
from lutlab.modules import QuantLinear
from lutlab.specs import LayerStats
from lutlab.tensors import CalibStats


class _Files:
    """Numbered safetensors files of one folder."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = Path(folder), kind

    def _path(self, index: int) -> Path:
        return self.folder / f"{self.kind}-{index:04}.safetensors"

    def has(self, index: int) -> bool:
        """Whether the file of a block is there."""
        return self._path(index).is_file()

    def _write(self, index: int, tensors: Mapping[str, torch.Tensor], facts: Any) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        header = {"lutlab": json.dumps({"of": self.folder.name, "facts": facts})}
        write_atomically(self._path(index), save(tensors, header))

    def _read(self, index: int) -> tuple[dict[str, torch.Tensor], Any]:
        path = self._path(index)
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads(file.metadata()["lutlab"])
                owner, facts = header["of"], header["facts"]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise LutlabError(
                f"{path} is damaged ({type(error).__name__}: {error}): delete that file and run again; the other "
                "blocks are kept"
            ) from error
        if owner != self.folder.name:
            raise LutlabError(
                f"{path} belongs to {owner}, another model or another way to quantize it: delete that file and run "
                "again"
            )
        return tensors, facts

    def _misfit(self, index: int, error: Exception) -> LutlabError:
        cause = str(error).strip().splitlines()[-1].strip()
        return LutlabError(
            f"{self._path(index)} does not fit the model ({cause}): delete that file and run again; the other blocks "
            "are kept"
        )


class BlockStore(_Files):
    """Quantized blocks under a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "block")

    def save(self, index: int, block: nn.Module, layers: Sequence[LayerStats]) -> None:
        """Keep a block as it is now.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        layouts = {n: m.layout() for n, m in block.named_modules() if isinstance(m, QuantLinear)}
        facts = {"layouts": layouts, "layers": [dataclasses.asdict(layer) for layer in layers]}
        self._write(index, block.state_dict(), facts)

    def load(
        self, index: int, block: nn.Module, device: torch.device | str
    ) -> list[LayerStats] | None:
        """Bring a block into the state that was kept, on `device`; None where none was, and the block is as it was.

        Raises:
            LutlabError: the file is damaged, of another run, or does not fit the block.
        """
        if not self.has(index):
            return None
        tensors, facts = self._read(index)
        try:
            for name, layout in facts["layouts"].items():
                block.set_submodule(
                    name, QuantLinear.from_layout(layout, device="meta"), strict=True
                )
            block.load_state_dict({n: t.to(device) for n, t in tensors.items()}, assign=True)
            return [LayerStats(**layer) for layer in facts["layers"]]
        except (RuntimeError, AttributeError, KeyError, TypeError, LutlabError) as error:
            raise self._misfit(index, error) from error

    def serve(self, index: int, block: nn.Module, device: torch.device | str) -> None:
        """As load, for a block that must be there.

        Raises:
            LutlabError: as load; or its file is gone.
        """
        if self.load(index, block, device) is None:
            raise LutlabError(
                f"{self._path(index)} is gone, which was written when its block was quantized: run again; the blocks "
                "that are still there are kept"
            )


class StatsStore(_Files):
    """Statistics of the full-precision model's linear inputs under a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "inputs")

    def save(self, index: int, stats: Mapping[SharedInput, CalibStats]) -> None:
        """Keep the statistics of a block's inputs.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        tensors, tokens = {}, {}
        for shared, one in stats.items():
            name = shared.layers[0]
            tensors |= {f"{name}.hessian": one.hessian, f"{name}.mean_abs": one.mean_abs}
            tokens[name] = one.tokens
        self._write(index, tensors, tokens)

    def load(
        self, index: int, shared: Sequence[SharedInput], device: torch.device
    ) -> dict[SharedInput, CalibStats]:
        """Statistics of a block's inputs, as they were kept.

        Raises:
            LutlabError: the file is damaged, of another run, or lacks some of `shared`.
        """
        tensors, tokens = self._read(index)
        try:
            return {
                one: CalibStats(
                    tensors[f"{one.layers[0]}.hessian"].to(device),
                    tensors[f"{one.layers[0]}.mean_abs"].to(device),
                    tokens[one.layers[0]],
                )
                for one in shared
            }
        except (KeyError, TypeError) as error:
            raise self._misfit(index, error) from error
