"""Model folders: a user's own, what lutlab.save wrote, exports for other programs, and the hub's cache."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.checkpoint import naive_layouts
from tests.models import gguf_files
from tests.models.architectures import make, token_ids
from tests.tiny_models import byte_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM, PreTrainedModel

import lutlab
from lutlab.checkpoint.saving import save_as
from lutlab.checkpoint.stored import load_stored, row_width
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.errors import LutlabError
from lutlab.kept.files import SUMS
from lutlab.models import gguf, load
from lutlab.models.load import fingerprint, load_model, load_tokenizer
from lutlab.models.shape import shape_of
from lutlab.specs import ModelSpec
from tools.attack.kinds import Kind, digest_of

TEXT = "the attack ate a hat, another thing: ünïcode\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARD = "40KB"


def numbers(model: PreTrainedModel, tokenizer: Any = None) -> list[Any]:
    """All weights, what they make of some tokens, and what a text is to its tokenizer."""
    with torch.no_grad():
        logits = model(token_ids()).logits.double().sum().item()
    return [digest_of(model), logits, tokenizer and tokenizer(TEXT)["input_ids"]]


def spec_of(folder: Path) -> ModelSpec:
    return ModelSpec("tiny", "folder", str(folder / "model"))


# ---- a user's folder ----


def make_folder(shard: str, folder: Path) -> None:
    make("llama-2").save_pretrained(folder / "model", max_shard_size=shard)
    byte_tokenizer().save_pretrained(folder / "model")


def load_folder(stream: bool, folder: Path) -> dict[str, Any]:
    """As a plan and then a worker read it: shapes, fingerprint, weights."""
    spec = spec_of(folder)
    identity = fingerprint(spec)
    shape = shape_of(spec)
    loaded = load_model(spec, torch.float32, "cpu", 0, stream=stream)
    digests = []
    for index in range(len(loaded.blocks)):
        with loaded.blocks.open(index) as block:
            digests.append(digest_of(block))
    found = [*digests, loaded.tokenizer(TEXT)["input_ids"]]
    if not stream:
        found += numbers(loaded.model)
    return {"numbers": [found, shape.parameters, shape.seqlen], "identity": identity}


# ---- saved by lutlab ----


def make_saved(shard: str, folder: Path) -> None:
    model = lutlab.quantize(make("llama-2"), method="bcq", q=3, g=16)
    lutlab.save(model, folder / "model", byte_tokenizer(), max_shard_size=shard)


def load_saved(folder: Path) -> dict[str, Any]:
    model = lutlab.load(folder / "model")
    return {"numbers": numbers(model, load_tokenizer(folder / "model"))}


def load_by_transformers(folder: Path) -> dict[str, Any]:
    """By its own readers, which are not ours to mend: whatever they raise is a refusal."""
    try:
        model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    except LutlabError:
        raise
    except Exception as error:
        raise LutlabError(f"transformers cannot load {folder / 'model'}: {error}") from error
    return {"numbers": numbers(model)}


def measure_stored(folder: Path) -> dict[str, Any]:
    """method=stored: a plan reads widths and fingerprint, a worker the weights."""
    spec = spec_of(folder)
    identity, width = fingerprint(spec), row_width(spec)
    loaded, layers, _ = load_stored(spec, torch.float32, "cpu")
    bits = [layer.bits_stored for layer in layers]
    return {"numbers": [numbers(loaded.model, loaded.tokenizer), width, bits], "identity": identity}


# ---- exports ----


def make_export(export: Callable[..., None], folder: Path) -> None:
    model = lutlab.quantize(make("llama-2"), method="rtn", q=4, g=16)
    export(model, folder / "model", byte_tokenizer())


# ---- llama.cpp's files ----

GGUF_TYPES = {"v_proj": "Q4_K", "down_proj": "Q6_K", "o_proj": "Q1_0", "up_proj": "Q8_0"}


def make_gguf(folder: Path) -> None:
    made = gguf_files.make("llama")
    gguf_files.write(folder / "x.gguf", made, lambda n: GGUF_TYPES.get(n.split(".")[-2], "Q4_1"))


def load_gguf(folder: Path) -> dict[str, Any]:
    """As a plan reads it, as a dense model, and with its quantized weights as they are."""
    gguf.cache_folder = lambda name: folder / "cache" / name
    spec = ModelSpec("tiny", "folder", str(folder / "x.gguf"))
    identity = fingerprint(spec)
    width, shape = row_width(spec), shape_of(spec)
    dense = load_model(spec, torch.float32, "cpu", 0)
    packed, layers, _ = load_stored(spec, torch.float32, "cpu")
    bits = [layer.bits_stored for layer in layers]
    found = [numbers(one.model, one.tokenizer) for one in (dense, packed)]
    return {"numbers": [found, width, shape.parameters, bits], "identity": identity}


def make_bpdq(folder: Path) -> None:
    """Bit planes as another project has them: no writer of lutlab's, no SHA256SUMS."""
    model = lutlab.quantize(tiny_llama(), method="bcq", q=3, g=32, offset=True)
    layers = quantized_layers(model).items()
    tensors = {name: naive_layouts.binary("bpdq", one.packed.unpack()) for name, one in layers}
    save_as(model, folder / "model", byte_tokenizer(), naive_layouts.BPDQ, tensors)
    (folder / "model" / SUMS).unlink()


