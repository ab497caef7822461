"""model=<place> on a command line, found by looking: a folder, a GGUF file, or owner/name of the hub.

    model=../mine        ->  model=folder model.id=../mine
    model=mine.gguf      ->  model=folder model.id=mine.gguf
    model=owner/name     ->  model=hub model.id=owner/name

A preset's name comes first; ./name is the folder of that name. A folder whose weights are quantized already is measured
as it is, method=stored, unless the line says another method.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from lutlab.gguf.folder import is_gguf
from lutlab.models import hub
from lutlab.models.files import quantization_of


def located(arguments: Sequence[str], presets: Collection[str]) -> list[str]:
    """Arguments with the place of a model as source and id.

    Args:
        arguments: overrides of a command line.
        presets: names that model= has already.

    Raises:
        LutlabError: a folder's config.json is damaged.
    """
    lines = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        place = value.strip("'\"")
        if key.lstrip("+") != "model" or not place or place in presets:
            lines.append(argument)
        elif Path(place).expanduser().exists():
            lines += ["model=folder", f"model.id={_quoted(place)}"]
        elif hub.is_repository(place):
            lines += ["model=hub", f"model.id={_quoted(place)}"]
        else:
            lines.append(argument)
    keys = {line.partition("=")[0].lstrip("+"): line.partition("=")[2] for line in lines}
    if keys.get("model") == "folder" and not keys.keys() & {"method", "exp"}:
        folder = Path(keys.get("model.id", "").strip("'\"")).expanduser()
        if (folder / "config.json").is_file() and not is_gguf(folder) and quantization_of(folder):
            lines.append("method=stored")
    return lines


def _quoted(text: str) -> str:
    """A text as Hydra reads it, whatever its characters."""
    if re.fullmatch(r"[\w./+-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
