"""Rows to token ids, as the GPTQ repository does it: the whole text in ONE tokenisation, so BOS stands once, first.

Commit 2d65066, datautils.py, for what is evaluated and for the windows that calibrated methods look at. A hash of the
ids turns "the same protocol" into something two runs can check.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.specs import Text
from lutlab.data import user
from lutlab.data.protocols import KINDS, PROTOCOLS, protocol

_KEPT_TEXTS = 16  # the texts of a table, with their extents; GPTQ's longest is 20 MB of ids
_kept: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()


def token_stream(text: Text, tokenizer: PreTrainedTokenizerBase, seqlen: int) -> torch.Tensor:
    """Token ids [T] int64, T >= seqlen, of a text of kind `stream`; only c4 and c4-new depend on the window's length.

    Raises:
        LutlabError: a protocol of examples, a text shorter than one window, or a tokenizer that promises BOS and
            does not set it.
    """
    rule = protocol(text.protocol)
    if rule.kind != "stream":
        streams = [n for n, p in PROTOCOLS.items() if p.kind == "stream"]
        joined = f"'{text.protocol}-joined', or another" if rule.kind == "examples" else "one"
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[rule.kind]}, not one text with a perplexity per token; take {joined} of: "
            f"{', '.join(streams)}"
        )
    if rule.crops:
        assert rule.windows is not None  # of a stream, which ends
        ids = torch.tensor(crops(text, tokenizer, seqlen, rule.windows, seed=0))
    else:
        ids = joined_ids(tokenizer, rule.joined(text.rows))
        ids = ids[: rule.windows * seqlen] if rule.windows else ids
    ids = ids[: text.limit * seqlen] if text.limit else ids
    if len(ids) < seqlen:
        raise LutlabError(
            f"'{text.protocol}' has {len(ids)} tokens, fewer than one window of {seqlen} ({text.origin}): "
            f"take a longer text or a window of at most {len(ids)}"
        )
    return ids.clone()  # of the part alone; what joined_ids keeps stays as it is


def examples(text: Text) -> tuple[str, ...]:
    """The rows of a text of kind `examples`.

    Raises:
        LutlabError: a protocol of another kind.
    """
    kind = protocol(text.protocol).kind
    if kind != "examples":
        known = [n for n, p in PROTOCOLS.items() if p.kind == "examples"]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[kind]}, not examples with a last word; take one of: {', '.join(known)}"
        )
    return text.rows[: text.limit]


def begin_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id that the tokenizer sets before a text, or None (GPT-2, GPT-Neo).

    OPT begins with </s> (2), LLaMA with <s> (1), BERT with [CLS]. What counts is what the tokenizer does: a
    tokenizer.json's post-processor wins over `add_bos_token` in transformers 5.

    Raises:
        LutlabError: `add_bos_token` is set but nothing is prepended, or something that is not BOS is.
    """
    special = tokenizer("", verbose=False).input_ids
    if special and special[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id):
        return special[0]
    promised = tokenizer.bos_token_id is not None and _promises_bos(tokenizer)
    if special or promised:
        raise LutlabError(
            f"the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__} should begin a text with BOS "
            f"(id {tokenizer.bos_token_id}) but begins it with {special or 'nothing'}\n"
            "perplexity depends on it: repair the post-processor in tokenizer.json, which wins over add_bos_token, "
            "or set add_bos_token to false in tokenizer_config.json if the model was trained without BOS"
        )
    return None


def _promises_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether tokenizer_config.json asks for BOS; transformers forgets it when a tokenizer.json is loaded."""
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    if not tokenizer.name_or_path:  # made in memory
        return False
    try:
        config = get_tokenizer_config(tokenizer.name_or_path, local_files_only=True)
    except OSError:  # the folder is gone since: what it promised cannot be known
        return False
    return bool(config.get("add_bos_token"))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of one text with what its tokenizer sets before it; never warns about the length.

    Raises:
        LutlabError: BOS is promised and missing (begin_id).
    """
    begin = begin_id(tokenizer)
    ids = tokenizer(text, verbose=False).input_ids
    if begin is not None and ids[0] != begin:
        raise LutlabError(
            f"the tokenizer sets BOS (id {begin}) before an empty text but {ids[0]} before this one"
        )
    return ids


def joined_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    """Ids [T] int64 of one long text, as encode; to be read only."""
    return once(_ids, tokenizer, text)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    return torch.tensor(encode(tokenizer, text), dtype=torch.int64)


