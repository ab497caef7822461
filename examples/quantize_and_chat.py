"""Shrink a model to 4 bits with its embeddings at 8, save it, load it, and answer a message.

    python examples/quantize_and_chat.py [folder of a model with a chat template]

On the command line: `lutlab quantize <model> method=rtn q=4 g=64 out=four`, then `lutlab chat four`.
"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import lutlab
from lutlab.models.load import EMBEDDED

folder = Path(*sys.argv[1:]) if sys.argv[1:] else EMBEDDED / "llama-embedded-m"
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(folder)

lutlab.quantize(model, method="rtn", q=4, g=64, embeddings=8)
lutlab.save(model, "four", tokenizer)
sizes = [(place / "model.safetensors").stat().st_size for place in (folder, Path("four"))]
print(f"{sizes[0] / 1e6:.1f} MB became {sizes[1] / 1e6:.1f} MB")

small = lutlab.load("four", dtype="float32")
if tokenizer.chat_template:
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    print(lutlab.complete(small, tokenizer, [talk], tokens=64, chat=True)[0])
else:
    print(
        "The function returns"
        + lutlab.complete(small, tokenizer, "The function returns", tokens=24)
    )
