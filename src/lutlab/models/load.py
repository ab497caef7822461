"""Turn a ModelSpec into a model and its tokenizer: safetensors only, never pickles, never a repository's own code.

Sources: `embedded` (ships with lutlab), `folder` (or a GGUF file), `package` (a GGUF file in a Python package), `hub`
(a pinned revision, downloaded once), `synthetic` (random weights from the config alone, optionally cut to its first
layers, for shapes too large to hold).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.quiet import quiet
from lutlab.base.specs import ModelSpec
from lutlab.gguf import folder as gguf
from lutlab.gguf.config import outline_of
from lutlab.models import hub, new_head, package, streamed
from lutlab.models.families import family_of, family_written, model_class, task_of_config
from lutlab.models.files import (
    QUANTIZATION_FILES,
    check_finite,
    check_names,
    check_shipped,
    hash_of,
    quantization_of,
    shape_folders,
    weight_files,
)
from lutlab.models.pretrained import config_of, mapping_of, model_of, tokenizer_of
from lutlab.models.resident import Blocks, Resident, placed, spread

EMBEDDED = Path(__file__).parent / "embedded"
# Every file a tokenizer may be made of, and those that alone suffice.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_VOCABULARIES = TOKENIZER_FILES[:3]
IN_FOLDERS = ("embedded", "folder", "package")  # sources whose files are here


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer (None: a synthetic model whose config came without one), its blocks."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    blocks: Blocks


def embedded_names() -> list[str]:
    """Names of the models that ship with lutlab."""
    return sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))


def folder_of(spec: ModelSpec) -> Path:
    """The local folder of a model's files; downloads a hub model, unpacks a GGUF file.

    Raises:
        LutlabError: no such folder, embedded name, package or repository, or no network; a GGUF file that cannot be
            read.
    """
    if spec.source == "embedded":
        if spec.id not in embedded_names():
            raise LutlabError(
                f"no embedded model '{spec.id}': {nearest(spec.id, embedded_names())}"
            )
        return EMBEDDED / spec.id
    if spec.source == "hub" or (spec.source == "synthetic" and hub.is_repository(spec.id)):
        return hub.download(spec.id, spec.revision, weights=spec.source == "hub")
    if file := gguf_of(spec):
        return gguf.unpacked(file)
    folder = EMBEDDED / spec.id if spec.id in embedded_names() else Path(spec.id).expanduser()
    described = (folder / "config.json").is_file()
    if not described and spec.source == "synthetic" and spec.id in (shapes := shape_folders()):
        return shapes[spec.id]
    if not described:
        raise LutlabError(
            f"no model in folder {folder}: expected config.json, *.safetensors and tokenizer.json there "
            "(model=folder model.id=<path>; a path with a comma: \"model.id='<path>'\")"
        )
    return folder


def gguf_of(spec: ModelSpec) -> Path | None:
    """The GGUF file that a model is read from; None where it is none.

    Raises:
        LutlabError: its package is not installed.
    """
    if spec.source == "package":
        return package.file_of(spec.id, spec.revision)
    if spec.source == "folder" and gguf.is_gguf(spec.id):
        return Path(spec.id).expanduser()
    return None


def source_bytes(spec: ModelSpec) -> int:
    """Bytes of the files that a model's weights come from.

    Raises:
        LutlabError: they are not there.
    """
    file = gguf_of(spec)
    return sum(path.stat().st_size for path in ([file] if file else weight_files(folder_of(spec))))


def task_here(spec: ModelSpec) -> str:
    """The task of a model whose config.json is here, or that asks for one; empty where neither is, or where loading
    the model will fail.
    """
    if spec.task:
        return spec.task
    if spec.source not in IN_FOLDERS:
        return ""
    if file := gguf_of(spec):
        return task_of_config(outline_of(file).config)
    return task_of_config(mapping_of(folder_of(spec) / "config.json"))  # loading names a damage


def load_model(
    spec: ModelSpec, dtype: torch.dtype, device: str, seed: int, *, stream: bool = False
) -> LoadedModel:
    """Load and check a model.

    Args:
        spec: the model.
        dtype: dtype of the model's weights.
        device: torch's name of a device, or `spread`, over all GPUs (resident.py).
        seed: seed of the weights of a synthetic model, or of a new head.
        stream: blocks stay where they are until they are opened (streamed.py).

    Raises:
        LutlabError: files missing, truncated or only pickled; weights missing, superfluous or not finite; unknown
            architecture; a model quantized already; a new head for what cannot have one.
    """
    if spec.task:
        new_head.check(spec, stream=stream)
    spreading = device == "spread"
    if spreading and stream:
        raise LutlabError("device=spread holds the whole model, stream=true one block: take one")
    device = "cpu" if spreading else device
    if stream:
        streamed.return_freed_memory()
    folder = folder_of(spec)
    check_shipped(folder, EMBEDDED)
    if spec.source == "hub":
        hub.check(folder)
    with quiet():
        synthetic = spec.source == "synthetic"
        config = config_to_draw(spec) if synthetic else _config(folder)
        tokenizer = load_tokenizer(folder, required=not synthetic)
        if spec.task:
            assert tokenizer is not None  # a synthetic model alone may lack it, and has no task
            new_head.declare(config, tokenizer)
        if synthetic:
            model, blocks = streamed.synthetic(config, dtype, device, seed)
        elif stream:
            model, blocks = streamed.from_shards(folder, config, dtype, device)
        else:
            model = placed(_pretrained(folder, config, dtype, seed if spec.task else None), device)
        if stream:
            return LoadedModel(model, tokenizer, blocks)
        if synthetic:
            blocks.fill()  # the weights that stream=True draws, so that both give the same numbers
        model = spread(model) if spreading else model
        return LoadedModel(model, tokenizer, Resident(model))


def _config(folder: Path) -> PreTrainedConfig:
    """The config of a known family, of weights that are not quantized."""
    path = folder / "config.json"
    try:
        family_written(path)
        config = config_of(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LutlabError(
            f"cannot read {path} ({type(error).__name__}: {_first_line(error)}): expected a transformers config with "
            "its model_type; fetch the file again"
        ) from error
    if quantization_of(folder) is not None:
        raise LutlabError(
            f"{folder} says that its weights are quantized already (quantization_config): method=stored measures them "
            "as they are, lutlab.load(folder) reads them; to quantize another way, use the full-precision model that "
            "this one was made from"
        )
    return config


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def config_to_draw(spec: ModelSpec) -> PreTrainedConfig:
    """The config of a synthetic model, with the spec's number of layers; raises LutlabError where `folder_of` does."""
    return cut(_config(folder_of(spec)), spec.layers)


