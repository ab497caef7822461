"""lm-evaluation-harness in process: one of its tasks on a model of ours, quantized or not.

    found = scores(model, tokenizer, text)   # text: rows of ours, or a task whose rows lm-eval fetches
    found.values["acc"], found.errors["acc"], found.n, found.facts["lm_eval"]

lm-eval makes prompts, likelihoods and each example's metrics. Here examples that have none are left out and named
(model.py), the rest is aggregated by lm-eval's own functions, and standard errors are analytic (results.py): its
bootstrap is slow, and unstable where a perplexity is huge. `evaluator.evaluate` is what is called: `simple_evaluate`
would list all packages first, which takes a second, and leave every generator reseeded.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.util
import logging
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lutlab.data import tasks
from lutlab.data.tokens import begin_id
from lutlab.errors import LutlabError
from lutlab.evaluators import check_task, context_length, evaluation_mode
from lutlab.lazy import PreTrainedModel, PreTrainedTokenizerBase, np, torch
from lutlab.specs import Subject, Text

BOS = ("tokenizer", "none")
BATCH_SIZE = 16  # requests; likelihoods of two sizes differ by rounding: it is in ids and records
LIBRARIES = ("lm-eval",)
# simple_evaluate's: of Python's generator, of numpy's and torch's, of the choice of examples in a prompt
_SEED, _ARRAY_SEED, _FEWSHOT_SEED = 0, 1234, 1234


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
    facts: Mapping[str, Any]


def missing() -> str:
    """The reason why no task can be measured here; empty where lm-eval is installed."""
    return tasks.MISSING if importlib.util.find_spec("lm_eval") is None else ""


def measured(
    subject: Subject, text: Text, tokenizer: PreTrainedTokenizerBase, bos: str, batch_size: int
) -> Scores:
    """The scores of a subject, contexts cut to the model's context, or to subject.seqlen where it states none."""
    window = context_length(subject.model) or subject.seqlen
    return scores(subject.model, tokenizer, text, bos, batch_size, window)


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
        from lutlab.evaluators.harness.results import counted, documents_sha256
        from lutlab.evaluators.harness.tasks import load

        task = load(text)
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
            "documents_sha256": documents_sha256(samples),
        }
        return Scores(**counted(task, samples, lm), facts=facts | lm.facts())


def _samples(lm: Any, task: Any, text: Text) -> list[dict[str, Any]]:
    """Each example's metrics, as lm-eval logs them."""
    from lm_eval.evaluator import evaluate

    name = task.task_name
    try:
        found = evaluate(lm, {"tasks": {name: task}}, limit=text.limit, bootstrap_iters=0)
    except OverflowError as error:
        raise LutlabError(
            f"a perplexity of '{name}' is beyond what exp can express: the model is broken, or quantized beyond use"
        ) from error
    return found["samples"][name]


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
