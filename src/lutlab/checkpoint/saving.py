"""Save a quantized model to a folder, from which it loads again bit for bit (loading.py).

    lutlab.save(model, "opt-3bit", tokenizer)

The folder is what transformers' save_pretrained writes: config.json, whose quantization_config names every quantized
layer (checkpoint/transformers.py), safetensors with the packed buffers, the tokenizer's files; and SHA256SUMS of them
all. AutoModelForCausalLM.from_pretrained loads it as well, once lutlab is imported; both compare the files first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lutlab import arguments
from lutlab.checkpoint.transformers import declare
from lutlab.errors import LutlabError
from lutlab.kept.files import draft_beside, write_sums
from lutlab.lazy import PreTrainedModel, PreTrainedTokenizerBase

_SIZE = re.compile(r"[1-9]\d*(\.\d+)?[KMGT]i?B")  # as huggingface_hub reads it


def save(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: str = "5GB",
) -> None:
    """Write a quantized model. The folder appears when it is complete.

    Args:
        model: model with quantized layers, as lutlab.quantize leaves it.
        folder: new, or empty.
        tokenizer: saved beside the model.
        max_shard_size: largest size of one safetensors file, in transformers' notation: `500MB`, `5GB`.

    Raises:
        LutlabError: no layer is quantized, the folder is not empty, or it cannot be written.
    """
    check_saved(model, tokenizer)
    if not isinstance(max_shard_size, str) or not _SIZE.fullmatch(max_shard_size):
        raise LutlabError(
            f"max_shard_size is {arguments.described(max_shard_size)}: give a size with its unit, as 500MB or 5GB"
        )
    declare(model)
    with new_folder(folder) as draft:
        model.save_pretrained(draft, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)


def check_saved(model: Any, tokenizer: Any) -> None:
    """Refuse what is no model with a tokenizer, or without one, that a folder can hold.

    Raises:
        LutlabError: the model is of another kind, or without weights.
    """
    arguments.model(model)
    if tokenizer is not None:
        arguments.tokenizer(tokenizer)


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to fill, which gets SHA256SUMS and its name at the end, or is removed after an error.

    Raises:
        LutlabError: the folder is not empty, or nothing can be written there.
    """
    folder = arguments.path("folder", folder).resolve()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise LutlabError(
            f"{folder} is not empty: lutlab overwrites no model; give a new folder, or remove that one first"
        )
    try:
        with draft_beside(folder) as beside:
            draft = beside / folder.name  # beside is its user's alone, which the folder need not be
            draft.mkdir()
            yield draft
            write_sums(draft)
            if folder.is_dir():
                folder.rmdir()
            draft.rename(folder)
    except (OSError, SafetensorError) as error:
        raise LutlabError(
            f"cannot write {folder} ({type(error).__name__}: {error}): check the disk's space and permissions"
        ) from error
