"""What a GGUF file says that it holds, checked against the bytes that it has, before anything is made of it.

    "GGUF" · version · number of tensors · number of keys
    key …       name, type, value; a list: the type and number of its elements, and these
    tensor …    name, sizes (K first), type, offset
    padding to `general.alignment`, then the tensors

Counts, lengths and offsets are the file's word. Each is held against the bytes that are left before it is followed, so
that a damaged file ends in one message, and no list is made before its elements are known to be there.
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from lutlab.base.errors import LutlabError

VERSIONS = (2, 3)
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Types that releases of gguf do not know yet: number (ggml.h) -> name, weights and bytes of a block (ggml-common.h).
_NEWER = {41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18)}
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _LIST = 8, 9
_NAME_BYTES, _SIZES = 63, 4  # ggml's own limits: bytes of a tensor's name, its dimensions
_KEY_BYTES = 2**16 - 1
_ELEMENTS = 2**24  # of a list: a vocabulary has some 10^5
_OLD = "its metadata or its tensors are cut or damaged: fetch it again"
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Elements:
    """A list among a file's keys, whose contents `Header.elements` reads: their type, their number and their place."""

    type: int
    count: int
    offset: int


class Stored(NamedTuple):
    """A tensor of a file: sizes in torch's order, ggml's number and name of its type, place and bytes of its data."""

    shape: tuple[int, ...]
    number: int
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """Keys and tensors of a file, by their names."""

    path: Path
    keys: Mapping[str, int | float | bool | str | Elements]
    tensors: Mapping[str, Stored]

    def refused(self, cause: str, cure: str = _OLD) -> LutlabError:
        """The error about this file."""
        return _refusal(self.path, cause, cure)

    def elements(self, key: str) -> list[Any]:
        """The texts or numbers of a list among the keys; none where the file has no such key.

        Raises:
            LutlabError: the key is no list, or one of its texts is no UTF-8.
        """
        place = self.keys.get(key)
        if place is None:
            return []
        if not isinstance(place, Elements):
            raise self.refused(f"{key} is {place!r}, no list")
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Walk(self.path, data, place.offset).elements(place, key)


def read_header(path: Path) -> Header:
    """Keys and tensors of a GGUF file.

    Raises:
        LutlabError: it cannot be read, is no GGUF file, or does not hold what it says.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(path, data).header()
    except (OSError, ValueError) as error:  # a ValueError: of no bytes
        reason = getattr(error, "strerror", None) or error
        raise LutlabError(
            f"cannot read {path} ({reason}): give a GGUF file, or fetch it again"
        ) from error


def once_a_file(read: Callable[[Path], _Value]) -> Callable[[Path], _Value]:
    """A function of a file that is called anew only where it has changed; LutlabError where it cannot be read."""

    @functools.lru_cache(maxsize=64)  # a plan, its rows and their evaluations all ask
    def of_state(path: Path, *_: int) -> _Value:
        return read(path)

    @functools.wraps(read)
    def of_path(path: Path) -> _Value:
        try:
            state = path.stat()
            return of_state(path, state.st_ino, state.st_size, state.st_mtime_ns)
        except OSError as error:
            raise LutlabError(
                f"cannot read {path} ({error.strerror}): give a GGUF file (model=folder model.id=<path>.gguf)"
            ) from error

    return of_path


@functools.cache
def types() -> Mapping[int, tuple[str, int, int]]:
    """Ggml's number of a type -> its name, weights of a block, bytes of a block."""
    from gguf.constants import GGML_QUANT_SIZES

    known = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    return {**_NEWER, **known}


