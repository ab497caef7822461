"""GLUE's pairs of sentences (Wang et al. 2018): accuracy of a classifier, correlations of a regression.

    glue              MNLI and the like: share of pairs whose most likely label is the right one
    glue_correlation  STS-B: Pearson's r and Spearman's rho of predicted and given similarity, both by scipy

A pair is encoded as the model's tokenizer encodes two texts, and cut to the model's context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.registry import register
from lutlab.base.specs import MNLI_LABELS, Measurement, Subject, Text
from lutlab.data.pairs import SCORED, Pair, encoded, labels_of, pairs
from lutlab.evaluators import check_task, context_length, evaluation_mode, needed, text_facts
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.models.families import with_positions

BATCH_PAIRS = 32  # of like length, so that little is padded


@register("evaluator", "glue")
@dataclass(frozen=True)
class Glue(Evaluator):
    """MNLI and the like: share of pairs whose most likely label is the right one.

    Metrics `accuracy` (0 to 1), `accuracy_stderr`; samples: log p of the right label less the best other's.

    Attributes:
        labels: the order in which the model's head has MNLI's labels, where its config does not name them. Some
            checkpoints have another than GLUE's (those of textattack: contradiction,entailment,neutral).
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "sequence_classification"
    reads: ClassVar[tuple[str, ...]] = ("pairs",)
    golden: ClassVar[str] = "mnli"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", "accuracy", lower_is_better=False),
        Metric("accuracy_stderr", "accuracy", "accuracy, standard error"),
    )

    labels: str = ",".join(MNLI_LABELS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.labels.split(",")) != sorted(MNLI_LABELS):
            raise LutlabError(
                f"evaluator.glue.labels={self.labels}: give {', '.join(MNLI_LABELS)} in the order of the model's head"
            )

    def measure(self, subject: Subject) -> Measurement:
        """Accuracy on subject.text."""
        text, tokenizer = needed(subject, "glue")
        some = _pairs(subject.model, text, "glue", labelled=True)
        labels = labels_of(some)
        order = _label_order(subject.model, self.labels)
        log_p = scores(subject.model, tokenizer, some).log_softmax(-1)[:, order]
        margins = []
        for row, label in zip(log_p.tolist(), labels, strict=True):
            right = row.pop(label)
            margins.append(right - max(row))
        accuracy, n = sum(margin > 0 for margin in margins) / len(margins), len(margins)
        stderr = math.sqrt(accuracy * (1 - accuracy) / max(1, n - 1))
        facts = text_facts(text, tokenizer) | {"label_order": order}
        values = {"accuracy": accuracy, "accuracy_stderr": stderr}
        errors = {"accuracy": stderr} if n > 1 else {}
        return Measurement(values, n, tuple(margins), facts, errors)


@register("evaluator", "glue_correlation")
class GlueCorrelation(Evaluator):
    """STS-B: Pearson's r and Spearman's rho of predicted and given similarity.

    Metrics `pearson` and `spearman`, -1 to 1; samples are the predictions, as the model's head gives them.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "sequence_classification"
    reads: ClassVar[tuple[str, ...]] = ("pairs",)
    golden: ClassVar[str] = "stsb"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("pearson", "correlation", "Pearson", lower_is_better=False),
        Metric("spearman", "correlation", "Spearman", lower_is_better=False),
    )

    def measure(self, subject: Subject) -> Measurement:
        """Correlations on subject.text."""
        from scipy import stats

        text, tokenizer = needed(subject, "glue_correlation")
        some = _pairs(subject.model, text, "glue_correlation", labelled=False)
        if subject.model.config.num_labels != 1:
            raise LutlabError(
                f"glue_correlation needs a head of one number, this model has {subject.model.config.num_labels} "
                "labels: take a checkpoint fine-tuned on STS-B"
            )
        predicted = scores(subject.model, tokenizer, some)[:, 0].tolist()
        if len(set(predicted)) < 2:
            raise LutlabError(
                "the model predicts the same similarity for every pair, which correlates with nothing: it is "
                "quantized beyond use, or there is one pair only"
            )
        labels = [pair.label for pair in some]
        if len(set(labels)) < 2:
            raise LutlabError(
                f"all {len(labels)} pairs have the similarity {labels[0]}, with which nothing correlates: give a "
                "larger data.limit"
            )
        values = {
            "pearson": float(stats.pearsonr(predicted, labels).statistic),
            "spearman": float(stats.spearmanr(predicted, labels).statistic),
        }
        facts = text_facts(text, tokenizer)
        return Measurement(values=values, n=len(some), samples=tuple(predicted), facts=facts)


def _pairs(
    model: PreTrainedModel, text: Text, evaluator: str, *, labelled: bool
) -> tuple[Pair, ...]:
    """The pairs of a text for a model that classifies; labelled: with labels, else with similarities."""
    check_task(model, evaluator, "sequence_classification")
    some = pairs(text)
    if (text.protocol in SCORED) == labelled:
        raise LutlabError(
            f"'{text.protocol}' has {'no labels' if labelled else 'labels, no similarities'}: evaluate "
            "glue:mnli or glue_correlation:stsb"
        )
    return some


def _label_order(model: PreTrainedModel, labels: str) -> list[int]:
    """The index in the model's head of each of MNLI_LABELS: by the names in its config, else as `labels` says."""
    id2label = model.config.id2label or {}
    named = {str(name).lower(): int(index) for index, name in id2label.items()}
    if len(named) != len(MNLI_LABELS):
        raise LutlabError(
            f"glue needs a head of {', '.join(MNLI_LABELS)}, this model has {len(named)} labels: take a checkpoint "
            "fine-tuned on MNLI"
        )
    if set(named) != set(MNLI_LABELS):  # LABEL_0, …: transformers' own
        named = {name: index for index, name in enumerate(labels.split(","))}
    return [named[name] for name in MNLI_LABELS]


def scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, some: Sequence[Pair]
) -> torch.Tensor:
    """Scores of a model's head for pairs of texts, at least one: [pairs, labels] float32 on the CPU, in their order.

    Raises:
        LutlabError: a score that is not finite.
    """
    window = context_length(model) or 512
    order = sorted(range(len(some)), key=lambda i: -len(some[i].first) - len(some[i].second))
    logits = torch.empty(len(some), len(model.config.id2label or ()))
    with evaluation_mode(model):
        for start in range(0, len(order), BATCH_PAIRS):
            batch = order[start : start + BATCH_PAIRS]
            inputs: Mapping[str, Any] = encoded(tokenizer, [some[i] for i in batch], window)
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            logits[batch] = model(**with_positions(model, inputs)).logits.float().cpu()
    if not torch.isfinite(logits).all():
        raise LutlabError(
            f"a score is inf or nan: the logits overflow {model.dtype} or the weights are broken; try dtype=float32"
        )
    return logits
