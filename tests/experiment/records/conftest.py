import pytest

import lutlab
from tools.published_list import PUBLISHED


@pytest.fixture(scope="session")
def published():
    return lutlab.results(PUBLISHED)
