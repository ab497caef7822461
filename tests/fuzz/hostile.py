"""Hostile models, token ids, folders and the like: arguments of calls with a model; values.py has those of a weight."""

from __future__ import annotations

import copy
import functools
import tempfile
from pathlib import Path

import torch
from tests.fuzz.values import Maker, Text, of
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt, word_tokenizer

import lutlab
from lutlab.models.families import linear_layers

TEXT = "the cat sat on the mat, " * 8


@functools.cache
def _opt() -> torch.nn.Module:
    return tiny_opt()


def opt() -> torch.nn.Module:
    """A model of its own: two blocks of random weights."""
    return copy.deepcopy(_opt())


@functools.cache
def quantized() -> torch.nn.Module:
    """One that is quantized; to be read only."""
    return lutlab.quantize(tiny_opt(), method="rtn", q=4, g=16)


def _scaled(scale: float) -> torch.nn.Module:
    model = opt()
    with torch.no_grad():
        for _, layer in linear_layers(model):
            layer.weight.mul_(scale)
    return model


def _spoiled(value: float) -> torch.nn.Module:
    model = opt()
    with torch.no_grad():
        model.model.decoder.layers[1].fc1.weight[0, 0] = value
    return model


def _without_config() -> torch.nn.Module:
    model = opt()
    model.config = None
    return model


def ids(*shape: int, high: int = 260) -> torch.Tensor:
    """Token ids below `high`, the same for a shape."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


MODELS: list[Maker] = [
    opt,
    lambda: opt().half(),
    lambda: opt().bfloat16(),
    lambda: opt().double(),
    lambda: opt().to("meta"),
    lambda: copy.deepcopy(quantized()),
    tiny_llama,
    *(functools.partial(make, name) for name in ("gpt2", "bert", "bert-classifier")),
    lambda: opt().model,
    lambda: opt().model.decoder.layers[0],
    *(functools.partial(_scaled, scale) for scale in (1e-8, 1e-30, 1e6)),
    *(functools.partial(_spoiled, value) for value in (float("nan"), float("inf"))),
    _without_config,
]
IDS: list[Maker] = [
    lambda: ids(4, 16).float(),
    lambda: ids(4, 16).int(),
    lambda: ids(4, 16, high=200).to(torch.uint8),
    lambda: ids(4, 16) - 100,
    lambda: ids(4, 16) + 100,
    *(
        functools.partial(ids, *s)
        for s in ((16,), (1, 16), (4, 1), (2, 4, 16), (0, 16), (4, 0), (4, 65))
    ),
    lambda: ids(4, 16).to("meta"),
    lambda: ids(4, 16).to_sparse(),
    lambda: ids(4, 16).bool(),
    lambda: [[1, 2, 3]],
    lambda: {"input_ids": ids(4, 16), "attention_mask": torch.ones(4, 9)},
    lambda: {"input_ids": ids(4, 16), "attention_mask": "x"},
    lambda: {"input_ids": ids(4, 16), "what": torch.ones(4, 16)},
    lambda: {"input_ids": [[1, 2]]},
    lambda: {"attention_mask": torch.ones(4, 16)},
    lambda: {"input_ids": ids(4, 16), "attention_mask": torch.ones(4, 16).long()},
    lambda: {"input_ids": ids(4, 16), "attention_mask": torch.zeros(4, 16).long()},
    lambda: {"input_ids": ids(4, 16), 3: ids(4, 16)},
]
SKIPS = of("*.fc2", ["*.fc2"], ["*"], ["nothing"], [""], ["*.fc2", 3], [None], ["["], "", {"*.fc1"})
LAYERS = of(
    *({"*.fc1": width} for width in ((4, 16), 4, (4,), ("4", 16), (None, None), (4.0, 16), (4, 16, 2), (99, 16))),
    {3: (4, 16)}, {None: (4, 16)}, {"no": (4, 16)}, [("*.fc1", 4, 16)],
)  # fmt: skip
CANDIDATES = of(
    [(4, 16)], [(2, 16), (4, 16)], [4], [(4,)], [("4", 16)], [(9, 16)], "ab", {4: 16}, [(None, None)], [(4, 0)],
)  # fmt: skip
NUMBERS = of(0, -1, 4.0, 1e9, "4", True, float("nan"), float("inf"), [4], 1e-9)
TUNINGS = [lambda: lutlab.Tuning(steps=1), *of({"steps": 1}, 5, lutlab.Tuning)]
TOKENIZERS = [byte_tokenizer, lambda: byte_tokenizer(bos=False), word_tokenizer, lambda: str.split]
TEXTS = of("", "a", TEXT, "\x00" * 40, "\udcff" * 40, TEXT.encode(), [TEXT], Text(TEXT))
LENGTHS = of(0, 1, 2, 16, -5, 64, 65, 10**30, 16.0, 16.5, "16", True)
EXAMPLES = of(
    TEXT, [], ["one"], [""], [" "], [3], [None], [b"a b"], ["a b", "c"], {"a b": 1}, ["\udcff a"]
)
SHARDS = of("1KB", "5GB", 0, -1, "5XB", "", "1", 1.5, 10**6, "GB", True)
DTYPES = of(
    "auto",
    "float16",
    "float33",
    "int8",
    "",
    torch.float16,
    torch.int8,
    torch.bool,
    torch.complex64,
    float,
)
DEVICES = of("cpu:0", "cuda", "cuda:99", "meta", "xyz", "", 0, torch.device("cpu"))


def folder(kind: str) -> str:
    """A path below the present folder: new, a saved model, or something in the way."""
    at = Path(tempfile.mkdtemp(dir=".")).resolve()
    if kind == "file":
        (at / kind).write_text("x")
    elif kind == "saved":
        lutlab.save(quantized(), at / kind)
    elif kind == "plain":
        opt().save_pretrained(at / kind)
    elif kind in ("json", "dir"):
        (at / kind).mkdir()
        made = at / kind / "config.json"
        made.write_text("[]") if kind == "json" else made.mkdir()
    elif kind == "below file":
        (at / kind).write_text("x")
        return str(at / kind / "below")
    elif kind == "link":
        (at / kind).symlink_to("nowhere")
    return str(at / kind)


KINDS = ("new", "file", "saved", "plain", "json", "dir", "below file", "link")
FOLDERS = [
    *(functools.partial(folder, kind) for kind in KINDS),
    *of("", ".", "~nobody/x", "/dev/null", "/proc/x", "/dev/null/x", "a\x00b", "x" * 5000, b"x", 3),
]
