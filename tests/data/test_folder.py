"""Files under a root: rows as the hub gives them, the published token counts, and errors that say what to do."""

import gzip
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from tests.base.refusals import refused
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast
from transformers.utils import sentencepiece_model_pb2_new as schema

from lutlab.base.specs import TextSpec
from lutlab.data import load_text, records, token_stream
from lutlab.data.folder import STAND_INS, resolve
from lutlab.data.protocols import PROTOCOLS

WIKI, PTB, LAMBADA = "wikitext2/wiki.test.raw", "ptb/ptb.valid.txt", "lambada/lambada_test.jsonl"
C4, STSB = "c4/en/c4-validation.00000-of-00008", "glue/STS-B/dev.tsv"
PIQA, LABELS = "piqa/valid.jsonl", "piqa/valid-labels.lst"


@pytest.fixture(autouse=True)
def _root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, content):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def text(protocol, root="."):
    return load_text(TextSpec(protocol, "folder", str(root)))


def rows(protocol, root="."):
    return text(protocol, root).rows


def documents(count):
    return "".join(json.dumps({"text": f"d{i}", "url": ""}) + "\n" for i in range(count))


def test_rows_are_those_of_the_hub_and_splits_are_not_mixed():
    write(WIKI, " \n = A = \n \n one\u2028line \n")
    write("wikitext2/wiki.train.raw", " \n = A = \n")
    write(PTB, " the valid <unk> \n")
    write("ptb/ptb.test.txt", " the test N \n")
    write("ptb/ptb.train.txt", " a sentence \n")
    write(LAMBADA, json.dumps({"text": "One\n\ntwo three"}) + "\r\n")
    write("lambada/lambada_test_plain_text.txt", "one two\nthree four\n")
    expected = {
        "wikitext2": ("", " = A = \n", "", " one\u2028line \n"), "wikitext2-train": ("", " = A = \n"),
        "ptb": ("the valid <unk>",), "ptb-new": ("the test N",), "ptb-train": ("a sentence",),
        "lambada": ("One\n\ntwo three",), "lambada-joined": ("One\n\ntwo three",),
        "lambada-standard": ("one two", "three four"),
    }  # fmt: skip
    assert {name: rows(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("suffix", "pack"), [("json.gz", gzip.compress), ("json", bytes), ("jsonl", bytes)]
)
def test_c4_in_three_packings_and_its_first_1100(suffix, pack):
    write(f"{C4}.{suffix}", pack(documents(1200).encode()))
    assert rows("c4-new") == tuple(f"d{i}" for i in range(1100))
    assert len(rows("c4")) == 1200


def test_a_part_of_c4_is_never_taken_for_the_whole():
    write("c4/en/c4-train.00000-of-01024.jsonl", documents(1001))
    assert rows("c4-train-first1000") == tuple(f"d{i}" for i in range(1000))
    refused("draws among 356317 documents.*holds 1001", rows, "c4-train")
    write("calib/c4_train_00000_first1000.jsonl", documents(999))
    refused("draws among 1000 documents.*holds 999", rows, "c4-train-first1000")


@pytest.mark.parametrize(("exact", "instead", "exact_file", "instead_file"), [
    ("c4-train", "c4-train-first1000", "c4/en/c4-train.00000-of-01024.json.gz", "calib/c4_train_00000_first1000.jsonl"),
    ("wikitext2-train", "wikitext103-train-head", "wikitext2/wiki.train.raw", "calib/wikitext103_train_head.tokens"),
])  # fmt: skip
def test_a_stand_in_is_read_under_its_own_name_and_only_where_the_exact_file_lacks(
    exact, instead, exact_file, instead_file
):
    assert resolve(exact, ".") == exact, "so that the message names the exact file"
    write(instead_file, "x")
    assert resolve(exact, ".") == instead
    write(exact_file, "x")
    assert resolve(exact, ".") == exact
    assert resolve("wikitext2", ".") == "wikitext2"


def test_only_calibration_has_stand_ins_in_a_folder():
    kinds = {PROTOCOLS[name].kind for pair in STAND_INS.items() for name in pair}
    assert kinds == {"calibration", "calibration-pairs"}


def test_piqa_takes_its_answers_from_the_file_beside_it():
    write(PIQA, (json.dumps({"goal": "g", "sol1": "a", "sol2": "b"}) + "\n") * 3)
    write(LABELS, "1\n0\n1\n")
    assert [record["label"] for record in records(text("piqa"))] == [1, 0, 1]
    write(LABELS, "1\n0\n")
    refused(r"3 questions and valid-labels\.lst beside it 2 answers", rows, "piqa")
    Path(LABELS).unlink()
    refused(r"valid-labels\.lst cannot be read", rows, "piqa")
    write(LABELS, "1\n")
    write(PIQA, '{"goal": "g"\n')
    refused(r"line 1 of .*valid\.jsonl is no question", rows, "piqa")


def test_the_hash_sees_where_a_row_ends():
    hashes = set()
    for content in ("a\nb\n", "ab\n", "a\n\nb\n", "a\nb c\n"):
        write(PTB, content)
        hashes.add(text("ptb").sha256)
        assert text("ptb").origin == f"folder: {PTB}"
    assert len(hashes) == 4


def test_what_is_missing_is_named_with_its_cure():
    refused(r"needs data\.root=<folder>", load_text, TextSpec("ptb", "folder"))
    refused(rf"is not a folder(.|\n)*{WIKI}", rows, "wikitext2", "nowhere")
    refused("is not a folder", rows, "ptb", "a" * 5000)
    refused(rf"{C4}\.json\.gz(.|\n)*docs/data-layout\.md", rows, "c4")


NO_LINE, NO_ROW = (
    r"line 2 of .*lambada_test\.jsonl (is no ex|cannot)",
    r"line 3 of .*dev\.tsv (is no item|cannot be read)",
)
BROKEN = r"00008\.json\.gz cannot be read(.|\n)*delete it and fetch it again"
LINE, TABLE = '{"text": "one two"}\n', "sentence1\tsentence2\tscore\na\tb\t1\n"
BAD_DOCUMENTS = [b'{"text": "who', b'{"body": "no such field"}\n', "\xe9".encode("latin-1")]
DAMAGED = [
    ("c4", f"{C4}.json.gz", gzip.compress(b'{"text": "whole"}\n' * 500, mtime=0)[:-20], BROKEN),
    ("c4", f"{C4}.json.gz", b"plain text", BROKEN),
    *(("c4", f"{C4}.json.gz", gzip.compress(content, mtime=0), BROKEN) for content in BAD_DOCUMENTS),
    ("ptb", PTB, b"one\r\ntwo\r\n", r"line 1 of .*ptb\.valid\.txt cannot be .*CR LF\nmend it with `dos2unix`"),
    ("ptb", PTB, b"one\ntwo\rthree\n", "line 2 of .*a lone CR(.|\n)*fetch it again"),
    ("ptb", PTB, b"\xef\xbb\xbfone\n", "line 1 of .*byte order mark(.|\n)*dos2unix"),
    ("ptb", PTB, b"one\ntwo\nthr\0ee", "line 3 of .*a NUL"),
    ("ptb", PTB, b"one\ncaf\xe9\n", "line 2 of .*UnicodeDecodeError(.|\n)*fetch it again"),
    *(("lambada", LAMBADA, f"{LINE}{second}\n", NO_LINE)
      for second in ('{"text": "one"}', '{"text": 3}', '["one two"]', '{"text": "one two', "")),
    *(("stsb", STSB, f"{TABLE}{row}\n", NO_ROW) for row in ("a\tb", "a\tb\t6", "a\tb\t1\t2", "a\tb\tnan")),
    ("wikitext2", WIKI, " \n \n", "'test' is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "name", "content", "message"), DAMAGED)
def test_a_damaged_file_is_refused_by_its_line(protocol, name, content, message):
    write(name, content)
    refused(message, rows, protocol)


def test_a_directory_or_a_pipe_in_a_texts_place_is_refused():
    for make in (os.makedirs, os.mkfifo):
        make(PTB)
        refused(r"ptb\.valid\.txt cannot be read .*no regular file", rows, "ptb")
        if Path(PTB).is_dir():
            Path(PTB).rmdir()


def test_the_checksum_of_a_packed_file_is_seen_though_its_head_is_enough():
    packed = bytearray(gzip.compress(documents(1200).encode(), 0))
    packed[packed.index(b"d7")] ^= 2  # f7: still JSON
    write(f"{C4}.json.gz", bytes(packed))
    refused("cannot be read.*CRC", rows, "c4-new")


def test_another_text_under_a_known_name_is_said(caplog):
    write(PTB, "a row\n" * 3370)
    differs, known = text("ptb").differs, "and ptb (validation) has ed1985d6e8b3325"
    assert differs.startswith(f"3370 rows with the hash {text('ptb').sha256[:16]}, {known}")
    assert f"ptb is another text than the published one (folder: {PTB}): 3370" in caplog.text
    write("wikitext2/wiki.train.raw", "a row\n")
    assert not text("wikitext2-train").differs, "unknown"


def test_a_folder_of_texts_runs_no_script(tmp_path):
    """Such as a loader of data sets would run, of the current folder, too."""
    canary = tmp_path.parent / "canary"
    code = f"from pathlib import Path\nPath({str(canary)!r}).touch()\n"
    for name in ("texts", "wikitext2", "wikitext2/wikitext2", "wikitext2/trap", "trap"):
        write(f"{name}.py", code)
    for name in ("wiki.test.pkl", "cache.arrow", "state.json", "dataset_infos.json"):
        write(f"wikitext2/{name}", pickle.dumps("x"))
    write(WIKI, " \n = A = \n some words \n")
    assert " = A = \n" in rows("wikitext2", tmp_path)
    assert not canary.exists()
    assert not {"trap", "wikitext2"} & set(sys.modules)


def llama_tokenizer(path):
    """LLaMA's sentencepiece model as a `tokenizers` BPE: merges are all pairs of pieces that make a piece, by score."""
    proto = schema.ModelProto.FromString(path.read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces}
    ids = {piece: i for i, piece in enumerate(scores)}
    pairs = ((piece[:i], piece[i:]) for piece in scores for i in range(1, len(piece)))
    pairs = [(a, b) for a, b in pairs if a in scores and b in scores]
    pairs.sort(key=lambda pair: (-scores["".join(pair)], ids[pair[0]], ids[pair[1]]))
    backend = Tokenizer(
        models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    blanks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(blanks)
    backend.decoder = decoders.ByteFallback()
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def test_wikitext2_has_the_published_numbers_of_tokens(shared):
    folder, wikitext = shared / "data" / "tokenizers", text("wikitext2", shared / "data")
    paths = {"vocab": "vocab.json", "merges": "merges.txt"}
    gpt2 = GPT2Tokenizer(**{key: str(folder / "gpt2" / name) for key, name in paths.items()})
    ids = token_stream(wikitext, gpt2, 1024)
    assert (len(wikitext.rows), len(ids), ids.dtype) == (4358, 287_644, torch.int64)
    ids = token_stream(wikitext, llama_tokenizer(folder / "llama" / "tokenizer.model"), 2048)
    assert (len(ids), ids[0], (ids == 1).sum()) == (341_469, 1, 1)


def test_shared_data_sets_have_their_sizes(shared):
    sizes = {
        "ptb": 3370, "ptb-new": 3761, "lambada": 5153, "lambada-standard": 5153, "ptb-train": 42_068,
        "c4-train-first1000": 1000, "piqa": 1838, "hellaswag": 10_042, "winogrande": 1267, "arc-easy": 2376,
    }  # fmt: skip
    texts = {name: text(name, shared / "data") for name in [*sizes, "arc-challenge"]}
    assert {name: len(texts[name].rows) for name in sizes} == sizes
    differs = {name: text.differs for name, text in texts.items() if text.differs}
    assert differs == {"arc-challenge": "1170 rows, and arc-challenge (test) has 1172"}
