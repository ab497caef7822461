"""Save a quantized model to a folder and load it again, bit for bit.

    lutlab.save(model, "opt-3bit", tokenizer)
    model = lutlab.load("opt-3bit")

The folder is what transformers' save_pretrained writes: config.json, whose quantization_config names every quantized
layer (checkpoint/transformers.py), safetensors with the packed buffers, the tokenizer's files.
AutoModelForCausalLM.from_pretrained loads it as well, once lutlab is imported.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from transformers import AutoConfig

from lutlab.checkpoint.transformers import METHOD, declare
from lutlab.errors import LutlabError
from lutlab.models.families import model_class
from lutlab.models.files import weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: str = "5GB",
) -> None:
    """Write a quantized model. The folder appears when it is complete.

    Args:
        model: with quantized layers, as lutlab.quantize leaves it.
        folder: new, or empty.
        tokenizer: saved beside the model.
        max_shard_size: of one safetensors file, as transformers writes it: `500MB`, `5GB`.

    Raises:
        LutlabError: no layer is quantized, the folder is not empty, or it cannot be written.
    """
    declare(model)
    with new_folder(folder) as draft:
        model.save_pretrained(draft, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)


def load(
    folder: str | Path, dtype: torch.dtype | str = "auto", device: str = "cpu"
) -> PreTrainedModel:
    """Load what `save` wrote, in evaluation mode.

    Args:
        folder: that of `save`.
        dtype: of all that is not quantized; `auto` is the one it was saved in. Packed weights never change.
        device: where the model goes.

    Raises:
        LutlabError: `save` did not write the folder; files are missing, truncated or of another model.
    """
    folder = Path(folder).expanduser()
    _check_config(folder)
    weight_files(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model, info = model_class(config).from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise LutlabError(
            f"cannot load {folder} ({type(error).__name__}: {cause}): files are damaged, truncated or of another "
            "model; copy the folder again"
        ) from error
    if info["missing_keys"]:
        raise LutlabError(
            f"{folder} lacks {len(info['missing_keys'])} weights that its config.json asks for, first "
            f"{min(info['missing_keys'])}: files are incomplete or of another model; copy the folder again"
        )
    return model.to(device).eval()


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to fill beside the one asked for, renamed to it at the end; gone after an error.

    Raises:
        LutlabError: the folder is not empty, or nothing can be written there.
    """
    folder = Path(folder).expanduser().resolve()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise LutlabError(
            f"{folder} is not empty: lutlab overwrites no model; give a new folder, or remove that one first"
        )
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        yield draft
        if folder.is_dir():
            folder.rmdir()
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        raise LutlabError(
            f"cannot write {folder} ({type(error).__name__}: {error}): check the disk's space and permissions"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise LutlabError(f"no config.json in {folder}: give a folder that lutlab.save wrote")
    try:
        method = json.loads(path.read_text(encoding="utf-8")).get("quantization_config", {})
        method = method.get("quant_method")
    except (ValueError, AttributeError) as error:
        raise LutlabError(f"{path} is damaged ({error}): copy the folder again") from error
    if method != METHOD:
        raise LutlabError(
            f"{folder} is not a model that lutlab.save wrote (quant_method {method!r}, expected '{METHOD}'): load it "
            "with transformers' AutoModelForCausalLM.from_pretrained"
        )
