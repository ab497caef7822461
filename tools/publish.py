"""Measure and publish: `make publish`, or `python -m tools.publish [--only <pattern>] [--variants <pattern>]`.

    results/published/list.yaml ─▶ run.py, into results/publishing ─▶ results/published/<machine>/
                                                                   against the last commit └▶ changes.md

Artifacts under the same overrides are one call. Accuracies first, several rows at once with one thread each, and AVX2
where the processor has AVX-512; then, one row at a time, what measures the machine. It wants a clean tree and nobody
else at work on the machine. A run that was stopped goes on where it was; only cells of the plan of this code are
published. What cannot be measured here, or is no variant that --variants names, is said and stays as it was published,
unless --prune. With --render-only nothing is measured: page and table are written anew from the published records, as
this code reads and judges them.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lutlab.base import children, registry
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import check_file, write_atomically
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.published import Published
from lutlab.experiment.run.ending import ended
from lutlab.experiment.store.provenance import ask_git, environment, machine_name
from lutlab.experiment.store.record import LINES, Record, parse_lines
from lutlab.experiment.store.store import Store
from lutlab.kernels.codegen.isa import detect
from tools import changes, render
from tools.published_list import PUBLISHED, Variant, read_list

WORK = Path("results") / "publishing"
# Where a processor has AVX-512, accuracies are measured under these: so they have the digits of one without it.
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "LUTLAB_ISA": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}


class NotMeasured(Exception):
    """A variant has no complete report; the message says why."""


def publish(only: str, wanted: str, machine: str | None, prune: bool, jobs: int) -> bool:
    """Measure variants that match patterns and write their artifacts; returns whether all of these are as of now.

    Raises:
        LutlabError: the tree is not clean, this is no checkout, or the list is wrong.
    """
    variants = read_list(only)
    about = environment()
    if about["git_dirty"] is not False:
        raise LutlabError(
            "a published number names the commit that measured it, and this tree is not that of a commit: commit or "
            "stash what 'git status' shows of src, kernels, experiments and conf"
        )
    for alone in (False, True):
        measured = [v for v in variants if fnmatchcase(v.name, wanted)]
        measure_all([v for v in measured if _has_columns(v, of_this_machine=alone)], alone, jobs)
    folder = PUBLISHED / (machine or machine_name(about))
    complete = True
    for artifact, own in itertools.groupby(variants, lambda variant: variant.artifact):
        try:
            complete &= write(artifact, list(own), wanted, folder, prune)
        except LutlabError as error:  # the other artifacts are measured and can be written
            complete = False
            _say(f"{artifact}: {error}")
    complete &= unlisted(folder, prune)
    report_changes(folder)
    return complete


# ---- measuring ----


def measure_all(variants: Sequence[Variant], alone: bool, jobs: int) -> None:
    """Measure what is missing: artifacts under the same overrides in one call, then those that it left out, each alone.

    Raises:
        KeyboardInterrupt: a run was interrupted.
    """
    together: dict[str, list[Variant]] = {}
    for variant in variants:
        together.setdefault(variant.line, []).append(variant)
    for some in together.values():
        measure(some, alone, jobs)
        for variant in some if len(some) > 1 else ():
            if not _report(variant).exists():  # a mistake of an artifact ends the call
                measure([variant], alone, jobs)


def measure(variants: Sequence[Variant], alone: bool, jobs: int) -> None:
    """Run what is missing of variants of the same overrides: rows that measure the machine, or the others.

    Its exit code is said.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    names = ",".join(variant.artifact for variant in variants)
    for variant in variants:
        _report(variant).unlink(missing_ok=True)  # an earlier one is of another plan
    command = children.python(children.LUTLAB, f"+exp={names}", *shlex.split(variants[0].line))
    command += [f"results={WORK}", "logger=none", f"alone={str(alone).lower()}"]
    own = dict(os.environ)
    if not alone:
        own |= {"OMP_NUM_THREADS": "1"} | (AVX2 if detect().name == "avx512" else {})
        if jobs > 1:
            command += ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"]
    _say(f"{'speeds' if alone else 'accuracies'} of {names}, {variants[0].name}")
    code = subprocess.run(command, env=own, stdout=subprocess.DEVNULL, check=False).returncode
    if code == 130:
        raise KeyboardInterrupt
    if code:
        _say(f"{names}, {variants[0].name}: exit code {code}, see above")


