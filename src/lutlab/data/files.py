"""Rows out of one file by its suffix: .parquet, .json/.jsonl (one object a line, gzipped or not), .tsv, else lines.

A damaged file means the same to every source: LutlabError that names the file and says to fetch it again.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from lutlab.errors import LutlabError


def read_rows(path: Path, column: str | None, limit: int | None = None) -> list[str]:
    """The first `limit` rows (all if None) of `column`; of a plain text file its lines, without their line ends.

    Without a `column` a row is a whole record, as JSON.

    Raises:
        LutlabError: the file cannot be read or decoded, or lacks the column.
    """
    try:
        readers = {".parquet": _parquet, ".tsv": _tsv}
        rows = readers.get(path.suffix, _lines)(path, column)
        return list(itertools.islice(rows, limit))
    # pyarrow's ArrowInvalid and json's JSONDecodeError are ValueErrors, gzip's BadGzipFile is an OSError
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        detail = (str(error).splitlines() or ["no detail"])[0]
        wanted = f"rows with a text field '{column}'" if column else "records"
        raise LutlabError(
            f"{path} cannot be read as {wanted} ({type(error).__name__}: {detail})\n"
            "it is truncated, damaged or of another format: delete it and fetch it again, see docs/data-layout.md"
        ) from error


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        if column is None:
            for batch in file.iter_batches():
                yield from map(json.dumps, batch.to_pylist())
            return
        if column not in file.schema_arrow.names:
            raise KeyError(f"columns are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()


def _tsv(path: Path, column: str | None) -> Iterator[str]:
    """Fields between tabs, named by the first line; GLUE's quotation marks are text."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for record in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True):
            yield json.dumps(record) if column is None else record[column]


def _lines(path: Path, column: str | None) -> Iterator[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    # newline="\n": U+2028 and the like stay inside a row, as they do in the parquet files
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            if column is None or ".json" not in path.name:
                yield line.removesuffix("\n")
            else:
                yield json.loads(line)[column]
