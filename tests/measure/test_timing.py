"""The timer with clocks and devices that are not real: what is called in which order, and what is made of the times."""

import subprocess
import sys

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.measure import timing
from lutlab.measure.timing import (
    COLD,
    RESIDENT,
    Contestant,
    CpuTimer,
    GpuTimer,
    copies_for,
    cpu_reader,
    race,
    together,
)


def contestant(name="a", size=100, copies=3, rounds=None, calls=None):
    said = [] if calls is None else calls
    return Contestant(name, size, copies, lambda i: said.append((name, i)), rounds or {})


def test_contestants_take_turns_round_by_round():
    calls, order = [], []
    both = [contestant("a", calls=calls), contestant("b", calls=calls)]

    def timer(one, kind):
        order.append((one.name, kind))
        return float(len(order))

    race(both, timer, 2, (COLD, RESIDENT))
    assert order == 2 * [("a", COLD), ("a", RESIDENT), ("b", COLD), ("b", RESIDENT)]
    assert both[0].rounds == {COLD: [1.0, 5.0], RESIDENT: [2.0, 6.0]}
    race(both, timer, 1)
    assert both[1].rounds == {COLD: [3.0, 7.0, 10.0], RESIDENT: [4.0, 8.0]}, "rounds are added"


def test_a_cpu_round_passes_through_every_copy_and_leaves_out_the_first_call():
    calls = []
    times = iter([0, 100, *[t for i in range(8) for t in (1000 * i, 1000 * i + i + 1)]])
    timer = CpuTimer(calls=4, clock=lambda: next(times))
    seconds = timer(contestant(copies=8, calls=calls), COLD)
    assert [i for _, i in calls] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert seconds == 2  # of 1 .. 8


@pytest.mark.parametrize(("calls", "quartile"), [(1, 7), (2, 5), (4, 5), (5, 6), (20, 6)])
def test_a_round_is_a_call_that_was_measured(calls, quartile):
    """Of 9 (left out), then 7, 5, 6, 8 and 9 again and again."""
    seconds = [9, *[(7, 5, 6, 8, 9)[i % 5] for i in range(calls)]]
    times = iter([t for spent in seconds for t in (0, spent)])
    timer = CpuTimer(calls=calls, clock=lambda: next(times))
    assert timer(contestant(copies=1), RESIDENT) == quartile


def test_resident_is_one_copy_again_and_again():
    calls = []
    times = iter(range(100))
    CpuTimer(calls=4, clock=lambda: next(times))(contestant(copies=8, calls=calls), RESIDENT)
    assert [i for _, i in calls] == [0] * 5


def test_medians_and_ratios_are_of_rounds():
    a = contestant("a", 100, rounds={COLD: [1.0, 2.0, 10.0]})
    b = contestant("b", 300, rounds={COLD: [4.0, 2.0, 30.0]})
    assert a.seconds() == 2
    assert a.times(b) == 3, "of 4, 1 and 3, not 4 / 2"
    assert a.bandwidth() == 50
    assert a.fraction(b) == pytest.approx(1)  # of 4/3, 1/3 and 1
    assert a.spread() == (1.5, 6.0)
    assert contestant(rounds={COLD: [7.0]}).spread() == (7.0, 7.0)


def test_copies_fill_what_is_to_be_cold():
    assert copies_for(100, 1000) == 10
    assert copies_for(101, 1000) == 10
    assert copies_for(1000, 1000) == copies_for(5000, 1000) == 1


def test_products_of_a_layer_are_called_in_turn():
    calls = []
    both = together([contestant("a", 100, 3, calls=calls), contestant("b", 7, 2, calls=calls)])
    assert (both.name, both.bytes, both.copies) == ("a + b", 107, 3)
    for copy in range(both.copies):
        both.run(copy)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 0)]
    alone = contestant()
    assert together([alone]) is alone
    assert (alone.kernels(), both.kernels()) == (["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("rounds", "seconds", "message"), [(0, 1.0, "at least 1"), (1, 0.0, "a took 0.0 s")]
)
def test_no_round_and_no_time_are_refused(rounds, seconds, message):
    with pytest.raises(LutlabError, match=message):
        race([contestant()], lambda one, kind: seconds, rounds)


class FakeCuda:
    """What GpuTimer asks of torch.cuda: streams and graphs that note calls, events a fixed time apart."""

    def __init__(self, milliseconds):
        cuda = self
        self.milliseconds, self.said, self.capturing = milliseconds, [], False

        class Stream:
            def wait_stream(self, other):
                cuda.said.append("wait")

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                cuda.said.append("event")

            def synchronize(self):
                cuda.said.append("synchronize")

            def elapsed_time(self, other):
                return cuda.milliseconds

        class CUDAGraph:
            def replay(self):
                cuda.said.append("replay")

        class context:
            def __init__(self, what):
                self.graph = isinstance(what, CUDAGraph)

            def __enter__(self):
                cuda.capturing = self.graph

            def __exit__(self, *error):
                cuda.capturing = False

        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph
        self.stream = self.graph = context
        self.current_stream = Stream
        self.synchronize = lambda: cuda.said.append("synchronize")


def test_a_gpu_round_is_a_replay_of_a_graph_of_whole_rotations(monkeypatch):
    cuda = FakeCuda(milliseconds=6.0)
    monkeypatch.setattr(torch, "cuda", cuda)
    captured = []
    one = Contestant("a", 1, 4, lambda i: captured.append(i) if cuda.capturing else None)
    timer = GpuTimer(calls=6)
    assert timer(one, COLD) == pytest.approx(6e-3 / 8)
    assert captured == [0, 1, 2, 3, 0, 1, 2, 3]
    cuda.said.clear()
    assert timer(one, COLD) == pytest.approx(6e-3 / 8)
    assert cuda.said == ["event", "replay", "event", "synchronize"], "captured once"
    timer(one, RESIDENT)
    assert captured[8:] == [0] * 6


def test_the_reader_reads_all_it_is_given():
    reader = cpu_reader(3 * timing.READ_BYTES, threads=1)
    assert (reader.bytes, reader.copies) == (timing.READ_BYTES, 3)
    for copy in range(reader.copies):
        reader.run(copy)


def test_a_peer_without_torch_can_import_the_timer():
    code = "import sys, lutlab.measure.timing; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_a_gpu_times_a_copy():
    copier = timing.gpu_copier(2**28)
    race([copier], GpuTimer(), 5)
    assert len(copier.rounds[COLD]) == 5
