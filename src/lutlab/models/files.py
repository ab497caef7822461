"""The files of a checkpoint: safetensors only, never pickles; and what they say of how its weights are quantized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from lutlab import sources
from lutlab.errors import LutlabError
from lutlab.kept.sums import check_sums

# Beside a config.json without it: AutoGPTQ's and AutoAWQ's own files, neither of which names its method.
QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def quantization_of(folder: Path) -> dict[str, Any] | None:
    """The quantization config of a checkpoint, which names its `quant_method`; None where its weights are plain.

    Raises:
        LutlabError: a file of it is missing or damaged.
    """
    written = _json(folder / "config.json")
    found = written.get("quantization_config") or written.get("compression_config")
    for name, method in QUANTIZATION_FILES.items():
        if found is None and (folder / name).is_file():
            found = {"quant_method": method, **_json(folder / name)}
    if found is not None and not isinstance(found, dict):
        raise LutlabError(
            f"{folder}: quantization_config is {found!r} instead of a mapping: fetch config.json again"
        )
    return found


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
    found = sorted((sources.folder("conf") / "shapes").glob("*/config.json"))
    return {path.parent.name: path.parent for path in found}


def weight_files(folder: Path) -> list[Path]:
    """The files transformers reads: model.safetensors, else the shards named by the index and the index.

    Raises:
        LutlabError: one of them is missing, there are no safetensors at all, or the index is damaged or names a path
            outside of the folder (a link that lies in it may lead anywhere: it is the user's).
    """
    index = folder / "model.safetensors.index.json"
    wanted = ["model.safetensors"]
    if index.is_file() and not (folder / wanted[0]).is_file():
        wanted = [*_shards(index), index.name]
    absent = [name for name in wanted if not (folder / name).is_file()]
    if absent:
        raise LutlabError(
            f"{folder} lacks {', '.join(absent[:3])}{' …' if absent[3:] else ''}: lutlab reads safetensors only, never "
            "pickled weights (*.bin); convert them with transformers' save_pretrained or fetch the missing shards"
        )
    return [folder / name for name in wanted]


def _shards(index: Path) -> list[str]:
    """The files that an index names, sorted."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        if not named:
            raise ValueError("weight_map is empty")
        shards = sorted({PurePath(name) for name in named})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
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
                while chunk := file.read(1 << 24):
                    digest.update(chunk)
        except OSError as error:
            raise LutlabError(f"cannot read {path} ({error}): fetch it again") from error
    return digest.hexdigest()


def check_shipped(folder: Path, shipped: Path) -> None:
    """Check a model that ships with lutlab; a folder that lies elsewhere than in `shipped` is the user's.

    Raises:
        LutlabError: a file is missing, differs from its SHA256SUMS or cannot be read.
    """
    if folder.parent == shipped:
        cure = "a model that ships with lutlab is damaged; reinstall lutlab, or restore the file with git"
        check_sums(folder, cure, used=["config.json", "model.safetensors", "tokenizer.json"])
