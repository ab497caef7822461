"""Processes that do one job together, each on a GPU of its own: the ranks of a process group.

    answer = run(job, 8, "cuda", (spec,))      job(rank, spec) in 8 processes; what rank 0 returns

On GPUs tensors meet through NCCL, numbers through gloo on the CPU, where a rank that waits leaves its GPU idle; with
device=cpu, which tests use, all is gloo's. Processes are spawned, meet in a file of a temporary folder, and end with
`run`, whatever happens; the first that fails ends all others and says why.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing import ProcessContext

log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True)
class Rank:
    """One of `count` processes, and its device as torch names it."""

    index: int
    count: int
    device: str

    def largest(self, number: float) -> float:
        """The largest of what the ranks say, for all of them; each waits for all."""
        import torch
        from torch import distributed

        found = torch.tensor([number], dtype=torch.float64)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return float(found)

    def first(self, number: float) -> float:
        """The number of rank 0, given to all ranks."""
        import torch
        from torch import distributed

        found = torch.tensor([number], dtype=torch.float64)
        distributed.broadcast(found, 0)
        return float(found)

    def line_up(self) -> None:
        """Work that a rank puts on its GPU's stream after this starts when the streams of all have come as far."""
        import torch
        from torch import distributed

        self.largest(0.0)
        if self.device != "cpu":
            distributed.all_reduce(torch.zeros(1, device=self.device))

    def lead(self, run: Callable[[], None], measure: Callable[[Callable[[], None]], Any]) -> Any:
        """On rank 0 measure(run), in which every run is one of all ranks; on the others None.

        The others wait for rank 0 on the CPU, so that what it does between runs meets idle GPUs.
        """
        if self.index:
            while self.first(0.0):
                run()
            return None

        def of_all() -> None:
            self.first(1.0)
            run()

        found = measure(of_all)
        self.first(0.0)
        return found

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Parts [n, …] of all ranks, one below the other in the order of ranks, into `whole` [count n, …]."""
        from torch import distributed

        # the older name is deprecated where there is a newer one
        one = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        one(whole, part)


def run(
    job: Callable[..., Any],
    count: int,
    device: str,
    arguments: tuple[Any, ...] = (),
    seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Do a job in `count` processes.

    Args:
        job: a function of a module, called with its Rank and the arguments.
        count: of the processes.
        device: cuda, of which each rank has the GPU of its index, or cpu.
        arguments: that can be pickled.
        seconds: until all of them must be done.

    Returns:
        What rank 0's job returns; it must be picklable.

    Raises:
        LutlabError: a rank failed, or they were not done in time.
        torch.OutOfMemoryError: that is why a rank failed.
    """
    from torch.multiprocessing import ProcessExitedException, spawn

    with tempfile.TemporaryDirectory(prefix="lutlab-ranks-") as name:
        folder = Path(name)
        task = (count, device, folder, seconds, job, arguments)
        context = spawn(_begin, task, count, join=False, daemon=True)
        try:
            _wait(context, count, seconds)
        except ProcessExitedException as error:
            _fail(folder, count, error)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        # our own child's, in a folder that TemporaryDirectory made for this user alone (0700)
        return pickle.loads((folder / "answer").read_bytes())


def _wait(context: ProcessContext, count: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not context.join(max(0.0, ends - time.monotonic())):
        if time.monotonic() >= ends:
            raise LutlabError(
                f"{count} processes that work together were not done in {seconds:g} s and were ended: "
                "one of them may have waited for the others in vain"
            )


def _fail(folder: Path, count: int, error: Exception) -> None:
    """Say why the first rank that failed did; the others' reasons are often no more than that it is gone."""
    import torch

    found = [json.loads(path.read_text()) for path in folder.glob("failure-*")]
    if error.error_index not in {one["rank"] for one in found}:
        raise LutlabError(f"of {count} processes that work together, {error}") from error
    first = min(found, key=lambda one: one["at"])
    where, reason = f"on rank {first['rank']} of {count}", first["reason"]
    if first["kind"] == "LutlabError":
        raise LutlabError(f"{where}: {reason}") from error
    if first["kind"] == "OutOfMemoryError":
        raise torch.OutOfMemoryError(f"{where}: {reason}") from error
    log.error("%s:\n%s", where, first["traceback"])
    raise LutlabError(f"{where}: {first['kind']}: {reason}") from error


# ---- in a rank's process ----


def _begin(
    index: int,
    count: int,
    device: str,
    folder: Path,
    seconds: float,
    job: Callable,
    arguments: tuple,
) -> None:
    # The parent's end, which comes as this signal, ends also a process that waits inside a library.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    rank = Rank(index, count, f"cuda:{index}" if device == "cuda" else "cpu")
    try:
        _meet(rank, folder, seconds)
        _work(rank, folder, job, arguments)
    except BaseException as error:
        failure = {
            "rank": index, "at": time.monotonic_ns(), "kind": type(error).__name__, "reason": str(error),
            "traceback": traceback.format_exc(),
        }  # fmt: skip
        (folder / f"part-{index}").write_text(json.dumps(failure))
        (folder / f"part-{index}").rename(folder / f"failure-{index}")
        os._exit(
            1
        )  # a process group is left in company, and the others may be waiting for this rank


def _meet(rank: Rank, folder: Path, seconds: float) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)  # the ranks share the processor, and only launch
    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    store = distributed.FileStore(str(folder / "meeting"), rank.count)
    store.set_timeout(timedelta(seconds=seconds))
    distributed.init_process_group(
        "gloo" if rank.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=rank.index,
        world_size=rank.count,
        timeout=timedelta(seconds=seconds),
    )


def _work(rank: Rank, folder: Path, job: Callable, arguments: tuple) -> None:
    from torch import distributed

    answer = job(rank, *arguments)
    if rank.index == 0:
        (folder / "answer").write_bytes(pickle.dumps(answer))
    rank.largest(0.0)
    gc.collect()  # CUDA graphs that hold a collective: NCCL's communicator would wait for their end
    distributed.destroy_process_group()
