"""Four times more weights than memory: the operating system refuses what goes beyond, so no leak is overlooked.

RLIMIT_DATA bounds the private writable memory of the process, which is where torch allocates (anonymous maps and the
heap); beyond it an allocation fails. RLIMIT_AS would count libraries and reserved addresses, and on the resident set
Linux enforces no limit.
"""

import json
import sys

import pytest
from tests import warm
from tests.command_line import ROOT
from transformers import LlamaConfig

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
ALLOWED = 200 * 10**6  # bytes beyond what the process holds after its imports
RUN = """
import json, resource, sys
from pathlib import Path
import torch
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore
from lutlab.evaluators.perplexity import window_nll
from lutlab.models.families import kinds
from lutlab.models.load import load_model
from lutlab.quantizers.rtn import RTN
from lutlab.base.specs import ModelSpec
from lutlab.compress.widths import widths
import accelerate, transformers.models.llama.modeling_llama  # part of the baseline

folder, stream, allowed = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
limit = int(fields["VmData"].split()[0]) * 1024 + allowed
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = load_model(ModelSpec("big", "synthetic", str(folder)), torch.float32, "cpu", 0, stream=stream)
model, kept = loaded.model, BlockStore(folder / "blocks" / "id")
layers = quantize_model(model, RTN(), widths(kinds(model.config), 3, 128), blocks=loaded.blocks, kept=kept)
loaded.blocks.serve(kept.serve)
nll = window_nll(model, torch.arange(128) % model.config.vocab_size, 64)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
weights = 4 * sum(layer.out_features * layer.in_features for layer in layers)
print(json.dumps({"weights": weights, "grown": grown, "nll": nll}))
"""


def run(folder, stream):
    LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=8, vocab_size=1000,
        max_position_embeddings=64,
    ).save_pretrained(folder)  # fmt: skip
    return warm.run(RUN, folder, stream, ALLOWED, cwd=ROOT)


def test_a_streamed_model_is_quantized_and_evaluated_in_a_quarter_of_its_size(tmp_path):
    done = run(tmp_path, True)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes["weights"] > 4 * ALLOWED
    assert sizes["grown"] < ALLOWED
    assert all(0 < value < 64 * 100 for value in sizes["nll"])


def test_in_memory_the_same_limit_is_reached(tmp_path):
    done = run(tmp_path, False)
    assert done.returncode != 0
    assert "can't allocate memory" in done.stderr or "MemoryError" in done.stderr
