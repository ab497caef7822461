"""The files of a checkpoint: safetensors only, never pickles; and what they say of how its weights are quantized."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from lutlab.base import sources
from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.kept.files import check_sums
from lutlab.base.lazy import torch

# Beside a config.json without it: AutoGPTQ's and AutoAWQ's own files, neither of which names its method.
QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# Tensors that older files hold and that are computed: causal masks, frequencies of the rotation, positions.
_COMPUTED = re.compile(
    r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|position_ids$"
)
_AUTO_GPTQ = "gptq_model-*bit-*g"  # how AutoGPTQ calls a file of weights
ANYBCQ = "anybcq"  # key of config.json under which AnyBCQ says how weights are quantized


def quantization_of(folder: Path) -> dict[str, Any] | None:
    """The quantization config of a checkpoint, which names its `quant_method`; None where its weights are plain.

    Raises:
        LutlabError: a file of it is missing or damaged.
    """
    written = _json(folder / "config.json")
    config = written.get("quantization_config") or written.get("compression_config")
    if config is None and isinstance(written.get(ANYBCQ), dict):
        config = {"quant_method": ANYBCQ, **written[ANYBCQ]}
    for name, method in QUANTIZATION_FILES.items():
        if config is None and (folder / name).is_file():
            config = {"quant_method": method, **_json(folder / name)}
    if config is not None and not isinstance(config, dict):
        raise LutlabError(
            f"{folder}: quantization_config is {config!r} instead of a mapping: fetch config.json again"
        )
    return config


def _json(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LutlabError(
            f"cannot read {path} ({error}): give the folder of a transformers model"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LutlabError(f"{path} is damaged ({error}): copy the folder again") from error
    if not isinstance(written, dict):
        raise LutlabError(f"{path} is damaged (no mapping): copy the folder again")
    return written


def shape_folders() -> dict[str, Path]:
    """Name -> folder of the configs alone that ship with lutlab: the papers' models, for synthetic weights."""
    paths = sorted((sources.folder("conf") / "shapes").glob("*/config.json"))
    return {path.parent.name: path.parent for path in paths}


def weight_files(folder: Path) -> list[Path]:
    """The files transformers reads: model.safetensors, else the shards named by the index and the index.

    Those of a quantized folder without either may be called as AutoGPTQ calls them, gptq_model-4bit-128g.safetensors,
    or as its quantize_config.json says (model_file_base_name).

    Raises:
        LutlabError: one of them is missing, there are no safetensors at all, or the index is damaged or names a path
            outside of the folder (a link that lies in it may lead anywhere: it is the user's).
    """
    base = _base_name(folder)
    index = folder / f"{base}.safetensors.index.json"
    names = [f"{base}.safetensors"]
    if index.is_file() and not (folder / names[0]).is_file():
        names = [*_shards(index), index.name]
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise LutlabError(
            f"{folder} lacks {', '.join(absent[:3])}{' …' if absent[3:] else ''}: lutlab reads safetensors only, never "
            "pickled weights (*.bin); convert them with transformers' save_pretrained or fetch the missing shards"
        )
    return [folder / name for name in names]


def _base_name(folder: Path) -> str:
    """What files of weights are called before .safetensors."""
    names = {path.name.partition(".safetensors")[0] for path in folder.glob("*.safetensors*")}
    if "model" in names or not (folder / "config.json").is_file():
        return "model"
    stated = (quantization_of(folder) or {}).get("model_file_base_name")
    if stated in names:
        return stated
    of_auto_gptq = fnmatch.filter(names, _AUTO_GPTQ)
    return of_auto_gptq[0] if len(of_auto_gptq) == 1 else "model"


def _shards(index: Path) -> list[str]:
    """The files that an index names, sorted."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        if not named:
            raise ValueError("weight_map is empty")
        shards = sorted({PurePath(name) for name in named})
    except (OSError, ValueError, *WRONG_TYPE) as error:
        raise LutlabError(
            f"{index} is damaged ({type(error).__name__}: {error}): fetch it again"
        ) from error
    outside = [name for name in shards if name.is_absolute() or ".." in name.parts]
    if outside:
        raise LutlabError(
            f"{index} names {outside[0]}, which is not in its folder: fetch it again, or put a link to that file there"
        )
    return [str(name) for name in shards]


def hash_of(files: Iterable[Path]) -> str:
    """SHA-256 of names, sizes and contents of files, in hex.

    Raises:
        LutlabError: one of them cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            digest.update(f"{path.name} {path.stat().st_size} ".encode())
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # into this one
        except OSError as error:
            raise LutlabError(f"cannot read {path} ({error}): fetch it again") from error
    return digest.hexdigest()


