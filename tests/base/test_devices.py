"""One function reads a device's name, for the command line and for functions; nothing falls back to another device."""

import pytest
import torch
from tests.base.refusals import refused
from tests.experiment.row.composing import settings

from lutlab.base.devices import device_named
from lutlab.base.limits import a_device
from lutlab.checkpoint.loading import load
from lutlab.experiment.row.run import _device, _dtype, run_of


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_the_cpu_has_one_name(two_gpus):
    for name in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu:0")):
        assert device_named(name) == "cpu"
    assert [device_named(n) for n in ("cuda", "cuda:0", "cuda:1")] == ["cuda", "cuda:0", "cuda:1"]
    assert _dtype("auto", _device("cpu:0")) == "float32"


@pytest.mark.parametrize("name", ["cpu:99", "cpu:1", "cuda:2", "cuda:99999999999999999999"])
def test_what_is_not_here_is_refused_with_what_is(name, two_gpus):
    a_device("device", name)
    for read in (device_named, _device, lambda name: load("nowhere", device=name)):
        refused(f"device={name}: .* has cpu, cuda:0, cuda:1$", read, name)


@pytest.mark.parametrize("name", [
    "", "gpu", "CUDA:0", "cuda:-1", "cuda:01", "cuda:", "cuda:1 ", "cuda:١", "mps", "meta", "cpu:x", "auto:3",
])  # fmt: skip
def test_what_is_no_name_is_refused_by_all(name):
    for read in (device_named, lambda name: a_device("device", name)):
        refused("unknown device '.*known: ", read, name)


def test_the_nearest_name_is_suggested():
    refused("did you mean 'cuda'", device_named, "gpu")
    refused("did you mean 'spread'", a_device, "device", "spred")


def test_nothing_is_measured_on_a_device_that_is_not_here(command):
    outcome = command("model=opt-embedded-s", "evaluate=[weight_error]", "device=cpu:99")
    assert outcome.code == 2
    assert "device=cpu:99: it is not here; this machine has cpu" in outcome.err
    assert command.records() == {}
    run = run_of(settings("device=cpu:0"))
    assert (run.device, run.dtype) == ("cpu", "float32")
