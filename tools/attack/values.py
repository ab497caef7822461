"""Hostile values for arguments, by what an argument means: each a maker, so that no case sees another's object."""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt, word_tokenizer

import lutlab
from lutlab.models.families import linear_layers

Maker = Callable[[], Any]
N, K = 6, 48


class Text(str):
    """A str of another class, as numpy and enum have them."""


class Silent:
    """An object that has and does nothing."""


def drawn(rows: int = N, columns: int = K, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """[rows, columns] float32, normal, the same for a seed."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=draw) * scale


def _spoiled(value: float, at: tuple[int, int] = (1, 5)) -> torch.Tensor:
    weight = drawn()
    weight[at] = value
    return weight


ANYTHING: list[Maker] = [
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 10**30,
    lambda: 2.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: 1 + 2j,
    lambda: "",
    lambda: "x",
    lambda: "\x00",
    lambda: "\udcff",
    lambda: "a" * 5000,
    lambda: b"bytes",
    list,
    lambda: [1, "a", None],
    lambda: (),
    dict,
    lambda: {"a": 1},
    lambda: {1, 2},
    lambda: object(),
    lambda: Silent(),
    lambda: Silent,
    lambda: len,
    lambda: np.float32(3.0),
    lambda: np.int64(3),
    lambda: np.ones((N, K), np.float32),
    lambda: np.array(["a"]),
    lambda: torch.tensor(3),
    lambda: torch.ones(2, 2),
    lambda: torch.nn.Linear(4, 4),
    lambda: Text("rtn"),
    lambda: range(3),
    lambda: iter([1]),
    lambda: Path("missing"),
]
# Tensors that torch calls tensors, of which no weight and no inputs can be made.
NO_MATRIX: list[Maker] = [
    lambda: torch.ones(()),
    lambda: torch.ones(K),
    lambda: torch.ones(2, 3, K),
    lambda: torch.ones(0, K),
    lambda: torch.ones(N, 0),
    lambda: torch.ones(N, K, device="meta"),
    lambda: drawn().to_sparse(),
    lambda: drawn().to_sparse_csr(),
    lambda: drawn().to(torch.complex64),
    lambda: drawn().to(torch.complex128).conj(),
    lambda: torch.quantize_per_tensor(drawn(), 0.1, 0, torch.qint8),
    lambda: torch.ones(N, K, dtype=torch.int32),
    lambda: torch.ones(N, K, dtype=torch.int64),
    lambda: torch.ones(N, K, dtype=torch.uint8),
    lambda: torch.ones(N, K, dtype=torch.bool),
    lambda: torch.empty(N, K, dtype=torch.float4_e2m1fn_x2),
    lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]),
    lambda: drawn().to_mkldnn(),
    lambda: drawn().numpy(),
    lambda: drawn().tolist(),
    lambda: _spoiled(float("nan")),
    lambda: _spoiled(float("inf")),
    lambda: _spoiled(-float("inf")).half(),
    lambda: drawn().double() * 1e300,
    lambda: drawn().double() * 1e-60,
]
# Matrices in every guise that torch has for one.
MATRICES: list[Maker] = [
    drawn,
    lambda: drawn().half(),
    lambda: drawn().bfloat16(),
    lambda: drawn().double(),
    lambda: drawn().requires_grad_(),
    lambda: torch.nn.Parameter(drawn()),
    lambda: drawn(K, N).T,
    lambda: drawn(N, 2 * K)[:, ::2],
    lambda: drawn(1).expand(N, K),
    lambda: drawn().to(torch.complex64).conj().imag,  # torch's lazy negation
    lambda: drawn(1),
    lambda: drawn(N, 1),
    lambda: drawn(1, 1),
    lambda: drawn(N, 7),
    lambda: torch.zeros(N, K),
    lambda: -torch.zeros(N, K),
    lambda: torch.ones(N, K),
    lambda: drawn(N, 1).repeat(1, K),
    lambda: drawn() * 1e-3,
    lambda: drawn() * 1e-5,
    lambda: drawn() * 1e-8,
    lambda: drawn() * 1e-30,
    lambda: drawn() * 1e-38,
    lambda: drawn() * 1e-42,
    lambda: drawn() * 1e6,
    lambda: drawn() * 1e30,
    lambda: drawn() * 1e38,
    lambda: (drawn() * 1e-6).half(),
    lambda: (drawn() * 1e4).half(),
    lambda: (drawn() * 1e-20).bfloat16(),
    lambda: drawn() * torch.logspace(-12, 0, N)[:, None],
    lambda: drawn() * torch.logspace(-6, 6, K),
    lambda: _spoiled(1e6),
    lambda: drawn().abs(),
    lambda: drawn().to(torch.float8_e4m3fn),
]


def of(*given: Any) -> list[Maker]:
    """Makers of values that nobody changes."""
    return [lambda value=value: value for value in given]


BITS = of(
    0, -3, 9, 64, 2.0, 2.5, 3.5, True, "3", None, [3], np.int64(3), torch.tensor(3), float("nan"), float("inf"),
    10**40, 3 + 0j,
)  # fmt: skip
GROUPS = of(
    0, -2, 1, 7, 10**9, 2**63, 10**40, 16.0, True, "16", None, [16], np.int64(16), torch.tensor(16), float("nan"),
)  # fmt: skip
METHODS = of(
    "RTN", "rnt", "", "stored", "none ", "a" * 5000, Text("rtn"), Text("nope"), None, 3, b"rtn", ["rtn"], {"rtn"}, {},
    Silent, np.str_("bcq"), np.str_("no"),
)  # fmt: skip
# What a layer multiplies.
XS: list[Maker] = [
    lambda: drawn(3),
    lambda: drawn(3).half(),
    lambda: drawn(3).bfloat16(),
    lambda: drawn(3).double(),
    lambda: drawn(6, seed=4).view(2, 3, K),
    lambda: drawn(3)[:0],
    lambda: drawn(1)[0],
    lambda: drawn(K, 3).T,
    lambda: drawn(3, 2 * K)[:, ::2],
    lambda: drawn(3).requires_grad_(),
    lambda: drawn(1).expand(3, K),
    lambda: drawn(3, K + 1),
    lambda: drawn(3, 1),
    lambda: drawn(3) * 1e30,
    lambda: drawn(3) * 1e-20,
    lambda: torch.zeros(3, K),
]


def any_of(draw: random.Random, *pools: list[Maker]) -> Any:
    """A value of one of the pools."""
    return draw.choice(draw.choice(pools))()


# ---- of calls with a model ----

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


def _spoiled_model(value: float) -> torch.nn.Module:
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
    *(functools.partial(_spoiled_model, value) for value in (float("nan"), float("inf"))),
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
