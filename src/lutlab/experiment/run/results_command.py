"""`lutlab results`: find, show, measure again, compare and clear away records.

list [pattern]            tables and sweeps, or the cells whose <paper>/<artifact>/<row> fits a pattern
show <cell>               one number: value, command, commit, protocol, place in the paper
rerun <cell>              measure it again, and say whether it is equal or by how much not
diff <one> <other>        two folders, machines or commits (<commit>:<folder>), cell by cell
stale                     records that today's code would not make, and why
prune [kind …]            remove kept blocks, calibration inputs, failed or stale records; asks before
export <file>             everything as .csv or .parquet
"""

from __future__ import annotations

import argparse
import collections
import math
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lutlab.base import children
from lutlab.base.errors import LutlabError
from lutlab.base.escapes import visible
from lutlab.experiment.records import differ, frame, prune
from lutlab.experiment.report import csv
from lutlab.experiment.report.origins import flatten
from lutlab.experiment.row.spelling import axes, evaluation_from, overrides_of, run_from, shell
from lutlab.experiment.run.ending import ended
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store

FEW = 40  # lines of a list that is told on a screen
EQUAL = 1e-12  # relative: a number written to a CSV file and read again
_CELL = ["cell_id", "table", "variant", "row", "column", "published", "measured", "verdict"]


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 1 where a rerun or a diff found a difference, 2 for a mistake."""
    given = _parser().parse_args(arguments)
    return ended(lambda: given.do(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lutlab results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, do: Any) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=do.__doc__.splitlines()[0])
        one.set_defaults(do=do)
        return one

    def with_folders(name: str, do: Any) -> argparse.ArgumentParser:
        one = command(name, do)
        one.add_argument(
            "--results", nargs="+", default=["results"], help="results= or published folders"
        )
        one.add_argument("--published", action="store_true", help="the authors' numbers, too")
        return one

    with_folders("list", _list).add_argument("pattern", nargs="?", help="<paper>/<artifact>/<row>")
    for name, do in (("show", _show), ("rerun", _rerun)):
        with_folders(name, do).add_argument("cell", help="id of a cell, or its first digits")
    both = command("diff", _diff)
    for side in ("one", "other"):
        both.add_argument(side, help="a folder, or <commit>:<folder>")
    with_folders("stale", _stale)
    clear = command("prune", _prune)
    kinds = {"nargs": "*", "default": ["quantized", "calibration"]}
    clear.add_argument("kinds", help=", ".join(prune.KINDS), **kinds)
    clear.add_argument("--results", default="results", help="a results= folder")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    with_folders("export", _export).add_argument("file", type=Path, help="<name>.csv or .parquet")
    return parser


def _print_table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    from tabulate import tabulate

    print(visible(tabulate(list(lines), heads, disable_numparse=True)))


def _list(given: argparse.Namespace) -> int:
    """Tables and sweeps, or the cells that fit a pattern."""
    found = frame.results(*given.results, published=given.published).fillna(
        {"paper": "", "artifact": "", "row": ""}
    )
    found["table"] = found["paper"] + "/" + found["artifact"]
    if given.pattern:
        fits = [
            fnmatchcase(name, f"*{given.pattern}*") for name in found["table"] + "/" + found["row"]
        ]
        shown = found[fits][_CELL].fillna({"cell_id": ""})
        for name in ("published", "measured"):
            shown[name] = shown[name].map(_text)
        _print_table(_CELL, shown.values)
        return 0
    tables = found[found["artifact"] != ""].groupby(["table", "variant", "machine"])
    summary = tables["measured"].agg(["count", "size"])
    last = tables["measured_at"].max()
    _print_table(
        ["table", "variant", "machine", "measured", "of", "last measured at"],
        [
            [*place, *counts, last[place]]
            for place, counts in zip(summary.index, summary.values, strict=True)
        ],
    )
    if alone := int((found["verdict"] == "in no table").sum()):
        print(f"and {alone} numbers of records that stand in no table")
    return 0


def _text(value: Any) -> str:
    return "" if value is None or value != value else f"{value:.6g}"


def _record(folders: Sequence[str], cell: str) -> Record:
    """The one record whose id begins so."""
    shelves = frame.shelves(*folders, published=True)
    found = {i: r for shelf in shelves for i, r in shelf.records.items() if i.startswith(cell)}
    if not found:
        raise LutlabError(
            f"no cell {cell} in {', '.join(folders)}: 'lutlab results list' names tables, with a pattern cells; "
            "--results names other folders"
        )
    if len(found) > 1:
        raise LutlabError(f"{cell} begins {len(found)} cells: {', '.join(sorted(found)[:5])}, …")
    return next(iter(found.values()))


def _command_of(record: Record) -> list[str]:
    run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
    return overrides_of(run, evaluation, record.provenance["threads"])


def _show(given: argparse.Namespace) -> int:
    """One number: value, command, commit, protocol, place in the paper."""
    record = _record(given.results, given.cell)
    known = record.provenance
    said = {
        "cell": record.cell_id,
        "status": f"{record.status} {record.reason}".strip(),
        **dict(record.values),
        "n": f"{record.n}, {len(record.samples)} samples kept",
        "command": shell(_command_of(record)),
        "commit": f"{known['git_commit']}{' (tree not clean)' if known['git_dirty'] else ''}",
        "stale": "; ".join(prune.moved(record)) or "no: today's code names this cell alike",
        **axes(run_from(record.run), evaluation_from(record.evaluation)),
    }
    rest = {key: value for key, value in known.items() if not key.startswith("git_")}
    for name, value in [*said.items(), *flatten("", record.facts), *flatten("", rest)]:
        print(visible(f"{name:28s} {value}"))
    found = frame.results(*given.results, published=True)
    for cell in found[(found.cell_id == record.cell_id) & found.artifact.notna()].itertuples():
        place = (
            f"{cell.paper}/{cell.artifact}, {cell.variant}: row {cell.row}, column {cell.column}"
        )
        numbers = f"published {_text(cell.published) or '-'}, measured {_text(cell.measured)}"
        of_paper = cell.source if isinstance(cell.source, str) else "no paper's"
        print(visible(f"\nin {place}\n  {numbers}: {cell.verdict} {cell.note}\n  {of_paper}"))
    return 0


def _rerun(given: argparse.Namespace) -> int:
    """Measure a cell again, and say whether it is equal or by how much not."""
    before = _record(given.results, given.cell)
    line = _command_of(before)
    if looked_up := [one for one in line if "$" in one]:
        raise LutlabError(
            f"{given.cell} is not measured again: {looked_up[0]} would be looked up where it is read ($): a record "
            "holds values"
        )
    print(visible(shell(line)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        own = [f"results={scratch}", "logger=none", "baseline=false"]
        done = subprocess.run(
            children.python(children.LUTLAB, *line, *own), stdout=subprocess.DEVNULL, check=False
        )
        found = list(Store(Path(scratch)).all().values())
    if done.returncode not in (0, 1) or not found:
        raise LutlabError(f"not measured again: the command above ended with {done.returncode}")
    (after,) = found
    if after.cell_id != before.cell_id:
        reasons = prune.moved(before) or ["model, text or machine is another"]
        print(f"its cell is {after.cell_id} today: {'; '.join(reasons)}")
    if after.status != before.status:
        print(visible(f"{before.status} then, {after.status} now {after.reason}"))
        return 1
    equal = True
    for name, then in before.values.items():
        now = after.values.get(name)
        if now == then:
            print(f"{name} {then!r}: equal to the last bit")
            continue
        equal = False
        change = "" if now is None or not then else f" ({now / then - 1:+.3g} relatively)"
        print(f"{name} {then!r} then, {now!r} now{change}")
    return 0 if equal else 1


def _diff(given: argparse.Namespace) -> int:
    """Two folders, machines or commits, cell by cell."""
    found = differ.differ(given.one, given.other)
    both = found[found.one.notna() & found.other.notna()]
    pairs = zip(both.one, both.other, strict=True)
    other = both[[not math.isclose(a, b, rel_tol=EQUAL) for a, b in pairs]]
    largest = other.reindex(other.relative.abs().sort_values(ascending=False).index)
    lines = [
        [
            f"{c.paper}/{c.artifact}",
            c.variant,
            c.row,
            c.column,
            _text(c.one),
            _text(c.other),
            f"{c.relative:+.3g}",
        ]
        for c in largest.head(FEW).itertuples()
    ]
    if lines:
        heads = ["table", "variant", "row", "column", given.one, given.other, "relative"]
        _print_table(heads, lines)
    if len(other) > FEW:
        print(f"… and {len(other) - FEW} more; lutlab.experiment.records.differ.differ has all")
    only = [(found[one].isna()).sum() for one in ("other", "one")]
    print(
        f"{len(both)} cells in both: {len(both) - len(other)} equal, {len(other)} differ; only in {given.one}: "
        f"{only[0]}, only in {given.other}: {only[1]}"
    )
    return 1 if len(other) or any(only) else 0


def _stale(given: argparse.Namespace) -> int:
    """Records that today's code would not make, and why."""
    reasons: collections.Counter[str] = collections.Counter()
    total = behind = 0
    for shelf in frame.shelves(*given.results, published=given.published):
        for record in shelf.records.values():
            found = prune.moved(record)
            total, behind = total + 1, behind + bool(found)
            reasons.update(found)
    _print_table(["records", "what moved since"], [[n, why] for why, n in reasons.most_common()])
    print(f"{behind} of {total} records are of earlier code: their commands measure new cells")
    return 0


