"""Kinds of files that lutlab reads: how one is made, and the numbers that come of it by lutlab's own reading path."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.conftest import ROOT
from tests.gguf import gguf_files
from tests.models.architectures import make, token_ids, uniform
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab.base import sources
from lutlab.base.kept.findings import recall
from lutlab.base.specs import ModelSpec, TextSpec
from lutlab.checkpoint.stored import load_stored
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.data import load_text
from lutlab.experiment.artifact import catalog
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.records.frame import results
from lutlab.experiment.report.published import seal
from lutlab.experiment.store.record import LINES, read_lines
from lutlab.experiment.store.store import Store
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.choice import DENSE, Race
from lutlab.models.load import fingerprint, load_model, load_tokenizer
from lutlab.models.shape import shape_of
from lutlab.quantizers.contract import make_method

PUBLISHED = ROOT / "results" / "published" / "amd-epyc-2cores"
TABLE = "lut-gemm-v3/table3"  # a small one
OF = "0123456789abcdef"  # a folder that is named after its content
TEXT = "the attack ate a hat, another thing: ünïcode\n"


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        make: fills an empty folder.
        read: folder -> numbers, and the identity that a record repeats, as a text's hash. Numbers may differ from those
            of the undamaged folder only with the identity; without one they never may, and a mapping may lack entries,
            if that is said.
        files: pattern of those that are damaged.
        of_user: nothing but its content says what it should hold, so that another content is another input.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], tuple[Any, Any]]
    files: str = "**/*"
    of_user: bool = False


def numbers(model: torch.nn.Module, tokenizer: Any = None) -> list[Any]:
    """Digest of all weights, what they make of some tokens, and what a text is to the tokenizer."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    with torch.no_grad():
        logits = model(token_ids()).logits.double().sum().item()
    return [digest.hexdigest(), logits, tokenizer and tokenizer(TEXT)["input_ids"]]


# ---- what a run keeps ----


def quantized(method: str, **stores: Any) -> tuple[Any, None]:
    """A tiny LLaMA quantized with what is kept, or by the way kept for the next time."""
    model = make("llama-1")
    stats = quantize_model(model, make_method(method), uniform(model, 3, 16), token_ids(), **stores)
    return [numbers(model), [(s.squared_error, s.bits_stored) for s in stats]], None


def blocks(folder: Path) -> tuple[Any, None]:
    return quantized("gptq", kept=BlockStore(folder / OF))


def statistics(folder: Path) -> tuple[Any, None]:
    return quantized("awq", seen=StatsStore(folder / OF))


def records() -> dict[str, Any]:
    return dict(list(read_lines(PUBLISHED / TABLE / LINES).items())[:6])


def make_records(folder: Path) -> None:
    store = Store(folder)
    for record in records().values():
        store.save(record)


def read_records(folder: Path) -> tuple[Any, None]:
    """Cell by cell, as a plan asks for them; a cell without a record is measured again."""
    found = {cell: Store(folder).load(cell) for cell in records()}
    plain = {c: json.dumps(dataclasses.asdict(r), default=dict) for c, r in found.items() if r}
    return plain, None


def make_published(folder: Path) -> None:
    place = folder / "machine" / TABLE
    place.mkdir(parents=True)
    for name in (LINES, "table.csv"):
        shutil.copy(PUBLISHED / TABLE / name, place)
    seal(folder / "machine")


def read_published(folder: Path) -> tuple[Any, None]:
    frame = results(folder / "machine").drop(columns="folder")
    return {f"{r.row} {r.column} {r.metric}": str(r) for r in frame.itertuples(index=False)}, None


# ---- models ----


def spec(folder: Path) -> ModelSpec:
    return ModelSpec("tiny", "folder", str(folder / "model"))


def make_folder(folder: Path) -> None:
    make("llama-2").save_pretrained(folder / "model", max_shard_size="40KB")
    byte_tokenizer().save_pretrained(folder / "model")


def read_folder(folder: Path) -> tuple[Any, Any]:
    """As a plan and then a worker read it: shape, fingerprint, weights."""
    identity, shape = fingerprint(spec(folder)), shape_of(spec(folder))
    loaded = load_model(spec(folder), torch.float32, "cpu", 0)
    return [numbers(loaded.model, loaded.tokenizer), shape.parameters, shape.seqlen], identity


