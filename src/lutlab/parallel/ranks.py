"""Processes that do one job together, each on a GPU of its own: the ranks of a process group.

    answer = run(job, 8, "cuda", (spec,))    job(rank, spec) in 8 processes; what rank 0 returns

Processes are spawned, meet in a file of a temporary folder, and end with `run`, whatever happens; the first that fails
ends all others and says why. On GPUs tensors meet through NCCL, numbers through gloo on the CPU, where a rank that
waits leaves its GPU idle; with device=cpu, which tests use, all is gloo's.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import distributed, torch

if TYPE_CHECKING:
    from torch.multiprocessing import ProcessContext
    from torch.multiprocessing.spawn import ProcessException

log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 900.0  # until all ranks are done, and that one waits for the others
_GRACE_SECONDS = 1.0  # for the others to say why they end too, once a rank has failed


class Alone(LutlabError):
    """A rank waited for the others in vain: one of them has ended, or did not come in time."""


@dataclass(frozen=True)
class Rank:
    """One of `count` processes, and its device as torch names it. All ranks call its functions in the same order."""

    index: int
    count: int
    device: str

    @property
    def exchange(self) -> str:
        """Backend that carries the tensors: `gloo`, or `nccl` with its version."""
        if self.device == "cpu":
            return "gloo"
        return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"

    def largest(self, number: float) -> float:
        """The largest of what the ranks say, for all of them; each waits for all."""
        largest = torch.tensor([number], dtype=torch.float64)
        with self._in_company():
            distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return float(largest)

    def first(self, number: float) -> float:
        """The number of rank 0, given to all ranks."""
        first = torch.tensor([number], dtype=torch.float64)
        with self._in_company():
            distributed.broadcast(first, 0)
        return float(first)

    def line_up(self) -> None:
        """Work that a rank puts on its GPU's stream after this starts when the streams of all have come as far."""
        self.largest(0.0)
        if self.device != "cpu":
            distributed.all_reduce(torch.zeros(1, device=self.device))

    def lead(self, run: Callable[[], None], measure: Callable[[Callable[[], None]], Any]) -> Any:
        """measure(run) on rank 0, in which every run is one of all ranks; None on the others.

        The others wait for rank 0 on the CPU, so that what it does between runs meets idle GPUs.
        """
        if self.index:
            while self.first(0.0):
                run()
            return None

        def of_all() -> None:
            self.first(1.0)
            run()

        measurement = measure(of_all)
        self.first(0.0)
        return measurement

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Parts [n, …] of all ranks, one below the other in the order of ranks, into `whole` [count n, …]."""
        # the older name is deprecated where there is a newer one
        newer = getattr(distributed, "all_gather_single", None)
        with self._in_company():
            (newer or distributed.all_gather_into_tensor)(whole, part)

    def sum(self, tensor: torch.Tensor) -> None:
        """Put the sum of the ranks' tensors, which are alike, in the place of each; all get the same bits."""
        with self._in_company():
            distributed.all_reduce(tensor)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Compare what all ranks must have alike, texts by name; the names are the same on all ranks.

        Raises:
            LutlabError: a rank has another text than rank 0. All ranks raise it.
        """
        digests = [hashlib.sha256(text.encode()).digest() for text in facts.values()]
        mine = torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
        whole = mine.new_empty(self.count * len(mine), mine.shape[1])
        self.gather(whole, mine)
        of_ranks = whole.view(self.count, *mine.shape)
        differ = (of_ranks != of_ranks[0]).any(2).nonzero().tolist()
        if differ:
            names = list(facts)
            where = ", ".join(f"rank {rank} in its {names[at]}" for rank, at in differ)
            raise LutlabError(
                f"{self.count} ranks do not have parts of one model, against rank 0 differs {where}: give all ranks "
                "the same folder, dtype and version of lutlab"
            )

    def arrive(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait for all ranks, for so long: behind work that may take them far longer than they else wait, as loading.

        Raises:
            LutlabError: a rank did not come; rank 0 says which.
        """
        patience = timedelta(seconds=seconds)
        with self._in_company():
            group = distributed.new_group(backend="gloo", timeout=patience)
            distributed.monitored_barrier(group, patience)
            distributed.destroy_process_group(group)

    @contextmanager
    def _in_company(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of gloo; NCCL's DistBackendError is one too
            cause = str(error).partition("\n")[0]
            raise Alone(
                f"waited for the others in vain: one of them ended or hangs ({cause})"
            ) from error


def run(
    job: Callable[..., Any],
    count: int,
    device: str,
    arguments: tuple[Any, ...] = (),
    seconds: float = TIMEOUT_SECONDS,
    wait_seconds: float | None = None,
) -> Any:
    """Do a job in `count` processes.

    Args:
        job: a function of a module, called with its Rank and the arguments.
        count: number of processes.
        device: cuda, of which each rank has the GPU of its index, or cpu.
        arguments: arguments of the job, which can be pickled.
        seconds: until all of them must be done.
        wait_seconds: seconds that a rank waits for the others where they meet; None: `seconds`. One that has ended ends
            all at once; this is for one that hangs.

    Returns:
        What rank 0's job returns; it must be picklable.

    Raises:
        LutlabError: a rank failed, or they were not done in time.
        torch.OutOfMemoryError: that is why a rank failed.
    """
    from torch.multiprocessing import ProcessExitedException, spawn

    with tempfile.TemporaryDirectory(prefix="lutlab-ranks-") as name:
        folder = Path(name)
        task = (count, device, folder, wait_seconds or seconds, job, arguments)
        context = spawn(_begin, task, count, join=False, daemon=True)
        try:
            _wait(context, count, seconds)
        except ProcessExitedException as error:
            _fail(folder, count, error, [process.exitcode for process in context.processes])
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        # our own child's, in a folder that TemporaryDirectory made for this user alone (0700)
        return pickle.loads((folder / "answer").read_bytes())


def _wait(context: ProcessContext, count: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not context.join(max(0.0, ends - time.monotonic()), _GRACE_SECONDS):
        if time.monotonic() >= ends:
            raise LutlabError(
                f"{count} processes that work together were not done in {seconds:g} s and were ended: "
                "one of them may have waited for the others in vain"
            )


def _fail(
    folder: Path, count: int, error: ProcessException, exits: Sequence[int | None] = ()
) -> NoReturn:
    """Say why the first rank that failed did; the others' reasons are often no more than that it is gone."""
    failures = [json.loads(path.read_text()) for path in folder.glob("failure-*")]
    silent = set(range(count)).difference(failure["rank"] for failure in failures)
    exited = ((rank, code) for rank, code in enumerate(exits) if rank in silent and code)
    # by another signal than ours, which ends them behind one that failed
    killed = [(rank, code) for rank, code in exited if code != -signal.SIGTERM]
    if error.error_index in silent:
        raise LutlabError(f"of {count} processes that work together, {error}") from error
    if killed:
        rank, code = killed[0]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise LutlabError(
            f"of {count} processes that work together, process {rank} terminated with {how}"
        ) from error
    first = min(failures, key=lambda failure: (failure["kind"] == "Alone", failure["at"]))
    where, reason = f"on rank {first['rank']} of {count}", first["reason"]
    if first["kind"] == "Alone" and silent:
        reason += f"; no word came from rank {', '.join(map(str, sorted(silent)))}"
    if first["kind"] in ("LutlabError", "Alone"):
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
        answer = job(rank, *arguments)
        if index == 0:
            (folder / "answer").write_bytes(pickle.dumps(answer))
        rank.largest(0.0)  # the group is left when all ranks leave
        gc.collect()  # CUDA graphs that hold a collective: NCCL's communicator would wait for their end
        distributed.destroy_process_group()
    except BaseException as error:
        failure = {
            "rank": index, "at": time.monotonic_ns(), "kind": type(error).__name__, "reason": str(error),
            "traceback": traceback.format_exc(),
        }  # fmt: skip
        (folder / f"part-{index}").write_text(json.dumps(failure))
        (folder / f"part-{index}").rename(folder / f"failure-{index}")
        # A process group is left in company, and the others may be waiting for this rank.
        os._exit(1)


def _meet(rank: Rank, folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)  # the ranks share the processor, and only launch
    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    store = distributed.FileStore(str(folder / "meeting"), rank.count)
    patience = timedelta(seconds=seconds)
    store.set_timeout(patience)
    distributed.init_process_group(
        "gloo" if rank.device == "cpu" else "cpu:gloo,cuda:nccl",
        timeout=patience,
        store=store,
        rank=rank.index,
        world_size=rank.count,
    )
