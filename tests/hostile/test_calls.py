"""Hostile calls of the Python API end in a LutlabError, or in numbers that are near to those of another computation."""

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
opt = functools.cache(tiny_opt)


class Text(str):
    """A str of another class, as numpy and enum have them."""


def drawn(rows: int = N, columns: int = K, scale: float = 1.0, spoiled: Any = None) -> torch.Tensor:
    """[rows, columns] float32, normal, always the same but for a spoiled number."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * scale
    if spoiled is not None:
        weight[1, 5] = spoiled
    return weight


def changed(change: Callable[[torch.nn.Module], Any]) -> torch.nn.Module:
    model = copy.deepcopy(opt())
    with torch.no_grad():
        return change(model)


def always(*values: Any) -> list[Callable[[], Any]]:
    """Makers of values that nobody changes."""
    return [lambda value=value: value for value in values]


ANYTHING = [
    *always(None, True, 0, -1, 10**30, 2.5, math.nan, math.inf, 1 + 2j, "", "x", "\x00", "\udcff", "a" * 5000, b"byte"),
    *always((), {"a": 1}, object(), len, np.float32(3.0), np.int64(3), np.array(["a"]), torch.tensor(3), Text("rtn")),
    *(list, dict, lambda: [1, "a", None], lambda: torch.ones(2, 2), lambda: torch.nn.Linear(4, 4), lambda: iter([1])),
    *always(range(3), Path("missing")),
]  # fmt: skip
# Tensors that torch calls so, of which no weight can be made.
NO_MATRIX = [
    *always(*(torch.ones(s) for s in ((), (K,), (2, 3, K), (0, K), (N, 0)))),
    *always(*(torch.ones(N, K, dtype=d) for d in (torch.int32, torch.uint8, torch.bool, torch.complex64))),
    *(lambda: torch.ones(N, K, device="meta"), lambda: drawn().to_sparse(), lambda: drawn().to_mkldnn()),
    *(lambda: torch.quantize_per_tensor(drawn(), 0.1, 0, torch.qint8), lambda: drawn().numpy()),
    *(functools.partial(drawn, spoiled=value) for value in (math.nan, math.inf)),
    *(lambda: drawn().double() * 1e300, lambda: drawn().double() * 1e-60),
]  # fmt: skip
# Matrices in every guise that torch has for one, and of every size that a float has.
MATRICES = [
    *(lambda: drawn(), lambda: drawn().half(), lambda: drawn().bfloat16(), lambda: drawn().double()),
    *(lambda: drawn().requires_grad_(), lambda: drawn(K, N).T, lambda: drawn(N, 2 * K)[:, ::2]),
    *(lambda: drawn(1).expand(N, K), lambda: drawn(1, 1), lambda: drawn(N, 7), lambda: torch.zeros(N, K)),
    *(functools.partial(drawn, scale=scale) for scale in (1e-3, 1e-8, 1e-30, 1e-42, 1e6, 1e30, 1e38)),
    *(lambda: drawn().abs(), lambda: torch.ones(N, K), functools.partial(drawn, spoiled=1e6)),
    lambda: drawn() * torch.logspace(-6, 6, K),
]  # fmt: skip
BITS = always(
    0, -3, 9, 2.0, 2.5, True, "3", None, [3], np.int64(3), torch.tensor(3), math.nan, 10**40, 3 + 0j
)
GROUPS = always(0, -2, 1, 7, 10**9, 2**63, 16.0, True, "16", None, [16], np.int64(16), math.nan)
METHODS = always("RTN", "rnt", "", "stored", "none ", Text("rtn"), Text("x"), None, 3, b"rtn", ["rtn"], {})  # fmt: skip
MODELS = [
    *(lambda: changed(lambda m: m), lambda: changed(lambda m: m.half()), lambda: changed(lambda m: m.to("meta"))),
    *(functools.partial(make, name) for name in ("gpt2", "bert", "bert-classifier")),
    *(lambda: changed(lambda m: m.model), lambda: changed(lambda m: setattr(m, "config", None) or m)),
    lambda: changed(lambda m: m.model.decoder.layers[1].fc1.weight[0, 0].fill_(math.nan) is None or m),
]  # fmt: skip
SEEN = "the cat sat on the mat, " * 8
TEXTS = always("", "a", "\x00" * 40, "\udcff" * 40, [SEEN], Text(SEEN))
DTYPES, DEVICES = always("float33", "", torch.int8, float), always("cuda:99", "xyz", "", 0)
FOLDERS = always(".", "new", "a/b", "", "/dev/null", "a\x00b", b"x")


def near(arguments: dict[str, Any], packed: Any) -> None:
    """The error is near to that of rounding to nearest on grids with 0 in each range, or of signs; seen by inputs."""
    assert isinstance(packed, Format)
    weight, stored = arguments["weight"].detach().double(), packed.dequantize().double()
    method = arguments["method"]
    assert stored.shape == weight.shape
    assert torch.isfinite(stored).all()
    # full precision has neither
    q, g = (16, -1) if method == "none" else (int(arguments["q"]), int(arguments["g"]))
    if method == "awq" and not ((weight.amin(1) <= 0) & (weight.amax(1) >= 0)).all():
        return  # AWQ's rule keeps 0 on its grid, and none of a group on one side of it

    def nearest(part: torch.Tensor) -> torch.Tensor:
        if q == 1 and "bcq" in method:  # the best code of one bit
            return part.sign() * part.abs().mean(1, keepdim=True)
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / (2**q - 1)
        return (part / scale.where(scale > 0, 1)).round() * scale

    size, columns = float(weight.abs().max()) or 1.0, weight.shape[1]
    error, weight = (stored - weight) / size, weight / size
    parts = weight.split(columns if g == -1 else min(g, columns), dim=1)
    reference = weight if method == "none" else torch.cat([*map(nearest, parts)], dim=1)
    expected = reference - weight
    inputs = arguments.get("inputs")
    if isinstance(inputs, torch.Tensor) and method not in ("none", "rtn", "bcq"):
        error, weight, expected = (x @ inputs.double().T for x in (error, weight, expected))
    # scales are float16, or codes of 4 bits themselves
    rounding = 2.0**-4 if method in ("mixed_2_4_16", "group_widths") else 2.0**-9
    assert error.norm() <= 4 * expected.norm() + rounding * weight.norm() + 1e-12


def dense(arguments: dict[str, Any], product: torch.Tensor) -> None:
    x = arguments["x"]
    assert isinstance(x, torch.Tensor)
    assert x.is_floating_point()
    assert (product.dtype, product.shape[:-1]) == (x.dtype, x.shape[:-1])
    if x.is_meta or x.dtype is torch.float64:
        return
    weight, exact = arguments["packed"].dequantize().double(), x.detach().double()
    rounding = {torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}.get(x.dtype, 2.0**-14)
    size = exact.abs().sum(-1, keepdim=True) * weight.abs().amax()  # codes are sums and differences
    limit = rounding * size + 2 * torch.finfo(x.dtype).smallest_normal
    expected = exact @ weight.T
    fits = (size < torch.finfo(x.dtype).max / 8).expand_as(expected)  # no sum on the way overflows
    assert ((product.detach().double() - expected).abs() <= limit)[fits].all()


def finite(arguments: dict[str, Any], result: Any) -> None:
    numbers = result.buffers() if isinstance(result, torch.nn.Module) else [torch.tensor(result)]
    assert all(torch.isfinite(number).all() for number in numbers if number.is_floating_point())


def weights(draw: Any) -> dict[str, Any]:
    method = draw(st.sampled_from(["rtn", "rtn", *registry.classes("method")]))
    good = {"weight": drawn(), "method": method, "q": draw(st.integers(1, 8)), "g": 16}
    return good if method in ("none", "rtn", "bcq") else good | {"inputs": drawn(32)}


def packed(draw: Any) -> dict[str, Any]:
    method, q = draw(st.sampled_from(["rtn", "bcq", "none"])), draw(st.sampled_from([2, 3, 4, 8]))
    x = draw(st.sampled_from([*MATRICES, *MATRICES, *NO_MATRIX, *ANYTHING]))()
    return {"packed": lutlab.quantize_tensor(drawn(), method, q=q, g=16), "x": x}


def model(**more: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda draw: {"model": copy.deepcopy(opt())} | more


CODED = {"method": METHODS, "q": BITS, "g": GROUPS}
READ = {"tokenizer": byte_tokenizer(), "text": SEEN, "seqlen": 16}
# what is called: how often, arguments that are right, what some of them are instead, what holds of a result
CALLS = {
    "quantize_tensor": (120, weights, CODED | {"weight": [*MATRICES, *NO_MATRIX]}, near),
    "a product": (60, packed, {}, dense),
    "quantize": (20, model(method="rtn", q=4, g=16), CODED | {"model": MODELS}, finite),
    "perplexity": (10, model(**READ), {"model": MODELS, "text": TEXTS, "seqlen": BITS, "tokenizer": ANYTHING}, finite),
    "save": (10, model(folder="new"), {"model": MODELS, "folder": FOLDERS}, None),
    "load": (10, lambda draw: {"folder": "."}, {"folder": FOLDERS, "dtype": DTYPES, "device": DEVICES}, None),
    "Tuning": (10, lambda draw: {"steps": 3}, {"steps": BITS, "batch": BITS, "trains": METHODS}, None),
    "any": (10, lambda draw: {}, {"folder": ANYTHING, "weight": ANYTHING, "q": ANYTHING}, None),
}  # fmt: skip


def refused(call: Callable[[], Any]) -> Any:
    """The result of a call, or None of one that is refused in words."""
    try:
        return call()
    except LutlabError as error:
        message = str(error)
    assert len(message) > 20, "a message says what was wrong and what to do"
    return None


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if i > 1 else name for i, name in enumerate(CALLS)],
)
def test_a_call_is_refused_or_near(name: str) -> None:
    number, right, pools, check = CALLS[name]

    @settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        public = data.draw(st.sampled_from(lutlab.__all__)) if name == "any" else name
        function = getattr(lutlab, public, lambda packed, x: QuantLinear(packed, None)(x))
        arguments = right(data.draw)
        keys = st.lists(st.sampled_from([*pools, "x"]), max_size=3, unique=True)
        for key in sorted({*data.draw(keys)} & pools.keys()):
            arguments[key] = data.draw(st.sampled_from([*pools[key], *pools[key], *ANYTHING]))()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            result = refused(lambda: function(**arguments))
        if check and result is not None:
            check(arguments, result)

    holds()