def _prune(given: argparse.Namespace) -> int:
    """Remove kept blocks, calibration inputs, failed or stale records; asks before."""
    found = prune.prunable(Path(given.results), given.kinds)
    for kind, paths in found.items():
        print(f"{kind}: {len(paths)} things, {prune.size(paths) / 1e6:,.1f} MB")
    if not any(found.values()):
        return 0
    if not given.yes and input(f"remove them from {given.results}? [y/N] ").strip().lower() != "y":
        print("nothing removed")
        return 0
    for paths in found.values():
        prune.remove(paths)
    print("removed")
    return 0


def _export(given: argparse.Namespace) -> int:
    """Everything as .csv or .parquet."""
    found = frame.results(*given.results, published=given.published)
    if given.file.suffix == ".csv":
        found.map(csv.guarded).to_csv(given.file, index=False)
    elif given.file.suffix == ".parquet":
        # A column of Parquet has one type: what mixes words and numbers is written as words.
        mixed = {name: "string" for name in found if found[name].dtype == object}
        found.astype(mixed).to_parquet(given.file, compression="zstd", index=False)
    else:
        raise LutlabError(f"{given.file}: give a name that ends in .csv or .parquet")
    print(f"{len(found)} rows, {len(found.columns)} columns: {given.file}")
    return 0
