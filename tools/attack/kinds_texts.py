"""Texts of a data folder, of every format that is read, and what is kept of texts in the cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lutlab.data import load_text
from lutlab.data.splits import SPLITS
from lutlab.kept.findings import recall
from lutlab.specs import TextSpec
from tools.attack.kinds import Kind

WORDS = [f"word{i}" for i in range(40)]


def _sentence(i: int) -> str:
    return " ".join(WORDS[(i * 7 + j) % 40] for j in range(5 + i % 4))


def _json_lines(records: Iterable[Any]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def _plain(count: int = 30) -> bytes:
    return "".join(f" {_sentence(i)} \n" for i in range(count)).encode()


def _lambada() -> bytes:
    return "".join(f"{_sentence(i)}\n" for i in range(30)).encode()


def _texts(count: int = 30) -> bytes:
    return _json_lines({"text": f"{_sentence(i)} – ö\n{_sentence(i + 1)}"} for i in range(count))


def _stsb() -> bytes:
    names = ["index", "genre", "filename", "year", "old_index", "source1", "source2"]
    names += ["sentence1", "sentence2", "score"]
    rows = [
        ["0", "g", "f", "2012", "1", "a", "b", _sentence(i), _sentence(i + 3), f"{i % 6}.000"]
        for i in range(12)
    ]
    return "".join("\t".join(row) + "\n" for row in [names, *rows]).encode()


def _arc() -> bytes:
    def record(i: int) -> dict[str, Any]:
        choices = [{"text": _sentence(i + j), "label": "ABCD"[j]} for j in range(4)]
        question = {"stem": _sentence(i), "choices": choices}
        return {"id": f"q{i}", "question": question, "answerKey": "ABCD"[i % 4]}

    return _json_lines(record(i) for i in range(10))


def _mnli() -> bytes:
    labels = ["entailment", "neutral", "contradiction"]
    return _json_lines(
        {"premise": _sentence(i), "hypothesis": _sentence(i + 2), "label": i % 3, "idx": i,
         "label_text": labels[i % 3], "text1": _sentence(i), "text2": _sentence(i + 2)}
        for i in range(12)
    )  # fmt: skip


def _hellaswag() -> bytes:
    return _json_lines(
        {"activity_label": "a", "ctx_a": _sentence(i), "ctx_b": "then", "ctx": _sentence(i) + " then",
         "endings": [_sentence(i + j) for j in range(4)], "label": i % 4, "split_type": "x", "ind": i}
        for i in range(10)
    )  # fmt: skip


def _winogrande() -> bytes:
    return _json_lines(
        {"sentence": f"{WORDS[i]} sees _ there", "option1": "Ann", "option2": "Bob", "answer": str(1 + i % 2)}
        for i in range(10)
    )  # fmt: skip


def _piqa() -> bytes:
    return _json_lines(
        {"goal": _sentence(i), "sol1": _sentence(i + 1), "sol2": _sentence(i + 2)}
        for i in range(10)
    )


# file below the data folder -> protocol that reads it, and its content
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "wikitext2/wiki.test.raw": ("wikitext2", _plain),
    "ptb/ptb.valid.txt": ("ptb", _plain),
    "ptb/ptb.test.txt": ("ptb-new", lambda: _plain(20)),
    "c4/en/c4-validation.00000-of-00008.json.gz": ("c4", lambda: gzip.compress(_texts(), mtime=0)),
    "calib/wikitext103_train_head.tokens": ("wikitext103-train-head", _plain),
    "lambada/lambada_test.jsonl": ("lambada", _texts),
    "lambada/lambada_test_plain_text.txt": ("lambada-standard", _lambada),
    "piqa/valid.jsonl": ("piqa", _piqa),
    "piqa/valid-labels.lst": ("piqa", lambda: b"0\n1\n" * 5),
    "hellaswag/hellaswag_val.jsonl": ("hellaswag", _hellaswag),
    "winogrande/dev.jsonl": ("winogrande", _winogrande),
    "arc/ARC-Easy-Test.jsonl": ("arc-easy", _arc),
    "arc/ARC-Challenge-Test.jsonl": ("arc-challenge", _arc),
    "glue/mnli_dev_matched.jsonl": ("mnli", _mnli),
    "glue/STS-B/dev.tsv": ("stsb", _stsb),
}


def make_texts(folder: Path) -> None:
    for name, (_, content) in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content())


def read_texts(folder: Path) -> dict[str, Any]:
    """Every text under its protocol: its rows, by the hash that its records repeat."""
    protocols = sorted({protocol for protocol, _ in FILES.values()})
    texts = [load_text(TextSpec(name, "folder", str(folder))) for name in protocols]
    rows = [hashlib.sha256(repr(text.rows).encode()).hexdigest() for text in texts]
    return {"numbers": rows, "identity": [text.sha256 for text in texts]}


# ---- the hub's cache, whose blobs have their hash for a name ----


def make_hub(folder: Path) -> None:
    name, revision, path = SPLITS["lambada", "test"].hub[0]
    repository = folder / f"datasets--{name.replace('/', '--')}"
    content = _texts()
    blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
    file = repository / "snapshots" / revision / path
    for path in (blob, file):
        path.parent.mkdir(parents=True)
    blob.write_bytes(content)
    file.symlink_to(os.path.relpath(blob, file.parent))


def read_hub(folder: Path) -> dict[str, Any]:
    from huggingface_hub import constants

    constants.HF_HUB_CACHE = str(folder)
    return {"numbers": load_text(TextSpec("lambada", "hub")).sha256}


# ---- kept findings ----

FOUND = {name: {"rows": [name, i, _sentence(i)]} for i, name in enumerate(["one", "two", "three"])}


def recall_all(folder: Path) -> dict[str, Any]:
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    kept = {n: recall("pydocs", [n.encode()], lambda v=value: v) for n, value in FOUND.items()}
    return {"numbers": kept}


KINDS = [
    Kind("texts", make_texts, read_texts, refused=("encode",), without=("swap_folders",)),
    Kind("hub-text", make_hub, read_hub),
    Kind("cached-texts", recall_all, recall_all),
]
