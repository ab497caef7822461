"""Model repositories on the Hugging Face hub: a pinned revision, resolved to its commit, safetensors only.

Some repositories (all of OPT) hold pickled weights on their main branch, and the hub's own conversion to safetensors
in a pull request of its bot. Then that pull request's commit is used *and named* in the returned revision: it is what
the record shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lutlab.errors import LutlabError

_TEXT_FILES = ["*.json", "*.model", "merges.txt", "vocab.txt"]
_WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]
CONVERSION_AUTHOR = "SFconvertbot"


def is_repository(name: str) -> bool:
    """Whether a name has the form owner/name and is no folder here."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def commit_of(repository: str, revision: str | None, *, weights: bool = True) -> str:
    """The commit whose files are used: the revision's, or that of the hub's conversion to safetensors.

    Raises:
        LutlabError: no such repository or revision, no network, or no safetensors anywhere.
    """
    from huggingface_hub import HfApi

    if cached := _cached_commit(repository, revision, weights=weights):
        return cached
    with _taught(repository, revision):
        info = HfApi().model_info(repository, revision=revision)
        if not weights or any(f.rfilename.endswith(".safetensors") for f in info.siblings):
            return info.sha
        for change in HfApi().get_repo_discussions(repository, author=CONVERSION_AUTHOR):
            converted = HfApi().model_info(repository, revision=f"refs/pr/{change.num}")
            if any(f.rfilename.endswith(".safetensors") for f in converted.siblings):
                return converted.sha
    raise LutlabError(
        f"{repository} at {revision or 'main'} holds no safetensors and no conversion by {CONVERSION_AUTHOR}: lutlab "
        "never loads pickled weights; convert them once with save_pretrained and use model=folder model.id=<path>"
    )


def _cached_commit(repository: str, revision: str | None, *, weights: bool) -> str | None:
    """A pinned commit whose safetensors are in the local cache needs no network."""
    from huggingface_hub import constants

    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    owned = f"models--{repository.replace('/', '--')}"
    snapshot = Path(constants.HF_HUB_CACHE) / owned / "snapshots" / revision
    found = any(snapshot.glob("*.safetensors")) if weights else (snapshot / "config.json").exists()
    return revision if found else None


def download(repository: str, revision: str | None, *, weights: bool) -> Path:
    """Fetch a model's files (configuration and tokenizer only unless `weights`); returns the snapshot's folder."""
    from huggingface_hub import snapshot_download

    commit = commit_of(repository, revision, weights=weights)
    patterns = _TEXT_FILES + (_WEIGHT_FILES if weights else [])
    with _taught(repository, revision):
        return Path(snapshot_download(repository, revision=commit, allow_patterns=patterns))


def download_bytes(repository: str, revision: str | None) -> int:
    """Size in bytes of what `download` would fetch, from the hub's listing."""
    from huggingface_hub import HfApi

    commit = commit_of(repository, revision)
    with _taught(repository, revision):
        info = HfApi().model_info(repository, revision=commit, files_metadata=True)
    return sum(f.size or 0 for f in info.siblings if f.rfilename.endswith((".safetensors", ".json")))


@contextmanager
def _taught(repository: str, revision: str | None) -> Iterator[None]:
    """Turn the hub client's errors into one sentence with a cure."""
    import httpx
    from huggingface_hub import errors

    where = f"{repository} at {revision or 'main'}"
    offline = (
        f"cannot reach the hub for {where}; check the network or HF_ENDPOINT, or use files you have: "
        "model=folder model.id=<path>, or stay with scale=embedded, which needs no network"
    )
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise LutlabError(
            f"the hub has no {where} (or it is gated: log in with `hf auth login`); check model.id and model.revision"
        ) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx.TransportError) as error:
        raise LutlabError(offline) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise LutlabError(f"the download of {where} broke: {error}; run again, it resumes") from error
