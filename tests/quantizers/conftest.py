"""Fixtures of the tests of methods."""

import pytest
import torch


@pytest.fixture
def on_threads():
    """on_threads(n, function): what it returns on so many threads of torch."""
    before = torch.get_num_threads()

    def call(threads, function):
        torch.set_num_threads(threads)
        return function()

    yield call
    torch.set_num_threads(before)