def _report(variant: Variant) -> Path:
    return WORK / variant.artifact / variant.name / published.TABLE


def _has_columns(variant: Variant, of_this_machine: bool) -> bool:
    return any(
        registry.lookup("evaluator", column.evaluator).of_this_machine == of_this_machine
        for column in load_artifact(variant.artifact).columns.values()
        if not column.not_run
    )


def collect(variant: Variant) -> Published:
    """The variant as the working store has it.

    Raises:
        NotMeasured: it has no report, or cells that nobody measured.
        LutlabError: the report is not as its run wrote it, or a record is damaged.
    """
    report = _report(variant)
    if not report.exists():
        raise NotMeasured(f"its run wrote no {report}")
    check_file(report.parent, report.name, "publish again, which writes it again")
    cells = csv.parse(report.read_text(encoding="utf-8"))
    store = Store(WORK)
    records = {cell["cell_id"]: store.load(cell["cell_id"]) for cell in cells if cell["cell_id"]}
    if missing := [cell for cell, record in records.items() if record is None]:
        raise NotMeasured(f"{len(missing)} of its {len(records)} cells are not measured")
    if not records:
        raise NotMeasured("none of its cells can be measured here")
    return Published(variant.artifact, {variant.name: cells}, records)


def check_complete(before: Published, found: Published, variant: str) -> None:
    """Raises NotMeasured: a row of a variant is published and cannot be measured here, as where a peer is missing."""
    absent = {(c["row"], c["column"]) for c in found.cells[variant] if not c["cell_id"]}
    there = [c for c in before.cells.get(variant, ()) if c["cell_id"]]
    lost = sorted({c["row"] for c in there if (c["row"], c["column"]) in absent})
    if lost:
        raise NotMeasured(f"{len(lost)} published rows cannot be measured here, first {lost[0]}")


# ---- writing ----


def write(
    artifact: str, variants: Sequence[Variant], wanted: str, folder: Path, prune: bool
) -> bool:
    """Publish an artifact; returns whether each of its variants is measured by this code."""
    target = folder / artifact
    before = published.read(target) if (target / published.TABLE).exists() else None
    cells, records, complete = {}, {}, True
    for variant in variants:
        try:
            if not fnmatchcase(variant.name, wanted):
                raise NotMeasured(f"--variants is {wanted}")
            found = collect(variant)
            if before and not prune:
                check_complete(before, found, variant.name)
        except NotMeasured as error:
            complete = False
            kept = before is not None and variant.name in before.cells and not prune
            _say(f"{artifact}, {variant.name}: {error}; {'kept' if kept else 'not'} published")
            if not kept:
                continue
            found = before
        cells[variant.name] = found.cells[variant.name]
        records |= {record.cell_id: record for record in found.records_of([variant.name])}
    if not cells:
        if before and prune:
            shutil.rmtree(target)
            published.seal(folder)
        return False
    result = Published(artifact, cells, records)
    check_machine(records.values(), folder)
    _warn(result)
    published.write(result, target, {variant.name: variant.command for variant in variants})
    published.seal(folder)
    _say(f"{artifact}: published in {target}")
    return complete


def check_machine(records: Iterable[Record], folder: Path) -> None:
    """Accuracies may come from several machines, each named by its record; speeds are of the folder's own.

    Raises:
        LutlabError: a speed was measured on another machine.
    """
    for record in records:
        if not registry.lookup("evaluator", record.evaluation["evaluator"]).of_this_machine:
            continue
        if (machine := machine_name(record.provenance)) != folder.name:
            raise LutlabError(
                f"speeds of {machine} do not go to {folder}: leave --machine out, which publishes in "
                f"{folder.with_name(machine)}, or give --variants without speeds"
            )