def once(
    make: Callable[[PreTrainedTokenizerBase, str], torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    text: str,
) -> torch.Tensor:
    """make(tokenizer, text), which a process does once for all models of one tokenizer, loaded again or not."""
    key = (
        make,
        begin_id(tokenizer),  # checked of every tokenizer
        tokenizer_sha256(tokenizer),
        tokenizer.split_special_tokens,  # decides the ids of a text that spells <s>, and is no state of the backend
        hashlib.sha256(text.encode()).hexdigest(),
    )
    if key not in _kept:
        _kept[key] = make(tokenizer, text)
    _kept.move_to_end(key)
    while len(_kept) > _KEPT_TEXTS:
        _kept.popitem(last=False)
    return _kept[key]


def crops(
    text: Text, tokenizer: PreTrainedTokenizerBase, seqlen: int, count: int, seed: int
) -> list[int]:
    """Ids of `count` crops of `seqlen` ids, one after the other."""
    places = crop_places(text, tokenizer, seqlen, count, seed)
    return [i for _, start, ids in places for i in ids[start : start + seqlen]]


def crop_places(
    text: Text, tokenizer: PreTrainedTokenizerBase, seqlen: int, count: int, seed: int
) -> Iterator[tuple[int, int, list[int]]]:
    """GPTQ's get_c4: `count` random crops of `seqlen` ids from random documents longer than that.

    Yields:
        the document's index, where in it the crop starts, and the document's ids.
    """
    # the sequence of random.seed(seed); the module's own state stays untouched
    draw = random.Random(seed)
    lengths: dict[int, int] = {}
    drawn = 0
    while drawn < count:
        document = draw.randint(0, len(text.rows) - 1)
        if lengths.get(document, seqlen + 1) <= seqlen:
            continue
        encoded = encode(tokenizer, text.rows[document])
        lengths[document] = len(encoded)
        # GPTQ accepts >= seqlen and then fails in randint(0, -1); where it does not fail, the draws are the same
        if len(encoded) > seqlen:
            yield document, draw.randint(0, len(encoded) - seqlen - 1), encoded
            drawn += 1
        elif len(lengths) == len(text.rows) and max(lengths.values()) <= seqlen:
            raise LutlabError(
                f"'{text.protocol}' crops windows of {seqlen} tokens out of longer documents, but its longest has "
                f"{max(lengths.values())} ({text.origin}): take a window below that"
            )


def calibration_windows(
    text: Text, tokenizer: PreTrainedTokenizerBase, samples: int, seqlen: int, seed: int
) -> torch.Tensor:
    """Random windows [samples, seqlen] int64 of a text of kind `calibration`, two of which may overlap.

    As the GPTQ repository draws them, after random.seed(seed) (get_wikitext2, get_ptb, get_c4): of rows joined,
    `samples` times a start in the ids of the whole text; of documents, `samples` times documents until one is longer
    than seqlen, then a start in it. BOS stands before the text, or before each document, so a window holds it only
    where it was drawn from there. The `random` module's own state stays untouched.

    Raises:
        LutlabError: samples or seqlen below 1, a text of another kind (calibrating on what is evaluated would flatter
            the result), or one that is too short.
    """
    if samples < 1 or seqlen < 1:
        raise LutlabError(
            f"calibration takes at least 1 sample of at least 1 token, not {samples} of {seqlen}"
        )
    rule = protocol(text.protocol)
    if rule.kind != "calibration" and rule.dataset != user.SOURCE:
        known = [name for name, p in PROTOCOLS.items() if p.kind == "calibration"]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[rule.kind]}, it is evaluated and not calibrated on; take one of: "
            f"{', '.join(known)}"
        )
    if rule.crops:
        ids = torch.tensor(crops(text, tokenizer, seqlen, samples, seed))
    else:
        whole = joined_ids(tokenizer, rule.joined(text.rows))
        ids = _stretches(text, whole, samples, seqlen, seed)
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


def token_sha256(ids: torch.Tensor) -> str:
    """Hash of token ids [T], as 64-bit little-endian integers."""
    return hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of what decides the ids: vocabulary, merges, normaliser, special tokens.

    Padding and truncation are left out, calls change them.

    Raises:
        LutlabError: a tokenizer without the `tokenizers` backend.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise LutlabError(
            f"{type(tokenizer).__name__} has no `tokenizers` backend, so its state cannot be hashed: "
            "save it with a tokenizer.json and load that"
        )
    state = json.loads(backend.to_str())
    state["padding"] = state["truncation"] = None
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
