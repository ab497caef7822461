"""A forgotten version is a failure here, unless the component's golden cell is the same to the last bit."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from lutlab.base import sources
from tools import golden, lock
from tools.lock import Lock, comparable, refusals, told

HERE = {"machine": "x86_64", "torch": "2.13"}
BEFORE = {
    "made_with": HERE,
    "components": {
        "method/rtn": {"version": 1, "fingerprint": "aa", "golden": "11"},
        "driver": {"version": 1, "fingerprint": "bb", "golden": "22"},
        "kernel/k": {"version": 1, "fingerprint": "cc", "golden": None},
    },
}


def after(made_with: dict[str, str] = HERE, **changes: dict) -> Lock:
    """BEFORE with fields of components changed; method and kernel for short."""
    names = {"method": "method/rtn", "driver": "driver", "kernel": "kernel/k"}
    kept = BEFORE["components"]
    changed = {names[short]: kept[names[short]] | fields for short, fields in changes.items()}
    return {"made_with": made_with, "components": kept | changed}


def versions(of: Lock) -> dict[str, int]:
    return {name: one["version"] for name, one in of["components"].items()}


@pytest.fixture(scope="module")
def found() -> Lock:
    """The components as they are."""
    return lock.now()


@pytest.mark.slow
@pytest.mark.skipif(sources.checkout() is None, reason="an installed package has no lock")
def test_every_moved_source_is_answered_for(found: Lock) -> None:
    kept = lock.read(lock.path())
    wrong = refusals(kept, found)
    assert not wrong, f"\n{told(wrong)}\nCONTRIBUTING.md says how versions are raised and locked"
    assert versions(kept) == versions(found), "run make lock"
    if not comparable(kept, found):
        warnings.warn(
            f"golden cells were made with {kept['made_with']} and not compared, here is {found['made_with']}",
            stacklevel=1,
        )


@pytest.mark.slow
def test_golden_cells_are_of_all_that_decides_accuracies(found: Lock) -> None:
    without = {name for name, one in found["components"].items() if one["golden"] is None}
    kinds = {name.partition("/")[0] for name in without}
    assert kinds == {"kernel", "evaluator", "measure", "method"}
    assert {n for n in without if n.startswith("method/")} == {"method/ggml", "method/ggml_imatrix"}
    assert "evaluator/generation" in without
    assert {"evaluator/ppl", "evaluator/lambada", "evaluator/zero_shot"}.isdisjoint(without)
    cells = [one["golden"] for one in found["components"].values() if one["golden"]]
    assert len(set(cells)) > len(cells) / 2  # protocols that join alike have equal ones


@pytest.mark.parametrize(
    ("new", "refused"),
    [
        (after(), ""),
        (after(method={"fingerprint": "ab"}), ""),
        (after(method={"fingerprint": "ab", "golden": "12"}), "raise its version from 1 to 2"),
        (after(method={"fingerprint": "ab", "golden": "12", "version": 2}), ""),
        (after(method={"golden": "12"}), "what it rests on did"),
        (after(method={"golden": "12"}, driver={"version": 2, "golden": "23"}), ""),
        (after(method={"version": 0}), "versions only rise"),
        (after(kernel={"fingerprint": "cd"}), "make lock UNCHANGED=kernel/k"),
        (after(kernel={"fingerprint": "cd", "version": 2}), ""),
        (after({}, method={"golden": "12"}), ""),
        (after({}, method={"fingerprint": "ab", "golden": "12"}), "other libraries"),
        (after({}, method={"fingerprint": "ab", "version": 2}), ""),
    ],
)
def test_what_is_refused(new: Lock, refused: str) -> None:
    reasons = refusals(BEFORE, new)
    assert len(reasons) == bool(refused)
    assert refused in told(reasons)


def test_a_persons_word_counts_only_without_a_golden_cell() -> None:
    new = after(kernel={"fingerprint": "cd"}, method={"fingerprint": "ab", "golden": "12"})
    assert set(refusals(BEFORE, new)) == {"kernel/k", "method/rtn"}
    assert set(refusals(BEFORE, new, ["kernel/k", "method/rtn"])) == {"method/rtn"}


def test_a_lock_is_read_as_written(tmp_path: Path) -> None:
    file = tmp_path / "lock.json"
    assert lock.read(file) == {"made_with": {}, "components": {}}
    lock.write(file, BEFORE)
    assert lock.read(file) == BEFORE


def test_the_command_keeps_the_lock_where_it_refuses(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "lock.json"
    monkeypatch.setattr(lock, "path", lambda: file)
    lock.write(file, BEFORE)
    monkeypatch.setattr(lock, "now", lambda: after(kernel={"fingerprint": "cd"}))
    assert lock.main([]) == 1
    assert "kernel/k: its source moved" in capsys.readouterr().out
    assert lock.read(file) == BEFORE
    assert lock.main(["--unchanged", "kernel/l"]) == 1
    assert "did you mean" in capsys.readouterr().out
    assert lock.main(["--unchanged", "kern*"]) == 0
    assert lock.read(file)["components"]["kernel/k"]["fingerprint"] == "cd"


def test_a_golden_cell_sees_a_changed_constant(monkeypatch) -> None:
    """In this process, whose instruction sets differ from the lock's: cells are compared with each other only."""
    from lutlab.quantizers.grid import Grid

    before = golden._hash(golden._maker("method/rtn")())
    assert golden._hash(golden._maker("method/rtn")()) == before
    fit = Grid.fit

    def other(self, low, high, q):
        step, zero = fit(self, low, high, q)
        return step * 1.001, zero

    monkeypatch.setattr(Grid, "fit", other)
    assert golden._hash(golden._maker("method/rtn")()) != before
