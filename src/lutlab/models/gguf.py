"""A GGUF file as a folder of transformers' files, unpacked once into the cache.

    x.gguf -> <cache>/gguf/<SHA-256 of the file, cut>-<VERSION>/  config.json  model.safetensors  tokenizer.json  …

Weights are what `gguf.quants.dequantize` gives, to the last bit of float32; a tensor that float16 holds exactly takes
half of the place. Whatever reads folders, by blocks, by ranks or whole, then reads a GGUF file too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError
from lutlab.kept import built
from lutlab.kept.files import sha256_of
from lutlab.kept.findings import cache_folder
from lutlab.lazy import torch, transformers
from lutlab.models.pretrained import quiet

# Raised where what is unpacked changes.
VERSION = 1


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a GGUF file by its name."""
    return Path(path).suffix == ".gguf"


def fingerprint(path: Path) -> str:
    """Identity of a file's weights and tokenizer: its SHA-256, and the version of what is unpacked of it.

    Raises:
        LutlabError: it cannot be read.
    """
    return f"gguf:{_sha256(path)}:{VERSION}"


def unpacked(path: Path) -> Path:
    """The folder of a file's model, in full precision; made where it is not there yet, of the same file only once.

    Raises:
        LutlabError: the file cannot be read, or holds a model that transformers does not know.
    """
    name = f"{_sha256(path)[:32]}-{VERSION}"
    return built.take(cache_folder("gguf"), name, lambda folder: _unpack(path, folder))[0]


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise LutlabError(
            f"cannot read {path} ({error.strerror}): give a GGUF file (model=folder model.id=<path>.gguf)"
        ) from error


def _unpack(path: Path, folder: Path) -> Mapping[str, Any]:
    asked = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with quiet():
        try:
            read = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent, dtype=torch.float32, **asked
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **asked)
        except Exception as error:  # of many kinds: struct, numpy, transformers, the Rust tokenizers' bare Exception
            said = str(error).strip().partition("\n")[0]
            raise LutlabError(
                f"cannot read {path} ({type(error).__name__}: {said}): the file is damaged, or of a model that "
                "transformers does not read from GGUF; fetch it again, or take the model's safetensors"
            ) from error
        config = read.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # weights are plain now
        with torch.device("meta"):
            model = type(read)(config)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = read.generation_config
        for parameter in model.parameters():
            half = parameter.data.half()
            if bool((half.float() == parameter.data).all()):
                parameter.data = half
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return {"file": path.name}
