"""Ranks that are threads of this process: what several of them compute, without the seconds that processes take."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lutlab.parallel.ranks import Rank


@dataclass(frozen=True)
class ThreadRank(Rank):
    """A rank that meets the others at a barrier; what they bring lies in a list that all have."""

    barrier: threading.Barrier
    brought: list

    def _all(self, tensor):
        self.brought[self.index] = tensor.clone()
        self.arrive()
        tensors = torch.stack(self.brought)
        self.arrive()
        return tensors

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

    def run(index):
        try:
            return job(ThreadRank(index, count, "cpu", barrier, brought), *arguments)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, index) for index in range(count)]
    errors = filter(None, (future.exception() for future in futures))
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
