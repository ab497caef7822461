"""Finished blocks, statistics and states of tuning, a safetensors file each: a killed run goes on where it was.

    <folder>/block-0003.safetensors    the block's state after quantization; the header says which linear layers are
                                       quantized and how (QuantLinear.layout), and their LayerStats
    <folder>/inputs-0003.safetensors   hessian and mean_abs of every shared input of the block
    <folder>/rest-0000.safetensors     what a tuning found outside of quantized layers
    <folder>/tuning-<loop>.safetensors    state of an unfinished loop, until the blocks are there
    <folder>/tuning-facts.safetensors     how the tuning came about; it stays

The folder is named after everything that decides its contents. Every file repeats that name and its own, and has a
digest of both, its facts and its tensors, which is checked whenever it is read. What is damaged, or lies under a name
that is not its own, is set aside with a warning and made again. Files appear whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import Damaged, set_aside, write_atomically
from lutlab.base.specs import LayerStats
from lutlab.base.tensors import CalibStats
from lutlab.models.contract import SharedInput
from lutlab.modules import QuantLinear

log = logging.getLogger(__name__)


class KeptFiles:
    """Safetensors files of one folder, by the numbers of blocks or by names."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = Path(folder), kind

    def _path(self, index: int | str) -> Path:
        which = f"{index:04}" if isinstance(index, int) else index
        return self.folder / f"{self.kind}-{which}.safetensors"

    def has(self, index: int) -> bool:
        """Whether the file of a block is there and intact; it is read whole to say so.

        Raises:
            LutlabError: it is damaged, and the folder cannot be written.
        """
        return self.intact(index) is not None

    def write(self, index: int | str, tensors: Mapping[str, torch.Tensor], facts: Any) -> None:
        """Keep tensors and facts, in the place of those before.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        path = self._path(index)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        header = json.dumps({"file": path.name, "of": self.folder.name, "facts": facts})
        # one entry: safetensors writes several in any order, and the same block is to be the same bytes
        write_atomically(
            path, save(tensors, {"lutlab": f"{content_sha256(header, tensors)}\n{header}"})
        )

    def intact(self, index: int | str) -> tuple[dict[str, torch.Tensor], Any] | None:
        """Tensors and facts of a file; None where there is none, or none any more since it was damaged.

        Raises:
            LutlabError: it is damaged, and the folder cannot be written.
        """
        path = self._path(index)
        if not path.exists():
            return None
        try:
            return _read(path)
        except Damaged as error:
            place = set_aside(path)
            log.warning(
                "%s is damaged (%s): set aside as %s, and made again", path, error, place.name
            )
            return None

    def _gone(self, index: int) -> LutlabError:
        return LutlabError(
            f"{self._path(index)} is gone, which was there when this run began: run again; the blocks that are still "
            "there are kept"
        )

    def _misfit(self, index: int, error: Exception) -> LutlabError:
        cause = str(error).strip().splitlines()[-1].strip()
        return LutlabError(
            f"{self._path(index)} does not fit the model ({cause}): delete that file and run again; the other blocks "
            "are kept"
        )


def _read(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors, in memory of their own, and facts of a file that KeptFiles wrote.

    Raises:
        Damaged: it is not intact, or was written under another name or for another folder.
    """
    try:
        with safe_open(path, framework="pt") as file:
            digest, _, header = file.metadata()["lutlab"].partition("\n")
            # copies: what was checked stays so, whatever happens to the file
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if content_sha256(header, tensors) != digest:
            raise Damaged("its digest is not that of its content")
        content = json.loads(header)
        name, folder, facts = content["file"], content["of"], content["facts"]
    except Damaged:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    if (name, folder) != (path.name, path.parent.name):
        raise Damaged(f"it is {name} of {folder}")
    return tensors, facts