# ---- the hub's cache ----


def make_hub(folder: Path) -> None:
    """As huggingface_hub lays it out: blobs by their hash (LFS: SHA-256, else git's), linked from a snapshot."""
    make_folder("5GB", folder / "draft")
    repository = folder / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in sorted((folder / "draft" / "model").iterdir()):
        content = file.read_bytes()
        git = f"blob {len(content)}\0".encode() + content
        lfs = file.suffix == ".safetensors"
        blob = hashlib.sha256(content) if lfs else hashlib.sha1(git, usedforsecurity=False)
        (repository / "blobs" / blob.hexdigest()).write_bytes(content)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.hexdigest()}")
    shutil.rmtree(folder / "draft")


def load_hub(folder: Path) -> dict[str, Any]:
    from huggingface_hub import constants

    constants.HF_HUB_CACHE = str(folder / "hub")
    spec = ModelSpec("tiny", "hub", "org/tiny", COMMIT)
    identity = fingerprint(spec)
    loaded = load_model(spec, torch.float32, "cpu", 0)
    return {"numbers": numbers(loaded.model, loaded.tokenizer), "identity": identity}


# ---- what ships with lutlab ----


def make_embedded(folder: Path) -> None:
    shutil.copytree(load.EMBEDDED / "bert-embedded-s", folder / "embedded" / "bert-embedded-s")
    for file in load.EMBEDDED.iterdir():
        if file.is_file():
            shutil.copy(file, folder / "embedded")


def load_embedded(folder: Path) -> dict[str, Any]:
    """Without an identity: these files are known, and another content is damage."""
    load.EMBEDDED = folder / "embedded"
    loaded = load_model(ModelSpec("tiny", "embedded", "bert-embedded-s"), torch.float32, "cpu", 0)
    return {"numbers": [digest_of(loaded.model), loaded.tokenizer(TEXT)["input_ids"]]}


def _kinds() -> list[Kind]:
    folders = [
        Kind(
            f"folder{name}",
            functools.partial(make_folder, shard),
            functools.partial(load_folder, stream),
        )
        for name, shard, stream in (
            ("", "5GB", False),
            ("-shards", SHARD, False),
            ("-streamed", SHARD, True),
        )
    ]
    one, several = (functools.partial(make_saved, shard) for shard in ("5GB", SHARD))
    exports = {"gptq": lutlab.export_gptq, "compressed": lutlab.export_compressed_tensors}
    return [
        *folders,
        Kind("saved", one, load_saved),
        Kind("saved-shards", several, load_saved),
        # transformers reads a tokenizer by itself, and asks lutlab nothing
        Kind("saved-transformers", several, load_by_transformers, "model/[cm]*"),
        Kind("saved-stored", one, measure_stored),
        *(
            Kind(f"export-{name}", functools.partial(make_export, export), measure_stored)
            for name, export in exports.items()
        ),
        Kind("gguf", make_gguf, load_gguf, "x.gguf"),
        Kind("bpdq", make_bpdq, measure_stored),
        Kind("embedded", make_embedded, load_embedded, "embedded/*/*"),
        Kind("hub-model", make_hub, load_hub),
    ]


KINDS = _kinds()
