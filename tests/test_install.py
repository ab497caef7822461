"""What is installed: the packages of the project, the lock file of published numbers, the container recipe."""

from __future__ import annotations

import collections
import json
import re

import pytest
from packaging.requirements import Requirement
from tests.conftest import ROOT

tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements" / "published.lock").read_text(encoding="utf-8")
LOCKED = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", LOCK, re.MULTILINE))
CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(extra: str | None = None) -> dict[str, Requirement]:
    """Package -> requirement, of the plain install or of an extra with those that it names."""
    extras = PROJECT["optional-dependencies"]
    found = {}
    for one in map(Requirement, extras[extra] if extra else PROJECT["dependencies"]):
        if one.name == "lutlab":
            for other in one.extras:
                found |= required(other)
        else:
            found[normal(one.name)] = one
    return found


def test_environment_yml_installs_the_packages_of_the_project() -> None:
    """It installs dev; a laptop's plain install has all but what only a GPU runs."""
    plain, dev = set(required()), set(required("dev"))
    assert {"hydra-core", "torch", "transformers", "datasets", "lm-eval", "wandb"} <= plain
    assert "cupy-cuda12x" in dev - plain
    launchers = {"ray", "submitit"}
    others = PROJECT["optional-dependencies"].keys() - launchers - {"dev"}
    assert set().union(*(required(extra) for extra in others)) <= dev


def test_the_documentation_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [e for e in PROJECT["optional-dependencies"] if f"`{e}`" not in page] == []


def test_the_lock_file_has_the_versions_that_records_name() -> None:
    measured = collections.defaultdict(set)
    for path in (ROOT / "results" / "published").glob("*/*/*/records.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            made = json.loads(line)["record"]["provenance"]
            for name, version in made["versions"].items():
                measured[normal(name)].add(version.partition("+")[0])  # 2.13.0+cpu: a build
            measured["python"].add(made["python"])
    assert measured.pop("lutlab")
    (python,) = measured.pop("python")
    assert f"Python {python}." in LOCK
    locked = {normal(name): {version} for name, version in LOCKED.items()}
    assert measured == {name: locked[name] for name in measured}


def test_the_lock_file_is_one_of_the_plain_install() -> None:
    locked = {normal(name): version for name, version in LOCKED.items()}
    for name, requirement in required().items():
        assert requirement.specifier.contains(locked[name], prereleases=True), name
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(LOCKED), "a line is <package>==<version>: no address, no file"


def test_the_container_recipe_names_what_there_is() -> None:
    """No daemon builds it here; what a daemon would stumble over first."""
    text = re.sub(r"\\\n", " ", CONTAINER)
    steps = [
        line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")
    ]
    assert {word for word, _ in steps} <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENTRYPOINT"}
    sources = [source for word, rest in steps if word == "COPY" for source in rest.split()[:-1]]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    arguments = dict(rest.partition("=")[::2] for word, rest in steps if word == "ARG")
    used = {name for _, rest in steps for name in re.findall(r"\$\{?([A-Z_]+)", rest)}
    assert used == set(arguments)
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(
        arguments["PYTHON"]
    )
    (entry,) = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    assert set(entry) <= set(PROJECT["scripts"])
