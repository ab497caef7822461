"""Turn a ModelSpec into a model and its tokenizer: safetensors only, never pickles, never a repository's own code.

Sources: `embedded` (ships with lutlab), `folder`, `hub` (a pinned revision, downloaded once), `synthetic` (random
weights from the config alone, optionally cut to its first layers, for shapes too large to hold).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lutlab.errors import LutlabError, nearest
from lutlab.models import hub

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from lutlab.records import ModelSpec

EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode and its tokenizer (None: a synthetic model whose config came without one)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None


def embedded_names() -> list[str]:
    """Names of the models that ship with lutlab."""
    return sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))


def folder_of(spec: ModelSpec) -> Path:
    """The local folder of a model's files; downloads a hub model.

    Raises:
        LutlabError: no such folder, embedded name or repository, or no network.
    """
    if spec.source == "embedded":
        if spec.id not in embedded_names():
            raise LutlabError(f"no embedded model '{spec.id}': {nearest(spec.id, embedded_names())}")
        return EMBEDDED / spec.id
    if spec.source == "hub" or (spec.source == "synthetic" and hub.is_repository(spec.id)):
        return hub.download(spec.id, spec.revision, weights=spec.source == "hub")
    folder = EMBEDDED / spec.id if spec.id in embedded_names() else Path(spec.id).expanduser()
    if not (folder / "config.json").is_file():
        raise LutlabError(
            f"no model in folder {folder}: expected config.json, *.safetensors and tokenizer.json there "
            "(model=folder model.id=<path>)"
        )
    return folder


def load_model(spec: ModelSpec, dtype: torch.dtype, device: str, seed: int) -> LoadedModel:
    """Load and check a model.

    Raises:
        LutlabError: files missing, truncated or only pickled; weights missing or not finite; unknown architecture.
    """
    from transformers import AutoConfig

    folder = folder_of(spec)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise LutlabError(f"cannot read {folder / 'config.json'}: {error}") from error
    if spec.source == "synthetic":
        model = _synthetic(config, spec.layers, dtype, seed)
    else:
        model = _pretrained(folder, config, dtype)
        _check_finite(model, folder)
    return LoadedModel(model.to(device).eval(), _tokenizer(folder, required=spec.source != "synthetic"))


def _synthetic(
    config: PreTrainedConfig, layers: int | None, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    if layers is not None:
        config.num_hidden_layers = layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _pretrained(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    _check_files(folder)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise LutlabError(
            f"cannot load the weights in {folder}: {error}; the file is damaged or truncated: fetch it again"
        ) from error
    missing = sorted(info["missing_keys"])
    if missing or info["mismatched_keys"]:
        wrong = missing or sorted(str(key) for key in info["mismatched_keys"])
        raise LutlabError(
            f"{folder} lacks {len(wrong)} weights that its config.json asks for, first {wrong[0]}: the checkpoint is "
            "incomplete or belongs to another config; lutlab would otherwise evaluate random weights"
        )
    return model


def _check_files(folder: Path) -> None:
    """Every shard named by the index must be there, and there must be safetensors at all."""
    index = folder / "model.safetensors.index.json"
    wanted = {"model.safetensors"}
    if index.is_file():
        wanted = set(json.loads(index.read_text())["weight_map"].values())
    absent = sorted(name for name in wanted if not (folder / name).is_file())
    if absent:
        raise LutlabError(
            f"{folder} lacks {', '.join(absent[:3])}{' …' if absent[3:] else ''}: lutlab reads safetensors only, never "
            "pickled weights (*.bin); convert them with transformers' save_pretrained or fetch the missing shards"
        )


def _check_finite(model: PreTrainedModel, folder: Path) -> None:
    import torch

    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise LutlabError(
                f"{folder}: weight {name} holds NaN or infinite values; the checkpoint is damaged, or overflowed when "
                "it was saved in half precision: fetch it again or use its float32 form"
            )


def _tokenizer(folder: Path, *, required: bool) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        if not required:
            return None
        raise LutlabError(f"no tokenizer in {folder}: expected tokenizer.json (or tokenizer.model, vocab.json)")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def fingerprint(spec: ModelSpec) -> str:
    """What decides a model's numbers: the hash of its files, its hub commit, or its config and seed if synthetic."""
    if spec.source == "hub":
        return f"hub:{spec.id}@{hub.commit_of(spec.id, spec.revision)}"
    folder = folder_of(spec)
    if spec.source == "synthetic":
        return f"synthetic:{_sha256([folder / 'config.json'])}:{spec.layers}"
    files = [*folder.glob("*.safetensors"), *folder.glob("tokenizer*"), folder / "config.json"]
    return f"files:{_sha256(sorted(files))}"


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()
