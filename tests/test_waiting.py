"""How threads of OpenMP wait, as the library itself says: a short while awake, then asleep."""

import os
import re
import subprocess

import pytest
from tests import warm

from lutlab.base.children import python

LIMIT = "5000"  # rounds
SAID = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def without(*prefixes):
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def test_threads_that_wait_go_to_sleep_soon():
    done = subprocess.run(
        python("import lutlab, torch"),
        env=without("OMP_", "GOMP_") | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not said:
        pytest.skip("torch's OpenMP is not GNU's")
    assert said[0] == LIMIT


@pytest.mark.parametrize(
    ("own", "said"),
    [({}, LIMIT), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_what_a_user_says_stays(own, said):
    environment = without("OMP_", "GOMP_") | own
    done = subprocess.run(
        python("import lutlab; " + SAID), env=environment, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.strip() == said


def test_where_torch_came_first_nothing_is_set():
    """It has read the environment; docs/how-to/launch.md says so. A warm process imports torch before lutlab."""
    again = "import sys; del sys.modules['lutlab']; import lutlab; "
    assert warm.run(again + SAID, env=without("OMP_", "GOMP_")).stdout.strip() == "None"
