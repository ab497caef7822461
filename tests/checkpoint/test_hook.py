"""`import lutlab` is enough for transformers to load its models, before or after transformers, and stays light."""

import os
import subprocess
import sys

import pytest
from tests import warm
from tests.conftest import ROOT
from tests.models.architectures import make

import lutlab

LOAD = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert type(model.model.decoder.layers[0].fc1).__name__ == "QuantLinear"
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "lutlab.checkpoint"]
"""
ORDERS = {
    "lutlab first": """
import sys, lutlab
assert not {"torch", "transformers"} & set(sys.modules)
from transformers import AutoModelForCausalLM
""",
    "lutlab last": """
import sys
from transformers import AutoModelForCausalLM
import lutlab
""",
}


@pytest.mark.parametrize(
    "order", [pytest.param("lutlab first", marks=pytest.mark.slow), "lutlab last"]
)
def test_importing_lutlab_is_enough(order, tmp_path):
    """Which is first is about starting; a warm process has imported transformers, and then lutlab."""
    lutlab.save(lutlab.quantize(make("opt"), "rtn", 4, 16), tmp_path / "saved")
    code = ORDERS[order] + LOAD
    if order == "lutlab last":
        done = warm.run(code, tmp_path / "saved")
    else:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "saved")],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
