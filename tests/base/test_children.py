"""A child looks for modules where its parent does, whatever lies in the folder that it starts in."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lutlab.base import children


def test_a_child_is_of_its_parents_checkout(trapped, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(trapped))
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as of `python -c` and notebooks
    code = "import json, sys, lutlab; print(json.dumps([lutlab.__file__, sys.path, sys.argv[1:]]))"
    command = children.python(code, "one", "a two")
    done = subprocess.run(command, capture_output=True, check=True)
    module, path, arguments = json.loads(done.stdout)
    assert Path(module).parent == Path(children.__file__).parents[1]
    assert path == [*(os.path.abspath(entry) for entry in sys.path if entry), str(trapped)]
    assert arguments == ["one", "a two"]


def test_lutlabs_own_folder_is_never_missing(monkeypatch):
    source = str(Path(children.__file__).parents[2])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != source])
    assert children.python("")[3].split(os.pathsep)[0] == source
