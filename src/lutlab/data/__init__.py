"""Texts to evaluate and to calibrate on: `load_text` reads rows under a named protocol, others make token ids of them.

    text = load_text(TextSpec("wikitext2", "hub"))
    ids = token_stream(text, tokenizer, seqlen=2048)  # [T] int64
    text = load_text(TextSpec("c4-train", "hub"))
    ids = calibration_inputs("causal_lm", text, tokenizer, samples=128, seqlen=2048, seed=0)  # [128, 2048] int64

protocols.py names what is read, splits.py where it lies; hub.py, folder.py and embedded.py read it. tasks.py has the
task definitions of lm-evaluation-harness, which read examples and items, and those tasks whose rows it fetches itself;
user.py reads texts of the user's.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.fields import check
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.specs import Text, TextSpec
from lutlab.data import embedded, folder, hub, tasks, user
from lutlab.data.choices import ITEMS, item_rows, records
from lutlab.data.files import each
from lutlab.data.masking import masked_calibration
from lutlab.data.pairs import calibration_pairs
from lutlab.data.protocols import OWN, PROTOCOLS, protocol
from lutlab.data.splits import difference
from lutlab.data.tokens import (
    calibration_windows,
    examples,
    token_sha256,
    token_stream,
    tokenizer_sha256,
)

__all__ = [
    "calibration_inputs",
    "calibration_windows",
    "examples",
    "load_text",
    "records",
    "rows_sha256",
    "token_sha256",
    "token_stream",
    "tokenizer_sha256",
]

log = logging.getLogger(__name__)

Source = Literal["embedded", "folder", "hub"]


def load_text(spec: TextSpec) -> Text:
    """Read the rows of a protocol from a source; `own` has none before its model writes them (generate/own.py).

    Raises:
        LutlabError: unknown protocol or source, a source without this text, a missing or damaged file, no network,
            an empty split, another number of rows than the draws of its protocol rest on, a row that is no example or
            item, or a limit that is no number from 1.
    """
    check(spec, "data.")
    if spec.source == tasks.SOURCE:
        return tasks.text_of_task(spec.protocol, spec.limit)
    if spec.source == user.SOURCE:
        user.declare(spec.protocol)  # this process may be a worker, which has read no command line
        if spec.root is None:
            raise LutlabError(
                f"give the text '{spec.protocol}', as data.text.{spec.protocol}=<file>"
            )
        rows, origin = user.read(spec.root)
        return Text(spec.protocol, tuple(rows), rows_sha256(rows), origin, spec.limit)
    if spec.source == OWN:
        return Text(OWN, (), rows_sha256(()), "written by the model")
    rule = protocol(spec.protocol)
    if spec.source not in (sources := get_args(Source)):
        raise LutlabError(f"unknown data.source '{spec.source}': {nearest(spec.source, sources)}")
    if (spec.source == "embedded") != (rule.dataset in embedded.READERS):
        fitting = [name for name, p in PROTOCOLS.items() if p.dataset in embedded.READERS]
        cure = (
            f"take data.source=hub or folder, or one of the embedded texts: {', '.join(fitting)}"
            if spec.source == "embedded"
            else "take data.source=embedded"
        )
        raise LutlabError(f"data.source={spec.source} has no text '{spec.protocol}': {cure}")

    if spec.source == "embedded":
        rows, origin = embedded.read(rule.dataset, rule.rows)
    elif spec.source == "folder":
        rows, origin = folder.read(rule.dataset, rule.split, spec.root, rule.rows)
    else:
        rows, origin = hub.read(rule.dataset, rule.split, rule.rows)
    if not any(rows):
        raise LutlabError(
            f"{spec.protocol}: the split '{rule.split}' is empty ({origin}); delete the file and fetch it again"
        )
    if rule.documents not in (None, len(rows)):
        raise LutlabError(
            f"{spec.protocol} draws among {rule.documents} documents, {origin} holds {len(rows)}: it is cut or another "
            "file, and other crops would be drawn; fetch it again, see docs/data-layout.md"
        )
    if rule.dataset in ITEMS:
        rows = item_rows(rule.dataset, rows, origin)
    elif rule.kind == "examples":
        rows = each(_example, rows, origin, "is no example with a last word")
    sha256 = rows_sha256(rows)
    differs = difference(rule.dataset, rule.split, len(rows), sha256)
    if differs:
        log.warning(
            "%s is another text than the published one (%s): %s", spec.protocol, origin, differs
        )
    return Text(spec.protocol, tuple(rows), sha256, origin, spec.limit, differs)


def _example(row: str) -> str:
    """The row, which a space divides into a context and the last word, as lm-eval does it."""
    context, _, word = row.rpartition(" ")
    if not context.strip() or not word.strip():
        raise ValueError("there are no two words with a space between, or a space ends it")
    return row


# task of a model (models/contract.py, TASKS) -> how its calibration inputs are made of a text
_CALIBRATION: Mapping[str, Callable[..., torch.Tensor | Mapping[str, torch.Tensor]]] = {
    "causal_lm": calibration_windows,
    "masked_lm": masked_calibration,
    "sequence_classification": calibration_pairs,
}


def calibration_inputs(
    task: str,
    text: Text,
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
    seqlen: int,
    seed: int,
) -> torch.Tensor | Mapping[str, torch.Tensor]:
    """Calibration windows for a model, of the kind that its task's evaluators read.

    Args:
        task: `causal_lm`, windows of a text; `masked_lm`, windows with their mask tokens; `sequence_classification`,
            pairs of sentences, padded.
        text: a text of kind `calibration`; for a classifier, of kind `calibration-pairs`.
        tokenizer: tokenizer of the model.
        samples: windows or pairs.
        seqlen: tokens of a window, or at most of a pair.
        seed: seed of the draws.

    Returns:
        Token ids [samples, seqlen] int64; of pairs input_ids, attention_mask, … [samples, S] by name.

    Raises:
        LutlabError: a text of another kind, too short, or with too few pairs; a tokenizer that lacks a special token.
    """
    return _CALIBRATION[task](text, tokenizer, samples, seqlen, seed)


def rows_sha256(rows: Iterable[str]) -> str:
    """Hash of the rows, each preceded by its length in bytes, so that no two splits share one by moving a border."""
    digest = hashlib.sha256()
    for row in rows:
        encoded = row.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()
