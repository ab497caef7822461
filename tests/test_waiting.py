"""How threads of OpenMP wait, as the library itself says: a short while awake, then asleep."""

import os
import re
import subprocess

import pytest

from lutlab.children import python

LIMIT = "5000"  # rounds


@pytest.mark.parametrize(
    ("code", "variables", "spins"),
    [
        ("import lutlab, torch", {}, LIMIT),
        ("import torch, lutlab", {}, "300000"),  # GNU's own; docs/how-to/launch.md says so
        ("import lutlab, torch", {"GOMP_SPINCOUNT": "77"}, "77"),
        ("import lutlab, torch", {"OMP_WAIT_POLICY": "passive"}, "0"),
    ],
)
def test_threads_that_wait_go_to_sleep_soon(code, variables, spins):
    ours = {name for name in os.environ if name.startswith(("OMP_", "GOMP_"))}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        python(code),
        env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    said = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not said:
        pytest.skip("torch's OpenMP is not GNU's")
    assert said[0] == spins
