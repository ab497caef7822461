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
from lutlab.experiment.row.spelling import (
    axes,
    evaluation_from,
    flatten,
    overrides_of,
    run_from,
    shell,
)
from lutlab.experiment.run.ending import ended
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store

FEW = 40  # lines of a list that is told on a screen
EQUAL = 1e-12  # relative: a number written to a CSV file and read again
_CELL = ["cell_id", "table", "variant", "row", "column", "published", "measured", "verdict"]


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 1 where a rerun or a diff found a difference, 2 for a mistake."""
    typed = _parser().parse_args(arguments)
    return ended(lambda: typed.do(typed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lutlab results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, do: Any) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=do.__doc__.splitlines()[0])
        parser.set_defaults(do=do)
        return parser

    def with_folders(name: str, do: Any) -> argparse.ArgumentParser:
        parser = command(name, do)
        parser.add_argument(
            "--results", nargs="+", default=["results"], help="results= or published folders"
        )
        parser.add_argument("--published", action="store_true", help="the authors' numbers, too")
        return parser

    with_folders("list", _list).add_argument("pattern", nargs="?", help="<paper>/<artifact>/<row>")
    for name, do in (("show", _show), ("rerun", _rerun)):
        with_folders(name, do).add_argument("cell", help="id of a cell, or its first digits")
    both = command("diff", _diff)
    for side in ("one", "other"):
        both.add_argument(side, help="a folder, or <commit>:<folder>")
    with_folders("stale", _stale)
    clear = command("prune", _prune)
    kinds, default = ", ".join(prune.KINDS), ["quantized", "calibration"]
    clear.add_argument("kinds", nargs="*", default=default, help=kinds)
    clear.add_argument("--results", default="results", help="a results= folder")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    with_folders("export", _export).add_argument("file", type=Path, help="<name>.csv or .parquet")
    return parser


def _print_table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    from tabulate import tabulate

    print(visible(tabulate(list(lines), heads, disable_numparse=True)))


def _list(typed: argparse.Namespace) -> int:
    """Tables and sweeps, or the cells that fit a pattern."""
    cells = frame.results(*typed.results, published=typed.published).fillna(
        {"paper": "", "artifact": "", "row": ""}
    )
    cells["table"] = cells["paper"] + "/" + cells["artifact"]
    if typed.pattern:
        names = cells["table"] + "/" + cells["row"]
        fits = [fnmatchcase(name, f"*{typed.pattern}*") for name in names]
        shown = cells[fits][_CELL].fillna({"cell_id": ""})
        for name in ("published", "measured"):
            shown[name] = shown[name].map(_text)
        _print_table(_CELL, shown.values)
        return 0
    tables = cells[cells["artifact"] != ""].groupby(["table", "variant", "machine"])
    summary = tables["measured"].agg(["count", "size"])
    last = tables["measured_at"].max()
    _print_table(
        ["table", "variant", "machine", "measured", "of", "last measured at"],
        [
            [*place, *counts, last[place]]
            for place, counts in zip(summary.index, summary.values, strict=True)
        ],
    )
    if alone := int((cells["verdict"] == "in no table").sum()):
        print(f"and {alone} numbers of records that stand in no table")
    return 0


def _text(value: Any) -> str:
    return "" if value is None or value != value else f"{value:.6g}"


def _record(folders: Sequence[str], cell: str) -> Record:
    """The one record whose id begins so."""
    shelves = frame.shelves(*folders, published=True)
    fits = {i: r for shelf in shelves for i, r in shelf.records.items() if i.startswith(cell)}
    if not fits:
        raise LutlabError(
            f"no cell {cell} in {', '.join(folders)}: 'lutlab results list' names tables, with a pattern cells; "
            "--results names other folders"
        )
    if len(fits) > 1:
        raise LutlabError(f"{cell} begins {len(fits)} cells: {', '.join(sorted(fits)[:5])}, …")
    return next(iter(fits.values()))


def _command_of(record: Record) -> list[str]:
    run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
    return overrides_of(run, evaluation, record.provenance["threads"])


def _show(typed: argparse.Namespace) -> int:
    """One number: value, command, commit, protocol, place in the paper."""
    record = _record(typed.results, typed.cell)
    known = record.provenance
    about = {
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
    for name, value in [*about.items(), *flatten("", record.facts), *flatten("", rest)]:
        print(visible(f"{name:28s} {value}"))
    cells = frame.results(*typed.results, published=True)
    for cell in cells[(cells.cell_id == record.cell_id) & cells.artifact.notna()].itertuples():
        place = (
            f"{cell.paper}/{cell.artifact}, {cell.variant}: row {cell.row}, column {cell.column}"
        )
        numbers = f"published {_text(cell.published) or '-'}, measured {_text(cell.measured)}"
        of_paper = cell.source if isinstance(cell.source, str) else "no paper's"
        print(visible(f"\nin {place}\n  {numbers}: {cell.verdict} {cell.note}\n  {of_paper}"))
    return 0


def _rerun(typed: argparse.Namespace) -> int:
    """Measure a cell again, and say whether it is equal or by how much not."""
    before = _record(typed.results, typed.cell)
    line = _command_of(before)
    if looked_up := [word for word in line if "$" in word]:
        raise LutlabError(
            f"{typed.cell} is not measured again: {looked_up[0]} would be looked up where it is read ($): a record "
            "holds values"
        )
    print(visible(shell(line)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        line += [f"results={scratch}", "logger=none", "baseline=false"]
        done = subprocess.run(
            children.python(children.LUTLAB, *line), stdout=subprocess.DEVNULL, check=False
        )
        records = list(Store(Path(scratch)).all().values())
    if done.returncode not in (0, 1) or not records:
        raise LutlabError(f"not measured again: the command above ended with {done.returncode}")
    (after,) = records
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


def _diff(typed: argparse.Namespace) -> int:
    """Two folders, machines or commits, cell by cell."""
    cells = differ.differ(typed.one, typed.other)
    both = cells[cells.one.notna() & cells.other.notna()]
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
        heads = ["table", "variant", "row", "column", typed.one, typed.other, "relative"]
        _print_table(heads, lines)
    if len(other) > FEW:
        print(f"… and {len(other) - FEW} more; lutlab.experiment.records.differ.differ has all")
    only = [cells[side].isna().sum() for side in ("other", "one")]
    print(
        f"{len(both)} cells in both: {len(both) - len(other)} equal, {len(other)} differ; only in {typed.one}: "
        f"{only[0]}, only in {typed.other}: {only[1]}"
    )
    return 1 if len(other) or any(only) else 0


def _stale(typed: argparse.Namespace) -> int:
    """Records that today's code would not make, and why."""
    reasons: collections.Counter[str] = collections.Counter()
    total = behind = 0
    for shelf in frame.shelves(*typed.results, published=typed.published):
        for record in shelf.records.values():
            moved = prune.moved(record)
            total, behind = total + 1, behind + bool(moved)
            reasons.update(moved)
    _print_table(["records", "what moved since"], [[n, why] for why, n in reasons.most_common()])
    print(f"{behind} of {total} records are of earlier code: their commands measure new cells")
    return 0