def check_names(
    folder: Path,
    lacking: Mapping[str, str],
    others: Iterable[str],
    names: Collection[str],
    blocks: str,
) -> None:
    """Refuse a checkpoint that lacks weights of its config, or holds tensors of parts that the model has without them.

    Args:
        folder: folder of the checkpoint.
        lacking: name of a weight that it does not fill -> what its file has instead.
        others: names that it holds and the model does not.
        names: names of the model's own tensors.
        blocks: the model's name of its decoder blocks' list.

    Raises:
        LutlabError: there is such a weight or tensor. Those of heads and towers that the model has not, and masks and
            rotations that are computed, are left aside.
    """
    if lacking:
        name = min(lacking)
        raise LutlabError(
            f"{folder} lacks {len(lacking)} weights that its config.json asks for, first {name} (the file "
            f"{lacking[name]}): the checkpoint is incomplete or belongs to another config; lutlab would otherwise "
            "evaluate random weights"
        )
    block = re.compile(rf"\b{blocks.rpartition('.')[2]}\.\d+\.")
    parts = {name.rpartition(".")[0] for name in names}
    parts |= {part.partition(".")[2] for part in parts}  # of a checkpoint of the bare decoder
    parts -= {""}
    superfluous = [
        name
        for name in others
        if not _COMPUTED.search(name) and (block.search(name) or name.rpartition(".")[0] in parts)
    ]
    if superfluous:
        raise LutlabError(
            f"{folder} holds {len(superfluous)} tensors that its config.json has no place for, first "
            f"{min(superfluous)}: without them the model would be another; the config belongs to another checkpoint "
            "(num_hidden_layers, attention_bias?)"
        )


def check_shipped(folder: Path, shipped: Path) -> None:
    """Check a model that ships with lutlab; a folder that lies elsewhere than in `shipped` is the user's.

    Raises:
        LutlabError: a file is missing, differs from its SHA256SUMS or cannot be read.
    """
    if folder.parent == shipped:
        cure = "a model that ships with lutlab is damaged; reinstall lutlab, or restore the file with git"
        check_sums(folder, cure, used=["config.json", "model.safetensors", "tokenizer.json"])


class Shards:
    """Weights by name from the safetensors files of one checkpoint, without reading the rest of them."""

    def __init__(self, folder: Path, base: str) -> None:
        """Read the names in every file.

        Args:
            folder: folder with model.safetensors, or shards and their index.
            base: the part of a model's names that a checkpoint of the bare decoder leaves out (`model`, `transformer`).

        Raises:
            LutlabError: a file is missing or truncated.
        """
        self._folder = folder
        stored: dict[str, tuple[str, Path]] = {}
        for path in weight_files(folder):
            if path.suffix == ".safetensors":
                with _opened(path) as file:
                    stored |= {name: (name, path) for name in file.keys()}  # noqa: SIM118, no mapping
        # the model's name of a weight -> the checkpoint's, and its file
        self._places = {f"{base}.{name}": place for name, place in stored.items()} | stored

    def __contains__(self, name: object) -> bool:
        """Whether the checkpoint holds a weight that the model calls `name`."""
        return name in self._places

    def check(self, names: Collection[str], blocks: str) -> None:
        """Refuse a checkpoint that lacks one of the model's weights `names`, or has blocks that the model lacks.

        Raises:
            LutlabError: weights are missing, or of blocks that the model lacks.
        """
        lacking = {name: "has no such weight" for name in names if name not in self}
        stored = {name for name, _ in self._places.values()}
        claimed = {self._places[name][0] for name in names if name in self}
        check_names(self._folder, lacking, stored - claimed, names, blocks)

    def read(
        self, expected: Mapping[str, torch.Tensor], dtype: torch.dtype, device: str
    ) -> dict[str, torch.Tensor]:
        """The weights named as the model names them; `check` has found them all.

        Args:
            expected: name -> a tensor of the same shape, which may be on the meta device.
            dtype: floating-point weights are converted to it.
            device: device of the tensors.

        Raises:
            LutlabError: a file is damaged, or a weight is of another shape, or not finite.
        """
        by_file: dict[Path, list[tuple[str, str]]] = {}
        for name in expected:
            stored, path = self._places[name]
            by_file.setdefault(path, []).append((name, stored))
        tensors = {}
        for path, names in by_file.items():
            with _opened(path) as file:
                for name, stored in names:
                    # a copy: the file's pages are given back when it is closed
                    tensor = file.get_tensor(stored).to(device=device, dtype=dtype, copy=True)
                    what, shape = f"{path}: weight {stored}", expected[name].shape
                    if tensor.shape != shape:
                        raise LutlabError(
                            f"{what} holds {list(tensor.shape)} instead of {list(shape)}: the checkpoint belongs to "
                            "another config"
                        )
                    check_finite(tensor, what)
                    tensors[name] = tensor
        return tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in which a tensor that the checkpoint holds is stored."""
        stored, path = self._places[name]
        with _opened(path) as file:
            return tuple(file.get_slice(stored).get_shape())

    def as_stored(self, name: str) -> torch.Tensor:
        """A tensor that the checkpoint holds, in its own shape and dtype; errors as of mapped."""
        return self.mapped(name).clone()

    def mapped(self, name: str) -> torch.Tensor:
        """A tensor like `as_stored`'s that is mapped, not read: pages of the file come into memory at their first use.

        Nothing may write to the file while the tensor, or a view of it, is there.

        Raises:
            LutlabError: a file is damaged.
        """
        stored, path = self._places[name]
        with _opened(path) as file:
            return file.get_tensor(stored)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise LutlabError(
            f"cannot read {path} ({type(error).__name__}: {error}): the file is damaged or truncated, fetch it again"
        ) from error


def check_finite(weight: torch.Tensor, what: str) -> None:
    """Raises LutlabError: a weight, as the message calls it, has numbers that are none."""
    if not torch.isfinite(weight).all():
        raise LutlabError(
            f"{what} holds NaN or infinite values; the checkpoint is damaged, or overflowed when it was saved in half "
            "precision: fetch it again or use its float32 form"
        )
