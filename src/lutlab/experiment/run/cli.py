"""The command line around Hydra: a user's mistake ends in one message and an exit code, never in a traceback.

Exit codes: 0 all cells measured; 1 some rows failed (they are recorded and tried again next time); 2 a mistake or a
limit the user can act on; 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.plan import additions
from lutlab.experiment.plan.schema import register_configs

# Hydra's launchers that an extra of lutlab brings.
_LAUNCHERS = {
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
}


class RowsFailed(Exception):
    """Some rows failed; they are in the table and in the records."""


def run(main: Callable[[], None]) -> int:
    """Run Hydra's main; returns the exit code."""
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print and exit by itself; we say what to do
    # Hydra 1.3 and its launchers use argparse and pkg features that newer Pythons deprecate; not the user's business
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"hydra.*")
    if not any(argument.startswith("-") for argument in sys.argv[1:]):
        # conf/config.yaml says so too, but Hydra forgets that where an override is wrong, and blames the sweep instead
        sys.argv.append("--multirun")
    try:
        sys.argv[1:] = additions.read(sys.argv[1:])
        register_configs()
        main()
    except MissingConfigException as error:
        return _say(_unknown_choice(error), 2)
    except LutlabError as error:
        return _say(str(error), 2)
    except RowsFailed as error:
        return _say(str(error), 1)
    except (HydraException, OmegaConfBaseException) as error:
        return _say(str(error), 2)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _say("interrupted; finished cells are kept: the same command goes on from here", 130)
    return 0


def _say(message: str, code: int) -> int:
    print(f"lutlab: {message}", file=sys.stderr)
    return code


def _unknown_choice(error: Exception) -> str:
    """`method=rnt` -> unknown method 'rnt': did you mean 'rtn'?"""
    missing = getattr(error, "missing_cfg_file", None) or ""
    options = getattr(error, "options", None)
    group, _, name = missing.partition("/")
    if plugin := _LAUNCHERS.get(missing):
        return f"{missing.replace('launcher/', 'launcher=')} is not installed: pip install 'lutlab[{plugin}]'"
    if group == "exp":
        return f"unknown experiment '{name}': {nearest(name, artifacts())}"
    if options and name:
        return f"unknown {group} '{name}': {nearest(name, options)}"
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
