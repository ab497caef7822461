"""Log-likelihoods of continuations, as all tasks of lm-evaluation-harness read them.

    L = sum over the continuation's tokens of log p(token | context and the tokens before it), in nats

The whole of context + continuation is encoded, and what exceeds the context's ids is the continuation; white space at
the context's end belongs to the continuation (lm-evaluation-harness 0.4.13, TemplateLM.loglikelihood). Up to 0.4.9 the
harness encoded without BOS, since 0.4.10 (PR #3347) as the tokenizer does: `bos` names which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lutlab.data.tokens import begin_id
from lutlab.errors import LutlabError
from lutlab.evaluators import batch_tokens, check_task, context_length, evaluation_mode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BOS = ("tokenizer", "none")


def log_likelihoods(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    bos: str = "tokenizer",
    window: int | None = None,
) -> list[tuple[float, bool]]:
    """L of each pair's continuation, and whether each of its tokens is the most likely one.

    Args:
        model: a transformers causal language model, quantized or not, on any device.
        tokenizer: its tokenizer.
        pairs: context and continuation, which together are one text.
        bos: `tokenizer` begins a text as the tokenizer does, `none` without BOS.
        window: tokens the model sees at most, contexts are cut from the left; None takes the model's context.

    Raises:
        LutlabError: no pairs, an unknown `bos`, a continuation of no tokens or longer than the window, or a likelihood
            that is not finite.
    """
    check_task(model, "a task of continuations", "causal_lm")
    window = window or context_length(model) or 2048
    encoded = encode_pairs(tokenizer, pairs, bos)
    for index, (_, target) in enumerate(encoded):
        if not 1 <= len(target) <= window:
            raise LutlabError(
                f"example {index} ends with '{pairs[index][1][-30:]}': what is to be predicted makes {len(target)} "
                f"tokens, which is not between 1 and the model's context of {window}; remove it"
            )
    scores = _scores(model, encoded, window)
    bad = next((i for i, (value, _) in enumerate(scores) if not math.isfinite(value)), None)
    if bad is not None:
        raise LutlabError(
            f"the log-likelihood of example {bad} ('…{pairs[bad][1][-30:]}') is {scores[bad][0]}: the logits overflow "
            f"{model.dtype} or the weights are broken; try dtype=float32"
        )
    return scores


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]], bos: str
) -> list[tuple[list[int], list[int]]]:
    """Token ids of contexts and continuations.

    Raises:
        LutlabError: no pairs, an unknown `bos`, or an empty context for a tokenizer with neither BOS nor EOS.
    """
    if not pairs:
        raise LutlabError("there are no examples to predict the end of")
    if bos not in BOS:
        raise LutlabError(f"bos '{bos}' is none of {', '.join(BOS)}")
    special = bos == "tokenizer" and begin_id(tokenizer) is not None
    contexts = [context.rstrip() for context, _ in pairs]
    wholes = [context + continuation for context, continuation in pairs]
    encoded = [
        tokenizer(part, add_special_tokens=special, verbose=False).input_ids
        for part in (contexts, wholes)
    ]
    found = []
    for index, (context, whole) in enumerate(zip(*encoded, strict=True)):
        target = whole[len(context) :]
        if not context:  # lm-eval predicts what has no context from BOS, or EOS
            begin = (
                tokenizer.bos_token_id
                if tokenizer.bos_token_id is not None
                else tokenizer.eos_token_id
            )
            if begin is None:
                raise LutlabError(
                    f"example {index} ('{wholes[index]}') has no context and the tokenizer no BOS or EOS to predict it "
                    "from; remove it"
                )
            context = [begin]
        found.append((context, target))
    return found


def _scores(
    model: PreTrainedModel, pairs: Sequence[tuple[list[int], list[int]]], window: int
) -> list[tuple[float, bool]]:
    """Log-likelihood and greediness of each pair's target ids, in the order of `pairs`."""
    import torch

    # the last target token is predicted, never read; window + 1 ids make a full input, as in lm-eval
    inputs = [(context + target)[-(window + 1) : -1] for context, target in pairs]
    scores: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    with evaluation_mode(model):
        for batch in _by_length(inputs, batch_tokens(model)):
            width = len(inputs[batch[0]])
            ids = torch.zeros(len(batch), width, dtype=torch.int64)  # padded on the right
            mask = torch.zeros_like(ids)
            for row, index in enumerate(batch):
                ids[row, : len(inputs[index])] = torch.tensor(inputs[index])
                mask[row, : len(inputs[index])] = 1
            logits = model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            ).logits  # [B, width, V]
            found = []
            for row, index in enumerate(batch):
                end, target = (
                    len(inputs[index]),
                    torch.tensor(pairs[index][1], device=logits.device),
                )
                log_p = logits[row, end - len(target) : end].float().log_softmax(-1)  # [target, V]
                likelihood = log_p.gather(1, target[:, None]).sum()
                found.append(torch.stack([likelihood, (log_p.argmax(-1) == target).all().float()]))
            for index, (likelihood, greedy) in zip(batch, torch.stack(found).tolist(), strict=True):
                scores[index] = (likelihood, bool(greedy))
    return scores


def _by_length(inputs: Sequence[list[int]], budget: int) -> Iterator[list[int]]:
    """Indices of `inputs`, longest first, in batches of at most `budget` tokens with padding (at least one input)."""
    order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    while order:
        size = max(1, budget // len(inputs[order[0]]))
        yield order[:size]
        order = order[size:]
