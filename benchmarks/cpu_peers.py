"""Public CPU kernels of low-bit products, each in a process of its own in the environment that has them.

    parent   Peer(...), round() …, close()          child   python cpu_peers.py <what to multiply, as JSON>

A child says what it has, and answers a line with the times of a round, by contestant; it sleeps while it is not asked.
Outputs are checked against a product of the dequantized weights.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys

import peers
from cpu_contestants import GROUP, copies

from lutlab.measure.timing import COLD, RESIDENT, CpuTimer, race
from lutlab.peers.contract import Product, surroundings

KINDS = (COLD, RESIDENT)


class Peer:
    """A worker in another environment: it answers a line with the times of a round, by contestant."""

    def __init__(self, name: str, shape, m: int, threads: int, args: argparse.Namespace) -> None:
        wanted = {"name": name, "shape": shape, "m": m, "threads": threads}
        wanted |= {"cold_mb": args.cold_mb, "calls": args.calls}
        command = [args.peer_python, __file__, json.dumps(wanted)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=surroundings(threads),
        )
        self.contestants = [
            Product(run=lambda i: None, **known) for known in json.loads(self._answer())
        ]

    def _answer(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the peer's process ended; its message is above")
        return line

    def round(self) -> None:
        """Let it time all its contestants once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for contestant, times in zip(self.contestants, json.loads(self._answer()), strict=True):
            contestant.rounds = times

    def close(self) -> None:
        """End the worker."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(args: argparse.Namespace) -> None:
    """The child's side."""
    peer = peers.peer(args.name)
    cold = functools.partial(copies, args=args)
    found = peer.cpu_products(tuple(args.shape), args.m, GROUP, args.threads, cold)
    known = [
        {key: getattr(c, key) for key in ("name", "bytes", "copies", "error", "activations")}
        for c in found
    ]
    print(json.dumps(known), flush=True)
    for _ in sys.stdin:
        race(found, CpuTimer(args.calls), 1, KINDS)
        print(json.dumps([c.rounds for c in found]), flush=True)


if __name__ == "__main__":
    serve(argparse.Namespace(**json.loads(sys.argv[1])))
