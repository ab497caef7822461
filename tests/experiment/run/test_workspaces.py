"""Workspaces and reports: the JSON that is sent, and a push to a stand-in of W&B's API on loopback, never to W&B."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

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


@pytest.fixture(scope="module")
def made():
    pytest.importorskip("wandb_workspaces")
    pages = workspaces.build(PAGES, Project("me", "lutlab"))
    return {name: json.loads(page) for name, page in pages.items()}


def values_under(value, name):
    """All that JSON holds under a name, wherever it stands."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value[name]] if isinstance(value, dict) and name in value else []
    return own + [each for part in inner for each in values_under(part, name)]


def filters(page):
    (runs,) = values_under(page, "runSets")
    return {(f["key"]["name"], f["value"]) for f in values_under(runs, "filters")[0]["filters"]}


def test_a_workspace_shows_what_its_runs_log(made):
    assert filters(made["accuracy"]) == {("kind", "row"), ("of", "model")}
    assert filters(made["kernels"]) == {("kind", "row"), ("of", "product")}
    accuracy, kernels = (set(KEY.findall(json.dumps(made[n]))) for n in ("accuracy", "kernels"))
    logged = tracked(TABLE4, ROWS)[1]
    for key in accuracy:
        if key.startswith("summary:") and "wikitext2" not in key:  # not of models that ship
            assert key.removeprefix("summary:") in logged.summary
        if key.startswith("config:"):
            assert key.removeprefix("config:").removesuffix(".value") in logged.config
    declared = {f"summary:kernel_latency/{metric.name}" for metric in KernelLatency.metrics}
    assert {key for key in kernels if key.startswith("summary:")} <= declared
    assert accuracy >= {"layer/weight_relative_mse", "tuning_step/loss", "window/topics/ppl"}
    assert "round/kernel_latency_s" in kernels


def test_a_report_has_a_papers_tables_over_their_runs(made):
    report = made["lut-gemm-v3"]
    (block,) = [block for block in report["blocks"] if block["type"] == "markdown-block"]
    assert block["content"] == markdown.render(lay_out(example_table()))
    assert filters(report) == {("artifact", "lut-gemm-v3/table4"), ("kind", "row")}


class Api(BaseHTTPRequestHandler):
    """Just what `save` of wandb-workspaces 0.4 asks of W&B's GraphQL."""

    requests = []  # noqa: RUF012, set anew by each test
    refuses = ""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["query"].split("(")[0].split("{")[0].split()[-1]
        variables = body.get("variables") or {}
        self.requests.append((name, variables))
        answer = {"data": self.answer(variables)}
        if name == self.refuses:
            answer = {"errors": [{"message": "no such view"}], "data": None}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def answer(self, given):
        view_id = given.get("id") or f"id-{len(self.requests)}"
        view = {"id": view_id, "name": given.get("name"), "spec": given.get("spec")}
        page = {"endCursor": None, "hasNextPage": False}
        return {
            "viewer": {"id": "1", "entity": "me"},
            "project": {"id": "1", "internalId": "1"},
            "models": {"edges": [], "pageInfo": page},
            "upsertView": {"view": view, "inserted": "id" not in given},
        }

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def api(monkeypatch):
    wandb, _ = map(pytest.importorskip, ("wandb", "wandb_workspaces"))
    server = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wandb.teardown()  # another test's settings
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    Api.requests, Api.refuses = [], ""
    yield Api
    server.shutdown()
    server.server_close()
    wandb.teardown()


def test_a_push_updates_what_it_made_before(tmp_path, api):
    project = Project("me", "lutlab", bound=True)

    def push():
        api.requests.clear()
        assert len(workspaces.push(PAGES, project, tmp_path)) == len(PAGES)
        sent = [given for name, given in api.requests if name.lower().startswith("upsertview")]
        return [given.get("id") for given in sent], [given["spec"] for given in sent]

    (new, first), (ids, second) = push(), push()
    assert new == [None] * len(PAGES)
    assert all(ids)
    assert second == first
    saved = json.loads((tmp_path / workspaces.VIEWS).read_text())["me/lutlab"]
    assert [saved[name]["id"] for name in PAGES] == ids
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


@pytest.mark.parametrize(("words", "message"), [([], "--push"), (["--push"], "--entity")])
def test_the_command_says_what_it_lacks(words, message, capsys):
    pytest.importorskip("wandb_workspaces")
    assert workspaces.main(words) == 2
    assert message in capsys.readouterr().err
