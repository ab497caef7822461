"""Rows out of one file by its suffix: .parquet, .json/.jsonl (one object a line, gzipped or not), .tsv, else lines.

Text is UTF-8 whose lines end with a newline. A byte order mark, a NUL or a carriage return would be read as part of a
row and change every number after it, so they are refused; only between the objects of .jsonl a carriage return is
white space. U+2028 and the like stay inside a row, as they do in the parquet files.

Damage means the same to every source: LutlabError that names file and line, and says how to mend it.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path
from typing import Any

from lutlab.base.errors import WRONG_TYPE, LutlabError

_FETCH = "it is truncated, damaged or of another format: delete it and fetch it again, see docs/data-layout.md"
_MEND = "mend it with `dos2unix`, or delete it and fetch it again, see docs/data-layout.md"
# of a row that is not what it should be, json's and str.decode's among them; a file can fail in more ways
_ROW_ERRORS = (ValueError, OverflowError, *WRONG_TYPE)
_FILE_ERRORS = (OSError, EOFError, MemoryError, zlib.error, *_ROW_ERRORS)


class _Foreign(ValueError):
    """Text as another system writes it."""


def read_rows(path: Path, column: str | None, limit: int | None = None) -> list[str]:
    """The first `limit` rows (all if None) of `column`; of a plain text file its lines, without their line ends.

    Without a `column` a row is a whole record, as JSON: of .jsonl a line as it stands, for `parsed` to read.

    Raises:
        LutlabError: the file cannot be read or decoded, or lacks the column; or it is no file, as a pipe.
    """
    objects = path.suffix == ".parquet" or ".json" in path.name
    form = f"rows with a text field {column!r}" if column else "records"
    cause = f"cannot be read as {form if objects else 'plain text'}"
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # who opens a pipe waits for its writer
            raise OSError("it is no regular file")
        if path.suffix == ".parquet":
            return list(itertools.islice(_parquet(path, column), limit))
        if objects:
            with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
                return _objects(file, path, column, limit, cause)
        lines = _lines(path.read_bytes(), path, cause)
    except _FILE_ERRORS as error:
        raise _refusal(f"{path} {cause}", error) from error
    return (_tsv(lines, path, column, cause) if path.suffix == ".tsv" else lines)[:limit]


def each(make: Callable[[Any], str], rows: Iterable[Any], origin: str, cause: str) -> list[str]:
    """make(row) of every row of a file, in order.

    Args:
        make: function of a row, which raises ValueError, TypeError, KeyError or the like where it is damaged.
        rows: rows of one file.
        origin: path or name of the file.
        cause: the message's words about a row that is damaged, as "is no item of piqa"; it has its line too.
    """
    made: list[str] = []
    try:
        for row in rows:
            made.append(make(row))
    except _ROW_ERRORS as error:
        unit = "row" if origin.endswith(".parquet") else "line"
        first = 2 if origin.endswith(".tsv") else 1  # below its header
        raise _refusal(f"{unit} {first + len(made)} of {origin} {cause}", error) from error
    return made


def parsed(line: str) -> dict[str, Any]:
    """The JSON object that a line holds.

    Raises:
        ValueError, RecursionError: no JSON, nested too deeply, a field that stands twice, half a surrogate pair.
        TypeError: no object.
    """
    record = json.loads(line, object_pairs_hook=_object)
    if not isinstance(record, dict):
        raise TypeError(f"it is a {type(record).__name__}, no object")
    if "\\ud" in line or "\\uD" in line:  # only an escape can name half a character
        json.dumps(record, ensure_ascii=False).encode()
    return record


def text_of(record: Mapping[str, Any], field: str) -> str:
    """A field of a record that is a text.

    Raises:
        KeyError, TypeError: it is missing, or something else.
    """
    if not isinstance(record[field], str):
        raise TypeError(f"'{field}' is a {type(record[field]).__name__}, no text")
    return record[field]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a field stands twice")
    return record


def _refusal(what: str, error: Exception) -> LutlabError:
    detail = (str(error).splitlines() or ["no detail"])[0]
    if isinstance(error, _Foreign):
        return LutlabError(f"{what}: {detail}\n{_MEND}")
    return LutlabError(f"{what} ({type(error).__name__}: {detail[:300]})\n{_FETCH}")


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if column is None:
                for batch in file.iter_batches():
                    yield from map(json.dumps, batch.to_pylist())
                return
            if column not in file.schema_arrow.names:
                raise KeyError(f"columns are {', '.join(file.schema_arrow.names)}")
            for batch in file.iter_batches(columns=[column]):
                yield from (text_of(record, column) for record in batch.to_pylist())
    except pyarrow.ArrowException as error:  # some are neither ValueError nor OSError
        raise ValueError(str(error)) from error


def _objects(
    file: GzipFile | BufferedReader, path: Path, column: str | None, limit: int | None, cause: str
) -> list[str]:
    """Lines with an object each, or a text field of each."""
    if file.read(3) == codecs.BOM_UTF8:
        raise _Foreign("it begins with a byte order mark")
    file.seek(0)
    make = _line if column is None else lambda line: text_of(parsed(_line(line)), column)
    rows = each(make, itertools.islice(file, limit), str(path), cause)
    while path.suffix == ".gz" and file.read(2**20):
        pass  # gzip's checksum stands at the end, also of a file whose head is enough
    return rows


def _line(line: bytes) -> str:
    return line.decode().removesuffix("\n")


def _lines(data: bytes, path: Path, cause: str) -> list[str]:
    """The lines of plain text."""
    error: ValueError
    try:
        if data.startswith(codecs.BOM_UTF8):
            at, error = 0, _Foreign("it begins with a byte order mark")
        elif (at := data.find(b"\r")) >= 0:
            ending = data[at : at + 2] == b"\r\n"
            error = _Foreign("it ends with CR LF") if ending else ValueError("a lone CR is in it")
        elif (at := data.find(b"\0")) >= 0:
            error = ValueError("a NUL is in it: UTF-16, or damaged")
        else:
            text = data.decode()
            return text.removesuffix("\n").split("\n") if text else []
    except UnicodeDecodeError as undecoded:
        at, error = undecoded.start, undecoded
    number = data.count(b"\n", 0, at) + 1
    raise _refusal(f"line {number} of {path} {cause}", error) from error


def _tsv(lines: list[str], path: Path, column: str | None, cause: str) -> list[str]:
    """Fields between tabs, named by the first line; GLUE's quotation marks are text."""
    header, *rest = (line.split("\t") for line in lines or [""])

    def make(fields: list[str]) -> str:
        record = dict(zip(header, fields, strict=True))
        return json.dumps(record) if column is None else text_of(record, column)

    return each(make, rest, str(path), cause)
