"""What is said of a checkout is true; a speed is of one machine and number of threads, and nothing else is."""

import platform
import re
import subprocess

import pytest
import torch
from tests.base.refusals import refused

import lutlab
from lutlab.base import registry, sources
from lutlab.base.specs import Measurement
from lutlab.evaluators.generation import Generation
from lutlab.experiment.plan.plan import job_from
from lutlab.experiment.run import pipeline
from lutlab.experiment.store import provenance
from lutlab.experiment.store.provenance import environment, git_state, major_minor
from lutlab.experiment.store.record import read_lines
from lutlab.kernels.codegen.isa import Isa

NOTHING = {"git_commit": None, "git_dirty": None}
PUBLISHED = sources.checkout() / "results" / "published"
FILES = ("src/lutlab/a.py", "kernels/b.c", "experiments/c.yaml", "conf/d.yaml", "README.md")


def git(root, *arguments: str) -> str:
    """Run git without the user's configuration."""
    own = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    line = ["git", *own, *arguments]
    return subprocess.run(line, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def repository(tmp_path):
    for name in FILES:
        write(tmp_path / name, "one\n")
    write(tmp_path / ".gitignore", "*.pyc\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": False}
    return tmp_path


@pytest.mark.parametrize(("name", "how", "dirty"), [
    ("src/lutlab/a.py", "changed", True),
    ("kernels/b.c", "staged", True),
    ("kernels/b.c", "removed", True),
    ("experiments/c.yaml", "changed", True),
    ("conf/d.yaml", "staged", True),
    ("src/lutlab/new.py", "changed", True),
    ("src/lutlab/new.py", "staged", True),
    ("src/lutlab/new.pyc", "changed", False),
    ("README.md", "staged", False),
])  # fmt: skip
def test_a_changed_file_that_decides_numbers_is_seen(repository, name, how, dirty) -> None:
    (repository / name).write_text("two\n")
    if how == "removed":
        (repository / name).unlink()
    if how == "staged":
        git(repository, "add", name)
    assert git_state(repository)["git_dirty"] is dirty


def test_a_wheel_has_no_commit_even_inside_a_repository(repository, monkeypatch) -> None:
    monkeypatch.setattr(sources, "checkout", lambda: repository)
    assert provenance.repository() == repository
    installed = repository / "environment" / "lib"
    installed.mkdir(parents=True)
    for checkout in (None, installed):
        monkeypatch.setattr(sources, "checkout", lambda checkout=checkout: checkout)
        assert provenance.repository() is None


def test_git_is_asked_once_a_process(monkeypatch) -> None:
    environment()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git was run again"))
    environment()


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.13.0+cpu", "2.13"), ("2.13.0", "2.13"), ("5.2", "5.2"), ("5.0.0rc1", "5.0")],
)
def test_a_patch_release_says_nothing(version: str, minor: str) -> None:
    assert major_minor(version) == minor


def test_git_that_cannot_tell_is_no_error(repository, monkeypatch, tmp_path_factory) -> None:
    """No repository, one of another user, broken, without a commit; git that is missing or cannot be run."""
    folder = tmp_path_factory.mktemp("outside")
    assert git_state(None) == git_state(folder) == NOTHING
    with monkeypatch.context() as patch:  # git's own switch for safe.directory
        patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        assert git_state(repository) == NOTHING
    assert git_state(repository)["git_commit"]
    git(folder, "init", "-q")
    assert git_state(folder) == NOTHING
    (repository / ".git" / "HEAD").write_bytes(b"\xff\x00")
    assert git_state(repository) == NOTHING
    (folder / "git").write_text("#!/nowhere\n")
    (folder / "git").chmod(0o755)
    for path in (folder, folder / "nothing"):
        monkeypatch.setenv("PATH", str(path))
        assert git_state(folder) == NOTHING


def test_a_shallow_clone_has_its_commit_wherever_the_shell_is(repository, tmp_path, monkeypatch):
    (repository / "README.md").write_text("two\n")
    git(repository, "commit", "-qam", "two")
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
    git(tmp_path, "init", "-q", "other")
    (tmp_path / "shallow" / "src" / "ä\udcff.py").write_bytes(b"")
    config = {"COUNT": "1", "KEY_0": "core.quotePath", "VALUE_0": "false"}
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "other")
        patch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
        for key, value in config.items():
            patch.setenv(f"GIT_CONFIG_{key}", value)
        state = git_state(tmp_path / "shallow")
    assert state == {"git_commit": git(repository, "rev-parse", "HEAD"), "git_dirty": True}


def test_sources_have_a_digest_of_names_and_content(tmp_path, monkeypatch) -> None:
    checkout, wheel = tmp_path / "checkout", tmp_path / "wheel"
    for name in FILES[:4]:
        write(checkout / name, name)
        packed = name.removeprefix("src/") if "lutlab" in name else f"lutlab/share/{name}"
        write(wheel / packed, name)

    def digest(package, share) -> str:
        monkeypatch.setattr(provenance.lutlab, "__file__", str(package / "__init__.py"))
        monkeypatch.setattr(sources, "folder", lambda name: share / name)
        return provenance.sources_digest()

    ours = digest(checkout / "src/lutlab", checkout)
    assert ours == digest(wheel / "lutlab", wheel / "lutlab/share")
    write(checkout / "src/lutlab/__pycache__/a.pyc", "1")
    assert ours == digest(checkout / "src/lutlab", checkout)
    (checkout / "conf/d.yaml").rename(checkout / "conf/e.yaml")
    assert ours != digest(checkout / "src/lutlab", checkout)


