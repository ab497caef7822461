"""lm-evaluation-harness in process: one of its tasks on a model of ours, quantized or not.

    result = scores(model, tokenizer, text)   # text: rows of ours, or a task whose rows lm-eval fetches
    result.values["acc"], result.errors["acc"], result.n, result.facts["lm_eval"]

lm-eval makes prompts, likelihoods and each example's metrics. Here examples that have none are left out and named
(model.py), the rest is aggregated by lm-eval's own functions, and standard errors are analytic: its bootstrap is slow,
and unstable where a perplexity is huge. With s^2 = sum (x_i - mean)^2 / (n - 1), r = sum a_i / sum b_i, and by
linearization (delta method):

    m = mean of x_i     s / sqrt(n)
    exp(-m)             exp(-m) s / sqrt(n)
    exp(-r)             exp(-r) e, with e = sqrt(n / (n - 1) * sum (a_i - r b_i)^2) / sum b_i
    -r / ln 2           e / ln 2

`evaluator.evaluate` is what is called: `simple_evaluate` would list all packages first, which takes a second, and leave
every generator reseeded.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import logging
import math
import numbers
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, np, torch
from lutlab.base.specs import Text
from lutlab.data import tasks
from lutlab.data.choices import records
from lutlab.data.protocols import PROTOCOLS
from lutlab.data.tokens import begin_id
from lutlab.evaluators import check_task, context_length, evaluation_mode

if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from lutlab.evaluators.harness.model import CountingLM

BOS = ("tokenizer", "none")
BATCH_SIZE = 16  # requests; likelihoods of two sizes differ by rounding: it is in ids and records
# simple_evaluate's: of Python's generator, of numpy's and torch's, of the choice of examples in a prompt
_SEED, _ARRAY_SEED, _FEWSHOT_SEED = 0, 1234, 1234
# A definition's keys that say where it is listed; ConfigurableTask takes none of them.
_LISTED = ("tag", "group", "task_list")


@dataclass(frozen=True)
class Scores:
    """Values of one task's metrics, and how they came about.

    Attributes:
        n: examples that count.
        values: value by lm-eval's name of the metric, with its filter where that is not `none`.
        errors: standard errors of those values that have one.
        items: each counted example's contribution to a metric, in order.
        facts: versions, BOS, batch size, hash of documents and prompts; examples that were cut or left out, by their
            place in the task's documents.
    """

    n: int
    values: Mapping[str, float]
    errors: Mapping[str, float]
    items: Mapping[str, tuple[Any, ...]]
    facts: dict[str, Any]


def scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Text,
    bos: str = "tokenizer",
    batch_size: int = BATCH_SIZE,
    window: int | None = None,
) -> Scores:
    """Scores of a task of lm-eval.

    Args:
        model: a transformers causal language model, quantized or not, on any device; its mode is put back.
        tokenizer: its tokenizer; not changed.
        text: a text whose protocol has rows of examples or items, or whose source is `lm_eval`.
        bos: `tokenizer` begins a text as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
        batch_size: requests at once.
        window: tokens the model sees at most, contexts are cut from the left; None takes the model's context.

    Raises:
        LutlabError: a model of another task, an unknown `bos`, no examples, a task or data that cannot be loaded, no
            example with a likelihood, or a perplexity beyond the range of a float.
    """
    check_task(model, "lm-eval", "causal_lm")
    if bos not in BOS:
        raise LutlabError(f"bos '{bos}' is none of {', '.join(BOS)}")
    begin = begin_id(tokenizer) if bos == "tokenizer" else None
    window = window or context_length(model) or 2048
    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)  # lm-eval gives it one
    with _quietly(), _seeded(), evaluation_mode(model):
        from lutlab.evaluators.harness.model import CountingLM

        task = _task_of(text)
        task.set_fewshot_seed(seed=_FEWSHOT_SEED)
        lm = CountingLM(model, tokenizer, bos=bos, batch_size=batch_size, window=window)
        samples = _samples(lm, task, text)
        facts = {
            "task": task.task_name,
            "task_version": task.VERSION,
            "lm_eval": importlib.metadata.version("lm-eval"),
            "batch_size": batch_size,
            "bos": begin,
            "seqlen": window,
            "loss_dtype": "float32",
            "documents_sha256": _documents_sha256(samples),
        }
        return Scores(**_counted(task, samples, lm), facts=facts | lm.facts())


def _samples(lm: Any, task: Any, text: Text) -> list[dict[str, Any]]:
    """Each example's metrics, as lm-eval logs them."""
    from lm_eval.evaluator import evaluate

    name = task.task_name
    try:
        result = evaluate(lm, {"tasks": {name: task}}, limit=text.limit, bootstrap_iters=0)
    except OverflowError as error:
        raise LutlabError(
            f"a perplexity of '{name}' is beyond what exp can express: the model is broken, or quantized beyond use"
        ) from error
    return result["samples"][name]


