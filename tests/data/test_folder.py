"""Files under a root: rows as the hub gives them, the published token counts, and errors that say what to do."""

import gzip
import json
import os

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast

from lutlab.base.errors import LutlabError
from lutlab.base.specs import TextSpec
from lutlab.data import load_text, records, token_stream
from lutlab.data.folder import STAND_INS, resolve
from lutlab.data.protocols import PROTOCOLS


def write(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def rows(protocol, root):
    return load_text(TextSpec(protocol, "folder", str(root))).rows


def test_wikitext_rows_are_those_of_the_hub(tmp_path):
    write(tmp_path, "wikitext2/wiki.test.raw", " \n = A = \n \n one\u2028line \n")
    assert rows("wikitext2", tmp_path) == ("", " = A = \n", "", " one\u2028line \n")


def test_ptb_sentences_are_stripped_and_splits_are_not_mixed(tmp_path):
    write(tmp_path, "ptb/ptb.valid.txt", " the valid <unk> \n")
    write(tmp_path, "ptb/ptb.test.txt", " the test N \n")
    assert rows("ptb", tmp_path) == ("the valid <unk>",)
    assert rows("ptb-new", tmp_path) == ("the test N",)


def test_lambada_both_kinds(tmp_path):
    write(tmp_path, "lambada/lambada_test.jsonl", json.dumps({"text": "One\n\ntwo three"}) + "\n")
    write(tmp_path, "lambada/lambada_test_plain_text.txt", "one two\nthree four\n")
    assert rows("lambada", tmp_path) == rows("lambada-joined", tmp_path) == ("One\n\ntwo three",)
    assert rows("lambada-standard", tmp_path) == ("one two", "three four")


@pytest.mark.parametrize(
    ("suffix", "pack"), [("json.gz", gzip.compress), ("json", bytes), ("jsonl", bytes)]
)
def test_c4_in_three_packings_and_its_first_1100(tmp_path, suffix, pack):
    content = "".join(json.dumps({"text": f"d{i}", "url": ""}) + "\n" for i in range(1200))
    write(tmp_path, f"c4/en/c4-validation.00000-of-00008.{suffix}", pack(content.encode()))
    assert rows("c4-new", tmp_path) == tuple(f"d{i}" for i in range(1100))
    assert len(rows("c4", tmp_path)) == 1200


def test_training_rows_for_calibration(tmp_path):
    write(tmp_path, "wikitext2/wiki.train.raw", " \n = A = \n")
    write(tmp_path, "ptb/ptb.train.txt", " a sentence \n")
    assert rows("wikitext2-train", tmp_path) == ("", " = A = \n")
    assert rows("ptb-train", tmp_path) == ("a sentence",)


def test_a_part_of_c4_is_never_taken_for_the_whole(tmp_path):
    documents = "".join(json.dumps({"text": f"d{i}"}) + "\n" for i in range(1001))
    write(tmp_path, "c4/en/c4-train.00000-of-01024.jsonl", documents)
    assert rows("c4-train-first1000", tmp_path) == tuple(f"d{i}" for i in range(1000))
    with pytest.raises(LutlabError, match=r"draws among 356317 documents.*holds 1001"):
        rows("c4-train", tmp_path)
    head = "".join(documents.splitlines(keepends=True)[:999])
    write(tmp_path, "calib/c4_train_00000_first1000.jsonl", head)
    with pytest.raises(LutlabError, match=r"draws among 1000 documents.*holds 999"):
        rows("c4-train-first1000", tmp_path)


@pytest.mark.parametrize(
    ("exact", "instead", "exact_file", "instead_file"),
    [
        ("c4-train", "c4-train-first1000", "c4/en/c4-train.00000-of-01024.json.gz",
         "calib/c4_train_00000_first1000.jsonl"),
        ("wikitext2-train", "wikitext103-train-head", "wikitext2/wiki.train.raw",
         "calib/wikitext103_train_head.tokens"),
    ],
)  # fmt: skip
def test_a_stand_in_is_read_under_its_own_name_and_only_where_the_exact_file_lacks(
    tmp_path, exact, instead, exact_file, instead_file
):
    assert resolve(exact, str(tmp_path)) == exact, "so that the message names the exact file"
    write(tmp_path, instead_file, "x")
    assert resolve(exact, str(tmp_path)) == instead
    write(tmp_path, exact_file, "x")
    assert resolve(exact, str(tmp_path)) == exact
    assert resolve("wikitext2", str(tmp_path)) == "wikitext2"


def test_only_calibration_has_stand_ins_in_a_folder():
    kinds = {PROTOCOLS[name].kind for pair in STAND_INS.items() for name in pair}
    assert kinds == {"calibration", "calibration-pairs"}


def test_piqa_takes_its_answers_from_the_file_beside_it(tmp_path):
    record = json.dumps({"goal": "g", "sol1": "a", "sol2": "b"}) + "\n"
    write(tmp_path, "piqa/valid.jsonl", record * 3)
    write(tmp_path, "piqa/valid-labels.lst", "1\n0\n1\n")
    text = load_text(TextSpec("piqa", "folder", str(tmp_path)))
    assert [record["label"] for record in records(text)] == [1, 0, 1]
    write(tmp_path, "piqa/valid-labels.lst", "1\n0\n")
    with pytest.raises(LutlabError, match=r"3 questions and valid-labels\.lst beside it 2 answers"):
        rows("piqa", tmp_path)
    (tmp_path / "piqa" / "valid-labels.lst").unlink()
    with pytest.raises(LutlabError, match=r"valid-labels\.lst cannot be read"):
        rows("piqa", tmp_path)


def test_the_hash_sees_where_a_row_ends(tmp_path):
    hashes = set()
    for content in ("a\nb\n", "ab\n", "a\n\nb\n", "a\nb c\n"):
        write(tmp_path, "ptb/ptb.valid.txt", content)
        text = load_text(TextSpec("ptb", "folder", str(tmp_path)))
        hashes.add(text.sha256)
        assert text.origin == "folder: ptb/ptb.valid.txt"
    assert len(hashes) == 4


def test_what_is_missing_is_named_with_its_cure(tmp_path):
    with pytest.raises(LutlabError, match=r"needs data\.root=<folder>"):
        load_text(TextSpec("ptb", "folder"))
    with pytest.raises(LutlabError, match=r"is not a folder(.|\n)*wikitext2/wiki\.test\.raw"):
        rows("wikitext2", tmp_path / "nowhere")
    with pytest.raises(
        LutlabError, match=r"c4-validation\.00000-of-00008\.json\.gz(.|\n)*docs/data-layout\.md"
    ):
        rows("c4", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"text": "whole"}\n' * 500)[:-20],
        b"plain text",
        gzip.compress(b'{"text": "who'),
        gzip.compress(b'{"body": "no such field"}\n'),
        gzip.compress("\xe9".encode("latin-1")),
    ],
    ids=["truncated", "not gzip", "half an object", "wrong field", "not UTF-8"],
)
def test_a_damaged_file_is_named(tmp_path, content):
    write(tmp_path, "c4/en/c4-validation.00000-of-00008.json.gz", content)
    with pytest.raises(
        LutlabError, match=r"00008\.json\.gz cannot be read(.|\n)*delete it and fetch it again"
    ):
        rows("c4", tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"one\r\ntwo\r\n",
            r"line 1 of .*ptb\.valid\.txt cannot be .*CR LF\nmend it with `dos2unix`",
        ),
        (b"one\ntwo\rthree\n", "line 2 of .*a lone CR(.|\n)*fetch it again"),
        (b"\xef\xbb\xbfone\n", "line 1 of .*byte order mark(.|\n)*dos2unix"),
        (b"one\ntwo\nthr\0ee", "line 3 of .*a NUL"),
        (b"one\ncaf\xe9\n", "line 2 of .*UnicodeDecodeError(.|\n)*fetch it again"),
    ],
    ids=["CRLF", "CR", "BOM", "NUL", "Latin-1"],
)
def test_text_of_another_system_is_refused_by_its_line(tmp_path, content, said):
    write(tmp_path, "ptb/ptb.valid.txt", content)
    with pytest.raises(LutlabError, match=said):
        rows("ptb", tmp_path)


