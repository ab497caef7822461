"""Read a GGUF file of llama.cpp as it is stored, and continue a text by it.

    python examples/read_gguf.py [model.gguf]

Without a file it writes one: a small LLaMA model that ships with lutlab, in Q4_0. The text is drawn, so that another
machine may get another one.
"""

import collections
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import lutlab
from gguf import GGUFReader
from lutlab.gguf.folder import unpacked
from lutlab.models.load import EMBEDDED, load_tokenizer

path = Path(sys.argv[1] if len(sys.argv) > 1 else "llama-embedded-s.gguf")
if not path.exists():
    folder = EMBEDDED / "llama-embedded-s"
    source = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    lutlab.quantize(source, "rtn", q=4, g=32, symmetric=True)
    lutlab.export_gguf(source, path, AutoTokenizer.from_pretrained(folder))
types = collections.Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors)
print(f"{path}: {path.stat().st_size / 1e6:.1f} MB,", *(f"{n} {name}" for name, n in types.items()))

model = lutlab.load(path)  # codes and scales are those of the file
tokenizer = load_tokenizer(unpacked(path))
print(lutlab.complete(model, tokenizer, "The function returns", tokens=32, temperature=0.7))
