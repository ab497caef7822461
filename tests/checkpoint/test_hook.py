"""`import lutlab` is enough for transformers to load its models, before or after transformers, and stays light."""

import os
import subprocess
import sys

import pytest
from tests import warm
from tests.conftest import ROOT
from tests.models.architectures import make

import lutlab

LAST = """
import sys
from transformers import AutoModelForCausalLM
import lutlab
"""
FIRST = """
import sys, lutlab
assert not {"torch", "transformers"} & set(sys.modules)
from transformers import AutoModelForCausalLM
"""
LOAD = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert type(model.model.decoder.layers[0].fc1).__name__ == "QuantLinear"
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "lutlab.checkpoint"]
"""


def cold(code, folder):
    command = [sys.executable, "-c", code, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("order", "run"), [
    pytest.param(FIRST, cold, marks=pytest.mark.slow, id="lutlab first"),
    pytest.param(LAST, warm.run, id="lutlab last"),
])  # fmt: skip
def test_importing_lutlab_is_enough(order, run, tmp_path):
    """Which is first is about starting; a warm process has imported transformers, and then lutlab."""
    lutlab.save(lutlab.quantize(make("opt"), "rtn", 4, 16), tmp_path / "saved")
    done = run(order + LOAD, tmp_path / "saved")
    assert done.returncode == 0, done.stderr
