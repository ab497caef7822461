"""Compare methods on one model: stored bits and perplexity.

    python examples/compare_methods.py

The model ships with lutlab and the text with Python. Bits count every stored buffer, so methods with the same q differ.
"""

from pydoc_data.topics import topics

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lutlab
from lutlab.models.load import EMBEDDED
from lutlab.modules import QuantLinear

torch.set_num_threads(1)  # more threads cost a small model more than they save
folder = EMBEDDED / "llama-embedded-s"
tokenizer = AutoTokenizer.from_pretrained(folder)
text = "\n\n".join(topics.values())
calibration = tokenizer(text, return_tensors="pt").input_ids[0, : 16 * 128].view(16, 128)
judged = text[-20_000:]  # far behind what gptq is calibrated on

full = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
rows = [("full precision", 32, 32.0, lutlab.perplexity(full, tokenizer, judged, seqlen=128))]
for q in (4, 3, 2):
    for method in ("rtn", "bcq", "gptq"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        inputs = {"calibration": calibration} if method == "gptq" else {}
        lutlab.quantize(model, method, q=q, g=32, **inputs)
        layers = [layer.packed for layer in model.modules() if isinstance(layer, QuantLinear)]
        bits = sum(weight.bits_per_weight for weight in layers) / len(layers)
        perplexity = lutlab.perplexity(model, tokenizer, judged, seqlen=128)
        rows.append((method, q, bits, perplexity))
print(pd.DataFrame(rows, columns=["method", "q", "bits a weight", "perplexity"]).round(2))
