"""The user's cache folder: what can be made again at any time. LUTLAB_CACHE names another one; delete it at will."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of one kind of things; it may not exist yet."""
    root = os.environ.get("LUTLAB_CACHE")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_dir("lutlab")
    return Path(root).absolute() / name
