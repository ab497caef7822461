"""The files of a checkpoint: safetensors only, never pickles; and what they say of how its weights are quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError

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
    except ValueError as error:
        raise LutlabError(f"{path} is damaged ({error}): copy the folder again") from error
    if not isinstance(written, dict):
        raise LutlabError(f"{path} is damaged (no mapping): copy the folder again")
    return written


def weight_files(folder: Path) -> list[Path]:
    """The files transformers reads: model.safetensors, else the shards named by the index and the index.

    Raises:
        LutlabError: one of them is missing, or there are no safetensors at all.
    """
    index = folder / "model.safetensors.index.json"
    wanted = ["model.safetensors"]
    if index.is_file() and not (folder / wanted[0]).is_file():
        try:
            wanted = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LutlabError(
                f"{index} is damaged ({type(error).__name__}: {error}): fetch it again"
            ) from error
        wanted.append(index.name)
    absent = [name for name in wanted if not (folder / name).is_file()]
    if absent:
        raise LutlabError(
            f"{folder} lacks {', '.join(absent[:3])}{' …' if absent[3:] else ''}: lutlab reads safetensors only, never "
            "pickled weights (*.bin); convert them with transformers' save_pretrained or fetch the missing shards"
        )
    return [folder / name for name in wanted]
