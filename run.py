"""Reproduce a paper's table, or sweep, without installing: `python run.py +exp=table4`, `python run.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from lutlab.experiment.run.main import main

if __name__ == "__main__":
    sys.exit(main())
