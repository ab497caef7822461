"""What decides a number is part of its cell's name."""

from __future__ import annotations

from pathlib import Path

import lutlab
from lutlab.provenance import _DECIDING, _SEARCHING, code_sha256, search_sha256

PACKAGE = Path(lutlab.__file__).parent


def test_every_pattern_finds_sources() -> None:
    for pattern in (*_DECIDING, *_SEARCHING):
        assert list(PACKAGE.glob(pattern)), pattern


def test_the_search_has_a_name_of_its_own() -> None:
    assert code_sha256() != search_sha256()
    assert len(code_sha256()) == len(search_sha256()) == 64
