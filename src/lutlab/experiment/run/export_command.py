"""`lutlab export`: a folder that lutlab saved, in the layout of another project.

    lutlab export three gguf=three.gguf                    llama.cpp
    lutlab export four gptq=four-gptq                      GPTQModel, vLLM, transformers
    lutlab export four compressed_tensors=four-ct          vLLM, transformers

Codes and scales stay as they are. Other layouts hold uniform codes alone (method=rtn, gptq, awq); a model of binary
codes (bcq, gptq_bcq, hessian_bcq) is refused with the reason. GGUF has types of 2, 4, 5 and 8 bits: other widths are
written in the next wider type, unless wider=false.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.progress import tell
from lutlab.base.quiet import quiet
from lutlab.experiment.run.progress import shown
from lutlab.experiment.run.words import command
from lutlab.models.load import load_tokenizer

_WORDS: dict[str, tuple[Any, str]] = {
    "gguf": ("", "new file for llama.cpp."),
    "gptq": ("", "new folder in the GPTQ layout."),
    "compressed_tensors": ("", "new folder in the layout of compressed-tensors."),
    "wider": (True, "false: refuse a layer that GGUF has no type of its width for."),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 2 for a mistake or a model that the layout cannot hold."""
    return command("export", __doc__, _WORDS, _export, arguments)


def _export(words: dict[str, Any], rest: list[str]) -> int:
    from lutlab import export_compressed_tensors, export_gguf, export_gptq, load

    folders = [word.removeprefix("model=") for word in rest]
    if len(folders) != 1 or "=" in folders[0]:
        raise LutlabError(
            "name the folder of one quantized model, as lutlab export three gguf=three.gguf"
        )
    places = {name: words[name] for name in ("gguf", "gptq", "compressed_tensors") if words[name]}
    if not places:
        raise LutlabError(
            "no layout: give gguf=<file>, gptq=<folder> or compressed_tensors=<folder>"
        )
    folder = Path(folders[0]).expanduser()
    with shown(), quiet():
        tell(f"loading {folder}")
        model = load(folder)
        tokenizer = load_tokenizer(folder, required=False)
        for name, place in places.items():
            tell(f"writing {place}")
            if name == "gguf":
                export_gguf(model, place, tokenizer, wider=words["wider"])
            else:
                write = export_gptq if name == "gptq" else export_compressed_tensors
                write(model, place, tokenizer)
    for place in map(Path, places.values()):
        files = [place] if place.is_file() else place.iterdir()
        print(f"{place}: {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")
    return 0
