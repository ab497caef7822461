"""A GGUF file's tokenizer as one of transformers': texts are cut where llama.cpp cuts them, and answers end there too.

    llama    SentencePiece. Blanks are ▁; one more stands in front of a text, and behind each special token
             (add_space_prefix). Neighbours whose joint text is a piece are merged, the best score first, of equal ones
             the leftmost. A character that is no piece is its bytes.
    gpt2     byte-level BPE by the file's merges, after the splitting that `tokenizer.ggml.pre` names.

Special tokens are found in a text before either: those of types control, user-defined and unknown, and those that
llama.cpp takes for such by their text. transformers merges pairs in one order, whereas scores belong to pieces; a
vocabulary in which the two may differ is refused.

As src/llama-vocab.cpp of llama.cpp does, in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, transformers
from lutlab.base.unread import unread
from lutlab.gguf.header import Elements, Header

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
WHOLE_FIRST = "llama-bpe"  # a word that is a token is not merged
_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # gguf.TokenType
_BLANK = "▁"
# Bytes that stand in UTF-8.
_BYTES = [f"<0x{byte:02X}>" for byte in (*range(0xC0), *range(0xC2, 0xF5))]
# transformers' name of a special token -> its key
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Where a file of `llama` names none, llama.cpp's own; of `gpt2` it would take token 11.
_BY_DEFAULT = {"unknown": 0, "bos": 1, "eos": 2}
# Tokens that end an answer whatever their type; so do those under _END_KEYS, of which fim_* have texts where no key is.
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
_END_KEYS: Mapping[str, tuple[str, ...]] = {
    "eos": (),
    "eot": (),
    "eom": (),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
KNOWN_ENDS = (*_ENDS, *(text for texts in _END_KEYS.values() for text in texts))
_FILLING = (  # the middle of a text: control tokens, and no ends
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
    "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>",
    "▁<MID>", "<|code_middle|>", "<|middle|>",
)  # fmt: skip
# Keys behind _KEY that are read, and those that change neither the cutting nor the end of a text of these two kinds.
_READ = {"model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token",
         "add_space_prefix", *(f"{name}_token_id" for name in (*_SPECIAL.values(), *_END_KEYS))}  # fmt: skip
_NEUTRAL = {"token_type_count", "remove_extra_whitespaces", "precompiled_charsmap", "add_sep_token",
            "normalizer.lowercase", "normalizer.strip_accents",
            *(f"{name}_token_id" for name in ("seperator", "separator", "cls", "mask", "fim_pre", "fim_suf", "fim_mid",
                                              "prefix", "suffix", "middle"))}  # fmt: skip


def special_ids(header: Header) -> dict[str, int | None]:
    """Ids of bos, eos, unk and pad, by transformers' names.

    Raises:
        LutlabError: one of the tokenizer's keys names no token of the file.
    """
    tokens = header.keys.get(f"{_KEY}tokens")
    count = tokens.count if isinstance(tokens, Elements) else 0
    ids = {}
    for key, number in header.keys.items():
        if key.startswith(_KEY) and key.endswith("_token_id"):
            if type(number) is not int or not 0 <= number < count:
                raise header.refused(f"{key} is {number!r}, no token of the vocabulary")
            ids[key] = number
    by_default = header.keys.get(f"{_KEY}model") == "llama" and count > max(_BY_DEFAULT.values())
    defaults = _BY_DEFAULT if by_default else {}
    return {
        ours: ids.get(f"{_KEY}{name}_token_id", defaults.get(name))
        for ours, name in _SPECIAL.items()
    }


def ends_of(header: Header) -> list[int]:
    """Tokens behind which llama.cpp stops, ascending. Raises LutlabError: as special_ids."""
    tokens, eos = _tokens(header), special_ids(header)["eos"]
    ends = {i for i, text in enumerate(tokens) if text in _ENDS or i == eos}
    for name, texts in _END_KEYS.items():
        number = header.keys.get(f"{_KEY}{name}_token_id")  # an id where it is there, as checked
        by_text = {i for i, text in enumerate(tokens) if text in texts}
        ends |= {number} if isinstance(number, int) else by_text
    return sorted(ends)


def read_tokenizer(header: Header, embeddings: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a file.

    Args:
        header: the file's keys.
        embeddings: number of rows of the model's embedding.

    Raises:
        LutlabError: it cuts a text in a way that is not read, one of its keys is unknown, its lists do not fit each
            other, or it has more tokens than the model has embeddings.
    """
    _check_keys(header)
    tokens = _tokens(header)
    if len(tokens) > embeddings:
        raise header.refused(
            f"its tokenizer has {len(tokens)} tokens, and the model {embeddings} embeddings"
        )
    special, ids = special_ids(header), _vocabulary(header, tokens)
    template = header.keys.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise header.refused(f"tokenizer.chat_template is {template!r}, no text")
    try:
        of_pieces = header.keys[f"{_KEY}model"] == "llama"
        backend = _sentencepiece(header, ids) if of_pieces else _byte_level(header, ids)
    except LutlabError:
        raise
    except Exception as error:  # the Rust tokenizers' own
        raise header.refused(f"its tokenizer cannot be made ({error})") from error
    added = _special_tokens(header, tokens)
    backend.add_special_tokens([token for token in added.values() if token.special])
    backend.add_tokens([token for token in added.values() if not token.special])
    backend.post_processor = _around(header, tokens, special)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        **{
            f"{name}_token": tokens[number]
            for name, number in special.items()
            if number is not None
        },
    )
    if unfound := tokenizer.added_tokens_decoder.keys() - added.keys():
        number = min(unfound)
        raise header.refused(
            f"its token {number} ({tokens[number]!r}) is named by a key and not of type control, so that llama.cpp "
            "does not find it in a text, and transformers does"
        )
    return tokenizer


