"""Everything that only a GPU can show, by one command that can be stopped and called again: `make gpu-report`.

    python3 benchmarks/gpu_report.py --out results/gpu-report [--budget 540 --steps goals --archive report.tar.gz]

    about       the machine: nvidia-smi, versions, clocks
    ceilings    gpu_ceilings.py: what memory, shared memory, tensor cores and atomics can do
    engine-opt-30b, engine-opt-175b-q3, ...   bench_gpu_engine.py: whole models, their goals, breakdown of a step; then
                lut-gemm-v3/table5, their records
    tests       every test that is marked gpu
    goals, batch, groups      bench_lut_gemv.py, part by part
    mixed       bench_mixed_gemv.py: 2/4/16-bit weights
    choice      bench_gpu_choice.py: who is fastest with how many rows of x; lutlab chooses by it afterwards
    artifacts   the papers' kernel tables and figures at scale=paper: records and rendered tables
    memcheck, racecheck                  tests of small shapes under compute-sanitizer, where it is installed

A step writes <out>/<step>.log, and JSON where it has numbers; <out>/steps.json says how each ended. A step that ended
well is not run again. One that would not end within the budget of seconds waits for the next call; one that is not
done when the budget is spent is stopped, and begins again then, artifacts with the cells that they lack. --archive
packs the folder into one file. Without a GPU nothing is run, and the exit status is 2. lutlab need not be installed:
beside torch and CuPy for this CUDA it takes platformdirs; for the engine transformers; for tests and artifacts
hydra-core, hydra-joblib-launcher, archspec and pydantic with what they need; for tests pytest and hypothesis.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHOLE_MODELS = "lut-gemm-v3/table5"  # OPT-175B, drawn: no text and no weight is downloaded
ARTIFACTS = (
    "lut-gemm-iclr2024/table1",
    "lut-gemm-iclr2024/table2",
    "lut-gemm-v3/table2",
    "lut-gemm-v3/table7",
    "lut-gemm-v3/table3",
    "nuqmm/table3",
    "nuqmm/table4",
    "lut-gemm-v3/fig8",
    "lut-gemm-v3/fig9",
    "lut-gemm-iclr2024/fig4a",
    "lut-gemm-iclr2024/fig4b",
    "nuqmm/fig8",
    "nuqmm/fig9",
    "nuqmm/fig10",
    "mixed-2-4-16/fig6",
    "mixed-2-4-16/fig9",
    "lutlab/r0_knobs",
    "nuqmm/table5",  # the longest: whole layers
)
# Whole models: part of bench_gpu_engine.py -> seconds. Each draws its weights anew.
ENGINE_PARTS = {
    "opt-30b": 150,
    **dict.fromkeys(("opt-175b-q3", "opt-175b-q1", "opt-175b-q2", "opt-175b-q4"), 240),
}
# Of the matrix that every variant passes, small shapes: the sanitizer is slow.
SMALL_TESTS = "(1-32- or 129-97-) and 128 or mixed_gemv and 129-97"
DONE, FAILED, STOPPED, ABSENT = "done", "failed", "stopped", "not run"
GRACE = 10  # seconds to end in


@dataclass(frozen=True)
class Step:
    """A command.

    seconds: about what it takes on an H200, a guess until it has run there; of one that goes on where it was stopped,
    what it takes to get anything done. needs: a program.
    """

    name: str
    command: tuple[str, ...]
    seconds: int
    needs: str | None = None
    goes_on: bool = False


def steps(out: Path, rounds: int) -> list[Step]:
    """In the order of what matters most if time ends."""
    python = sys.executable
    pytest = (python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default")
    bench = (python, "benchmarks/bench_lut_gemv.py", "--rounds", str(rounds), "--out", str(out))
    engine = (python, "benchmarks/bench_gpu_engine.py", "--out", str(out))
    sanitized = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-x")
    found = [
        Step("about", ("nvidia-smi", "-q"), 5, "nvidia-smi"),
        Step(
            "ceilings",
            (python, "benchmarks/gpu_ceilings.py", "--out", str(out / "ceilings.json")),
            60,
        ),
        *(
            Step(f"engine-{part}", (*engine, "--part", part), seconds)
            for part, seconds in ENGINE_PARTS.items()
        ),
        artifact(WHOLE_MODELS, out, 120),
        Step(
            "tests",
            (*pytest, *parallel(), "tests/kernels", "tests/generate", "tests/evaluators"),
            270,
        ),
        Step("goals", (*bench, "--part", "goals"), 90),
        Step("batch", (*bench, "--part", "batch"), 90),
        Step("choice", (python, "benchmarks/bench_gpu_choice.py", "--out", str(out)), 150),
        Step("groups", (*bench, "--part", "groups"), 90),
        Step("mixed", (python, "benchmarks/bench_mixed_gemv.py", *bench[2:]), 120),
    ]
    found += [artifact(name, out, 40) for name in ARTIFACTS]
    for tool in ("memcheck", "racecheck"):
        command = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
        tests = ("-m", "gpu", "-k", SMALL_TESTS, "tests/kernels")
        found.append(Step(tool, (*command, *sanitized, *tests), 200, "compute-sanitizer"))
    return found


def artifact(name: str, out: Path, seconds: int) -> Step:
    """A paper's table or figure at scale=paper; its records are below `out`."""
    run = (sys.executable, "run.py", f"+exp={name}", "scale=paper", "device=cuda", "logger=none")
    command = (*run, f"results={out / 'results'}")
    return Step(name.replace("/", "-"), command, seconds, goes_on=True)


