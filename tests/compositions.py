"""Hydra composes a row five times, each time with every schema copied and every file read: half of a short run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

_read: dict[tuple[object, ...], ConfigResult] = {}


@contextmanager
def files_read_once() -> Iterator[None]:
    """In here a file is read again only if its size or time has changed, and schemas are shared."""
    Plugins.instance()  # finds them, and makes their classes anew
    with pytest.MonkeyPatch.context() as patch:
        for scheme in ("file", "pkg"):
            source = SourcesRegistry.instance().resolve(scheme)
            patch.setattr(source, "load_config", _reading_once(source.load_config))
        patch.setattr(CachingConfigRepository, "__init__", _of)
        yield


def _reading_once(
    load: Callable[[ConfigSource, str], ConfigResult],
) -> Callable[[ConfigSource, str], ConfigResult]:
    def load_once(source: ConfigSource, config_path: str) -> ConfigResult:
        file = Path(source.path, source._normalize_file_name(config_path))
        about = file.stat() if file.is_file() else None
        key = (source.scheme(), file, about and (about.st_mtime_ns, about.st_size))
        if key not in _read:
            _read[key] = load(source, config_path)
        return copy.deepcopy(_read[key])

    return load_once


def _of(repository: CachingConfigRepository, delegate: object) -> None:
    repository.delegate, repository.cache = copy.copy(delegate), {}
