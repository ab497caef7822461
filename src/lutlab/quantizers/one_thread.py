"""Operations of torch on one thread each, where they take microseconds.

torch's own threads would meet at a barrier in each of thousands of operations, and wait there whenever the machine is
shared. A solver enters `one_thread` around all of its small operations; large products stay outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lutlab.base.lazy import torch


@contextlib.contextmanager
def one_thread() -> Iterator[int]:
    """Inside, torch computes on one thread; gives the number of threads outside, which is restored on errors too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
