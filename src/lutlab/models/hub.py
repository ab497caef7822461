"""Model repositories on the Hugging Face hub: a pinned revision, resolved to its commit, safetensors only.

Some repositories (all of OPT) hold pickled weights on their main branch, and the hub's own conversion to safetensors
in a pull request of its bot. Then that pull request's commit is used *and named* in the returned revision: it is what
the record shows. Which conversion a pinned revision has led to is kept in the hub's cache, so that a second run asks
nobody. Files there are named by their hash, git's or SHA-256, which `check` compares before they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeGuard

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import Damaged, is_named, write_atomically
from lutlab.base.quiet import without_bars

_TEXT_FILES = ["*.json", "*.model", "merges.txt", "vocab.txt", "chat_template.jinja"]
_WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]
_LOADABLE = {"model.safetensors", "model.safetensors.index.json"}  # one of them must be at the top
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
        if info.sha and (not weights or any(f.rfilename in _LOADABLE for f in info.siblings or ())):
            return info.sha
        for change in HfApi().get_repo_discussions(repository, author=CONVERSION_AUTHOR):
            if not change.is_pull_request or change.author != CONVERSION_AUTHOR:
                continue  # a mirror may not filter by author
            converted = HfApi().model_info(repository, revision=f"refs/pr/{change.num}")
            if converted.sha and any(f.rfilename in _LOADABLE for f in converted.siblings or ()):
                return converted.sha
    raise LutlabError(
        f"{repository} at {revision or 'main'} holds no safetensors and no conversion by {CONVERSION_AUTHOR}: lutlab "
        "never loads pickled weights; convert them once with save_pretrained and use model=folder model.id=<path>"
    )


def _cached_commit(repository: str, revision: str | None, *, weights: bool) -> str | None:
    """A pinned commit, or its conversion, whose files are in the local cache needs no network."""
    if not _is_commit(revision):
        return None
    folder = _cache_folder(repository)
    conversion = folder / "refs" / "lutlab" / revision
    if weights and (converted := _conversion(conversion, folder / "snapshots")):
        return converted
    snapshot = folder / "snapshots" / revision
    names = _LOADABLE if weights else {"config.json"}
    return revision if any((snapshot / name).exists() for name in names) else None


def _conversion(file: Path, snapshots: Path) -> str | None:
    """The commit in the cache, if its files are here; else the hub's answer, which the cache then has."""
    try:
        commit = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):  # none, or no commit
        return None
    return commit if _is_commit(commit) and (snapshots / commit).is_dir() else None


def check(folder: Path) -> None:
    """Compare the files of a snapshot with the hashes that they are named by in the hub's cache.

    Files of a cache without links have no such names, and are taken as they are.

    Raises:
        LutlabError: one of them differs, or cannot be read.
    """
    for path in sorted(folder.iterdir()):
        read = any(path.match(pattern) for pattern in _TEXT_FILES + _WEIGHT_FILES)
        try:
            if read and path.is_symlink() and not is_named(path, path.readlink().name):
                raise Damaged("it is not the file that was downloaded")
        except (OSError, RuntimeError, Damaged) as error:
            raise LutlabError(
                f"{path} in the hub's cache is damaged ({error}): delete it and the file that it is a link to, "
                f"{path.readlink()}, and run again, which downloads it again"
            ) from error


def _is_commit(revision: str | None) -> TypeGuard[str]:
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def _cache_folder(repository: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def download(repository: str, revision: str | None, *, weights: bool) -> Path:
    """Fetch a model's files (configuration and tokenizer only unless `weights`); returns the snapshot's folder."""
    from huggingface_hub import errors, snapshot_download

    commit = commit_of(repository, revision, weights=weights)
    patterns = _TEXT_FILES + (_WEIGHT_FILES if weights else [])
    with _taught(repository, revision):
        try:
            waiting = _bytes_missing(repository, commit, patterns) > 0
        except errors.DryRunError:  # offline, cached by a client that kept no listing
            waiting = False
        with nullcontext() if waiting else without_bars():
            folder = Path(snapshot_download(repository, revision=commit, allow_patterns=patterns))
    if _is_commit(revision) and commit != revision:
        conversion = _cache_folder(repository) / "refs" / "lutlab" / revision
        write_atomically(conversion, commit.encode())
    return folder


def download_bytes(repository: str, revision: str | None) -> int:
    """Size in bytes of what `download` would still fetch with weights: the hub's listing less what is in the cache."""
    commit = commit_of(repository, revision)
    with _taught(repository, revision):
        return _bytes_missing(repository, commit, _TEXT_FILES + _WEIGHT_FILES)


def _bytes_missing(repository: str, commit: str, patterns: list[str]) -> int:
    from huggingface_hub import snapshot_download

    with without_bars():
        files = snapshot_download(
            repository, revision=commit, allow_patterns=patterns, dry_run=True
        )
    return sum(file.file_size or 0 for file in files if file.will_download)


@contextmanager
def _taught(repository: str, revision: str | None) -> Iterator[None]:
    """Turn the hub client's errors into one sentence with a cure."""
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
    except errors.HFValidationError as error:
        raise LutlabError(
            f"'{repository}' is no repository of the hub: model.id has the form owner/name"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise LutlabError(
            f"the hub answers {status} for {where}; try again later, what is fetched is kept"
        ) from error
    # HTTPError: the base class of errors of the hub's HTTP client, httpx in one version, httpx2 in the next
    except (
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        errors.DryRunError,
        errors.HTTPError,
    ) as error:
        raise LutlabError(offline) from error
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise LutlabError(f"the download of {where} broke: {reason}; run again") from error
