"""One of several processes that work together: what it exchanges with the others, and how it meets them.

On GPUs tensors meet through NCCL, numbers through gloo on the CPU, where a rank that waits leaves its GPU idle; with
device=cpu, which tests use, all is gloo's. ranks.py starts them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lutlab.errors import LutlabError
from lutlab.lazy import distributed, torch

WAIT_SECONDS = 900.0


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
        found = torch.tensor([number], dtype=torch.float64)
        with self._in_company():
            distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return float(found)

    def first(self, number: float) -> float:
        """The number of rank 0, given to all ranks."""
        found = torch.tensor([number], dtype=torch.float64)
        with self._in_company():
            distributed.broadcast(found, 0)
        return float(found)

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

        found = measure(of_all)
        self.first(0.0)
        return found

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Parts [n, …] of all ranks, one below the other in the order of ranks, into `whole` [count n, …]."""
        # the older name is deprecated where there is a newer one
        one = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        with self._in_company():
            one(whole, part)

    def sum(self, tensor: torch.Tensor) -> None:
        """Put the sum of the ranks' tensors, which are alike, in the place of each; all get the same bits."""
        with self._in_company():
            distributed.all_reduce(tensor)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Compare what all ranks must have alike.

        Args:
            facts: name -> text; the names are the same on all ranks.

        Raises:
            LutlabError: a rank has another text than rank 0. All ranks raise it.
        """
        digests = [hashlib.sha256(text.encode()).digest() for text in facts.values()]
        own = torch.tensor([list(one) for one in digests], dtype=torch.uint8)
        found = own.new_empty(self.count * len(own), own.shape[1])
        self.gather(found, own)
        of_ranks = found.view(self.count, *own.shape)
        differ = (of_ranks != of_ranks[0]).any(2).nonzero().tolist()
        if differ:
            names = list(facts)
            said = ", ".join(f"rank {rank} in its {names[at]}" for rank, at in differ)
            raise LutlabError(
                f"{self.count} ranks do not have parts of one model, against rank 0 differs {said}: give all ranks the "
                "same folder, dtype and version of lutlab"
            )

    def arrive(self, seconds: float = WAIT_SECONDS) -> None:
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


def join(rank: Rank, seconds: float, where: Mapping[str, Any]) -> None:
    """Meet the other ranks, at the place that `where` names to init_process_group."""
    torch.set_num_threads(1)  # the ranks share the processor, and only launch
    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    backend = "gloo" if rank.device == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, timeout=timedelta(seconds=seconds), **where)