def _check_keys(header: Header) -> None:
    """Refuse a kind of tokenizer, or a key of it, that is not read."""
    kind, pre = header.keys.get(f"{_KEY}model"), header.keys.get(f"{_KEY}pre")
    if kind != "llama" and (kind != "gpt2" or pre not in SPLITTING):
        raise header.refused(
            f"its tokenizer (tokenizer.ggml.model, .pre) is {kind!r}, {pre!r}, and lutlab cuts text as "
            f"'llama' and, of 'gpt2', {', '.join(SPLITTING)} do",
            "take the model's safetensors and tokenizer.json",
        )
    keys = {k.removeprefix(_KEY): v for k, v in header.keys.items() if k.startswith(_KEY)}
    for key, value in unread(keys, _READ, dict.fromkeys(_NEUTRAL)).items():
        raise header.refused(
            f"lutlab does not read its key {_KEY}{key} ({value!r})",
            "without it text may be cut elsewhere, or an answer end elsewhere; take its safetensors",
        )
    name = str(header.keys.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        raise header.refused(
            f"its name (general.name) is {name!r}, of which llama.cpp strips the blanks behind special tokens",
            "take the model's safetensors",
        )


def _tokens(header: Header) -> list[str]:
    """Text of each token by its id."""
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(header.elements(f"{_KEY}tokens"))]


def _special_tokens(header: Header, tokens: Sequence[str]) -> dict[int, Any]:
    """Id -> token that is found in a text before it is cut.

    Raises:
        LutlabError: two of them may overlap, where llama.cpp takes the longer and transformers the first.
    """
    from tokenizers import AddedToken

    kinds = header.elements(f"{_KEY}token_type") or [1] * len(tokens)
    _same_length(header, "token_type", kinds, tokens)
    control = {*KNOWN_ENDS, *_FILLING}
    added = {}
    for number, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) or text in control:
            special = kind != _USER_DEFINED or text in control
            added[number] = AddedToken(text, normalized=False, special=special)
    texts = [token.content for token in added.values()]
    begin = {text[:i]: text for text in texts for i in range(1, len(text))}
    for text in texts:
        for i in range(1, len(text)):
            other = begin.get(text[i:])
            if other is not None and len({*text, *other}) > 1:
                raise header.refused(
                    f"its special tokens {text!r} and {other!r} may overlap in a text",
                    "llama.cpp takes the longer one and transformers the first; take the model's safetensors",
                )
    return added


def _same_length(header: Header, name: str, values: Sized, tokens: Sized) -> None:
    if len(values) != len(tokens):
        raise header.refused(f"{_KEY}{name} has {len(values)} elements for {len(tokens)} tokens")


