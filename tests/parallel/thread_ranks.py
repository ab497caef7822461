"""Ranks that are threads of this process: what several of them compute, without the seconds that processes take."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from lutlab.parallel.ranks import Rank


class ThreadRank(Rank):
    """A rank that meets the others at a barrier; what they bring lies in a list that all have."""

    def __init__(self, index, count, barrier, brought):
        super().__init__(index, count, "cpu")
        object.__setattr__(self, "barrier", barrier)
        object.__setattr__(self, "brought", brought)

    def _all(self, tensor):
        self.brought[self.index] = tensor.clone()
        self.barrier.wait(timeout=60)
        found = torch.stack(self.brought)
        self.barrier.wait(timeout=60)
        return found

    def sum(self, tensor):
        tensor.copy_(self._all(tensor).sum(0))

    def gather(self, whole, part):
        whole.copy_(self._all(part).flatten(0, 1))

    def largest(self, number):
        return float(self._all(torch.tensor([number], dtype=torch.float64)).max())

    def arrive(self, seconds=0.0):
        self.barrier.wait(timeout=60)


def together(job, count, *arguments):
    """What job(rank, …) gives on every rank; the first error of one ends all."""
    barrier, brought = threading.Barrier(count), [None] * count

    def one(index):
        try:
            return job(ThreadRank(index, count, barrier, brought), *arguments)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, index) for index in range(count)]
    errors = [future.exception() for future in futures]
    real = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)]
    for error in [*real, *filter(None, errors)]:
        raise error
    return [future.result() for future in futures]