@contextmanager
def _seeded() -> Iterator[None]:
    """The generators as simple_evaluate seeds them, since a task may draw; their states are put back."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            random.seed(_SEED)
            np.random.seed(_ARRAY_SEED)
            torch.manual_seed(_ARRAY_SEED)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars, no warnings of lm-eval's and its imports' futures, no line for each request that is cut."""
    from tqdm import tqdm

    logs = [logging.getLogger(name) for name in ("lm_eval", "huggingface_hub")]
    levels, init = [log.level for log in logs], tqdm.__init__
    for log in logs:
        log.setLevel(logging.ERROR)
    tqdm.__init__ = functools.partialmethod(init, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tqdm.__init__ = init
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


# ---- the task ----


def _task_of(text: Text) -> Task:
    """The task that reads a text: lm-eval's own definition over rows of ours, or all of it, rows included."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if text.protocol not in PROTOCOLS:
        return _fetched(text.protocol)
    rows = records(text)
    if not rows:
        raise LutlabError("there are no examples to predict the end of")
    if text.protocol in tasks.DEFINITIONS:
        return _over(rows, load_yaml(tasks.folder() / tasks.DEFINITIONS[text.protocol]))
    return _over(rows, tasks.CONTINUATIONS)


def _over(rows: Sequence[Mapping[str, Any]], definition: Mapping[str, Any]) -> Task:
    """A definition with rows in memory in the place of its data set: no file, no cache, no download."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

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


def _fetched(name: str) -> Task:
    """A task with its own rows."""
    from lm_eval.tasks import TaskManager

    path, dataset = tasks.definition(name), tasks.dataset_of(name)
    try:
        with _offline_if_unreachable(dataset):
            loaded = TaskManager(include_defaults=False).load([str(path)])["tasks"]
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
            f"lm-eval cannot load its task '{name}' with the rows of '{dataset}' "
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


# ---- its values and their errors ----


def _counted(task: Task, samples: Sequence[Mapping[str, Any]], lm: CountingLM) -> dict[str, Any]:
    """The fields n, values, errors and items of Scores, without the examples that have no likelihood."""
    from lm_eval.api import metrics

    counted = [sample for sample in samples if sample["doc_id"] not in lm.left_out]
    if not counted:
        raise LutlabError(_nothing_left(task, samples, lm))
    items: dict[str, list[Any]] = {}
    functions: dict[str, Callable] = {}
    for sample in counted:
        suffix = "" if sample["filter"] == "none" else f",{sample['filter']}"
        for metric in sample["metrics"]:
            items.setdefault(metric + suffix, []).append(sample[metric])
            functions[metric + suffix] = task.aggregation().get(metric, metrics.mean)
    values = {name: functions[name](some) for name, some in items.items()}
    values = {k: float(v) for k, v in values.items() if isinstance(v, numbers.Real)}
    for name, value in values.items():
        if not math.isfinite(value):
            raise LutlabError(f"{name} of '{task.task_name}' is {value}: the model is broken")
    errors = {name: standard_error(functions[name], items[name], values[name]) for name in values}
    return {
        "n": len({sample["doc_id"] for sample in counted}),
        "values": values,
        "errors": {name: error for name, error in errors.items() if error is not None},
        "items": {name: tuple(some) for name, some in items.items()},
    }


def standard_error(aggregation: Callable, items: Sequence[Any], value: float) -> float | None:
    """The standard error of an aggregate of lm-eval's; None where there is no formula, or one example only."""
    from lm_eval.api import metrics

    if len(items) < 2:
        return None
    if aggregation is metrics.mean:
        return metrics.mean_stderr(items)
    if aggregation is metrics.perplexity:
        return value * metrics.mean_stderr(items)
    if aggregation is metrics.weighted_perplexity:
        return value * _ratio_error(items)
    if aggregation is metrics.bits_per_byte:
        return _ratio_error(items) / math.log(2)
    return None


def _ratio_error(items: Sequence[tuple[float, float]]) -> float:
    """Standard error of sum a / sum b over items (a, b), by linearization."""
    total, n = sum(b for _, b in items), len(items)
    ratio = sum(a for a, _ in items) / total
    return math.sqrt(n / (n - 1) * sum((a - ratio * b) ** 2 for a, b in items)) / total


def _documents_sha256(samples: Sequence[Mapping[str, Any]]) -> str:
    """Hash of all documents and prompts in order, by lm-eval's own hash of each."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample['doc_hash']} {sample['prompt_hash']}\n".encode())
    return digest.hexdigest()


def _nothing_left(task: Task, samples: Sequence[Mapping[str, Any]], lm: CountingLM) -> str:
    count = len({sample["doc_id"] for sample in samples})
    if lm.not_finite:
        return (
            f"no example of {count} of '{task.task_name}' has a finite log-likelihood: the logits overflow "
            f"{lm.model.dtype} or the weights are broken; try dtype=float32"
        )
    return (
        f"no example of {count} of '{task.task_name}' fits: what is to be predicted makes no tokens or more than the "
        f"model's context of {lm.max_length}, or stands alone for a tokenizer with neither BOS nor EOS"
    )
