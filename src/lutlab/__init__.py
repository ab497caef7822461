"""lutlab: reproduce, extend and trust the results on low-bit weight-only quantization of language models.

The public functions (see lutlab.api) are imported on first use, so that `import lutlab` costs nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from lutlab.checkpoint.hook import register_with_transformers
from lutlab.errors import explained

if TYPE_CHECKING:
    from lutlab.api import quantize, quantize_tensor
    from lutlab.checkpoint.adapter import load_adapter, save_adapter
    from lutlab.checkpoint.compressed_tensors import export_compressed_tensors
    from lutlab.checkpoint.gptq import export_gptq
    from lutlab.checkpoint.loading import load
    from lutlab.checkpoint.saving import save
    from lutlab.compress.synthetic import synthetic
    from lutlab.evaluators.lambada import lambada
    from lutlab.evaluators.perplexity import perplexity
    from lutlab.experiment.records.frame import results
    from lutlab.generate import engine
    from lutlab.generate.text import complete, stream
    from lutlab.predict.footprint import predict_gpus, predict_memory
    from lutlab.predict.per_token import predict_latency
    from lutlab.specs import Tuning

__all__ = [
    "Tuning",
    "complete",
    "engine",
    "export_compressed_tensors",
    "export_gptq",
    "lambada",
    "load",
    "load_adapter",
    "perplexity",
    "predict_gpus",
    "predict_latency",
    "predict_memory",
    "quantize",
    "quantize_tensor",
    "results",
    "save",
    "save_adapter",
    "stream",
    "synthetic",
]
__version__ = "0.1.0"

_HOME = {
    "quantize_tensor": "lutlab.api",
    "quantize": "lutlab.api",
    "Tuning": "lutlab.specs",
    "perplexity": "lutlab.evaluators.perplexity",
    "lambada": "lutlab.evaluators.lambada",
    "results": "lutlab.experiment.records.frame",  # the one function of the upper storey
    "engine": "lutlab.generate",
    "complete": "lutlab.generate.text",
    "stream": "lutlab.generate.text",
    "save": "lutlab.checkpoint.saving",
    "load": "lutlab.checkpoint.loading",
    "save_adapter": "lutlab.checkpoint.adapter",
    "load_adapter": "lutlab.checkpoint.adapter",
    "synthetic": "lutlab.compress.synthetic",
    "export_gptq": "lutlab.checkpoint.gptq",
    "export_compressed_tensors": "lutlab.checkpoint.compressed_tensors",
    "predict_latency": "lutlab.predict.per_token",
    "predict_memory": "lutlab.predict.footprint",
    "predict_gpus": "lutlab.predict.footprint",
}

# A thread of GNU's OpenMP that waits for another one spins 3 ms and more, and so keeps a core from the thread that it
# waits for where others are busy. 5000 rounds, some 0.1 ms, bridge the gaps between our products. OpenMP reads this
# when torch loads it, and never again. What the user says in either variable stands.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lutlab' has no attribute '{name}'")
    found = explained(getattr(importlib.import_module(_HOME[name]), name))
    globals()[name] = found  # so that every use is the same object
    return found


register_with_transformers()
