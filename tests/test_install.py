"""What is installed: the packages of the project, the lock of their versions, the container recipe."""

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ALLOWED = Requirement(f"python{PROJECT['requires-python']}").specifier
LINES = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines()
LOCK = [Requirement(line) for line in LINES if not line.startswith("#")]


def required(extra=None):
    """Package -> requirement, of the plain install or of an extra with those that it names."""
    packages = {}
    for requirement in map(Requirement, EXTRAS[extra] if extra else PROJECT["dependencies"]):
        if requirement.name == "lutlab":
            for other in requirement.extras:
                packages |= required(other)
        else:
            packages[canonicalize_name(requirement.name)] = requirement
    return packages


def test_environment_yml_installs_the_packages_of_the_project():
    """It installs dev; a laptop's plain install has all but what only a GPU runs."""
    plain, dev = set(required()), set(required("dev"))
    assert {"hydra-core", "torch", "transformers", "datasets", "lm-eval", "wandb"} <= plain
    assert "cupy-cuda12x" in dev - plain
    others = EXTRAS.keys() - {"ray", "submitit", "dev"}  # launchers are none of dev's
    assert set().union(*map(required, others)) <= dev


def test_the_documentation_names_every_extra():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in EXTRAS if f"`{extra}`" not in page] == []


PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))  # fmt: skip


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("platform", "system", "machine"), SYSTEMS)
def test_the_lock_has_one_version_of_each_requirement_on_every_python_and_system(
    python, platform, system, machine
):
    environment = {
        "python_version": python, "python_full_version": f"{python}.9", "implementation_name": "cpython",
        "os_name": "posix", "sys_platform": platform, "platform_system": system, "platform_machine": machine,
        "extra": "",
    }  # fmt: skip

    def applies(requirement):
        return requirement.marker is None or requirement.marker.evaluate(environment)

    pins = [pin for pin in LOCK if applies(pin)]
    versions = {pin.name: pin.specifier for pin in pins}
    assert len(versions) == len(pins), "two versions of a package"
    for extra in (None, *EXTRAS):
        for name, requirement in required(extra).items():
            if applies(requirement):
                (version,) = versions[name]
                assert version.operator == "=="
                assert requirement.specifier.contains(version.version, prereleases=True), name


def test_the_lock_is_for_the_pythons_that_the_project_allows():
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}.9" in ALLOWED] == list(PYTHONS)
    others = {"python_full_version": "3.10.13"}, {"python_full_version": "3.15.0"}
    assert [pin for pin in LOCK if any(pin.marker.evaluate(other) for other in others)] == []


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/first-table.md", "docs/install.md", "Makefile", "Containerfile", ".ci/run"],
)
def test_a_checkout_is_installed_with_the_lock(page):
    commands = re.findall(r"pip install.* -e .*", (ROOT / page).read_text(encoding="utf-8"))
    assert commands
    assert [line for line in commands if "-c requirements/lock.txt" not in line] == []


def test_the_container_recipe_names_what_there_is():
    """No daemon builds it here; what a daemon would stumble over first."""
    text = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps = [line.split(maxsplit=1) for line in lines]
    assert {word for word, _ in steps} <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENTRYPOINT"}
    sources = [source for word, rest in steps if word == "COPY" for source in rest.split()[:-1]]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    arguments = dict(rest.partition("=")[::2] for word, rest in steps if word == "ARG")
    used = {name for _, rest in steps for name in re.findall(r"\$\{?([A-Z_]+)", rest)}
    assert used == set(arguments)
    assert arguments["PYTHON"] in ALLOWED
    (entry,) = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    assert set(entry) <= set(PROJECT["scripts"])
