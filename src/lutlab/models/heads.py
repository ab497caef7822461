"""Heads of a config.json that fit the model's other sizes: transformers would round where they do not divide.

hidden size = heads * head size, unless head_dim says another       heads = key-value heads * queries that share one
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError

# The names of a size: of most architectures, GPT-2's, GPT-Neo's.
_HEADS, _HIDDEN = ("num_attention_heads", "n_head", "num_heads"), ("hidden_size", "n_embd")
_KEY_VALUE, _SIZE = ("num_key_value_heads",), ("head_dim",)


def check_heads(folder: Path) -> None:
    """Refuse the readable config.json of a folder whose numbers of heads do not fit; what it leaves out has defaults.

    Raises:
        LutlabError: one of the sizes is no positive integer, or heads do not divide the hidden size, or key-value
            heads the heads.
    """
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    heads, hidden = _size(written, _HEADS, path), _size(written, _HIDDEN, path)
    shared, size = _size(written, _KEY_VALUE, path), _size(written, _SIZE, path)
    if heads and hidden and size is None and hidden % heads:
        raise _misfit(path, f"{heads} attention heads do not divide the hidden size of {hidden}")
    if heads and shared and heads % shared:
        raise _misfit(path, f"{shared} key-value heads do not divide the {heads} attention heads")


def _size(written: dict[str, Any], names: tuple[str, ...], path: Path) -> int | None:
    """The size under the first of some names; None where it is left to its default."""
    for name in names:
        value = written.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise _misfit(path, f"{name} is {value!r}, no positive integer")
            return value
    return None


def _misfit(path: Path, cause: str) -> LutlabError:
    return LutlabError(
        f"{path}: {cause}: the file is damaged or of another model; fetch it again from where the weights came from"
    )
