"""lutlab: reproduce, extend and trust the results on low-bit weight-only quantization of language models.

The public functions (see lutlab.api) are imported on first use, so that `import lutlab` costs nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from lutlab.base.errors import explained
from lutlab.checkpoint import register_with_transformers

if TYPE_CHECKING:
    from lutlab.api import quantize as quantize
    from lutlab.api import quantize_tensor as quantize_tensor
    from lutlab.base.specs import Tuning as Tuning
    from lutlab.checkpoint.adapter import load_adapter as load_adapter
    from lutlab.checkpoint.adapter import save_adapter as save_adapter
    from lutlab.checkpoint.foreign.compressed_tensors import (
        export_compressed_tensors as export_compressed_tensors,
    )
    from lutlab.checkpoint.foreign.gguf_writing import export_gguf as export_gguf
    from lutlab.checkpoint.foreign.gptq import export_gptq as export_gptq
    from lutlab.checkpoint.loading import load as load
    from lutlab.checkpoint.saving import save as save
    from lutlab.compress.synthetic import synthetic as synthetic
    from lutlab.evaluators.lambada import lambada as lambada
    from lutlab.evaluators.perplexity import perplexity as perplexity
    from lutlab.experiment.records.frame import results as results
    from lutlab.generate import engine as engine
    from lutlab.generate.text import complete as complete
    from lutlab.generate.text import stream as stream
    from lutlab.predict.footprint import predict_gpus as predict_gpus
    from lutlab.predict.footprint import predict_memory as predict_memory
    from lutlab.predict.per_token import predict_latency as predict_latency

__version__ = "0.1.0"

_HOME = {
    "quantize_tensor": "lutlab.api",
    "quantize": "lutlab.api",
    "Tuning": "lutlab.base.specs",
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
    "export_gguf": "lutlab.checkpoint.foreign.gguf_writing",
    "export_gptq": "lutlab.checkpoint.foreign.gptq",
    "export_compressed_tensors": "lutlab.checkpoint.foreign.compressed_tensors",
    "predict_latency": "lutlab.predict.per_token",
    "predict_memory": "lutlab.predict.footprint",
    "predict_gpus": "lutlab.predict.footprint",
}

__all__ = sorted(_HOME)

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


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


register_with_transformers()
