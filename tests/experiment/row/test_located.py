"""A model is named by its place: a preset, a folder, a file, a repository."""

from __future__ import annotations

import json

import pytest

from lutlab.experiment.row.located import located


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("opt-125m", ["model=opt-125m"]),
        ("folder", ["model=folder"]),
        ("plain", ["model=folder", "model.id=plain"]),
        ("'it\\'s'", ["model='it\\'s'"]),
        ("owner/name", ["model=hub", "model.id=owner/name"]),
        ("a,b", ["model=a,b"]),
        ("a blank", ["model=folder", "model.id='a blank'"]),
        ("packed", ["model=folder", "model.id=packed", "method=stored"]),
        ("file.gguf", ["model=folder", "model.id=file.gguf"]),
    ],
)
def test_a_place_is_looked_for(place, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, config in {
        "plain": {},
        "packed": {"quantization_config": {"quant_method": "lutlab"}},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "a blank").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    assert located([f"model={place}", "q=3"], ["opt-125m", "folder"])[:1] == lines[:1]
    found = located([f"model={place}", "q=3"], ["opt-125m", "folder"])
    assert [line for line in found if line != "q=3"] == lines


def test_what_the_line_says_of_the_method_stands(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "lutlab"}}')
    lines = [f"model={tmp_path}", "method=rtn"]
    assert located(lines, [])[2:] == ["method=rtn"]
    assert "method=stored" not in located(["+exp=table4", f"model={tmp_path}"], [])
