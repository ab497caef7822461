"""Text is cut where llama.cpp cuts it, by a naive reading of its rules, and an answer ends where it ends one."""

import random

import pytest
from tests.base.refusals import refused
from tests.generate.test_text import Spells
from tests.gguf import gguf_files
from tests.gguf.naive_tokenizer import cut
from tests.models.folders import loaded

import gguf as package
import lutlab
from lutlab.gguf.header import read_header
from lutlab.gguf.tokenizer import ends_of, read_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Unknown, control, user-defined: token -> its type.
SPECIAL = {"<unk>": 2, "<s>": 3, "</s>": 3, "<x>": 4, "  ": 4}


def sentencepiece(path, pieces, scores=None, **keys):
    """A file of a vocabulary alone, its tokens and their scores."""
    scores = list(scores or [-float(i) for i in range(len(pieces))])
    tokens = [*SPECIAL, *BYTES, *pieces]
    scores = [0.0] * (len(tokens) - len(pieces)) + scores
    writer = package.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([*SPECIAL.values(), *[6] * len(BYTES), *[1] * len(pieces)])
    gguf_files.add_keys(writer, keys)
    return gguf_files.finish(writer, path), tokens, scores


def read(path):
    return read_tokenizer(read_header(path), 1000)


@pytest.mark.parametrize("seed", range(24))
def test_drawn_texts_are_merged_as_by_scores(seed, tmp_path):
    """Few letters, so that pieces compete; blanks, letters that are no pieces, special tokens inside."""
    draw = random.Random(seed)
    letters = draw.choice(["ab▁", "abc▁é", "a▁", "abcdefgh▁"])
    pieces = [*letters, *(["▁▁", "▁▁▁"] if seed % 2 else [])]
    while len(pieces) < 5 + seed:
        pieces.append(draw.choice(pieces) + draw.choice(pieces))
        pieces = list(dict.fromkeys(piece for piece in pieces if len(piece) < 12))
        if letters == "a▁" and len(pieces) > 20:
            break
    scores = [-float(i) for i in range(len(pieces))]
    if seed % 3:
        draw.shuffle(scores)
    blanks = [i for i, piece in enumerate(pieces) if set(piece) == {"▁"} and seed % 2]
    scores = [-1000.0 if i in blanks else score for i, score in enumerate(scores)]
    prefix = bool(draw.randrange(2))
    given = {"tokenizer__ggml__add_space_prefix": prefix} if seed % 4 or not prefix else {}
    path, tokens, scores = sentencepiece(tmp_path / "x.gguf", pieces, scores, **given)
    tokenizer, special = read(path), {token: tokens.index(token) for token in SPECIAL}
    signs = [*letters.replace("▁", " ") * 3, " ", "é", "日", "▁", "\n", *SPECIAL]
    for _ in range(40):
        text = "".join(draw.choice(signs) for _ in range(draw.randrange(24)))
        expected = cut(text, tokens, scores, special, prefix=prefix)
        assert tokenizer(text).input_ids == [1, *expected], text
        if not prefix and not any(token in text for token in special):
            assert tokenizer.decode(expected) == text.replace("▁", " ")


OTHERWISE = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}


@pytest.mark.parametrize(("keys", "expected"), [
    ({}, ["<s> ▁Tom", "<s> ▁ ▁Tom", "<s> <s> ▁Tom", "<s> ▁Tom <x> ▁Tom", "<s>"]),
    (OTHERWISE, ["T om </s>", "▁Tom </s>", "<s> T om </s>", "T om <x> T om </s>", "</s>"]),
])  # fmt: skip
def test_blanks_and_ends_are_the_files(keys, expected, tmp_path):
    pieces = ["▁", "T", "o", "m", "▁T", "om", "▁Tom", "▁▁"]
    keys = {f"tokenizer__ggml__{name}": value for name, value in keys.items()}
    tokenizer = read(sentencepiece(tmp_path / "x.gguf", pieces, **keys)[0])
    for text, tokens in zip(["Tom", " Tom", "<s>Tom", "Tom<x>Tom", ""], expected, strict=True):
        assert tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) == tokens.split()


