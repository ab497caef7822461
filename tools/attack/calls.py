"""Hostile calls of the Python API, seeded: each ends in a LutlabError or in numbers that an oracle agrees with.

    python -m tools.attack.calls --cases 5000 --seed 1      prints each call that does neither, exits 1

A case is a valid call of a public function (lutlab.__all__), or of a quantized layer, with up to three arguments that
are not what they should be (values.py, values.py). oracles.py says what a result must be near to.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import logging
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.tiny_models import byte_tokenizer

import lutlab
from lutlab import registry
from lutlab.errors import LutlabError
from lutlab.modules import QuantLinear
from tools.attack import oracles, values
from tools.attack.values import ANYTHING, K, drawn

# Argument -> hostile values of its own; ANYTHING is tried beside them.
Pools = Mapping[str, list[values.Maker]]
LONGEST = 120  # seconds of a case, on a busy machine; what is meant to be refused takes none
TEXT = values.TEXT
METHODS = [*registry.classes("method"), "rtn"]  # the simplest more often


@dataclass(frozen=True)
class Case:
    """A call: its name, its arguments, and the check of a result, which says what is wrong, or nothing."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    check: Callable[[Mapping[str, Any], Any], str]
    positional: tuple[Any, ...] = ()

    def outcome(self) -> tuple[str, str]:
        """(refused | right | wrong | traceback, what was said)."""
        given = dict(self.arguments)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.function(*self.positional, **given)
        except LutlabError as error:
            return ("refused", str(error)) if len(str(error)) > 20 else ("wrong", f"says {error}")
        except Exception:
            return "traceback", traceback.format_exc(limit=-3)
        try:
            said = self.check(given, found)
        except Exception:  # what was accepted is not even of the kind that can be checked
            said = traceback.format_exc(limit=-2)
        return ("wrong", said) if said else ("right", "")

    def __str__(self) -> str:
        given = [*map(_shown, self.positional)]
        given += [f"{name}={_shown(value)}" for name, value in self.arguments.items()]
        return f"{self.name}({', '.join(given)})"


def _shown(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        return f"<{type(value).__name__}>"
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return f"<{value.dtype} {list(value.shape)} {value.layout} {value.device}>"
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:50]}..."


def _options(draw: random.Random, method: str) -> dict[str, Any]:
    """Now and then some of a method's parameters, most of them of the right kind, or those of another method."""
    known = dataclasses.fields(registry.lookup("method", method))
    good = {
        str: ["fp16", "fp32", "gptq", "awq", "greedy"],
        bool: [True, False],
        int: [1, 5],
        float: [0.01, 0, 0.002],
    }
    found = {}
    for field in draw.sample(known, min(len(known), draw.choice((0, 0, 0, 1, 2)))):
        right = good.get(type(field.default), [None])
        found[field.name] = draw.choice(right) if draw.random() < 0.7 else draw.choice(ANYTHING)()
    return found if draw.random() < 0.95 else {"variant": "gptq", "offset": True}


def _spoil(draw: random.Random, arguments: dict[str, Any], pools: Pools) -> dict[str, Any]:
    """Up to three arguments from their own pools, or anything at all."""
    for name in draw.sample([*pools], min(len(pools), draw.choice((0, 1, 1, 1, 1, 2, 3)))):
        arguments[name] = draw.choice(pools[name] if draw.random() < 0.8 else ANYTHING)()
    return arguments


def quantize_tensor(draw: random.Random) -> Case:
    """One weight by any method."""
    method = draw.choice(METHODS)
    inputs = drawn(64, K, seed=1) if draw.random() < 0.7 else None
    given = {
        "weight": drawn(),
        "method": method,
        "q": draw.randint(1, 8),
        "g": draw.choice((8, 16, 40, -1)),
    }
    if method in ("mixed_2_4_16", "group_widths"):
        given["q"] = draw.choice((2, 2.5, 3, 4))
    if draw.random() < 0.5:
        given["weight"] = draw.choice(values.MATRICES)()
    pools = {
        "weight": values.MATRICES + values.NO_MATRIX,
        "method": values.METHODS,
        "q": values.BITS,
        "g": values.GROUPS,
        "inputs": values.NO_MATRIX + values.MATRICES,
    }
    given = _spoil(draw, given | {"inputs": inputs}, pools)
    weight = given["weight"]
    plain = isinstance(weight, torch.Tensor) and not weight.is_nested and weight.ndim == 2
    if plain and inputs is not None and given["inputs"] is inputs:
        # Inputs of the weight's columns, so that odd weights are quantized too.
        given["inputs"] = drawn(64, weight.shape[1], seed=1)
    return Case(
        "quantize_tensor", lutlab.quantize_tensor, given | _options(draw, method), oracles.of_tensor
    )


def quantize(draw: random.Random) -> Case:
    """A model of two blocks."""
    method = draw.choice(METHODS)
    given = {
        "model": values.opt(),
        "method": method,
        "q": draw.choice((2, 3, 4)),
        "g": 16,
        "calibration": values.ids(4, 16),
    }
    pools = {
        "model": values.MODELS, "method": values.METHODS, "q": values.BITS, "g": values.GROUPS,
        "calibration": values.IDS, "skip": values.SKIPS, "layers": values.LAYERS, "budget": values.NUMBERS,
        "candidates": values.CANDIDATES, "tuning": values.TUNINGS,
    }  # fmt: skip
    given = _spoil(draw, given, pools)
    if given.get("budget") is not None and "candidates" not in given:
        given["candidates"] = [(2, 16), (4, 16)]
    before = copy.deepcopy(given["model"]) if isinstance(given["model"], torch.nn.Module) else None
    check = functools.partial(oracles.of_model, before)
    return Case("quantize", lutlab.quantize, given | _options(draw, method), check)


