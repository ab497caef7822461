"""Full fine-tuning: every parameter of a model that is not quantized moves, embeddings, norms and head among them.

What a paper that tunes scales alone compares itself with (LUT-GEMM, Table 8: "full fine-tune"). AdamW decays all of
them alike. Afterwards method=none stores the linear weights in float16, as it does those of a checkpoint.

Memory: the model as it came, a float32 copy, 8 bytes a parameter of Adam's, and in main memory the best parameters:
2.7 billion take some 50 GB on the GPU.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.quantizers.contract import Method
from lutlab.tuning.end_to_end import Stage


class Whole(Stage):
    """The stage that moves every parameter (full fine-tuning)."""

    name = "whole"

    def __init__(self, model: PreTrainedModel, quantizer: Method) -> None:
        self.parameters = dict(model.named_parameters())

    @staticmethod
    def check_tunable(quantizer: Method) -> None:
        """Raise LutlabError unless a method keeps the weights."""
        if quantizer.quantizes:
            raise LutlabError(
                "full fine-tuning moves weights that are not quantized: give method=none"
            )

    def store(self, kept_step: int) -> None:
        """Nothing is to be done: parameters are stored as they are."""
