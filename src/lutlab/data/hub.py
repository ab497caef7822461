"""Data sets from the Hugging Face hub, file by file through its cache.

Files rather than `datasets.load_dataset`: the commit is known and pinned, a filled cache works offline, and a
repository that also holds a loading script (PTB's) loads like any other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from lutlab.data.files import read_rows
from lutlab.errors import LutlabError
from lutlab.kept.files import set_aside
from lutlab.kept.sums import is_named

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Location:
    """One file of a data set repository; a `revision` that is no commit hash is resolved when the file is fetched.

    Without a `column` a row is the whole record, as JSON.
    """

    repo: str
    revision: str
    path: str
    column: str | None = "text"


def _ptb(split: str) -> tuple[Location, ...]:
    path = f"penn_treebank/{split}/0000.parquet"
    return (
        Location("FALcon6/ptb_text_only", "main", path, "sentence"),
        Location("ptb-text-only/ptb_text_only", "refs/convert/parquet", path, "sentence"),
    )


def _wikitext2(split: str) -> tuple[Location, ...]:
    commit = "b08601e04326c79dfdd32d625aee71d232d685c3"
    path = f"wikitext-2-raw-v1/{split}-00000-of-00001.parquet"
    return (Location("Salesforce/wikitext", commit, path),)


def _c4(path: str) -> tuple[Location, ...]:
    return (Location("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", path),)


def _arc(subset: str) -> tuple[Location, ...]:
    commit = "210d026faf9955653af8916fad021475a3f00453"
    path = f"ARC-{subset}/test-00000-of-00001.parquet"
    return (Location("allenai/ai2_arc", commit, path, None),)


def _glue(path: str) -> tuple[Location, ...]:
    commit = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    return (Location("nyu-mll/glue", commit, f"{path}-00000-of-00001.parquet", None),)


_C4_TRAIN = _c4("en/c4-train.00000-of-01024.json.gz")
# (data set, split) -> first choice, then the ones tried after it
LOCATIONS = {
    ("wikitext2", "test"): _wikitext2("test"),
    ("wikitext2", "train"): _wikitext2("train"),
    ("ptb", "validation"): _ptb("validation"),
    ("ptb", "test"): _ptb("test"),
    ("ptb", "train"): _ptb("train"),
    ("c4", "validation"): _c4("en/c4-validation.00000-of-00008.json.gz"),
    ("c4", "train"): _C4_TRAIN,
    ("c4", "train-first1000"): _C4_TRAIN,
    ("lambada", "test"): (
        Location(
            "EleutherAI/lambada_openai",
            "900124bf3b8235c6daf21033af9948b3f07346c4",
            "data/lambada_test.jsonl",
        ),
    ),
    ("lambada-standard", "test"): (
        Location("cimec/lambada", "main", "plain_text/test-00000-of-00001.parquet"),
    ),
    ("piqa", "validation"): (
        Location(
            "baber/piqa",
            "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
            "piqa_validation.parquet",
            None,
        ),
    ),
    ("hellaswag", "validation"): (
        Location(
            "Rowan/hellaswag",
            "218ec52e09a7e7462a5400043bb9a69a41d06b76",
            "data/validation-00000-of-00001.parquet",
            None,
        ),
    ),
    ("winogrande", "validation"): (
        Location(
            "allenai/winogrande",
            "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            "winogrande_xl/validation-00000-of-00001.parquet",
            None,
        ),
    ),
    ("arc-easy", "test"): _arc("Easy"),
    ("arc-challenge", "test"): _arc("Challenge"),
    ("mnli", "validation-matched"): _glue("mnli/validation_matched"),
    ("mnli", "validation-mismatched"): _glue("mnli/validation_mismatched"),
    ("mnli", "train"): _glue("mnli/train"),
    ("stsb", "validation"): _glue("stsb/validation"),
    ("stsb", "train"): _glue("stsb/train"),
}


def read(dataset: str, split: str, limit: int | None) -> tuple[list[str], str]:
    """Rows, and their origin: repository, commit, file, and the reason why an earlier choice was passed over.

    Raises:
        LutlabError: a text the hub does not hold, no choice could be fetched, or the file is damaged.
    """
    if (dataset, split) not in LOCATIONS:
        raise LutlabError(
            f"{dataset} ({split}) is not on the hub as we read it: it comes from files, data.root=<folder> "
            "(docs/data-layout.md)"
        )
    failures: list[str] = []
    for location in LOCATIONS[dataset, split]:
        try:
            path = _fetch(location)
        except LutlabError as error:
            failures.append(f"{location.repo}@{location.revision}: {error}")
            continue
        commit = path.parts[path.parts.index("snapshots") + 1]
        origin = f"hub: {location.repo}@{commit}/{location.path}"
        passed_over = "".join(f" (instead of {failure})" for failure in failures)
        return read_rows(path, location.column, limit), origin + passed_over
    raise LutlabError(
        f"{dataset} ({split}) could not be fetched from the Hugging Face hub\n  "
        + "\n  ".join(failures)
        + "\nconnect and repeat, or keep the files in a folder: data.source=folder data.root=<folder>, see "
        "docs/data-layout.md; scale=embedded needs neither"
    )


def _fetch(location: Location) -> Path:
    """Path of the file in the hub's cache, whose content is what was downloaded; if need be it is downloaded again.

    Raises:
        LutlabError: it cannot be had, or what was downloaded is not what the hub announced.
    """
    path = _cached(location)
    if _intact(path):
        return path
    aside = set_aside(path.resolve())
    log.warning("%s in the hub's cache is damaged: it is now %s, and fetched again", path, aside)
    try:
        path = _cached(location)
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


def _cached(location: Location) -> Path:
    """Path of the file in the hub's cache, downloaded if need be: <cache>/…/snapshots/<commit>/<path>."""
    import huggingface_hub
    from huggingface_hub import errors

    # HTTPError: the hub's HTTP client is httpx in one version, httpx2 in the next; this is its base class of errors
    failure = (errors.HTTPError, errors.FileMetadataError, OSError)
    where = (location.repo, location.path)
    options = {"repo_type": "dataset", "revision": location.revision}
    cached = huggingface_hub.try_to_load_from_cache(*where, **options)
    if len(location.revision) == 40 and isinstance(cached, str):
        return Path(cached)  # a commit never changes: no need to ask
    unreachable = None
    try:  # one quick question: hf_hub_download repeats its own for 20 s before it gives up
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(*where, **options))
    except failure as error:
        unreachable = error
    try:
        offline = unreachable is not None
        return Path(huggingface_hub.hf_hub_download(*where, **options, local_files_only=offline))
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