def saved(export: Callable[..., None], folder: Path) -> None:
    method = "bcq" if export is lutlab.save else "rtn"
    export(
        lutlab.quantize(make("llama-2"), method=method, q=4, g=16),
        folder / "model",
        byte_tokenizer(),
    )


def read_saved(folder: Path) -> tuple[Any, None]:
    return numbers(lutlab.load(folder / "model"), load_tokenizer(folder / "model")), None


def read_stored(folder: Path, file: str = "model") -> tuple[Any, Any]:
    """method=stored: a plan reads the fingerprint, a worker the weights."""
    model = ModelSpec("tiny", "folder", str(folder / file))
    identity = fingerprint(model)
    loaded, layers, _ = load_stored(model, torch.float32, "cpu")
    return [numbers(loaded.model, loaded.tokenizer), [x.bits_stored for x in layers]], identity


def make_gguf(folder: Path) -> None:
    types = {"v_proj": "Q4_K", "down_proj": "Q6_K", "o_proj": "Q1_0", "up_proj": "Q8_0"}
    made = gguf_files.make("llama")
    gguf_files.write(folder / "x.gguf", made, lambda n: types.get(n.split(".")[-2], "Q4_1"))


# ---- texts, caches, tables ----


def make_texts(folder: Path) -> None:
    rows = [f"word{i} of word{i + 3}, and then word{i % 7}" for i in range(30)]
    files = {
        "wikitext2/wiki.test.raw": "".join(f" {row} \n" for row in rows),
        "lambada/lambada_test.jsonl": "".join(json.dumps({"text": row}) + "\n" for row in rows),
        "piqa/valid.jsonl": "".join(
            json.dumps({"goal": row, "sol1": row[:9], "sol2": row[9:]}) + "\n" for row in rows
        ),
        "piqa/valid-labels.lst": "0\n1\n" * 15,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def read_texts(folder: Path) -> tuple[Any, Any]:
    texts = [
        load_text(TextSpec(p, "folder", str(folder))) for p in ("wikitext2", "lambada", "piqa")
    ]
    return [list(text.rows) for text in texts], [text.sha256 for text in texts]


def recalled(folder: Path) -> tuple[Any, None]:
    os.environ["LUTLAB_CACHE"] = str(folder)
    return {n: recall("pydocs", [n.encode()], lambda n=n: {"rows": [n] * 9}) for n in "abc"}, None


def make_races(folder: Path) -> None:
    os.environ["LUTLAB_CACHE"] = str(folder)
    seconds = {1: {"lane_tables": 1.0, "bit_planes": 2.0, DENSE: 9.0}}
    choice.keep([Race("GPU", "float16", False, q, 128, (4096, 4096), seconds) for q in (2, 3)])


def read_races(folder: Path) -> tuple[Any, None]:
    os.environ["LUTLAB_CACHE"] = str(folder)
    found = choice.decisions("GPU", "float16", range(1, 9))
    return {str(race["bits"]): str(race) for race in found}, None


def make_yaml(folder: Path) -> None:
    (folder / "own").mkdir()
    shutil.copy(sources.folder("experiments") / "lut-gemm-v3" / "table3.yaml", folder / "own")


def read_yaml(folder: Path) -> tuple[Any, None]:
    with mock.patch.object(catalog, "_folders", [*catalog._folders]):
        catalog.add_folder(folder)
        return repr(load_artifact("own/table3")), None


KINDS = {
    "blocks": Kind(blocks, blocks),
    "statistics": Kind(statistics, statistics),
    "records": Kind(make_records, read_records),
    "published": Kind(make_published, read_published, "**/[rt]*"),
    "folder": Kind(make_folder, read_folder),
    "saved": Kind(functools.partial(saved, lutlab.save), read_saved),
    "gptq": Kind(functools.partial(saved, lutlab.export_gptq), read_stored),
    "gguf": Kind(make_gguf, functools.partial(read_stored, file="x.gguf")),
    "texts": Kind(make_texts, read_texts),
    "cached texts": Kind(recalled, recalled),
    "races": Kind(make_races, read_races),
    "yaml": Kind(make_yaml, read_yaml, of_user=True),
}
