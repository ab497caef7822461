"""CPU seconds to read texts from files: lutlab's readers, file by file, beside `datasets`, cold and warm.

    python benchmarks/bench_text_readers.py --data <folder> [--out <file.json>]     folder: docs/data-layout.md

Cold writes an Arrow copy into an empty cache, warm reads that one; both then make a list of rows, which lutlab's reader
gives by itself. The table of docs/data-layout.md is its output.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import origin

from lutlab.data.files import read_rows

# file -> (builder of `datasets`, column that lutlab reads; None: whole lines, decoded later)
FILES = {
    "lambada/lambada_test.jsonl": ("json", "text"),
    "hellaswag/hellaswag_val.jsonl": ("json", None),
    "wikitext2/wiki.test.raw": ("text", None),
    "ptb/ptb.train.txt": ("text", None),
}
TRIES = 3


def seconds(read: Callable[[], object]) -> float:
    """The least CPU seconds of some tries."""
    found = []
    for _ in range(TRIES):
        began = time.process_time()
        read()
        found.append(time.process_time() - began)
    return min(found)


def through_datasets(path: Path, kind: str, cache: str) -> list[object]:
    """The rows as `datasets` gives them, as a list."""
    from datasets import load_dataset

    return list(load_dataset(kind, data_files=str(path), split="train", cache_dir=cache))


def row(path: Path, kind: str, column: str | None) -> dict[str, object]:
    """One file's times."""
    with tempfile.TemporaryDirectory() as cache:
        began = time.process_time()
        through_datasets(path, kind, cache)
        cold = time.process_time() - began
        warm = seconds(lambda: through_datasets(path, kind, cache))
    ours = seconds(lambda: read_rows(path, column))
    return {"file": path.name, "ours_s": ours, "datasets_cold_s": cold, "datasets_warm_s": warm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of texts; without it nothing is run")
    parser.add_argument("--out", type=Path, help="JSON")
    given = parser.parse_args()
    if given.data is None:
        parser.exit(0, "not run: give --data=<folder of texts>\n")
    with tempfile.TemporaryDirectory() as cache:  # datasets' imports and first use, once
        through_datasets(given.data / "wikitext2/wiki.test.raw", "text", cache)
    rows = [row(given.data / name, *how) for name, how in FILES.items()]
    print(json.dumps(rows, indent=1))
    if given.out:
        origin.write(given.out, {"datasets": importlib.metadata.version("datasets"), "rows": rows})


if __name__ == "__main__":
    main()
