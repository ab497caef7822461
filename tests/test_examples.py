"""Each script of examples/ runs in an empty folder and prints numbers that are known otherwise."""

import re

import pytest
from safetensors.torch import load_file
from tests import warm
from tests.conftest import ROOT

from lutlab.models.load import EMBEDDED


def row_wise_error():
    """Relative squared error of one matrix on four levels a row, from its least to its largest weight."""
    weights = load_file(EMBEDDED / "opt-embedded-m" / "model.safetensors")
    weight = weights["model.decoder.layers.2.fc1.weight"].double()
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    step = (high - low) / 3
    zero = (-low / step).round()
    levels = step * (((weight / step).round() + zero).clamp(0, 3) - zero)
    return float((weight - levels).square().sum() / weight.square().sum())


# Bits are those of docs/concepts.md; the model of the GGUF file has four blocks of seven layers.
PRINTED = {
    "add_a_method": rf"grid over 100% of the range: relative squared error {row_wise_error():.3f}",
    "compare_methods": r"rtn +4 +4\.62 .*\n.* bcq +4 +6\.00? ",
    "quantize_and_chat": r"(\d+)\.\d MB became [1-5]\.\d MB\nThe function returns.+",
    "read_gguf": r": \d\.\d MB, .*28 Q4_0\n.+",
    "reproduce_table": r"4\.0 +64\.0 +4\.3125.*\n +32\.0 +4\.625",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_prints_what_is_known(path, tmp_path):
    done = warm.run(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[path.stem], done.stdout, re.DOTALL), done.stdout
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