def _warn(result: Published) -> None:
    """Say what a reader of the numbers should know: several commits, a tree that was not clean, failed cells."""
    records = result.records_of(result.cells)
    commits = {record.provenance["git_commit"] for record in records}
    dirty = sum(record.provenance["git_dirty"] is not False for record in records)
    failed = sum(record.status != "done" for record in records)
    warnings = {
        f"its records are of {len(commits)} commits": len(commits) > 1,
        f"{dirty} records are of a tree that was not clean": dirty,
        f"{failed} cells failed": failed,
    }
    for warning in (text for text, holds in warnings.items() if holds):
        _say(f"{result.artifact}: warning: {warning}")


def unlisted(folder: Path, prune: bool) -> bool:
    """Say, and with `prune` remove, what is published and no longer listed; returns whether nothing of it is left."""
    listed = {variant.artifact for variant in read_list()}
    for table in sorted(folder.glob(f"*/*/{published.TABLE}")):
        name = table.parent.relative_to(folder).as_posix()
        if name not in listed:
            _say(f"{name} is not in the list; {'removed' if prune else '--prune removes it'}")
            if prune:
                shutil.rmtree(table.parent)
                published.seal(folder)
    left = {p.parent.relative_to(folder).as_posix() for p in folder.glob(f"*/*/{published.TABLE}")}
    return left <= listed


def report_changes(folder: Path, commit: str = "HEAD") -> None:
    """Write <machine>/changes.md: published numbers beside those of a commit, where they differ."""
    commit = ask_git("rev-parse", "--short=10", commit).decode().strip()
    comparisons = [
        changes.compare(_committed(after, table.parent, commit), after)
        for table in sorted(folder.glob(f"*/*/{published.TABLE}"))
        for after in [published.read(table.parent)]
    ]
    if not comparisons:
        return
    text = changes.render(comparisons, f"commit {commit}")
    path = write_atomically(folder / "changes.md", text.encode())
    differing = sum(len(comparison.changes) for comparison in comparisons)
    _say(f"{differing} numbers differ from {commit}'s, are new or gone: {path}")


def _committed(after: Published, target: Path, commit: str) -> list[Published]:
    """An artifact as a commit has it: variants that came from other machines' folders, and last its own folder's."""
    files = ask_git("ls-tree", "-r", "--name-only", commit, f"./{PUBLISHED}").decode().split("\n")
    tables = fnmatch.filter(files, f"*/{after.artifact}/{published.TABLE}")
    before = []
    for folder in sorted(map(os.path.dirname, tables), key=target.as_posix().__eq__):
        table, lines = (
            ask_git("show", f"{commit}:./{folder}/{file}").decode()
            for file in (published.TABLE, LINES)
        )
        records = parse_lines(lines, f"{commit}:{folder}/{LINES}")
        there = published.parse(after.artifact, table, records)
        own = folder == target.as_posix()
        cells = {v: c for v, c in there.cells.items() if own or v in after.cells}
        before.append(dataclasses.replace(there, cells=cells))
    return before


def _say(message: str) -> None:
    print(f"publish: {message}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0 all published, 1 something could not be measured, 2 a mistake."""
    parser = argparse.ArgumentParser(prog="tools.publish")
    parser.description = "Measure what results/published/list.yaml names, and publish it."
    parser.add_argument("--only", default="*", help="pattern of <paper>/<artifact>")
    parser.add_argument("--variants", default="*", help="pattern of the names of their variants")
    parser.add_argument("--machine", help="the machine's folder; by default from its processor")
    parser.add_argument("--prune", action="store_true", help="remove what cannot be measured here")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="accuracy rows at once; 1 on a single GPU"
    )
    parser.add_argument(
        "--render-only", action="store_true", help="write the pages anew from the published records"
    )
    return ended(lambda: _publish(parser.parse_args(arguments)))


def _publish(given: argparse.Namespace) -> int:
    if given.render_only:
        for folder in render.rewrite(given.only, given.machine or "*"):
            _say(f"{folder}: rendered from its records")
        return 0
    return 0 if publish(given.only, given.variants, given.machine, given.prune, given.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
