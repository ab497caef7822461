"""The one door to transformers' `from_pretrained`: data is read from a folder, and no code that lies there runs.

transformers asks on the terminal whether a repository's own code may run, unless it is told; here it is told no,
everywhere. What a folder can ask for beyond its config, tokenizer and safetensors is refused by name:

    auto_map                  code of the repository's own: never run; of an architecture that transformers has it is
                              left aside with a warning, of any other there is nothing to load
    attn_implementation       a kernel that transformers would fetch from the hub and run
    transformers_weights      other files than those that the model's hash is of
    adapter_config.json       weights that change the model where peft is installed, and do not where it is not
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.lazy import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    transformers,
)

log = logging.getLogger(__name__)

_ATTENTION = (None, "eager", "sdpa")  # computed by torch itself
_KERNEL_KEYS = (
    "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation",
)  # fmt: skip
# The names of a size: of most architectures, GPT-2's, GPT-Neo's.
_HEADS, _HIDDEN = ("num_attention_heads", "n_head", "num_heads"), ("hidden_size", "n_embd")
_KEY_VALUE, _SIZE = ("num_key_value_heads",), ("head_dim",)
_VOCABULARY, _FEED_FORWARD = ("vocab_size",), ("intermediate_size", "ffn_dim", "n_inner")


def config_of(folder: Path) -> PreTrainedConfig:
    """The config of a folder, of an architecture that transformers has itself.

    Raises:
        LutlabError: it asks for code, kernels or files that are not read here, or its numbers of heads do not fit.
        OSError, ValueError: transformers finds it missing, damaged, or of an unknown architecture.
    """
    from huggingface_hub.errors import StrictDataclassError

    check_folder(folder)
    check_heads(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (StrictDataclassError, *WRONG_TYPE) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    # from_config asks for it, and a model saved again has no such code beside it
    vars(config).pop("auto_map", None)
    return config


def model_of(model_class: Any, folder: Path, **how: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model of an Auto class from a folder's safetensors, and transformers' account of its weights.

    Raises:
        LutlabError: the config asks for code, kernels or files that are not read here; generation_config.json is
            damaged, which transformers would pass over.
        OSError, ValueError, RuntimeError, safetensors.SafetensorError: transformers cannot load it; a ValueError too
            where it fails otherwise over a JSON file of the folder (generation_config.json among them).
    """
    check_folder(folder)
    generation_config_of(folder)
    try:
        return model_class.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **how,
        )
    except WRONG_TYPE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def tokenizer_of(source: str | Path, *, local: bool = True) -> PreTrainedTokenizerBase:
    """A tokenizer by transformers' own classes, of a folder; unless local, of a repository of the hub too.

    Raises:
        Exception: no readable tokenizer; the errors are of many kinds, the Rust tokenizers' own is a bare Exception.
    """
    if Path(source).is_dir():
        check_folder(Path(source))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, local_files_only=local, trust_remote_code=False
        )
        tokenizer("a")  # some values are looked at only when a text is there
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of Rust, and no Exception
            raise ValueError(f"{error}") from error
        raise
    return tokenizer


def generation_config_of(folder: Path) -> transformers.GenerationConfig | None:
    """How a model of a folder ends and draws a text, by its generation_config.json; None where there is none.

    Raises:
        LutlabError: the file is damaged.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    try:
        return transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, *WRONG_TYPE) as error:
        raise LutlabError(f"{path} is damaged ({error}): fetch it again") from error


def check_folder(folder: Path) -> None:
    """Refuse what a folder asks for beyond data; says once where its own code is left aside.

    Files that cannot be read are left to whoever reads them.

    Raises:
        LutlabError: see the head of this file.
    """
    config = mapping_of(folder / "config.json")
    for name in ("config.json", "tokenizer_config.json"):
        if mapping_of(folder / name).get("auto_map"):
            _own_code(folder, name, str(config.get("model_type", "")))
    if weights := config.get("transformers_weights"):
        raise LutlabError(
            f"{folder / 'config.json'} names weights of its own choice (transformers_weights={weights!r}): lutlab "
            "reads model.safetensors or its shards, which its hash is of; name the file so and remove the key"
        )
    for key, value in _kernels(config):
        raise LutlabError(
            f"{folder / 'config.json'} asks for {key}={value!r}, which transformers may fetch from the hub and run: "
            "lutlab computes attention by torch (eager, sdpa); remove the key"
        )
    if (folder / "adapter_config.json").exists():
        raise LutlabError(
            f"{folder} holds an adapter (adapter_config.json), which is part of the model only where peft is "
            "installed: merge it into the weights (peft's merge_and_unload), or move its files elsewhere"
        )


def check_heads(folder: Path) -> None:
    """Refuse a config.json whose heads do not fit its other sizes: transformers would round where they do not divide.

    hidden size = heads * head size, unless head_dim says another; heads = key-value heads * queries that share one.
    What it leaves out has defaults.

    Raises:
        LutlabError: one of the sizes is no positive integer, or heads do not divide the hidden size, or key-value
            heads the heads.
    """
    path = folder / "config.json"
    written = mapping_of(path)
    heads, hidden = _size(written, _HEADS, path), _size(written, _HIDDEN, path)
    shared, size = _size(written, _KEY_VALUE, path), _size(written, _SIZE, path)
    for names in (_VOCABULARY, _FEED_FORWARD):  # torch allocates by them
        _size(written, names, path)
    if heads and hidden and size is None and hidden % heads:
        raise _misfit(path, f"{heads} attention heads do not divide the hidden size of {hidden}")
    if heads and shared and heads % shared:
        raise _misfit(path, f"{shared} key-value heads do not divide the {heads} attention heads")


def _size(written: dict[str, Any], names: tuple[str, ...], path: Path) -> int | None:
    """The size under the first of some names; None where it is left to its default."""
    for name in names:
        value = written.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise _misfit(path, f"{name} is {value!r}, no positive integer")
            return value
    return None


def _misfit(path: Path, cause: str) -> LutlabError:
    return LutlabError(
        f"{path}: {cause}: the file is damaged or of another model; fetch it again from where the weights came from"
    )


@functools.cache  # once a process: a plan, its rows and their evaluations all read the folder
def _own_code(folder: Path, name: str, model_type: str) -> None:
    if model_type not in transformers.CONFIG_MAPPING:
        raise LutlabError(
            f"{folder / name} asks for code of its repository (auto_map), which lutlab never runs, and transformers "
            f"has no architecture '{model_type}' of its own: take a model that transformers knows"
        )
    log.warning(
        "%s asks for code of its repository (auto_map), which lutlab never runs: transformers' own '%s' is used",
        folder / name,
        model_type,
    )


def _kernels(config: Any) -> Iterator[tuple[str, Any]]:
    """Keys at any depth that ask for an attention other than torch's."""
    for key, value in config.items():
        if key in _KERNEL_KEYS and value not in _ATTENTION:
            yield key, value
        elif isinstance(value, dict):
            yield from _kernels(value)


def mapping_of(path: Path) -> dict[str, Any]:
    """A JSON mapping; empty where it is missing or damaged, which its reader says."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return written if isinstance(written, dict) else {}
