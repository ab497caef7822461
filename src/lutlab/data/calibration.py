"""Windows that calibrated methods look at, drawn as the GPTQ repository draws them.

    rows joined (wikitext2-train, …): ids of the whole text, `samples` times a start from randint(0, T - seqlen - 1)
    documents (c4-train, …):          `samples` times documents until one is longer than seqlen, then a start in it

GPTQ repository, commit 2d65066, datautils.py get_wikitext2, get_ptb, get_c4, after random.seed(seed). The tokenizer's
BOS stands once before the text, or before each document, so a window holds it only where it was drawn from there.
"""

from __future__ import annotations

import random

from lutlab.data.protocols import KINDS, PROTOCOLS, protocol
from lutlab.data.tokens import crops, joined_ids
from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedTokenizerBase, torch
from lutlab.specs import Text


def calibration_windows(
    text: Text, tokenizer: PreTrainedTokenizerBase, samples: int, seqlen: int, seed: int
) -> torch.Tensor:
    """Random windows of a text of kind `calibration`; the `random` module's own state stays untouched.

    Args:
        text: rows under a protocol.
        tokenizer: tokenizer of the model to be calibrated.
        samples: windows to draw, at least 1; two may overlap.
        seqlen: tokens of each, at least 1.
        seed: seed of the draws.

    Returns:
        [samples, seqlen] int64.

    Raises:
        LutlabError: samples or seqlen below 1, a text of another kind (calibrating on what is evaluated would flatter
            the result), or one that is too short.
    """
    if samples < 1 or seqlen < 1:
        raise LutlabError(
            f"calibration takes at least 1 sample of at least 1 token, not {samples} of {seqlen}"
        )
    rule = protocol(text.protocol)
    if rule.kind != "calibration":
        known = [name for name, p in PROTOCOLS.items() if p.kind == "calibration"]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[rule.kind]}, it is evaluated and not calibrated on; take one of: "
            f"{', '.join(known)}"
        )
    if rule.crops:
        ids = torch.tensor(crops(text, tokenizer, seqlen, samples, seed))
    else:
        ids = _stretches(
            text, joined_ids(tokenizer, rule.join.join(text.rows)), samples, seqlen, seed
        )
    return ids.view(samples, seqlen)


def _stretches(text: Text, ids: torch.Tensor, samples: int, seqlen: int, seed: int) -> torch.Tensor:
    """GPTQ's get_wikitext2: `samples` random stretches of `seqlen` ids of one long text, one after the other."""
    if len(ids) <= seqlen:
        raise LutlabError(
            f"'{text.protocol}' has {len(ids)} tokens, calibration draws windows of {seqlen} out of at least "
            f"{seqlen + 1} ({text.origin}): take a longer text or calibration.seqlen={len(ids) - 1} or less"
        )
    draw = random.Random(seed)
    starts = [draw.randint(0, len(ids) - seqlen - 1) for _ in range(samples)]
    return torch.cat([ids[start : start + seqlen] for start in starts])