def perplexity(draw: random.Random) -> Case:
    """Perplexity of a text."""
    given = {"model": values.opt(), "tokenizer": byte_tokenizer(), "text": TEXT, "seqlen": 16}
    pools = {
        "model": values.MODELS, "tokenizer": values.TOKENIZERS, "text": values.TEXTS, "seqlen": values.LENGTHS,
    }  # fmt: skip
    return Case("perplexity", lutlab.perplexity, _spoil(draw, given, pools), oracles.of_perplexity)


def lambada(draw: random.Random) -> Case:
    """Last words."""
    given = {
        "model": values.opt(),
        "tokenizer": byte_tokenizer(),
        "examples": ["the cat sat", "on the mat"],
    }
    pools = {
        "model": values.MODELS, "tokenizer": values.TOKENIZERS, "examples": values.EXAMPLES,
        "bos": values.of("none", "tokenizer", "some", None, 3), "window": values.LENGTHS,
    }  # fmt: skip
    return Case("lambada", lutlab.lambada, _spoil(draw, given, pools), oracles.of_lambada)


def save(draw: random.Random) -> Case:
    """A folder written, in one of three layouts."""
    name = draw.choice(("save", "export_gptq", "export_compressed_tensors"))
    given = {"model": copy.deepcopy(values.quantized()), "folder": values.folder("new")}
    pools = {"model": values.MODELS, "folder": values.FOLDERS, "tokenizer": values.TOKENIZERS}
    if name == "save":
        pools["max_shard_size"] = values.SHARDS
    if name == "export_compressed_tensors":
        pools["format"] = values.of("int-quantized", "pack", "")
    return Case(name, getattr(lutlab, name), _spoil(draw, given, pools), oracles.of_folder)


def load(draw: random.Random) -> Case:
    """A saved model."""
    pools = {"folder": values.FOLDERS, "dtype": values.DTYPES, "device": values.DEVICES}
    given = _spoil(draw, {"folder": values.folder("saved")}, pools)
    return Case(
        "load", lutlab.load, given, functools.partial(oracles.of_loaded, values.quantized())
    )


def results(draw: random.Random) -> Case:
    """The frame of some folders."""
    pools = (values.FOLDERS, ANYTHING)
    folders = tuple(values.any_of(draw, *pools) for _ in range(draw.choice((0, 1, 1, 2))))
    given = _spoil(draw, {}, {"samples": values.of(True, "yes")}) if draw.random() < 0.3 else {}
    return Case("results", lutlab.results, given, oracles.of_results, folders)


def tuning(draw: random.Random) -> Case:
    """The record of a tuning."""
    pools = {
        "steps": values.BITS, "learning_rate": values.NUMBERS, "batch": values.BITS, "loss": values.METHODS,
        "seed": values.BITS, "trains": values.METHODS, "weight_decay": values.NUMBERS,
    }  # fmt: skip
    return Case("Tuning", lutlab.Tuning, _spoil(draw, {"steps": 3}, pools), oracles.of_tuning)


def _product(x: Any, method: str, q: int, scale: float, bias: torch.Tensor | None) -> Any:
    packed = lutlab.quantize_tensor(drawn(scale=scale), method, q=q, g=16)
    return packed, QuantLinear(packed, bias)(x)


def layer(draw: random.Random) -> Case:
    """The product of a packed layer."""
    pools = (values.XS, values.XS, values.NO_MATRIX, ANYTHING)
    given = {"x": values.any_of(draw, *pools), "method": draw.choice(("rtn", "bcq", "none"))}
    given |= {"q": draw.choice((2, 3, 4, 8)), "scale": draw.choice((1.0, 1.0, 1e-8, 1e6))}
    given["bias"] = drawn(1, len(drawn()), seed=2)[0] if draw.random() < 0.3 else None
    return Case("layer", _product, given, oracles.of_product)


def misuse(draw: random.Random) -> Case:
    """A call with too few, too many, or unknown arguments."""
    function = getattr(lutlab, draw.choice(lutlab.__all__))
    given = tuple(draw.choice(ANYTHING)() for _ in range(draw.choice((0, 1, 7, 20))))
    named = (
        {} if draw.random() < 0.5 else {draw.choice(("folder", "weight", "model", "x", "q")): None}
    )
    return Case(function.__name__, function, named, oracles.of_nothing, given)


KINDS = {
    quantize_tensor: 48, quantize: 16, layer: 12, perplexity: 5, save: 5, load: 4, results: 3, misuse: 3, tuning: 3,
    lambada: 1,
}  # fmt: skip


def cases(count: int, seed: int) -> Iterator[Case]:
    """So many cases of a seed; each depends on the seed and its number alone."""
    for number in range(count):
        draw = random.Random(f"{seed}:{number}")
        yield draw.choices([*KINDS], [*KINDS.values()])[0](draw)


@contextmanager
def inside(folder: str) -> Iterator[None]:
    """Relative paths of a case lie in a folder of its own; no case takes for ever."""
    before = Path.cwd()

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {LONGEST} seconds")

    previous = signal.signal(signal.SIGALRM, late)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def broken(
    count: int, seed: int, report: Callable[[str], None] = print
) -> tuple[int, Counter[str]]:
    """Report each case that neither refuses nor is right; how many these are, and how many ended in which way."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, inside(folder):
        for case in cases(count, seed):
            signal.alarm(LONGEST)
            how, said = case.outcome()
            counts[how] += 1
            if how in ("wrong", "traceback"):
                report(f"{how}: {case}\n    {said.strip()}")
    return counts["wrong"] + counts["traceback"], counts


def main() -> int:
    """Run cases from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    found, counts = broken(given.cases, given.seed, functools.partial(print, flush=True))
    print(dict(counts))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
