"""Task objects of lm-eval: its own definition over rows of ours, or all of it, rows included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from lutlab.data import tasks
from lutlab.data.choices import records
from lutlab.data.protocols import PROTOCOLS
from lutlab.errors import LutlabError
from lutlab.specs import Text

# A definition's keys that say where it is listed; ConfigurableTask takes none of them.
_LISTED = ("tag", "group", "task_list")


def load(text: Text) -> Task:
    """The task that reads a text.

    Raises:
        LutlabError: a text of another kind or without rows, or data that lm-eval cannot fetch.
    """
    if text.protocol not in PROTOCOLS:
        return _fetched(tasks.definition(text.protocol))
    rows = records(text)
    if not rows:
        raise LutlabError("there are no examples to predict the end of")
    if text.protocol in tasks.DEFINITIONS:
        return _over(rows, load_yaml(tasks.folder() / tasks.DEFINITIONS[text.protocol]))
    return _over(rows, tasks.CONTINUATIONS)


def _over(rows: Sequence[Mapping[str, Any]], definition: Mapping[str, Any]) -> Task:
    """A definition with rows in memory in the place of its data set: no file, no cache, no download."""
    from datasets import Dataset

    config = {key: value for key, value in definition.items() if key not in _LISTED}
    config |= {
        "custom_dataset": lambda **_: {"test": Dataset.from_list(list(rows))},
        "dataset_kwargs": None,
        "training_split": None,
        "validation_split": None,
        "fewshot_split": None,
        "test_split": "test",
    }
    if "query" in rows[0]:  # a file of HellaSwag that went through process_docs already
        config["process_docs"] = None
    return ConfigurableTask(config=config)


def _fetched(definition: tasks.Definition) -> Task:
    """A task with its own rows."""
    try:
        with _offline_if_unreachable(definition.dataset):
            loaded = TaskManager(include_defaults=False).load([str(definition.path)])["tasks"]
    # of `datasets`, of the hub's client, of the task's own code: one line for the user
    except Exception as error:
        detail = " ".join(str(error).split())[:300] or "no detail"
        cure = (
            "connect once, so that the cache has them; with rows of ours, from files too, are "
            + ", ".join(tasks.DEFINITIONS)
            if isinstance(error, OSError)  # ConnectionError is one
            else "they are of another form than the task expects, or it needs a package that is not installed"
        )
        raise LutlabError(
            f"lm-eval cannot load its task '{definition.name}' with the rows of '{definition.dataset}' "
            f"({type(error).__name__}: {detail}): {cure}"
        ) from error
    return next(iter(loaded.values()))


@contextmanager
def _offline_if_unreachable(dataset: str) -> Iterator[None]:
    """One quick question to the hub; where nobody answers, only its cache is read: `datasets` would ask for 24 s."""
    import datasets
    import huggingface_hub
    from huggingface_hub import constants, errors

    states = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    url = huggingface_hub.hf_hub_url(dataset, "README.md", repo_type="dataset")
    try:
        huggingface_hub.get_hf_file_metadata(url)
    except errors.HfHubHTTPError:
        pass  # it answers
    except (errors.HTTPError, errors.FileMetadataError, OSError):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = states
