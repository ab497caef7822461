"""How threads of OpenMP wait, as the library itself says: a short while awake, then asleep."""

import os
import re
import subprocess

import pytest
from tests import warm

from lutlab.base.children import python

LIMIT = "5000"  # rounds
PRINT = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"
PLAIN = {name: v for name, v in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}


def test_threads_that_wait_go_to_sleep_soon():
    verbose = PLAIN | {"OMP_DISPLAY_ENV": "VERBOSE"}
    line = python("import lutlab, torch")
    done = subprocess.run(line, env=verbose, capture_output=True, text=True, check=True)
    rounds = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not rounds:
        pytest.skip("torch's OpenMP is not GNU's")
    assert rounds[0] == LIMIT


@pytest.mark.parametrize(
    ("own", "value"),
    [({}, LIMIT), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_what_a_user_says_stays(own, value):
    line = python("import lutlab; " + PRINT)
    done = subprocess.run(line, env=PLAIN | own, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == value


def test_where_torch_came_first_nothing_is_set():
    """It has read the environment; docs/how-to/launch.md says so. A warm process imports torch before lutlab."""
    again = "import sys; del sys.modules['lutlab']; import lutlab; "
    assert warm.run(again + PRINT, env=PLAIN).stdout.strip() == "None"
