"""`python -m lutlab` is `python run.py`: the one file outside of lutlab.experiment that knows the experiment."""

import sys

from lutlab.experiment.run.main import main

if __name__ == "__main__":
    sys.exit(main())
