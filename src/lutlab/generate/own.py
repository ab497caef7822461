"""A text that a model writes by itself, to calibrate on where nobody gives one.

    token 0 begins a text; token t + 1 is drawn from softmax(logits after token t), at temperature 1

What a model was trained on is seldom at hand, and its own words are like it: LLM-QAT trains on them (Liu et al. 2023,
arXiv:2305.17888, section 3.1), Williams et al. calibrate on them (arXiv:2410.17170). A row goes on behind an end of
text, as training texts do that are packed one after the other.
"""

from __future__ import annotations

import json
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_atomically
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.progress import steps
from lutlab.base.specs import Text
from lutlab.data import rows_sha256
from lutlab.data.protocols import OWN
from lutlab.generate import context_of, engine
from lutlab.generate.contract import Engine
from lutlab.generate.text import Chooser, continued
from lutlab.models.families import task_of

ROWS, ROUNDS, TOKENS = 16, 3, 480
_NAME_ONE = "name one, as calibration.text=pydocs-train (Python: calibration=<token ids>)"


def text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, file: Path | None = None
) -> Text:
    """The text that a model writes, or has written into a file; arguments and errors as of write."""
    if file and file.exists():
        rows = tuple(json.loads(file.read_text()))
    else:
        rows = tuple(write(model, tokenizer))
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(rows).encode())
    return Text(OWN, rows, rows_sha256(rows), "written by the model")


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """ROWS * ROUNDS texts of TOKENS tokens; the same model and machine write the same.

    Args:
        model: a causal language model in full precision, in memory.
        tokenizer: the model's.

    Raises:
        LutlabError: no token begins or ends a text, no engine decodes the model, or its logits are NaN.
    """
    begin = next(
        (i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None
    )
    if begin is None:
        raise LutlabError(
            "the tokenizer names no token that begins or ends a text, so the model cannot begin one to calibrate on: "
            f"{_NAME_ONE}"
        )
    if (task := task_of(model)) != "causal_lm":
        raise LutlabError(f"a model for {task} writes no text to calibrate on: {_NAME_ONE}")
    tokens = min(TOKENS, context_of(model)[0])
    begun = [torch.tensor([begin])] * ROWS
    texts = [""] * (ROWS * ROUNDS)
    for first in steps(range(0, len(texts), ROWS), "writing a text to calibrate on, round"):
        made = _engine(model, tokens)
        choose = Chooser(temperature=1.0, seed=first)
        for piece in continued(made, tokenizer, begun, tokens, choose, ends=set()):
            texts[first + piece.row] += piece.text
    return texts


def _engine(model: PreTrainedModel, tokens: int) -> Engine:
    try:
        return engine(model, ROWS, tokens)
    except LutlabError as error:  # its weights stay on disk, or a cache does not fit
        raise LutlabError(
            f"the model writes no text to calibrate on: {error}; {_NAME_ONE}"
        ) from error
