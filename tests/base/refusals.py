"""What a user may not do."""

import pytest

from lutlab.base.errors import LutlabError


def refused(message, call, *arguments, **options):
    """The call raises LutlabError with a message that the regular expression fits."""
    with pytest.raises(LutlabError, match=message):
        call(*arguments, **options)
