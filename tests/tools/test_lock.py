"""A forgotten version is a failure here, unless the component's golden cell is the same to the last bit."""

import warnings

import pytest

from lutlab.base import sources
from tools import golden, lock
from tools.lock import Lock, comparable, refusals, told

HERE = {"machine": "x86_64", "torch": "2.13"}
COMPONENTS = {
    "method/rtn": {"version": 1, "fingerprint": "aa", "golden": "11"},
    "driver": {"version": 1, "fingerprint": "bb", "golden": "22"},
    "kernel/k": {"version": 1, "fingerprint": "cc", "golden": None},
}


def after(made_with: dict[str, str] = HERE, **changes: dict) -> Lock:
    """A lock with changed fields of its components, by the beginnings of their names."""
    changed = {n: known | changes.get(n.partition("/")[0], {}) for n, known in COMPONENTS.items()}
    return {"made_with": made_with, "components": changed}


BEFORE = after()


def fields(components: Lock, name: str) -> dict:
    return {component: known[name] for component, known in components["components"].items()}


@pytest.fixture(scope="module")
def now() -> Lock:
    return lock.now()


@pytest.mark.slow
@pytest.mark.skipif(sources.checkout() is None, reason="an installed package has no lock")
def test_every_moved_source_is_answered_for(now: Lock) -> None:
    kept = lock.read(lock.path())
    wrong = refusals(kept, now)
    assert not wrong, f"\n{told(wrong)}\nCONTRIBUTING.md says how versions are raised and locked"
    assert fields(kept, "version") == fields(now, "version"), "run make lock"
    if not comparable(kept, now):
        origins = f"made with {kept['made_with']} and not compared, here is {now['made_with']}"
        warnings.warn(f"golden cells were {origins}", stacklevel=1)


@pytest.mark.slow
def test_golden_cells_are_of_all_that_decides_accuracies(now: Lock) -> None:
    golden = fields(now, "golden")
    without = {name for name, cell in golden.items() if cell is None}
    kinds = {name.partition("/")[0] for name in without}
    assert kinds == {"kernel", "evaluator", "measure", "method"}
    assert {n for n in without if n.startswith("method/")} == {"method/ggml", "method/ggml_imatrix"}
    assert "evaluator/generation" in without
    assert {"evaluator/ppl", "evaluator/lambada", "evaluator/zero_shot"}.isdisjoint(without)
    cells = [*filter(None, golden.values())]
    assert len(set(cells)) > len(cells) / 2  # protocols that join alike have equal ones


@pytest.mark.parametrize(("new", "refused"), [
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
])  # fmt: skip
def test_what_is_refused(new: Lock, refused: str) -> None:
    reasons = refusals(BEFORE, new)
    assert len(reasons) == bool(refused)
    assert refused in told(reasons)


def test_a_persons_word_counts_only_without_a_golden_cell() -> None:
    new = after(kernel={"fingerprint": "cd"}, method={"fingerprint": "ab", "golden": "12"})
    assert set(refusals(BEFORE, new)) == {"kernel/k", "method/rtn"}
    assert set(refusals(BEFORE, new, ["kernel/k", "method/rtn"])) == {"method/rtn"}


def test_the_command_keeps_the_lock_where_it_refuses(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "lock.json"
    monkeypatch.setattr(lock, "path", lambda: file)
    assert lock.read(file) == {"made_with": {}, "components": {}}
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
