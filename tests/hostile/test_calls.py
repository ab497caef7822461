"""Hostile calls of the Python API end in a LutlabError, or in numbers that are near to those of another computation."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer, tiny_opt

import lutlab
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.modules import QuantLinear

# torch's, of the kinds of tensors that are given: quantized, sparse
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
N, K = 6, 48


def examples(number: int) -> settings:
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


class Text(str):
    """A str of another class, as numpy and enum have them."""


def drawn(rows: int = N, columns: int = K, scale: float = 1.0) -> torch.Tensor:
    """[rows, columns] float32, normal, always the same."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * scale


def spoiled(value: float) -> torch.Tensor:
    weight = drawn()
    weight[1, 5] = value
    return weight


def of(*values: Any) -> list[Callable[[], Any]]:
    """Makers of values that nobody changes."""
    return [lambda value=value: value for value in values]


ANYTHING = [
    *of(None, True, 0, -1, 10**30, 2.5, math.nan, math.inf, 1 + 2j, "", "x", "\x00", "\udcff", "a" * 5000, b"bytes"),
    *of((), {"a": 1}, object(), len, np.float32(3.0), np.int64(3), np.array(["a"]), torch.tensor(3), Text("rtn")),
    *(list, dict, lambda: [1, "a", None], lambda: torch.ones(2, 2), lambda: torch.nn.Linear(4, 4), lambda: iter([1])),
    *of(range(3), Path("missing")),
]  # fmt: skip
# Tensors that torch calls so, of which no weight can be made.
NO_MATRIX = [
    *of(*(torch.ones(s) for s in ((), (K,), (2, 3, K), (0, K), (N, 0)))),
    *of(*(torch.ones(N, K, dtype=d) for d in (torch.int32, torch.uint8, torch.bool, torch.complex64))),
    *(lambda: torch.ones(N, K, device="meta"), lambda: drawn().to_sparse(), lambda: drawn().to_mkldnn()),
    *(lambda: torch.quantize_per_tensor(drawn(), 0.1, 0, torch.qint8), lambda: drawn().numpy()),
    *(functools.partial(spoiled, value) for value in (math.nan, math.inf)),
    *(lambda: drawn().double() * 1e300, lambda: drawn().double() * 1e-60),
]  # fmt: skip
# Matrices in every guise that torch has for one, and of every size that a float has.
MATRICES = [
    *(lambda: drawn(), lambda: drawn().half(), lambda: drawn().bfloat16(), lambda: drawn().double()),
    *(lambda: drawn().requires_grad_(), lambda: drawn(K, N).T, lambda: drawn(N, 2 * K)[:, ::2]),
    *(lambda: drawn(1).expand(N, K), lambda: drawn(1, 1), lambda: drawn(N, 7), lambda: torch.zeros(N, K)),
    *(functools.partial(drawn, scale=scale) for scale in (1e-3, 1e-8, 1e-30, 1e-42, 1e6, 1e30, 1e38)),
    *(lambda: drawn().abs(), lambda: torch.ones(N, K), functools.partial(spoiled, 1e6)),
    lambda: drawn() * torch.logspace(-6, 6, K),
]  # fmt: skip
BITS = of(
    0, -3, 9, 2.0, 2.5, True, "3", None, [3], np.int64(3), torch.tensor(3), math.nan, 10**40, 3 + 0j
)
GROUPS = of(0, -2, 1, 7, 10**9, 2**63, 16.0, True, "16", None, [16], np.int64(16), math.nan)
METHODS = of(
    "RTN", "rnt", "", "stored", "none ", Text("rtn"), Text("nope"), None, 3, b"rtn", ["rtn"], {}
)


def refused(call: Callable[[], Any]) -> Any:
    """The result of a call, or None of one that is refused in words."""
    try:
        return call()
    except LutlabError as error:
        said = str(error)
    assert len(said) > 20, "a message says what was wrong and what to do"
    return None


def spoil(draw: Any, good: dict[str, Any], pools: dict[str, list]) -> dict[str, Any]:
    """Arguments, some of which are not what they should be."""
    for name in draw(st.lists(st.sampled_from([*pools]), max_size=3, unique=True)):
        good[name] = draw(st.sampled_from([*pools[name], *pools[name], *ANYTHING]))()
    return good


def naive(weight: torch.Tensor, q: int, g: int) -> torch.Tensor:
    """Round to nearest on min-max grids with 0 in each range, float64, group by group: [N, K] -> [N, K]."""
    columns = weight.shape[1]
    parts = weight.double().split(columns if g == -1 else min(g, columns), dim=1)

    def rounded(part: torch.Tensor) -> torch.Tensor:
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / (2**q - 1)
        return (part / scale.where(scale > 0, 1)).round() * scale

    return torch.cat([rounded(part) for part in parts], dim=1)


def signs(weight: torch.Tensor, q: int, g: int) -> torch.Tensor:
    """The best code of one bit, alpha sign(w) with alpha = mean |w|, group by group: [N, K] -> [N, K] float64."""
    columns = weight.shape[1]
    parts = weight.double().split(columns if g == -1 else min(g, columns), dim=1)
    return torch.cat([part.sign() * part.abs().mean(1, keepdim=True) for part in parts], dim=1)


