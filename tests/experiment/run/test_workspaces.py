"""Workspaces and reports: the JSON that is sent, and a push to a stand-in of W&B's API on loopback, never to W&B."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.report.example import example_table
from tests.experiment.run.test_tracking import ROWS, TABLE4, tracked

from lutlab.base.errors import LutlabError
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.experiment.report import markdown
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.run import workspaces_command as workspaces
from lutlab.experiment.run.workspaces_command import Project

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # wandb-workspaces' own
PAGES = {
    "accuracy": workspaces.accuracy,
    "kernels": workspaces.kernels,
    "lut-gemm-v3": lambda p: workspaces.report(p, "lut-gemm-v3", {"table4": example_table()}),
}


KEY = re.compile(r"(?:config|summary|history):[^\"]+|(?:layer|round|window|tuning_step)/[^\"]+")


def found(value: Any, name: str) -> list[Any]:
    """All that JSON holds under a name, wherever it stands."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value[name]] if isinstance(value, dict) and name in value else []
    return own + [each for one in inner for each in found(one, name)]


def filters(page: Any) -> set[tuple[str, str]]:
    (runs,) = found(page, "runSets")
    return {(one["key"]["name"], one["value"]) for one in found(runs, "filters")[0]["filters"]}


def test_a_workspace_shows_what_its_runs_log() -> None:
    pytest.importorskip("wandb_workspaces")
    made = {k: json.loads(v) for k, v in workspaces.build(PAGES, Project("me", "lutlab")).items()}
    assert filters(made["accuracy"]) == {("kind", "row"), ("of", "model")}
    assert filters(made["kernels"]) == {("kind", "row"), ("of", "product")}
    keys = {name: set(KEY.findall(json.dumps(made[name]))) for name in ("accuracy", "kernels")}
    logged = tracked(TABLE4, ROWS)[1]
    for key in keys["accuracy"]:
        if key.startswith("summary:") and "wikitext2" not in key:  # not of models that ship
            assert key.removeprefix("summary:") in logged.summary
        if key.startswith("config:"):
            assert key.removeprefix("config:").removesuffix(".value") in logged.config
    declared = {f"summary:kernel_latency/{metric.name}" for metric in KernelLatency.metrics}
    assert {key for key in keys["kernels"] if key.startswith("summary:")} <= declared
    assert {"layer/weight_relative_mse", "tuning_step/loss", "window/topics/ppl"} <= keys[
        "accuracy"
    ]
    assert "round/kernel_latency_s" in keys["kernels"]


def test_a_report_has_a_papers_tables_over_their_runs() -> None:
    pytest.importorskip("wandb_workspaces")
    made = workspaces.build(PAGES, Project("me", "lutlab"))
    report = json.loads(made["lut-gemm-v3"])
    (block,) = [block for block in report["blocks"] if block["type"] == "markdown-block"]
    assert block["content"] == markdown.render(lay_out(example_table()))
    assert filters(report) == {("artifact", "lut-gemm-v3/table4"), ("kind", "row")}


class Api(BaseHTTPRequestHandler):
    """Just what `save` of wandb-workspaces 0.4 asks of W&B's GraphQL."""

    asked: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012, set anew by each test
    refuses = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["query"].split("(")[0].split("{")[0].split()[-1]
        variables = body.get("variables") or {}
        self.asked.append((name, variables))
        answer = {"data": self.answer(name, variables)}
        if name == self.refuses:
            answer = {"errors": [{"message": "no such view"}], "data": None}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        view = {
            "id": given.get("id") or f"id-{len(self.asked)}",
            "name": given.get("name"),
            "type": "runs",
            "displayName": given.get("displayName"),
            "description": "",
            "project": {"id": "1", "name": "lutlab", "entityName": "me"},
            "spec": given.get("spec"),
            "updatedAt": "2026-01-01T00:00:00Z",
        }
        viewer = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}"}
        page = {"endCursor": None, "hasNextPage": False}
        return {
            "viewer": viewer | {"teams": {"edges": []}},
            "project": {"id": "1", "internalId": "1"},
            "models": {"edges": [], "pageInfo": page},
            "upsertModel": {"model": {"id": "1", "name": "lutlab"}, "inserted": True},
            "upsertView": {"view": view, "inserted": "id" not in given},
        }

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Api]]:
    wandb = pytest.importorskip("wandb")
    pytest.importorskip("wandb_workspaces")
    server = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wandb.teardown()  # another test's settings
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    Api.asked, Api.refuses = [], ""
    yield Api
    server.shutdown()
    server.server_close()
    wandb.teardown()


def test_a_push_updates_what_it_made_before(tmp_path: Path, api: type[Api]) -> None:
    project = Project("me", "lutlab", bound=True)

    def push() -> list[tuple[str | None, str]]:
        api.asked.clear()
        assert len(workspaces.push(PAGES, project, tmp_path)) == len(PAGES)
        sent = [given for name, given in api.asked if name.lower().startswith("upsertview")]
        return [(given.get("id"), given["spec"]) for given in sent]

    first, second = push(), push()
    assert [view for view, _ in first] == [None] * len(PAGES)
    assert all(view for view, _ in second)
    assert [text for _, text in second] == [text for _, text in first]
    saved = json.loads((tmp_path / workspaces.VIEWS).read_text())["me/lutlab"]
    assert [saved[name]["id"] for name in PAGES] == [view for view, _ in second]
    api.refuses = "UpsertView2"
    with pytest.raises(LutlabError, match=r"'accuracy'.*not saved.*views\.json"):
        workspaces.push(PAGES, project, tmp_path)


def test_damaged_ids_of_pages_are_named_and_forgotten(tmp_path, caplog):
    path = tmp_path / workspaces.VIEWS
    path.parent.mkdir()
    for number, text in enumerate(["{", "[]", '{"me/lutlab": {"accuracy": {"id": 3}}}', "\udcff"]):
        path.write_text(text, errors="surrogateescape")
        assert workspaces._known(tmp_path) == {}
        assert "views.json is damaged" in caplog.messages[number]
    assert len(list(path.parent.glob("views.json.damaged*"))) == 4


def test_the_command_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb_workspaces")
    assert workspaces.main([]) == 2
    assert "--push" in capsys.readouterr().err
    assert workspaces.main(["--push"]) == 2
    assert "--entity" in capsys.readouterr().err