def _vocabulary(header: Header, tokens: Sequence[str]) -> dict[str, int]:
    """Text -> id. Raises LutlabError: two tokens have one text."""
    ids = {text: number for number, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        text, _ = Counter(tokens).most_common(1)[0]
        raise header.refused(f"two of its tokens are {text!r}")
    return ids


def _around(header: Header, tokens: Sequence[str], special: Mapping[str, int | None]) -> Any:
    """What stands before and behind a text: bos and eos as the file says, or as is llama.cpp's default of its kind."""
    from tokenizers import processors

    kind, pre = header.keys[f"{_KEY}model"], header.keys.get(f"{_KEY}pre")
    by_default = {"bos": kind == "llama" or pre == WHOLE_FIRST, "eos": False}
    beside: dict[str, list[str]] = {}
    for name, default in by_default.items():
        beside[name] = []
        if header.keys.get(f"{_KEY}add_{name}_token", default):
            if (number := special[name]) is None:
                raise header.refused(f"{_KEY}add_{name}_token is true, and it names no such token")
            beside[name] = [tokens[number]]
    single = [*beside["bos"], "$A", *beside["eos"]]
    return processors.TemplateProcessing(
        single=single,
        pair=[*single, *("$B:1" if part == "$A" else f"{part}:1" for part in single)],
        special_tokens=[(text, tokens.index(text)) for text in {*beside["bos"], *beside["eos"]}],
    )


# ---- gpt2 ----


def _byte_level(header: Header, ids: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pre = str(header.keys[f"{_KEY}pre"])
    merges = [_halves(merge) for merge in header.elements(f"{_KEY}merges")]
    backend = Tokenizer(models.BPE(ids, merges, ignore_merges=pre == WHOLE_FIRST))
    backend.pre_tokenizer = pre_tokenizers.Sequence([_step(*step) for step in SPLITTING[pre]])
    backend.decoder = decoders.ByteLevel()
    return backend


def _halves(merge: str) -> tuple[str, str]:
    """The two parts of a merge, between which is the first blank that does not begin it."""
    first, _, second = merge[1:].partition(" ")
    return merge[:1] + first, second


def _step(kind: str, how: Any) -> Any:
    """A step of SPLITTING."""
    from tokenizers import Regex, pre_tokenizers

    if kind == "Digits":
        return pre_tokenizers.Digits(individual_digits=how)
    if kind == "Split":
        return pre_tokenizers.Split(Regex(how), behavior="isolated")
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=how)


# ---- llama ----


def _sentencepiece(header: Header, ids: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    if lacking := [text for text in _BYTES if text not in ids]:
        raise header.refused(
            f"its tokenizer has no {lacking[0]}, and llama.cpp stops at a character that is neither piece nor bytes",
            "take the model's safetensors and tokenizer.json",
        )
    scores = header.elements(f"{_KEY}scores") or [0.0] * len(ids)
    _same_length(header, "scores", scores, ids)
    backend = Tokenizer(models.BPE(ids, _merges(header, ids, scores), byte_fallback=True))
    prefix = header.keys.get(f"{_KEY}add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(_BLANK)] if prefix else []), normalizers.Replace(" ", _BLANK)]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(),
         *([decoders.Strip(" ", 1, 0)] if prefix else [])]
    )  # fmt: skip
    return backend


def _merges(
    header: Header, ids: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Pairs of pieces in the order in which they are merged: by the score of the joint piece; of one, the longer left.

    Raises:
        LutlabError: pieces of one score, or a piece that is made of a character which is none.
    """
    pairs = []
    for text in ids:
        if " " in text:  # no blank is left where pieces are merged
            continue
        for halves in ((text[:i], text[i:]) for i in range(1, len(text))):
            lacking = [half for half in halves if half not in ids]
            if not lacking:
                pairs.append(halves)
            elif all(len(half) == 1 for half in lacking):
                raise header.refused(
                    f"its piece {text!r} is merged of {' and '.join(map(repr, halves))}, which are not both pieces",
                    "transformers has no place for that; take the model's safetensors and tokenizer.json",
                )
    of_score: dict[float, str] = {}
    for text in dict.fromkeys(map("".join, pairs)):
        # of equal scores the leftmost in a text goes first; blanks grow from the left, as the order below has them
        other = of_score.setdefault(scores[ids[text]], text)
        if other != text and {*other, *text} != {_BLANK}:
            raise header.refused(
                f"its pieces {other!r} and {text!r} have one score, and llama.cpp merges the leftmost in a text first",
                "transformers has no place for that; take the model's safetensors and tokenizer.json",
            )
    return sorted(pairs, key=lambda pair: (-scores[ids["".join(pair)]], -len(pair[0])))
