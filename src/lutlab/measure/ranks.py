"""Processes that do one job together, each on a GPU of its own: the ranks of a process group.

    answer = run(job, 8, "cuda", (spec,))    job(rank, spec) in 8 processes; what rank 0 returns

They exchange tensors and numbers by their Rank (rank.py). Processes are spawned, meet in a file of a temporary folder,
and end with `run`, whatever happens; the first that fails ends all others and says why.
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
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError
from lutlab.lazy import distributed, torch
from lutlab.measure.rank import Rank, join

if TYPE_CHECKING:
    from torch.multiprocessing import ProcessContext

log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 900.0
_GRACE_SECONDS = 1.0  # for the others to say why they end too, once a rank has failed


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
            _fail(folder, count, error, [one.exitcode for one in context.processes])
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


def _fail(folder: Path, count: int, error: Exception, exits: Sequence[int | None] = ()) -> None:
    """Say why the first rank that failed did; the others' reasons are often no more than that it is gone."""
    found = [json.loads(path.read_text()) for path in folder.glob("failure-*")]
    silent = set(range(count)).difference(one["rank"] for one in found)
    ended = (None, 0, -signal.SIGTERM)  # the last: by us, behind one that failed
    killed = [rank for rank in silent if rank < len(exits) and exits[rank] not in ended]
    if error.error_index in silent:
        raise LutlabError(f"of {count} processes that work together, {error}") from error
    if killed:
        code = exits[killed[0]]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise LutlabError(
            f"of {count} processes that work together, process {killed[0]} terminated with {how}"
        ) from error
    first = min(found, key=lambda one: (one["kind"] == "Alone", one["at"]))
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
    rank = _rank(index, count, device)
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
        # A process group is left in company, and the others may be waiting for this rank.
        os._exit(1)


def _meet(rank: Rank, folder: Path, seconds: float) -> None:
    store = distributed.FileStore(str(folder / "meeting"), rank.count)
    store.set_timeout(timedelta(seconds=seconds))
    join(rank, seconds, {"store": store, "rank": rank.index, "world_size": rank.count})


def _work(rank: Rank, folder: Path, job: Callable, arguments: tuple) -> None:
    answer = job(rank, *arguments)
    if rank.index == 0:
        (folder / "answer").write_bytes(pickle.dumps(answer))
    _leave(rank)


def _rank(index: int, count: int, device: str) -> Rank:
    return Rank(index, count, f"cuda:{index}" if device == "cuda" else "cpu")


def _leave(rank: Rank) -> None:
    """Leave the group when all ranks do."""
    rank.largest(0.0)
    gc.collect()  # CUDA graphs that hold a collective: NCCL's communicator would wait for their end
    distributed.destroy_process_group()
