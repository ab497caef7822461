"""Checks of what a caller of the Python API gives: a mistake is a LutlabError that names the argument.

A check returns what it was given, in the form that is worked with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch, transformers

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_LOST = 2.0**-8  # of a float64 matrix, by its Frobenius norm
_LONGEST = 60  # characters of a value in a message
_Kind = TypeVar("_Kind")


def described(value: Any) -> str:
    """The value in a few words: dtype and shape of a tensor, a short text or number itself, or its type.

    Examples:
        >>> described(2.5), described(object())
        ('2.5', 'object')
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return f"nested {value.dtype}"
        layout = "" if value.layout == torch.strided else f"{value.layout} "
        meta = " without values, on the meta device" if value.is_meta else ""
        return f"{layout}{value.dtype} {list(value.shape)}{meta}"
    simple = isinstance(value, bool | int | float | str)
    shown = ascii(value) if simple else type(value).__name__
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def instance(
    name: str, value: Any, kinds: type[_Kind] | tuple[type[_Kind], ...], expected: str
) -> _Kind:
    """A value of some classes; a bool is no number.

    Raises:
        LutlabError: the value is of another class; `expected` says what to give.
    """
    number = isinstance(value, bool) and bool not in (
        kinds if isinstance(kinds, tuple) else (kinds,)
    )
    if number or not isinstance(value, kinds):
        raise LutlabError(f"{name} is {described(value)}: give {expected}")
    return value


def integer(name: str, value: Any, least: int, expected: str) -> int:
    """An int of at least `least`."""
    if instance(name, value, int, expected) < least:
        raise LutlabError(f"{name} is {described(value)}: give {expected}")
    return value


def strings(name: str, value: Any, expected: str) -> tuple[str, ...]:
    """Several strings: a list or tuple of them. A single one would be taken for its letters.

    Raises:
        LutlabError: one string, another class, or something else among them.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise LutlabError(f"{name} is {described(value)}: give {expected}")
    for item in value:
        text(f"{name} holds what", item, "strings only")
    return tuple(value)


def text(name: str, value: Any, expected: str) -> str:
    """A string that UTF-8 can spell.

    Raises:
        LutlabError: another class, or lone surrogates, as of bytes that were decoded wrongly.
    """
    instance(name, value, str, expected)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise LutlabError(
            f"{name} has characters that UTF-8 cannot spell, first at {error.start}: read the file again, with its own "
            "encoding"
        ) from error
    return value


def path(name: str, value: Any) -> Path:
    """A path with ~ replaced, which may or may not exist.

    Raises:
        LutlabError: neither a string nor a path, empty, or none that a file can have.
    """
    instance(name, value, (str, os.PathLike), "the path of a folder")
    try:
        place = Path(value).expanduser()
        place.lstat() if "\0" in str(place) else place.exists()  # refuse what no file can be called
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise LutlabError(f"{name} is {described(value)}, no path of a file ({error})") from error
    if not str(value):
        raise LutlabError(f"{name} is empty: give the path of a folder, '.' for the present one")
    return place


def _dense(value: Any) -> bool:
    """Whether a value is a strided matrix with numbers, neither of its axes empty."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
        return False
    return not value.is_meta and value.ndim == 2 and value.numel() > 0


def matrix(name: str, value: Any, axes: str) -> torch.Tensor:
    """A dense matrix of floating-point numbers, as float32.

    Args:
        name: name of the argument.
        value: a strided tensor of two axes, neither of them empty, of any device but meta.
        axes: axes of the matrix as the message prints them, `[N, K]`.

    Raises:
        LutlabError: anything else; or float64 numbers that float32 cannot hold.
    """
    if not _dense(value) or str(value.dtype).removeprefix("torch.") not in _FLOATS:
        raise LutlabError(f"{name} must be a floating-point matrix {axes}, got {described(value)}")
    single = value.detach().float().resolve_neg()
    if value.dtype == torch.float64 and bool(torch.isfinite(value).all()):
        exact = value.detach() / (value.detach().abs().max() or 1.0)
        lost = single.double() / (value.detach().abs().max() or 1.0) - exact
        if not float(lost.norm()) <= _LOST * float(exact.norm()):
            raise LutlabError(
                f"{name} has numbers of at most {float(value.detach().abs().max()):.3g}, which float32 cannot hold: "
                "multiply them, so that the largest is near 1"
            )
    return single


def model(value: Any, *, streamed: bool = False) -> PreTrainedModel:
    """A transformers model whose weights are there; of one whose blocks are streamed, those of its embeddings."""
    made = "a transformers model, as AutoModelForCausalLM.from_pretrained makes it"
    instance("model", value, transformers.PreTrainedModel, made)
    whole = "a transformers model with its config"
    instance("model.config", value.config, transformers.PreTrainedConfig, whole)
    part = value.get_input_embeddings() if streamed else value
    if any(parameter.is_meta for parameter in part.parameters()):
        raise LutlabError(
            "the model has parameters without values, on the meta device: load its weights"
        )
    return value


def tokenizer(value: Any) -> Any:
    """A transformers tokenizer."""
    expected = "a transformers tokenizer, as AutoTokenizer.from_pretrained makes it"
    return instance("tokenizer", value, transformers.PreTrainedTokenizerBase, expected)


def token_ids(name: str, value: Any, vocabulary: int) -> torch.Tensor:
    """Token ids [samples, S] of a vocabulary.

    Raises:
        LutlabError: anything but a dense int64 or int32 matrix, or an id outside of the vocabulary.
    """
    if not _dense(value) or value.dtype not in (torch.int64, torch.int32):
        raise LutlabError(
            f"{name} must be token ids [samples, seqlen] int64, got {described(value)}"
        )
    low, high = map(int, value.aminmax())
    if low < 0 or high >= vocabulary:
        raise LutlabError(
            f"{name} has ids from {low} to {high}, and the model's vocabulary is 0 to {vocabulary - 1}: use the "
            "model's own tokenizer"
        )
    return value