def cut(config: PreTrainedConfig, layers: int | None) -> PreTrainedConfig:
    """A config, in place, of so many layers; None: of all. Raises LutlabError: it has not so many."""
    available = config.num_hidden_layers
    if layers is not None and not 1 <= layers <= available:
        raise LutlabError(
            f"model.layers={layers} of a model of {available} layers: give 1 to {available}, or null for all"
        )
    config.num_hidden_layers = layers or available
    return config


def _pretrained(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, head_seed: int | None
) -> PreTrainedModel:
    from safetensors import SafetensorError

    weight_files(folder)
    try:
        model, info = model_of(
            model_class(config),
            folder,
            config=config,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # reported in info, with the names
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise LutlabError(
            f"cannot load the weights in {folder}: {_first_line(error)}; the file is damaged or truncated: "
            "fetch it again"
        ) from error
    drawn = set() if head_seed is None else new_head.draw(model, head_seed)
    info["missing_keys"] = set(info["missing_keys"]) - drawn
    check_loaded(model, info, folder)
    for name, parameter in model.named_parameters():
        check_finite(parameter, f"{folder}: weight {name}")
    return model


def check_loaded(model: PreTrainedModel, info: Mapping[str, Collection[Any]], folder: Path) -> None:
    """Refuse a folder whose weights, by transformers' account, do not fill the model or have no place in it."""
    lacking = dict.fromkeys(info["missing_keys"], "has no such weight")
    for key, shape, expected in info["mismatched_keys"]:
        lacking[key] = f"holds {list(shape)} instead of {list(expected)}"
    blocks = family_of(model.config).blocks
    check_names(folder, lacking, info["unexpected_keys"], model.state_dict().keys(), blocks)


def load_tokenizer(folder: Path, *, required: bool = True) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model's folder; None where there is none and none is required.

    Raises:
        LutlabError: there is none, or its files are damaged.
    """
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        if not required:
            return None
        raise LutlabError(
            f"no tokenizer in {folder}: expected one of {', '.join(_VOCABULARIES)}; "
            "copy the model's tokenizer there"
        )
    try:
        return tokenizer_of(folder)
    except LutlabError:
        raise
    except Exception as error:  # of many kinds, the Rust tokenizers' own is a bare Exception
        raise LutlabError(
            f"cannot read the tokenizer in {folder} ({type(error).__name__}: {_first_line(error)}): fetch its files "
            "again, tokenizer.json among them, which needs no further package"
        ) from error


def fingerprint(spec: ModelSpec) -> str:
    """Identity of a model's weights and tokenizer: the hash of its files, its hub commit, or its config if synthetic.

    A synthetic model's numbers depend on RunSpec.seed as well, which is no part of a ModelSpec.

    Raises:
        LutlabError: no such folder, embedded name or repository, or no network; files of the weights are missing; files
            of an embedded model are damaged.
    """
    files = _files_fingerprint(spec)
    return f"{files}:{spec.task}" if spec.task else files


def _files_fingerprint(spec: ModelSpec) -> str:
    if spec.source == "hub":
        return f"hub:{spec.id}@{hub.commit_of(spec.id, spec.revision)}"
    if file := gguf_of(spec):
        return gguf.fingerprint(file)
    folder = folder_of(spec)
    check_shipped(folder, EMBEDDED)
    texts = [
        folder / "config.json",
        *(p for name in (*TOKENIZER_FILES, *QUANTIZATION_FILES) if (p := folder / name).is_file()),
    ]
    if spec.source == "synthetic":
        return f"synthetic:{hash_of(texts)}:{spec.layers}{':packed' if spec.packed else ''}"
    return f"files:{hash_of([*texts, *weight_files(folder)])}"