class _Walk:
    """One pass over a header."""

    def __init__(self, path: Path, data: mmap.mmap, at: int = 0) -> None:
        self._path, self._data, self._at = path, data, at

    def header(self) -> Header:
        """Everything up to the tensors' data, and where each lies."""
        if self._data[:4] != b"GGUF":
            self._refuse("it does not begin with GGUF", "give a GGUF file, or fetch it again")
        self._at = 4
        (version,) = self._take("I", "its version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            what = "written for big-endian machines" if swapped else f"of version {version}"
            self._refuse(
                f"it is {what}",
                "lutlab reads versions 2 and 3, little-endian: convert it by llama.cpp",
            )
        tensor_count, key_count = self._take("QQ", "its numbers of tensors and keys")
        self._fits(key_count, 13, "keys")  # bytes of the smallest: an empty name, a type, one byte
        self._fits(tensor_count, 32, "tensors")
        keys: dict[str, int | float | bool | str | Elements] = {}
        for _ in range(key_count):
            key = self._text(_KEY_BYTES, "the name of a key")
            if key in keys:
                self._refuse(f"it has the key {key!r} twice")
            (kind,) = self._take("I", f"the type of {key!r}")
            keys[key] = self._value(kind, key)
        tensors: dict[str, Stored] = {}
        for _ in range(tensor_count):
            name = self._text(_NAME_BYTES, "the name of a tensor")
            if name in tensors:
                self._refuse(f"it has the tensor {name!r} twice")
            tensors[name] = self._tensor(name)
        return Header(self._path, keys, self._placed(tensors, keys.get("general.alignment", 32)))

    def _value(self, kind: int, key: str) -> int | float | bool | str | Elements:
        if kind in _NUMBERS:
            return self._take(_NUMBERS[kind], repr(key))[0]
        if kind == _STRING:
            return self._text(None, f"the text of {key!r}")
        if kind != _LIST:
            self._refuse(f"the key {key!r} is of an unknown type ({kind})")
        kind, count = self._take("IQ", f"the list {key!r}")
        if kind not in _NUMBERS and kind != _STRING:
            self._refuse(
                f"the list {key!r} has elements of a type that lutlab does not read ({kind})"
            )
        width = struct.calcsize(_NUMBERS[kind]) if kind in _NUMBERS else 8
        self._fits(count, width, f"elements of the list {key!r}")
        if count > _ELEMENTS:
            self._refuse(
                f"the list {key!r} has {count} elements, and no model's has more than {_ELEMENTS}"
            )
        first = self._at
        if kind in _NUMBERS:
            self._at += count * width
        else:
            for _ in range(count):
                (length,) = self._take("Q", f"an element of {key!r}")
                self._skip(length, f"an element of {key!r}")
        return Elements(kind, count, first)

    def elements(self, place: Elements, key: str) -> list[Any]:
        """The contents of the list that begins here."""
        if place.type in _NUMBERS:
            return list(self._take(f"{place.count}{_NUMBERS[place.type]}", repr(key)))
        return [self._text(None, f"an element of {key!r}") for _ in range(place.count)]

    def _tensor(self, name: str) -> Stored:
        """A tensor by its entry, its offset still the file's."""
        (dimensions,) = self._take("I", f"the sizes of {name}")
        if not 1 <= dimensions <= _SIZES:
            self._refuse(f"tensor {name} has {dimensions} dimensions")
        sizes = self._take("Q" * dimensions, f"the sizes of {name}")
        number, offset = self._take("IQ", f"the place of {name}")
        if number not in types():
            self._refuse(
                f"tensor {name} is of type {number}, which the package gguf does not know",
                "update gguf (pip install -U gguf) if the file is new; else it is damaged, fetch it again",
            )
        kind, block, width = types()[number]
        if 0 in sizes or sizes[0] % block:
            self._refuse(
                f"tensor {name} has sizes {list(sizes)}, and {kind} stores {block} weights of a row together"
            )
        return Stored(
            tuple(reversed(sizes)), number, kind, offset, math.prod(sizes) // block * width
        )

    def _placed(self, tensors: Mapping[str, Stored], alignment: object) -> dict[str, Stored]:
        """The tensors by their offsets in the file, all inside of it and none inside of another."""
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._refuse(f"general.alignment is {alignment!r}, no power of two")
        end = start = -(-self._at // alignment) * alignment
        placed = {}
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
            first = start + tensor.offset
            if tensor.offset % alignment or first < end:
                self._refuse(
                    f"tensor {name} ({tensor.type}) begins at byte {first}, inside of another or not at a multiple of "
                    f"{alignment}",
                    "it is damaged, fetch it again, or a fork of llama.cpp gave this type's number to another type",
                )
            end = first + tensor.nbytes
            if end > len(self._data):
                self._refuse(
                    f"tensor {name} ends at byte {end}, and the file has {len(self._data)}",
                    "it is cut or damaged: fetch it again",
                )
            placed[name] = tensor._replace(offset=first)
        return placed

    def _take(self, form: str, what: str) -> tuple:
        first = self._at
        self._skip(struct.calcsize(f"<{form}"), what)
        return struct.unpack_from(f"<{form}", self._data, first)

    def _text(self, most: int | None, what: str) -> str:
        (length,) = self._take("Q", what)
        if most is not None and length > most:
            self._refuse(f"{what} is {length} bytes long, and {most} are the most")
        first = self._at
        self._skip(length, what)
        try:
            return self._data[first : self._at].decode()
        except UnicodeDecodeError:
            self._refuse(f"{what} is no UTF-8")

    def _skip(self, length: int, what: str) -> None:
        if length > len(self._data) - self._at:
            self._refuse(
                f"{what} is {length} bytes long, and {len(self._data) - self._at} are left"
            )
        self._at += length

    def _fits(self, count: int, width: int, what: str) -> None:
        if count * width > len(self._data) - self._at:
            self._refuse(
                f"it announces {count} {what}, and {len(self._data) - self._at} bytes are left for them"
            )

    def _refuse(self, cause: str, cure: str = _OLD) -> NoReturn:
        raise _refusal(self._path, cause, cure)


def _refusal(path: Path, cause: str, cure: str) -> LutlabError:
    return LutlabError(f"cannot read {path}: {cause}: {cure}")