def key(name, value):
    return {f"tokenizer__ggml__{name}": value}


@pytest.mark.parametrize(("pieces", "keys", "message"), [
    ("a ab ba b", {"scores": [-1.0, -2.0, -2.0, -3.0]}, "'ab' and 'ba' have one score"),
    ("a aé", {}, "piece 'aé' is merged of 'a' and 'é'"),
    ("a a", {}, "two of its tokens are 'a'"),
    ("a", key("suppress_tokens", 3), r"does not read its key tokenizer\.ggml\.suppress_tokens"),
    ("a", key("new_rule", True), r"tokenizer\.ggml\.new_rule \(True\)"),
    ("a", key("eot_token_id", 10**6), r"1000000, no token of the vocabulary"),
    ("a", key("bos_token_id", 261), r"token 261 \('a'\) is named by a key and not of type"),
    ("a", {"general__name": "Phi-3-mini"}, "strips the blanks behind special tokens"),
])  # fmt: skip
def test_what_would_be_cut_otherwise_is_refused(pieces, keys, message, tmp_path):
    path, *_ = sentencepiece(tmp_path / "x.gguf", pieces.split(), **keys)
    refused(message, read, path)


def test_vocabularies_that_leave_something_out_are_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "BYTES", BYTES[:100])
        path, *_ = sentencepiece(tmp_path / "x.gguf", ["a"])
    refused(r"has no <0x64>, and llama\.cpp stops", read, path)
    monkeypatch.setitem(SPECIAL, "x>y", 4)
    path, *_ = sentencepiece(tmp_path / "y.gguf", ["a"])
    refused("'<x>' and 'x>y' may overlap", read, path)


@pytest.mark.parametrize(("pieces", "keys", "expected"), [
    ("a b", {}, ["</s>"]),
    ("a b", key("eos_token_id", 1), ["<s>", "</s>"]),
    ("a b", key("eot_token_id", 262), ["</s>", "b"]),
    ("a b", key("eom_token_id", 261), ["</s>", "a"]),
    ("a <|im_end|> <end_of_turn>", {}, ["</s>", "<|im_end|>", "<end_of_turn>"]),
    ("a <|fim_pad|> <|fim_prefix|>", {}, ["</s>", "<|fim_pad|>"]),
    ("a <|fim_pad|>", key("fim_pad_token_id", 261), ["</s>", "a"]),
])  # fmt: skip
def test_ends_are_those_of_keys_and_those_known_by_their_text(pieces, keys, expected, tmp_path):
    path, tokens, _ = sentencepiece(tmp_path / "x.gguf", pieces.split(), **keys)
    assert [tokens[number] for number in ends_of(read_header(path))] == expected
    by_text = {token for token in pieces.split() if token.startswith("<")}
    added = {token.content for token in read(path).added_tokens_decoder.values()}
    assert added == {*SPECIAL, *by_text}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_at_every_end_of_its_file(stream, tmp_path):
    model = gguf_files.make("llama")
    path = gguf_files.write(tmp_path / "x.gguf", model, **key("eot_token_id", 66))
    back, ids = loaded(path, stream=stream), [70, 71, 66, 72]
    for chat in (False, True):
        engine = Spells(back.model, ids)
        pieces = lutlab.stream(engine, back.tokenizer, "e", tokens=len(ids), chat=chat)
        assert [piece.id for piece in pieces] == ids[:2]


def test_byte_level_files_end_and_begin_as_they_say(tmp_path):
    model = gguf_files.make("llama")
    tokenizer = read(gguf_files.write(tmp_path / "x.gguf", model, **key("add_eos_token", True)))
    ids = tokenizer("e", add_special_tokens=False).input_ids
    assert tokenizer("e").input_ids == [0, *ids, 0]
