"""The command of a record composes to what the record holds: published records of different kinds of runs."""

import functools
import shlex

import pytest
from tests.experiment.row.composing import settings

from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.plan.resolve import evaluation_of
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.spelling import axes, evaluation_from, overrides_of, run_from, shell
from lutlab.experiment.store.store import Store
from tools.published_list import PUBLISHED

SAMPLE = 10


@functools.cache
def kinds():
    """A published record of each method and set of axes, as (run, evaluation, threads)."""
    found = {}
    for machine in sorted(PUBLISHED.iterdir()):
        for record in Store(machine).all().values() if machine.is_dir() else ():
            run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
            kind = (run.method, *axes(run, evaluation))
            found.setdefault(kind, (run, evaluation, record.provenance["threads"]))
    return list(found.values())


@pytest.mark.parametrize("at", range(SAMPLE))
def test_the_command_measures_the_same_cell(at):
    run, evaluation, threads = kinds()[at * len(kinds()) // SAMPLE]
    overrides = overrides_of(run, evaluation, threads)
    composed = settings(*overrides)
    (column,) = free_columns(composed.evaluate).values()
    assert (run_of(composed), evaluation_of(column, composed)) == (run, evaluation)
    assert shlex.split(shell(overrides))[2:] == overrides


@pytest.mark.parametrize(
    ("line", "limits"),
    [("data.limit=4", (4, 4)), ("data.examples=9", (None, 9)), ("data.limit=4 data.examples=9", (4, 9))],
)  # fmt: skip
def test_windows_and_examples_are_limited_apart(line, limits):
    composed = settings(*line.split(), "evaluate=[ppl:wikitext2,lambada:lambada]")
    columns = free_columns(composed.evaluate).values()
    assert tuple(evaluation_of(one, composed).text.limit for one in columns) == limits
