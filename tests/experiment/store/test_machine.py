"""A speed is of one machine and one number of threads; what does not depend on them keeps its name."""

from __future__ import annotations

import re

import pytest
import torch
from tests.command_line import CommandLine

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Measurement
from lutlab.evaluators.generation import Generation
from lutlab.experiment.plan.plan import job_from
from lutlab.experiment.run import pipeline
from lutlab.experiment.store import provenance
from lutlab.kernels.codegen.isa import Isa

BOTH = ["model=llama-embedded-s", "evaluate=[generation,weight_error]", "logger=none"]


@pytest.fixture(autouse=True)
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Generation,
        "measure",
        lambda self, subject: Measurement({"tokens_per_s": 1.0}, 1),
    )


def waiting(command: CommandLine, *arguments: str) -> int:
    """How many cells of BOTH are still to be measured."""
    outcome = command(*BOTH, "mode=plan", *arguments)
    return int(re.search(r"(\d) cells to measure", outcome.out)[1])


@pytest.mark.slow
def test_another_machine_and_other_threads_are_another_cell(command, monkeypatch):
    outcome = command(*BOTH, "threads=2")
    assert outcome.code == 0, outcome.err
    torch.set_num_threads(1)
    assert {r["provenance"]["threads"] for r in command.records().values()} == {2}
    assert waiting(command, "threads=2") == 0
    assert waiting(command) == 1  # the speed, not the weights' error
    about = provenance.environment()
    for known in (about | {"cpu": "another"}, about | {"cores": 1000}):
        monkeypatch.setattr(provenance, "environment", lambda known=known: known)
        assert waiting(command, "threads=2") == 1
    monkeypatch.setattr(provenance, "environment", lambda: about)
    assert waiting(command, "threads=2") == 0
    monkeypatch.setattr(provenance, "detect", lambda: Isa("another", ()))
    assert waiting(command, "threads=2") == 1


def test_a_gpu_is_part_of_it_where_it_computes(monkeypatch) -> None:
    monkeypatch.setattr(provenance, "gpu_name", lambda device: f"the GPU of {device}")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert "gpu" not in provenance.machine("cpu")
    assert provenance.machine("cuda")["gpus"] == 1
    assert provenance.machine("spread")["gpus"] == 3
    assert provenance.machine("cuda:1")["gpu"] == "the GPU of cuda:1"


def test_no_threads_are_refused(command: CommandLine) -> None:
    with pytest.raises(LutlabError, match="at least 1"):
        provenance.machine("cpu", threads=-1)
    outcome = command(*BOTH, "threads=0")
    assert outcome.code != 0
    assert "threads=0: give a whole number of at least 1" in outcome.err


def threads_of(overrides: list[str]) -> int | None:
    """The threads that a launched job asks for."""
    return job_from(overrides[-1].removeprefix("job='").removesuffix("'")).threads


def test_rows_that_measure_the_machine_run_one_at_a_time(command, monkeypatch) -> None:
    launched, sweep = [], pipeline.sweep
    monkeypatch.setattr(
        pipeline, "sweep", lambda a, compose, launch: sweep(a, compose, launched.append)
    )
    command(*BOTH, "q=2,3")
    assert [len(jobs) for jobs in launched] == [1, 1]
    assert [threads_of(job) for jobs in launched for job in jobs] == [1, 1]
    launched.clear()
    command(BOTH[0], "evaluate=[weight_error]", BOTH[2], "q=2,3")
    assert [len(jobs) for jobs in launched] == [2]
    assert [threads_of(job) for job in launched[0]] == [None, None]


def test_which_evaluators_measure_the_machine() -> None:
    found = {n for n, e in registry.classes("evaluator").items() if e.of_this_machine}
    assert {"generation", "llama_cpp", "peak_memory"} <= found
    assert found.isdisjoint({"ppl", "lambada", "zero_shot", "weight_error", "model_size"})


def test_the_machine_names_its_folder() -> None:
    about = {"cpu": "AMD EPYC", "cores": 2, "gpu": None}
    assert provenance.machine_name(about) == "amd-epyc-2cores"
    assert provenance.machine_name(about | {"gpu": "NVIDIA H200"}) == "amd-epyc-2cores-nvidia-h200"
