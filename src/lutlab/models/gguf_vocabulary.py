"""A tokenizer in GGUF's keys, written and read: byte-level BPE, which llama.cpp calls `gpt2`; read, also `llama`.

Beside tokens and merges a file names the way in which a text is split before them (`tokenizer.ggml.pre`), since
llama.cpp has no other place for it. It is found by what the tokenizer does, not by the model's name; a tokenizer that
splits, normalizes or ends a text in a way that is not below is refused, and never written as a similar one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedTokenizerBase, transformers
from lutlab.models.gguf_header import Header
from lutlab.models.pretrained import tokenizer_in_gguf

if TYPE_CHECKING:
    from gguf import GGUFWriter

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
# llama.cpp's name -> steps before merging, as transformers' fast tokenizers have them.
SPLITTING = {
    "gpt-2": (("ByteLevel", True),),  # by GPT-2's expression
    "smollm": (("Digits", True), ("ByteLevel", True)),  # each digit alone before that
    "llama-bpe": (("Split", _WORDS % "{1,3}"), ("ByteLevel", False)),
    "qwen2": (("Split", _WORDS % ""), ("ByteLevel", False)),
}
_NAMES = {steps: name for name, steps in SPLITTING.items()}
WHOLE_FIRST = "llama-bpe"  # a word that is a token is not merged
_SPECIAL = ("bos", "eos", "unk", "pad")


def checked(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[str, Any]:
    """What is in the tokenizer's tokenizer.json, which a GGUF file of a model with `size` embeddings can say.

    Raises:
        LutlabError: the tokenizer is not byte-level BPE, or does what a GGUF file cannot say.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spec = {} if backend is None else json.loads(backend.to_str())
    for why in _obstacles(tokenizer, spec, size):
        raise LutlabError(
            f"the tokenizer {why}: pass tokenizer=None for a file without vocabulary, whose tokens go in and out by id"
        )
    return spec


def add_vocabulary(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Add tokens, merges, special tokens and chat template to a file of a model with `size` embeddings.

    Raises:
        LutlabError: what `checked` refuses.
    """
    import gguf

    spec = checked(tokenizer, size)
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
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    for name in _SPECIAL:
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    before, behind = _around(tokenizer)
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(behind))
    writer.add_add_space_prefix(False)
    if template := tokenizer.chat_template:
        if isinstance(template, Mapping):
            template = [{"name": name, "template": text} for name, text in template.items()]
        writer.add_chat_template(template)


def _obstacles(
    tokenizer: PreTrainedTokenizerBase, spec: Mapping[str, Any], size: int
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
    if _around(tokenizer) is None:
        yield "adds other tokens to a text than one bos_token before and one eos_token behind it"


def _steps(spec: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """The steps of a pre-tokenizer, each with the option by which it is known."""
    spec = spec or {"type": "Sequence", "pretokenizers": []}
    kind = spec["type"]
    if kind == "Sequence":
        for one in spec["pretokenizers"]:
            yield from _steps(one)
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


# ---- read ----


def read_tokenizer(header: Header, embeddings: int, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a file, made by transformers; a link to the file lies in the empty folder meanwhile.

    Raises:
        LutlabError: transformers cannot make it, or would cut text elsewhere than llama.cpp; it has more tokens than
            the model has embeddings.
    """
    kind, pre = header.keys.get("tokenizer.ggml.model"), header.keys.get("tokenizer.ggml.pre")
    if kind != "llama" and (kind != "gpt2" or pre not in SPLITTING):
        raise header.refused(
            f"its tokenizer (tokenizer.ggml.model, .pre) is {kind!r}, {pre!r}, and lutlab cuts text as "
            f"'llama' and, of 'gpt2', {', '.join(SPLITTING)} do",
            "take the model's safetensors and tokenizer.json",
        )
    link = folder / "model.gguf"
    link.symlink_to(header.path.resolve())
    asked = {}
    if pre == WHOLE_FIRST:  # llama.cpp's default of it
        asked["add_bos_token"] = header.keys.get("tokenizer.ggml.add_bos_token", True)
    try:
        found = tokenizer_in_gguf(folder, link.name, **asked)
        backend = _backend(found, header, kind, pre)
    except Exception as error:  # of many kinds: struct's, the Rust tokenizers' own a bare Exception
        said = str(error).strip().partition("\n")[0]
        cause = f"its tokenizer cannot be read ({type(error).__name__}: {said})"
        raise header.refused(cause) from error
    finally:
        link.unlink()
    tokens = backend.get_vocab_size()
    if tokens > embeddings:
        raise header.refused(
            f"its tokenizer has {tokens} tokens, and the model {embeddings} embeddings"
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=found.chat_template, **found.special_tokens_map
    )


def _backend(made: PreTrainedTokenizerBase, header: Header, kind: str, pre: Any) -> Any:
    """What transformers made of a file, with the tokens of the file alone, and cutting text as the file says."""
    from tokenizers import Tokenizer, pre_tokenizers

    said = json.loads(made.backend_tokenizer.to_str())
    count = header.keys["tokenizer.ggml.tokens"].count
    said["added_tokens"] = [one for one in said["added_tokens"] if one["id"] < count]
    if pre == WHOLE_FIRST:
        said["model"]["ignore_merges"] = True  # a word that is a token is that token
    found = Tokenizer.from_str(json.dumps(said))
    if kind == "gpt2":
        parts = [_step(*step) for step in SPLITTING[pre]]
        found.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return found


def _step(kind: str, how: Any) -> Any:
    """A step of SPLITTING."""
    from tokenizers import Regex, pre_tokenizers

    if kind == "Digits":
        return pre_tokenizers.Digits(individual_digits=how)
    if kind == "Split":
        return pre_tokenizers.Split(Regex(how), behavior="isolated")
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=how)
