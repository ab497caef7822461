"""Two ways to read a prompt: same logits within rounding, same cache, and the faster is kept."""

from types import SimpleNamespace

import pytest
import torch
from tests.tiny_models import tiny_llama, tiny_opt

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.formats.uniform import PackedUniform
from lutlab.generate import prefill as ways
from lutlab.generate.panels import by_panels
from lutlab.generate.prefill import prefill
from lutlab.kernels.dispatch import prepare
from lutlab.quantizers.rtn import RTN

MIXED = "mixed_2_4_16"  # which is not cut into panels
PROMPTS = [torch.arange(1, 12), torch.tensor([7])]


@pytest.mark.parametrize("q", [3, 4])
def test_panels_are_the_whole_weight(q):
    """Several panels of columns, a last block and a last panel that are not full."""
    draw = torch.Generator().manual_seed(q)
    weight, x = torch.randn(72, 2080, generator=draw), torch.randn(5, 2080, generator=draw)
    linear = prepare(PackedUniform.pack(RTN().quantize(weight, q, 32)), "cpu")
    y = by_panels(x, linear, torch.full((32, 2080), torch.nan))
    assert torch.allclose(y, x @ linear.dense().t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["cpu_step", "transformers"])
@pytest.mark.parametrize(
    ("model", "method"), [(tiny_llama, "rtn"), (tiny_opt, "bcq"), (tiny_opt, MIXED)]
)
def test_both_ways_leave_the_same_text_in_the_cache(model, method, name):
    model = model().eval()
    more = (
        {"q": 3}
        if method != MIXED
        else {"q": 2, "calibration": torch.ones(1, 8, dtype=torch.int64)}
    )
    lutlab.quantize(model, method=method, g=16, **more)
    engine = lutlab.engine(model, batch=2, length=16, name=name)
    found = {}
    for way in ("kernel", "dequantize"):
        first = prefill(engine, model, PROMPTS, way)
        assert engine.positions == [11, 1]
        found[way] = first, engine.step(torch.tensor([3, 5])), engine.step(torch.tensor([4, 6]))
    for kernel, dense in zip(*found.values(), strict=True):
        assert torch.allclose(kernel, dense, atol=1e-4 * float(kernel.abs().max()))
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_faster_way_is_kept(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(ways, "library", SimpleNamespace(cache_folder=lambda: tmp_path))
    seconds = {"kernel": 2.0, "dequantize": 1.0}
    asked = []

    def timed(engine, model, prompts, way):
        asked.append(way)
        return seconds[way]

    monkeypatch.setattr(ways, "_seconds", timed)
    model = tiny_llama()
    lutlab.quantize(model, method="rtn", q=4, g=16)
    engine = lutlab.engine(model, batch=2, length=16)
    logits = prefill(engine, model, PROMPTS, "race")
    assert torch.equal(logits, prefill(engine, model, PROMPTS, "dequantize"))
    prefill(engine, model, PROMPTS, "race")
    assert asked == ["kernel", "dequantize"]
    (file,) = tmp_path.glob("prefill-*.sealed")
    file.write_bytes(file.read_bytes().replace(b'"dequantize"', b'"telepathy!"'))
    prefill(engine, model, PROMPTS, "race")
    assert len(asked) == 4
    assert "set aside" in caplog.text


def test_what_is_refused():
    engine = lutlab.engine(tiny_llama(), length=8)
    with pytest.raises(LutlabError, match="way=dequant of reading a prompt: did you mean"):
        prefill(engine, engine.model, [torch.tensor([1])], "dequant")
    with pytest.raises(LutlabError, match="prompt 0 has 9 tokens"):
        prefill(engine, engine.model, [torch.arange(1, 10)], "dequantize")
    huge = torch.full((1, 1, 16), 1e6)
    engine = lutlab.engine(tiny_llama(), length=8, cache="float16")
    with pytest.raises(LutlabError, match="larger than cache=float16 can hold"):
        engine.write(0, 0, 0, huge, huge)
