import pytest

import lutlab
from lutlab.experiment.run.published_list import PUBLISHED


@pytest.fixture(scope="session")
def published():
    return lutlab.results(PUBLISHED)