def test_json_and_tables_are_refused_by_their_line(tmp_path):
    line = json.dumps({"text": "one two"})
    write(tmp_path, "lambada/lambada_test.jsonl", f"{line}\r\n{line}\r\n")
    assert rows("lambada", tmp_path) == ("one two",) * 2, "CR between objects is white space"
    for second in ('{"text": "one"}', '{"text": 3}', '["one two"]', '{"text": "one two', ""):
        write(tmp_path, "lambada/lambada_test.jsonl", f"{line}\n{second}\n")
        with pytest.raises(LutlabError, match=r"line 2 of .*lambada_test\.jsonl (is no ex|cannot)"):
            rows("lambada", tmp_path)
    table = "sentence1\tsentence2\tscore\n"
    for second in ("a\tb", "a\tb\t6", "a\tb\t1\t2", "a\tb\tnan"):
        write(tmp_path, "glue/STS-B/dev.tsv", f"{table}a\tb\t1\n{second}\n")
        with pytest.raises(LutlabError, match=r"line 3 of .*dev\.tsv (is no item|cannot be read)"):
            rows("stsb", tmp_path)
    write(tmp_path, "piqa/valid.jsonl", '{"goal": "g"\n')
    write(tmp_path, "piqa/valid-labels.lst", "1\n")
    with pytest.raises(LutlabError, match=r"line 1 of .*valid\.jsonl is no question"):
        rows("piqa", tmp_path)