@examples(120)
@given(data=st.data())
def test_a_weight_is_refused_or_near(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(["rtn", "rtn", *registry.classes("method")]))
    good = {"weight": drawn(), "method": method, "q": data.draw(st.integers(1, 8)), "g": 16}
    if method not in ("none", "rtn", "bcq"):
        good["inputs"] = drawn(32)
    pools = {"weight": [*MATRICES, *NO_MATRIX], "method": METHODS, "q": BITS, "g": GROUPS}
    arguments = spoil(data.draw, good, pools)
    packed = refused(lambda: lutlab.quantize_tensor(**arguments))
    if packed is None:
        return
    assert isinstance(packed, Format)
    weight, found = arguments["weight"].detach().double(), packed.dequantize().double()
    assert found.shape == weight.shape
    assert torch.isfinite(found).all()
    method = str(arguments["method"])
    # full precision has neither
    q, g = (16, -1) if method == "none" else (int(arguments["q"]), int(arguments["g"]))
    both_signs = (weight.amin(1) <= 0) & (weight.amax(1) >= 0)
    if method == "awq" and not both_signs.all():
        return  # AWQ's rule keeps 0 on its grid, and none of a group on one side of it
    size = float(weight.abs().max()) or 1.0
    error, weight = (found - weight) / size, weight / size
    reference = (
        weight
        if method == "none"
        else (signs if q == 1 and "bcq" in method else naive)(weight, q, g)
    )
    expected = reference - weight
    inputs = arguments.get("inputs")
    if isinstance(inputs, torch.Tensor) and method not in ("none", "rtn", "bcq"):
        error, weight, expected = (x @ inputs.double().T for x in (error, weight, expected))
    # scales are float16, or codes of 4 bits themselves
    stored = 2.0**-4 if method in ("mixed_2_4_16", "group_widths") else 2.0**-9
    assert error.norm() <= 4 * expected.norm() + stored * weight.norm() + 1e-12


@examples(60)
@given(data=st.data())
def test_a_product_is_refused_or_the_dense_one(data: st.DataObject) -> None:
    method, q = (
        data.draw(st.sampled_from(["rtn", "bcq", "none"])),
        data.draw(st.sampled_from([2, 3, 4, 8])),
    )
    packed = lutlab.quantize_tensor(drawn(), method, q=q, g=16)
    x = data.draw(st.sampled_from([*MATRICES, *MATRICES, *NO_MATRIX, *ANYTHING]))()
    found = refused(lambda: QuantLinear(packed, None)(x))
    if found is None:
        return
    assert isinstance(x, torch.Tensor)
    assert x.is_floating_point()
    assert (found.dtype, found.shape[:-1]) == (x.dtype, x.shape[:-1])
    if x.is_meta or x.dtype is torch.float64:
        return
    weight, exact = packed.dequantize().double(), x.detach().double()
    near = {torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}.get(x.dtype, 2.0**-14)
    size = exact.abs().sum(-1, keepdim=True) * weight.abs().amax()  # codes are sums and differences
    limit = near * size + 2 * torch.finfo(x.dtype).smallest_normal
    dense = exact @ weight.T
    fits = (size < torch.finfo(x.dtype).max / 8).expand_as(dense)  # no sum on the way overflows
    assert ((found.detach().double() - dense).abs() <= limit)[fits].all()


@functools.cache
def opt() -> torch.nn.Module:
    return tiny_opt()


def changed(change: Callable[[torch.nn.Module], Any]) -> torch.nn.Module:
    model = copy.deepcopy(opt())
    with torch.no_grad():
        change(model)
    return model


MODELS = [
    *(lambda: copy.deepcopy(opt()), lambda: changed(lambda m: m.half()), lambda: copy.deepcopy(opt()).to("meta")),
    *(functools.partial(make, name) for name in ("gpt2", "bert", "bert-classifier")),
    *(lambda: copy.deepcopy(opt()).model, lambda: changed(lambda m: setattr(m, "config", None))),
    lambda: changed(lambda m: m.model.decoder.layers[1].fc1.weight[0, 0].fill_(math.nan)),
]  # fmt: skip
SEEN = "the cat sat on the mat, " * 8
TEXTS = of("", "a", "\x00" * 40, "\udcff" * 40, [SEEN], Text(SEEN))
DTYPES, DEVICES = of("float33", "", torch.int8, float), of("cuda:99", "xyz", "", 0)


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_a_call_with_a_model_is_refused_or_finite(data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(["quantize", "quantize", "perplexity", "save", "load", "Tuning", "misuse"])
    )
    with tempfile.TemporaryDirectory() as folder:
        folders = of(folder, f"{folder}/new", f"{folder}/a/b", "", "/dev/null", "a\x00b", b"x")
        model = {"model": copy.deepcopy(opt())}
        good, pools = {
            "quantize": (
                model | {"method": "rtn", "q": 4, "g": 16},
                {"model": MODELS, "method": METHODS, "q": BITS, "g": GROUPS},
            ),
            "perplexity": (
                model | {"tokenizer": byte_tokenizer(), "text": SEEN, "seqlen": 16},
                {"model": MODELS, "text": TEXTS, "seqlen": BITS, "tokenizer": ANYTHING},
            ),
            "save": (model | {"folder": f"{folder}/new"}, {"model": MODELS, "folder": folders}),
            "load": ({"folder": folder}, {"folder": folders, "dtype": DTYPES, "device": DEVICES}),
            "Tuning": ({"steps": 3}, {"steps": BITS, "batch": BITS, "trains": METHODS}),
            "misuse": ({}, {"folder": ANYTHING, "weight": ANYTHING, "q": ANYTHING}),
        }[name]  # fmt: skip
        arguments = spoil(data.draw, good, pools)
        public = data.draw(st.sampled_from(lutlab.__all__)) if name == "misuse" else name
        function = getattr(lutlab, public)
        with contextlib.chdir(folder):
            found = refused(lambda: function(**arguments))
    if found is None:
        return
    if name == "quantize":
        assert all(torch.isfinite(p).all() for p in found.buffers() if p.is_floating_point())
    if name == "perplexity":
        assert math.isfinite(found)