def parallel() -> tuple[str, ...]:
    """Several processes, if pytest-xdist is there: tests wait for compilers most of the time."""
    import importlib.util

    workers = str(min(8, os.cpu_count() or 1))
    return ("-n", workers) if importlib.util.find_spec("xdist") else ()


def run(step: Step, out: Path, left: float) -> dict[str, object]:
    """One step, within the seconds that are left: its log, how it ended and the seconds it took."""
    if step.needs and shutil.which(step.needs) is None:
        return {"end": ABSENT, "why": f"{step.needs} is not installed", "seconds": 0.0}
    began = time.monotonic()
    folders = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "PYTHONUNBUFFERED": "1",  # the log of a step that is stopped is whole
    }
    with (out / f"{step.name}.log").open("w") as log:
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status = process.wait(left)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            stop(process)
    took = round(time.monotonic() - began, 1)
    if status == 0:
        return {"end": DONE, "seconds": took}
    if status is None:
        return {"end": STOPPED, "why": "when the budget was spent", "seconds": took}
    return {"end": FAILED, "why": f"exit status {status}", "seconds": took}


def stop(process: subprocess.Popen) -> None:
    """End what still runs, its workers too."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


def go(wanted: Sequence[Step], out: Path, budget: float) -> dict[str, dict]:
    """Run what has not ended well yet and fits into the budget; tell of each step."""
    out.mkdir(parents=True, exist_ok=True)
    path, end = out / "steps.json", time.monotonic() + budget
    known = json.loads(path.read_text()) if path.exists() else {}
    for step in wanted:
        before = known.get(step.name, {})
        if before.get("end") == DONE:
            print(f"{step.name:28} {DONE} before", flush=True)
            continue
        takes = step.seconds if step.goes_on else before.get("seconds") or step.seconds
        left = end - time.monotonic()
        if takes > left:
            print(f"{step.name:28} waits: about {takes:.0f} s, more than is left", flush=True)
            continue
        known[step.name] = run(step, out, left)
        path.write_text(json.dumps(known, indent=1) + "\n")
        said = known[step.name]
        print(
            f"{step.name:28} {said['end']} {said.get('why', '')} ({said['seconds']} s)", flush=True
        )
    return known


def gpu_missing() -> str:
    """Reason for having no GPU to report on; empty where there is one."""
    sys.path.insert(0, str(ROOT / "src"))
    from lutlab.base.errors import LutlabError
    from lutlab.kernels.gpu.lut_gemv import launcher

    try:
        launcher.device_of("cuda")
    except LutlabError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu-report")
    parser.add_argument("--budget", type=float, default=3600, help="seconds of this call")
    parser.add_argument("--rounds", type=int, default=200, help="of the benchmark")
    parser.add_argument("--steps", nargs="+", help="only these")
    parser.add_argument("--archive", type=Path, help="pack the folder into this .tar.gz at the end")
    args = parser.parse_args()
    out = args.out.resolve()
    all_steps = steps(out, args.rounds)
    unknown = sorted(set(args.steps or ()) - {step.name for step in all_steps})
    if unknown:
        names = ", ".join(step.name for step in all_steps)
        parser.error(f"no step {', '.join(unknown)}: there are {names}")
    if why := gpu_missing():
        parser.exit(2, f"gpu-report: nothing was run: {why}\n")
    wanted = [step for step in all_steps if args.steps is None or step.name in args.steps]
    known = go(wanted, out, args.budget)
    if args.archive:
        with tarfile.open(args.archive, "w:gz") as archive:
            archive.add(out, arcname=out.name)
    left = [step.name for step in wanted if known.get(step.name, {}).get("end") != DONE]
    print(f"{out}: " + (f"not done: {', '.join(left)}" if left else "all steps done"))


if __name__ == "__main__":
    main()