def test_a_directory_or_a_pipe_in_a_texts_place_is_refused(tmp_path):
    file = tmp_path / "ptb" / "ptb.valid.txt"
    file.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(LutlabError, match=r"ptb\.valid\.txt cannot be read .*no regular file"):
            rows("ptb", tmp_path)
        if file.is_dir():
            file.rmdir()
            os.mkfifo(file)
    with pytest.raises(LutlabError, match="is not a folder"):
        rows("ptb", "a" * 5000)


def test_the_checksum_of_a_packed_file_is_seen_though_its_head_is_enough(tmp_path):
    documents = "".join(json.dumps({"text": f"d{i}"}) + "\n" for i in range(1200)).encode()
    packed = bytearray(gzip.compress(documents, 0))
    packed[packed.index(b"d7")] ^= 2  # f7: still JSON
    write(tmp_path, "c4/en/c4-validation.00000-of-00008.json.gz", bytes(packed))
    with pytest.raises(LutlabError, match=r"cannot be read.*CRC"):
        rows("c4-new", tmp_path)


def test_another_text_under_a_known_name_is_said(tmp_path, caplog):
    write(tmp_path, "ptb/ptb.valid.txt", "a row\n" * 3370)
    text = load_text(TextSpec("ptb", "folder", str(tmp_path)))
    known = "3370 rows with the hash {}, and ptb (validation) has ed1985d6e8b3325"
    assert text.differs.startswith(known.format(text.sha256[:16]))
    assert (
        "ptb is another text than the published one (folder: ptb/ptb.valid.txt): 3370"
        in caplog.text
    )
    write(tmp_path, "wikitext2/wiki.train.raw", "a row\n")
    assert not load_text(TextSpec("wikitext2-train", "folder", str(tmp_path))).differs, "unknown"


def test_an_empty_split_is_no_text(tmp_path):
    write(tmp_path, "wikitext2/wiki.test.raw", " \n \n")
    with pytest.raises(LutlabError, match="'test' is empty"):
        rows("wikitext2", tmp_path)


def llama_tokenizer(path):
    """LLaMA's sentencepiece model as a `tokenizers` BPE: merges are all pairs of pieces that make a piece, by score."""
    from transformers.utils import sentencepiece_model_pb2_new as schema

    proto = schema.ModelProto.FromString(path.read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces}
    vocabulary = {piece: i for i, piece in enumerate(scores)}
    pairs = [
        (w[:i], w[i:])
        for w in scores
        for i in range(1, len(w))
        if w[:i] in scores and w[i:] in scores
    ]
    pairs.sort(key=lambda pair: (-scores["".join(pair)], vocabulary[pair[0]], vocabulary[pair[1]]))
    backend = Tokenizer(
        models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.ByteFallback()
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def test_wikitext2_has_the_published_number_of_gpt2_tokens(shared):
    folder = shared / "data" / "tokenizers" / "gpt2"
    tokenizer = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    text = load_text(TextSpec("wikitext2", "folder", str(shared / "data")))
    ids = token_stream(text, tokenizer, 1024)
    assert (len(text.rows), len(ids), ids.dtype) == (4358, 287_644, torch.int64)


def test_wikitext2_has_the_published_number_of_llama_tokens(shared):
    tokenizer = llama_tokenizer(shared / "data" / "tokenizers" / "llama" / "tokenizer.model")
    ids = token_stream(
        load_text(TextSpec("wikitext2", "folder", str(shared / "data"))), tokenizer, 2048
    )
    assert (len(ids), ids[0], (ids == 1).sum()) == (341_469, 1, 1)


def test_shared_data_sets_have_their_sizes(shared):
    root = str(shared / "data")
    expected = {
        "ptb": 3370, "ptb-new": 3761, "lambada": 5153, "lambada-standard": 5153, "ptb-train": 42_068,
        "c4-train-first1000": 1000, "piqa": 1838, "hellaswag": 10_042, "winogrande": 1267, "arc-easy": 2376,
    }  # fmt: skip
    texts = {
        name: load_text(TextSpec(name, "folder", root)) for name in [*expected, "arc-challenge"]
    }
    assert {name: len(texts[name].rows) for name in expected} == expected
    differs = {name: text.differs for name, text in texts.items() if text.differs}
    assert differs == {"arc-challenge": "1170 rows, and arc-challenge (test) has 1172"}
