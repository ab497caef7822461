"""What a plan rests on and a configuration only names: texts and models, read, downloaded and hashed once a process."""

from __future__ import annotations

import functools

from lutlab.data import load_text
from lutlab.errors import MissingTextError
from lutlab.models.load import fingerprint
from lutlab.specs import ModelSpec, Text, TextSpec


@functools.cache
def cached_text(spec: TextSpec) -> Text:
    """A text, loaded once a process."""
    return load_text(spec)


def readable(spec: TextSpec) -> bool:
    """False where a folder lacks this one text; other errors are raised."""
    try:
        cached_text(spec)
    except MissingTextError:
        return False
    return True


@functools.cache
def model_sha256(spec: ModelSpec) -> str:
    """Hash of a model's files; a product is named by its shape."""
    return f"product:{spec.id}" if spec.source == "product" else fingerprint(spec)
