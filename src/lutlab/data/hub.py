"""Data sets from the Hugging Face hub, file by file through its cache.

Files rather than `datasets.load_dataset`: the commit is known and pinned, a filled cache works offline, and a
repository that also holds a loading script (PTB's) loads like any other.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import is_named, set_aside
from lutlab.data.choices import ITEMS
from lutlab.data.files import read_rows
from lutlab.data.splits import SPLITS, Place

log = logging.getLogger(__name__)


_COLUMNS = {"ptb": "sentence"}  # of the row's text, where it is not `text`


def read(dataset: str, split: str, limit: int | None) -> tuple[list[str], str]:
    """Rows, and their origin: repository, commit, file, and the reason why an earlier choice was passed over.

    Raises:
        LutlabError: a text the hub does not hold, no choice could be fetched, or the file is damaged.
    """
    places = SPLITS[dataset, split].hub
    if not places:
        raise LutlabError(
            f"{dataset} ({split}) is not on the hub as we read it: it comes from files, data.root=<folder> "
            "(docs/data-layout.md)"
        )
    column = None if dataset in ITEMS else _COLUMNS.get(dataset, "text")
    failures: list[str] = []
    for place in places:
        repository, revision, name = place
        try:
            path = _fetch(place)
        except LutlabError as error:
            failures.append(f"{repository}@{revision}: {error}")
            continue
        commit = path.parts[path.parts.index("snapshots") + 1]
        origin = f"hub: {repository}@{commit}/{name}"
        passed_over = "".join(f" (instead of {failure})" for failure in failures)
        return read_rows(path, column, limit), origin + passed_over
    raise LutlabError(
        f"{dataset} ({split}) could not be fetched from the Hugging Face hub\n  "
        + "\n  ".join(failures)
        + "\nconnect and repeat, or keep the files in a folder: data.source=folder data.root=<folder>, see "
        "docs/data-layout.md; scale=embedded needs neither"
    )


def _fetch(place: Place) -> Path:
    """Path of the file in the hub's cache, whose content is what was downloaded; if need be it is downloaded again.

    Raises:
        LutlabError: it cannot be had, or what was downloaded is not what the hub announced.
    """
    path = _cached(place)
    if _intact(path):
        return path
    aside = set_aside(path.resolve())
    log.warning("%s in the hub's cache is damaged: it is now %s, and fetched again", path, aside)
    try:
        path = _cached(place)
    except LutlabError as error:
        raise LutlabError(f"it was damaged in the cache, now {aside}; {error}") from error
    if not _intact(path):
        raise LutlabError(f"what was downloaded twice ({path}) is not what the hub announced")
    return path


def _intact(path: Path) -> bool:
    """Whether a file of the cache is that of its blob's name; in a cache without links nothing says what it was."""
    blob = path.resolve()
    try:
        return is_named(blob, blob.name)
    except OSError as error:
        raise LutlabError(f"{blob} cannot be read ({error.strerror})") from error


def _cached(place: Place) -> Path:
    """Path of the file in the hub's cache, downloaded if need be: <cache>/…/snapshots/<commit>/<path>."""
    import huggingface_hub
    from huggingface_hub import errors, hf_hub_download

    # HTTPError: the hub's HTTP client is httpx in one version, httpx2 in the next; this is its base class of errors
    failure = (errors.HTTPError, errors.FileMetadataError, OSError)
    repository, revision, name = place
    where, options = (repository, name), {"repo_type": "dataset", "revision": revision}
    cached = huggingface_hub.try_to_load_from_cache(*where, **options)
    if len(revision) == 40 and isinstance(cached, str):
        return Path(cached)  # a commit never changes: no need to ask
    unreachable = None
    try:  # one quick question: hf_hub_download repeats its own for 20 s before it gives up
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(*where, **options))
    except failure as error:
        unreachable = error
    try:
        offline = unreachable is not None
        path = hf_hub_download(
            repository, name, repo_type="dataset", revision=revision, local_files_only=offline
        )
        return Path(path)
    except errors.LocalEntryNotFoundError as error:
        reason = _reason(unreachable or error)
        raise LutlabError(f"not in the cache, and {reason}") from (unreachable or error)
    except failure as error:
        raise LutlabError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """One line a user understands for an error of the hub's client."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids to fetch it"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{constants.ENDPOINT} answers {error.response.status_code} ({type(error).__name__})"
    detail = " ".join(str(error).split())[:160]
    if isinstance(error, errors.HTTPError):
        return f"no connection to {constants.ENDPOINT} ({type(error).__name__}: {detail})"
    return f"the download failed ({type(error).__name__}: {detail})"
