"""The files of a checkpoint: safetensors only, never pickles."""

from __future__ import annotations

import json
from pathlib import Path

from lutlab.errors import LutlabError


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
