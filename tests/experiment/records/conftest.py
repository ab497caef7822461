import shutil

import pytest

import lutlab
from tools.published_list import PUBLISHED


@pytest.fixture(scope="session")
def published():
    return lutlab.results(PUBLISHED)


@pytest.fixture(scope="session")
def copied():
    """Copies published artifacts of one machine into its folder below another."""

    def copy(folder, *names):
        machine = next(path for path in sorted(PUBLISHED.iterdir()) if (path / names[0]).is_dir())
        for name in names:
            shutil.copytree(machine / name, folder / machine.name / name)
        return folder / machine.name

    return copy
