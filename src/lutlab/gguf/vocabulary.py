"""A tokenizer written in GGUF's keys: byte-level BPE, which llama.cpp calls `gpt2`.

Beside tokens and merges a file names the way in which a text is split before them (`tokenizer.ggml.pre`), since
llama.cpp has no other place for it. It is found by what the tokenizer does, not by the model's name; a tokenizer that
splits, normalizes or ends a text in a way that tokenizer.py does not read is refused, and never written as a
similar one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase
from lutlab.gguf.tokenizer import KNOWN_ENDS, SPLITTING, WHOLE_FIRST

if TYPE_CHECKING:
    from gguf import GGUFWriter

_NAMES = {steps: name for name, steps in SPLITTING.items()}
_SPECIAL = ("bos", "eos", "unk", "pad")
_ENDS = ("eot", "eom")  # keys of tokens that end a text, beside eos


def checked(
    tokenizer: PreTrainedTokenizerBase, size: int, ends: Collection[int] = ()
) -> dict[str, Any]:
    """What is in the tokenizer's tokenizer.json, which a GGUF file can say.

    Args:
        tokenizer: the model's.
        size: number of the model's embeddings.
        ends: tokens that end a text, the tokenizer's own among them or not.

    Raises:
        LutlabError: the tokenizer is not byte-level BPE, or does what a GGUF file cannot say.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spec = {} if backend is None else json.loads(backend.to_str())
    for why in _obstacles(tokenizer, spec, size, ends):
        raise LutlabError(
            f"the tokenizer {why}: pass tokenizer=None for a file without vocabulary, whose tokens go in and out by id"
        )
    return spec


def add_vocabulary(
    writer: GGUFWriter,
    tokenizer: PreTrainedTokenizerBase,
    size: int,
    ends: Collection[int] = (),
) -> None:
    """Add tokens, merges, special tokens and chat template to a file. Arguments and errors: `checked`."""
    import gguf

    spec = checked(tokenizer, size, ends)
    added = {token["id"]: token for token in spec["added_tokens"]}
    by_id = {number: token for token, number in spec["model"]["vocab"].items()}
    by_id |= {number: token["content"] for number, token in added.items()}
    kinds = dict.fromkeys(by_id, gguf.TokenType.NORMAL)
    for number, token in added.items():
        special = token["special"]
        kinds[number] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_NAMES[tuple(_steps(spec["pre_tokenizer"]))])
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types([kinds.get(number, gguf.TokenType.UNUSED) for number in range(size)])
    merges = spec["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    for name in _SPECIAL:
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    for name, number in zip(_ENDS, _other_ends(tokenizer, ends), strict=False):
        getattr(writer, f"add_{name}_token_id")(number)
    before, behind = _around(tokenizer) or ([], [])  # None is refused
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(behind))
    writer.add_add_space_prefix(False)
    if template := tokenizer.chat_template:
        if isinstance(template, Mapping):
            template = [{"name": name, "template": text} for name, text in template.items()]
        writer.add_chat_template(template)


def _other_ends(tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> list[int]:
    """Tokens that end a text, ascending, without the tokenizer's own and those that llama.cpp knows by their text."""
    known = cast("list[int]", tokenizer.convert_tokens_to_ids(list(KNOWN_ENDS)))  # a list's is one
    return sorted(set(ends) - {tokenizer.eos_token_id, *known})


def _obstacles(
    tokenizer: PreTrainedTokenizerBase, spec: Mapping[str, Any], size: int, ends: Collection[int]
) -> Iterator[str]:
    """What a GGUF file cannot say of a tokenizer, in words."""
    model = spec.get("model") or {}
    if model.get("type") != "BPE" or (spec.get("decoder") or {}).get("type") != "ByteLevel":
        kind = model.get("type") or type(tokenizer).__name__
        yield f"is {kind}, and byte-level BPE alone is written to GGUF"
        return
    steps = tuple(_steps(spec["pre_tokenizer"]))
    name = _NAMES.get(steps)
    if name is None:
        known = ", ".join(SPLITTING)
        yield f"splits text by {steps}, of which llama.cpp's name is not known here (known: {known})"
    elif bool(model.get("ignore_merges")) != (name == WHOLE_FIRST):
        yield f"has ignore_merges={bool(model.get('ignore_merges'))}, unlike llama.cpp where it splits as {name}"
    for part in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(part):
            yield f"has {part}={model[part]!r} in its BPE, which GGUF has no key for"
    if spec.get("normalizer") is not None:
        yield f"normalizes text ({spec['normalizer'].get('type')}), which llama.cpp does not"
    for token in spec["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            yield f"strips what is beside {token['content']!r}, or wants it as a word, which GGUF has no key for"
    most = max([*model["vocab"].values(), *(token["id"] for token in spec["added_tokens"])])
    if most >= size:
        yield f"has a token of id {most}, and the model {size} embeddings"
    if tokenizer.eos_token_id is None:
        yield "has no eos_token, and llama.cpp would take token 11 for it"
    if len(others := _other_ends(tokenizer, ends)) > len(_ENDS):
        yield f"and generation_config.json end a text at {len(others) + 1} tokens, of which GGUF names {len(_ENDS) + 1}"
    if _around(tokenizer) is None:
        yield "adds other tokens to a text than one bos_token before and one eos_token behind it"


def _steps(spec: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """The steps of a pre-tokenizer, each with the option by which it is known."""
    spec = spec or {"type": "Sequence", "pretokenizers": []}
    kind = spec["type"]
    if kind == "Sequence":
        for step in spec["pretokenizers"]:
            yield from _steps(step)
    elif kind == "ByteLevel" and not spec["add_prefix_space"]:
        yield kind, spec["use_regex"]
    elif kind == "Digits":
        yield kind, spec["individual_digits"]
    elif kind == "Split" and spec["behavior"] == "Isolated" and not spec["invert"]:
        yield kind, spec["pattern"].get("Regex")
    else:
        yield kind, json.dumps(spec)


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]] | None:
    """Ids that the tokenizer puts before and behind a text, none or its bos and eos; None: others."""
    inner = tokenizer("a", add_special_tokens=False).input_ids
    whole = tokenizer("a").input_ids
    for before in ([], [tokenizer.bos_token_id]):
        for behind in ([], [tokenizer.eos_token_id]):
            if whole == [*before, *inner, *behind]:
                return before, behind
    return None