def content_sha256(header: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Digest of a text and of named tensors in main memory: their names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class BlockStore(KeptFiles):
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
        self.write(index, block.state_dict(), facts)

    def load(
        self, index: int, block: nn.Module, device: torch.device | str
    ) -> list[LayerStats] | None:
        """Load a block's state to `device`; returns None, and leaves the block alone, where no intact file has it.

        Raises:
            LutlabError: the file does not fit the block; or it is damaged, and the folder cannot be written.
        """
        content = self.intact(index)
        if content is None:
            return None
        tensors, facts = content
        try:
            for name, layout in facts["layouts"].items():
                block.set_submodule(
                    name, QuantLinear.from_layout(layout, device="meta"), strict=True
                )
            block.load_state_dict({n: t.to(device) for n, t in tensors.items()}, assign=True)
            return [LayerStats(**layer) for layer in facts["layers"]]
        except (RuntimeError, AttributeError, KeyError, TypeError, LutlabError) as error:
            raise self._misfit(index, error) from error

    def serve(self, index: int, block: nn.Module, device: torch.device | str) -> list[LayerStats]:
        """Load a block that must be there; returns the statistics of its layers.

        Raises:
            LutlabError: the file of a block does not fit it, is gone, or was damaged since the block was quantized.
        """
        layers = self.load(index, block, device)
        if layers is None:
            raise self._gone(index)
        return layers

    def forget_from(self, index: int) -> None:
        """Remove this block and all later ones: what they were made from is made anew, and may differ by a last bit.

        Raises:
            LutlabError: the folder cannot be written.
        """
        paths = sorted(self.folder.glob(f"{self.kind}-*.safetensors"))
        later = [path for path in paths if path >= self._path(index)]
        if not later:
            return
        log.warning(
            "%s: %d blocks from %s on rest on what is made anew, and are made again",
            self.folder,
            len(later),
            later[0].name,
        )
        for path in later:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise LutlabError(
                    f"cannot remove {path} ({error.strerror}), which rests on what is made anew: delete it and run "
                    "again"
                ) from error


class RestStore(KeptFiles):
    """Parameters outside of quantized layers that a tuning found, under a folder: all of them or none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "rest")

    def save(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Write the parameters.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        self.write(0, parameters, {})

    def load(self) -> dict[str, torch.Tensor]:
        """Parameters by name.

        Raises:
            LutlabError: it is gone, or was damaged since.
        """
        if content := self.intact(0):
            return content[0]
        raise self._gone(0)


class StatsStore(KeptFiles):
    """Statistics of the full-precision model's linear inputs under a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "inputs")

    def save(self, index: int, stats: Mapping[SharedInput, CalibStats]) -> None:
        """Keep the statistics of a block's inputs.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        tensors: dict[str, torch.Tensor] = {}
        tokens = {}
        for shared, sums in stats.items():
            name = shared.layers[0]
            tensors |= {f"{name}.hessian": sums.hessian, f"{name}.mean_abs": sums.mean_abs}
            tokens[name] = sums.tokens
        self.write(index, tensors, tokens)

    def load(
        self, index: int, shared: Sequence[SharedInput], device: torch.device
    ) -> dict[SharedInput, CalibStats]:
        """Read the statistics of a block's inputs.

        Raises:
            LutlabError: the file is gone, or was damaged since `has` was asked; or it lacks some of `shared`.
        """
        content = self.intact(index)
        if content is None:
            raise self._gone(index)
        tensors, tokens = content
        try:
            return {
                shared_input: CalibStats(
                    tensors[f"{shared_input.layers[0]}.hessian"].to(device),
                    tensors[f"{shared_input.layers[0]}.mean_abs"].to(device),
                    tokens[shared_input.layers[0]],
                )
                for shared_input in shared
            }
        except (KeyError, TypeError) as error:
            raise self._misfit(index, error) from error


_FACTS = "facts"  # no loop has that name


class TuningStore(KeptFiles):
    """States of tuning's unfinished loops under a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tuning")

    def forget(self) -> None:
        """Remove all states: what they led to is kept elsewhere. Facts stay."""
        for path in self.folder.glob(f"{self.kind}-*.safetensors"):
            if path != self._path(_FACTS):
                path.unlink(missing_ok=True)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Write down how a tuning came about, for who evaluates its blocks later."""
        self.write(_FACTS, {}, facts)

    def facts(self) -> Mapping[str, Any] | None:
        """Noted facts; None where no intact file has them."""
        content = self.intact(_FACTS)
        return content and content[1]
