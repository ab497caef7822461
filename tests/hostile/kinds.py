"""Kinds of files that lutlab reads: how one is made, and the numbers that come of it by lutlab's own reading path."""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
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
from lutlab.experiment.report.published import seal
from lutlab.experiment.store.record import LINES, read_lines
from lutlab.experiment.store.store import Store
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.choice import DENSE, Race
from lutlab.models.load import fingerprint, load_model, load_tokenizer
from lutlab.models.shape import shape_of
from lutlab.quantizers.contract import make_method

NAME = "lut-gemm-v3/table3"  # a small one
TABLE = ROOT / "results/published/amd-epyc-25-1-avx2-2cores" / NAME
KEPT = "0123456789abcdef"  # a folder that is named after its content
TEXT = "the attack ate a hat, another thing: ünïcode\n"
TYPES = {"v_proj": "Q4_K", "down_proj": "Q6_K", "o_proj": "Q1_0", "up_proj": "Q8_0"}
ROWS = [f"word{i} of word{i + 3}, and then word{i % 7}" for i in range(30)]
TEXTS = {
    "wikitext2/wiki.test.raw": "".join(f" {row} \n" for row in ROWS),
    "lambada/lambada_test.jsonl": "".join(json.dumps({"text": row}) + "\n" for row in ROWS),
    "piqa/valid.jsonl": "".join(
        json.dumps({"goal": row, "sol1": row[:9], "sol2": row[9:]}) + "\n" for row in ROWS
    ),
    "piqa/valid-labels.lst": "0\n1\n" * 15,
}
SECONDS = {1: {"lane_tables": 1.0, "bit_planes": 2.0, DENSE: 9.0}}
RACES = [Race("GPU", "float16", False, q, 128, (4096, 4096), SECONDS) for q in (2, 3)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files of one kind; their numbers may differ from those of the undamaged folder only with the identity."""

    read: Callable[[Path], Any]  # folder -> numbers; a mapping may lack entries, if that is said
    make: Callable[[Path], Any] | None = None  # fills an empty folder; without it reading does
    files: str = "**/*"  # those that are damaged
    identity: Callable[[Path], Any] = lambda folder: None  # what a record repeats, as a text's hash
    of_user: bool = False  # only its content says what it should hold: another one is another input


def numbers(model: torch.nn.Module, tokenizer: Any = None) -> list[Any]:
    """Digest of all weights, what they make of some tokens, and what a text is to the tokenizer."""
    weights = repr([(name, t.dtype, t.tolist()) for name, t in model.state_dict().items()])
    with torch.no_grad():
        logits = model(token_ids()).logits.double().sum().item()
    digest = hashlib.sha256(weights.encode()).hexdigest()
    return [digest, logits, tokenizer and tokenizer(TEXT)["input_ids"]]


def quantized(method: str, **stores: Any) -> list[Any]:
    """A tiny LLaMA quantized with what is kept, or by the way kept for the next time."""
    model = make("llama-1")
    stats = quantize_model(model, make_method(method), uniform(model, 3, 16), token_ids(), **stores)
    return [numbers(model), [(s.squared_error, s.bits_stored) for s in stats]]


def make_records(folder: Path) -> None:
    for record in list(read_lines(TABLE / LINES).values())[:6]:
        Store(folder).save(record)


def read_records(folder: Path) -> dict[str, str]:
    """Cell by cell, as a plan asks for them; a cell without a record is measured again."""
    loaded = filter(None, map(Store(folder).load, list(read_lines(TABLE / LINES))[:6]))
    return {r.cell_id: json.dumps(dataclasses.asdict(r), default=dict) for r in loaded}


def read_published(folder: Path) -> dict[str, str]:
    frame = lutlab.results(folder / "machine").drop(columns="folder")
    return {f"{r.row} {r.column} {r.metric}": str(r) for r in frame.itertuples(index=False)}


def spec(folder: Path, file: str = "model") -> ModelSpec:
    return ModelSpec("tiny", "folder", str(folder / file))


def make_folder(folder: Path) -> None:
    make("llama-2").save_pretrained(folder / "model", max_shard_size="40KB")
    byte_tokenizer().save_pretrained(folder / "model")


def read_folder(folder: Path) -> list[Any]:
    """As a plan and then a worker read it."""
    shape, loaded = shape_of(spec(folder)), load_model(spec(folder), torch.float32, "cpu", 0)
    return [numbers(loaded.model, loaded.tokenizer), shape.parameters, shape.seqlen]


def exported(folder: Path, export: Callable[..., None], method: str) -> None:
    model = lutlab.quantize(make("llama-2"), method=method, q=4, g=16)
    export(model, folder / "model", byte_tokenizer())


def make_gguf(folder: Path) -> None:
    llama = gguf_files.make("llama")
    gguf_files.write(folder / "x.gguf", llama, lambda n: TYPES.get(n.split(".")[-2], "Q4_1"))


def read_stored(model: ModelSpec) -> list[Any]:
    loaded, layers, _ = load_stored(model, torch.float32, "cpu")
    return [numbers(loaded.model, loaded.tokenizer), [layer.bits_stored for layer in layers]]


def make_texts(folder: Path) -> None:
    for name, content in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def texts(folder: Path, field: str) -> list[Any]:
    protocols = ("wikitext2", "lambada", "piqa")
    return [getattr(load_text(TextSpec(p, "folder", str(folder))), field) for p in protocols]


def cached(function: Callable[[], Any]) -> Callable[[Path], Any]:
    """A call with the folder as the cache."""

    def call(folder: Path) -> Any:
        os.environ["LUTLAB_CACHE"] = str(folder)
        return function()

    return call


def read_yaml(folder: Path) -> str:
    with mock.patch.object(catalog, "_folders", [*catalog._folders]):
        catalog.add_folder(folder)
        return repr(load_artifact("own/table3"))


KINDS = {
    "blocks": Kind(lambda f: quantized("gptq", kept=BlockStore(f / KEPT))),
    "statistics": Kind(lambda f: quantized("awq", seen=StatsStore(f / KEPT))),
    "records": Kind(read_records, make_records),
    "published": Kind(read_published, lambda f: seal(shutil.copytree(TABLE, f / "machine" / NAME).parents[1]),
                      "**/*.[cj]s*"),
    "folder": Kind(read_folder, make_folder, identity=lambda f: fingerprint(spec(f))),
    "saved": Kind(lambda f: numbers(lutlab.load(f / "model"), load_tokenizer(f / "model")),
                  lambda f: exported(f, lutlab.save, "bcq")),
    "gptq": Kind(lambda f: read_stored(spec(f)), lambda f: exported(f, lutlab.export_gptq, "rtn"),
                 identity=lambda f: fingerprint(spec(f))),
    "gguf": Kind(lambda f: read_stored(spec(f, "x.gguf")), make_gguf,
                 identity=lambda f: fingerprint(spec(f, "x.gguf"))),
    "texts": Kind(lambda f: texts(f, "rows"), make_texts, identity=lambda f: texts(f, "sha256")),
    "cached texts": Kind(cached(
        lambda: {n: recall("pydocs", [n.encode()], lambda n=n: {"rows": [n] * 9}) for n in "abc"})),
    "races": Kind(cached(lambda: {str(r["bits"]): str(r) for r in choice.decisions("GPU", "float16", range(1, 9))}),
                  cached(lambda: choice.keep(RACES))),
    "yaml": Kind(read_yaml, lambda f: shutil.copytree(sources.folder("experiments") / "nuqmm", f / "own"),
                 files="own/table3.yaml", of_user=True),
}  # fmt: skip
