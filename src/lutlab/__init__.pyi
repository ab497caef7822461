"""Public names and where they are. This list is the only one: __init__.py reads it, and so do type checkers."""

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

__version__: str
__all__: list[str]