def _prune(typed: argparse.Namespace) -> int:
    """Remove kept blocks, calibration inputs, failed or stale records; asks before."""
    removable = prune.prunable(Path(typed.results), typed.kinds)
    for kind, paths in removable.items():
        print(f"{kind}: {len(paths)} things, {prune.size(paths) / 1e6:,.1f} MB")
    if not any(removable.values()):
        return 0
    if not typed.yes and input(f"remove them from {typed.results}? [y/N] ").strip().lower() != "y":
        print("nothing removed")
        return 0
    for paths in removable.values():
        prune.remove(paths)
    print("removed")
    return 0


def _export(typed: argparse.Namespace) -> int:
    """Everything as .csv or .parquet."""
    cells = frame.results(*typed.results, published=typed.published)
    if typed.file.suffix == ".csv":
        cells.map(csv.guarded).to_csv(typed.file, index=False)
    elif typed.file.suffix == ".parquet":
        # A column of Parquet has one type: what mixes words and numbers is written as words.
        mixed = {name: "string" for name in cells if cells[name].dtype == object}
        cells.astype(mixed).to_parquet(typed.file, compression="zstd", index=False)
    else:
        raise LutlabError(f"{typed.file}: give a name that ends in .csv or .parquet")
    print(f"{len(cells)} rows, {len(cells.columns)} columns: {typed.file}")
    return 0
