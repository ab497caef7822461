"""`import lutlab` is enough for transformers to load its models, before or after transformers, and stays light."""

import os
import subprocess
import sys

import pytest
from tests.conftest import ROOT
from tests.models.architectures import make

import lutlab

LOAD = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert type(model.model.decoder.layers[0].fc1).__name__ == "QuantLinear"
assert not [finder for finder in sys.meta_path if "lutlab.checkpoint.hook" in type(finder).__module__]
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


@pytest.mark.parametrize("order", ORDERS)
def test_importing_lutlab_is_enough(order, tmp_path):
    lutlab.save(lutlab.quantize(make("opt"), "rtn", 4, 16), tmp_path / "saved")
    subprocess.run(
        [sys.executable, "-c", ORDERS[order] + LOAD, str(tmp_path / "saved")],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
