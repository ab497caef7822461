"""Workspaces and reports: the JSON that is sent, and a push to a stand-in of W&B's API on loopback, never to W&B.

`python -m tests.experiment.run.test_workspaces` writes the golden file anew.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.report.example import example_table

from lutlab.errors import LutlabError
from lutlab.experiment.report import markdown
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.run import views, workspaces
from lutlab.experiment.run.views import Project

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # wandb-workspaces' own
GOLDEN = Path(__file__).with_name("workspaces.json")
PAGES = {
    "accuracy": views.accuracy,
    "kernels": views.kernels,
    "lut-gemm-v3": lambda p: views.report(p, "lut-gemm-v3", {"table4": example_table()}),
}


def built() -> dict[str, Any]:
    """The pages as JSON; a report's table is looked at and left out, since other tests hold its text."""
    made = {k: json.loads(v) for k, v in workspaces.build(PAGES, Project("me", "lutlab")).items()}
    blocks = made["lut-gemm-v3"]["blocks"]
    (block,) = [block for block in blocks if block["type"] == "markdown-block"]
    assert block["content"] == markdown.render(lay_out(example_table()))
    block["content"] = ""
    return made


def test_pages_are_those_of_the_golden_file() -> None:
    pytest.importorskip("wandb_workspaces")
    assert built() == json.loads(GOLDEN.read_text(encoding="utf-8")), "see the head of this file"


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


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(built(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