def test_a_record_names_commit_and_tools_and_no_host() -> None:
    known = environment()
    inside = provenance.repository() is not None
    assert (known["git_commit"] is not None, known["git_dirty"] is not None) == (inside, inside)
    assert {"sources", "isa", "blas", "compiler", "cpu", "threads"} <= known.keys()
    assert known["versions"]["lutlab"] == lutlab.__version__
    assert platform.node() not in str(known).split()


def test_tools_that_are_not_there_are_none(monkeypatch) -> None:
    monkeypatch.setenv("LUTLAB_CC", "no-compiler")
    monkeypatch.setenv("LUTLAB_ISA", "no-isa")
    known = environment.__wrapped__()
    assert (known["compiler"], known["isa"]) == (None, None)
    assert provenance.blas("built with: BLAS_INFO=open, ") == "open"
    assert provenance.blas("nothing") is None


BOTH = ["model=llama-embedded-s", "evaluate=[generation,weight_error]", "logger=none"]


@pytest.fixture
def no_decoding(monkeypatch) -> None:
    monkeypatch.setattr(Generation, "measure", lambda *_: Measurement({"tokens_per_s": 1.0}, 1))


def waiting(command, *arguments: str) -> int:
    """How many cells of BOTH are still to be measured."""
    outcome = command(*BOTH, "mode=plan", *arguments)
    return int(re.search(r"(\d) cells to measure", outcome.out)[1])


@pytest.mark.slow
def test_another_machine_and_threads_are_another_cell(no_decoding, command, monkeypatch):
    outcome = command(*BOTH, "threads=2")
    assert outcome.code == 0, outcome.err
    torch.set_num_threads(1)
    assert {r["provenance"]["threads"] for r in command.records().values()} == {2}
    assert waiting(command, "threads=2") == 0
    assert waiting(command) == 1  # the speed, not the weights' error
    about = provenance.environment()
    for known in (about | {"cpu": "another"}, about | {"cores": 1000}):
        monkeypatch.setattr(provenance, "environment", lambda known=known: known)
        assert waiting(command, "threads=2") == 1
    monkeypatch.setattr(provenance, "environment", lambda: about)
    assert waiting(command, "threads=2") == 0
    monkeypatch.setattr(provenance, "detect", lambda: Isa("another", ()))
    assert waiting(command, "threads=2") == 1


def test_a_gpu_is_part_of_it_where_it_computes(monkeypatch) -> None:
    monkeypatch.setattr(provenance, "gpu_name", lambda device: f"the GPU of {device}")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert "gpu" not in provenance.machine("cpu")
    assert provenance.machine("cuda")["gpus"] == 1
    assert provenance.machine("spread")["gpus"] == 3
    assert provenance.machine("cuda:1")["gpu"] == "the GPU of cuda:1"


def test_no_threads_are_refused() -> None:
    refused("at least 1", provenance.machine, "cpu", threads=-1)


def test_rows_that_measure_the_machine_run_alone(no_decoding, command, monkeypatch) -> None:
    launched, sweep = [], pipeline.sweep
    monkeypatch.setattr(
        pipeline, "sweep", lambda a, compose, launch: sweep(a, compose, launched.append)
    )

    def threads(evaluators: str) -> list[list[int | None]]:
        """What each job asks for, launch by launch."""
        launched.clear()
        command(BOTH[0], evaluators, BOTH[2], "q=2,3")
        return [[job_from(job[-1][len("job='") : -1]).threads for job in jobs] for jobs in launched]

    assert threads(BOTH[1]) == [[1], [1]]
    assert threads("evaluate=[weight_error]") == [[None, None]]


def test_which_evaluators_measure_the_machine() -> None:
    names = {n for n, e in registry.classes("evaluator").items() if e.of_this_machine}
    assert {"generation", "llama_cpp", "peak_memory"} <= names
    assert names.isdisjoint({"ppl", "lambada", "zero_shot", "weight_error", "model_size"})


def test_the_machine_names_its_folder() -> None:
    about = {"cpu": "AMD EPYC 25/17", "isa": "avx512", "cores": 2, "gpu": None}
    name = "amd-epyc-25-17-avx512-2cores"
    assert provenance.machine_name(about) == name
    assert provenance.machine_name(about | {"isa": "avx2"}) == "amd-epyc-25-17-avx2-2cores"
    assert provenance.machine_name(about | {"gpu": "NVIDIA H200"}) == f"{name}-nvidia-h200"


@pytest.mark.parametrize(("lines", "name"), [
    ("vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : AMD EPYC\n", "AMD EPYC 25/17"),
    ("model name : Intel(R) Xeon(R)\nvendor_id : GenuineIntel\ncpu family: 6\nmodel: 1\n", "Intel Xeon 6/1"),
    ("model name : Common KVM\nvendor_id : GenuineIntel\ncpu family : 15\n", "Intel Common KVM"),
])  # fmt: skip
def test_a_cpu_is_named_by_vendor_family_and_model(tmp_path, lines: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"{lines}cpu MHz : 1\n\nmodel name : another\n")
    assert provenance.cpu_name(tmp_path / "cpuinfo") == name


def test_speeds_lie_in_the_folder_of_their_machine() -> None:
    for lines in PUBLISHED.glob("*/*/*/records.jsonl"):
        for record in read_lines(lines).values():
            evaluator = registry.lookup("evaluator", record.evaluation["evaluator"])
            if evaluator.of_this_machine:
                assert provenance.machine_name(record.provenance) == lines.parents[2].name
