"""A small stand-in of the Hugging Face hub on 127.0.0.1, so that downloads are tested without a network.

    with HubStandIn({("datasets", "Salesforce/wikitext"): folder, ("models", "org/name"): folder}) as url:
        run_client("print('...')", url, tmp_path)

Each folder is a repository of one state: a commit asked for by its hash has that hash, a branch is at COMMIT.
Served is what `huggingface_hub`, `datasets` and `transformers` ask for: repository information, file lists, and files
with ETag, commit and ranges. `truncate=True` sends the first half of every file whose full size it announced, as a
proxy that cut it would. `requests` lists what was asked for.

`conversions` are models whose conversion to safetensors lies in pull request 1, at commit CONVERTED, by the hub's bot
or by whom `converter` names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests import warm

_HASH = re.compile("[0-9a-f]{40}")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONVERTED = "c" * 40
_FILE = re.compile(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_API = re.compile(
    r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?"
)
_DISCUSSIONS = re.compile(r"/api/models/([^/]+/[^/]+)/discussions")


class HubStandIn:
    """Serves `repositories`, (kind, id) -> folder, from `__enter__` (which returns the address) to `__exit__`."""

    def __init__(
        self,
        repositories: Mapping[tuple[str, str], Path],
        truncate: bool = False,
        conversions: Mapping[str, Path] | None = None,
        converter: str = "SFconvertbot",
    ) -> None:
        self.repositories = dict(repositories)
        self.conversions = dict(conversions or {})
        self.converter = converter
        self.truncate = truncate
        self.requests: list[str] = []

    def __enter__(self) -> str:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def dead_address() -> str:
    """An address at which nobody answers: of a stand-in that has ended."""
    with HubStandIn({}) as url:
        return url


# huggingface_hub reads its environment when it is imported.
AFRESH = """
import sys, warnings
warnings.simplefilter("error")
for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
    del sys.modules[name]
"""


def run_client(
    code: str, url: str, home: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python whose hub is `url` and whose caches lie under `home`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))
    }
    settings = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return warm.run(AFRESH + code, *arguments, env=inherited | settings | environment)


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"
    _commit = COMMIT

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        if match := _FILE.fullmatch(address.path):
            kind, name, revision, path = match.groups()
            self._commit = _commit(revision)
            self._file((kind or "models", name), unquote(path))
        elif match := _API.fullmatch(address.path):
            kind, name, call, revision, path = match.groups()
            self._commit = _commit(revision)
            self._api((kind, name), call, unquote(path or ""), address.query, body)
        elif match := _DISCUSSIONS.fullmatch(address.path):
            self._discussions(match[1])
        else:
            self._send(404, b"no such endpoint")

    def _folder(self, key: tuple[str, str]) -> Path | None:
        folder = self.hub.repositories.get(key)
        if self._commit == CONVERTED:
            folder = self.hub.conversions.get(key[1])
        if folder is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return folder

    def _file(self, key: tuple[str, str], path: str) -> None:
        folder = self._folder(key)
        if folder is None:
            return
        if not (folder / path).is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = (folder / path).read_bytes()
        headers = {"ETag": f'"{_oid(content)}"', "Accept-Ranges": "bytes"}
        status = 200
        if self.hub.truncate and self.command == "GET":
            content = content[: len(content) // 2]
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self._send(status, content, headers)

    def _api(
        self, key: tuple[str, str], call: str | None, path: str, query: str, body: bytes
    ) -> None:
        folder = self._folder(key)
        if folder is None:
            return
        files = sorted(
            file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
        )
        if call == "tree":
            recursive = parse_qs(query.lower()).get("recursive") == ["true"]
            found = _tree(folder, files, path, recursive)
            if found:
                self._json(200, found)
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        elif call == "paths-info":
            self._json(200, _entries(folder, files, _paths(body)))
        else:
            siblings = [{"rfilename": name} for name in files]
            known = {
                "id": key[1],
                "sha": self._commit,
                "private": False,
                "gated": False,
                "disabled": False,
            }
            self._json(200, known | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def _discussions(self, name: str) -> None:
        """Every discussion, whatever author the query asks for, as a mirror would that ignores it."""
        pull_request = {
            "num": 1,
            "title": "Adding `safetensors` variant of this model",
            "author": {"name": self.hub.converter},
            "createdAt": "2023-01-01T00:00:00.000Z",
            "status": "open",
            "isPullRequest": True,
            "repo": {"name": name, "type": "model"},
        }
        found = [pull_request] if name in self.hub.conversions else []
        self._json(200, {"discussions": found, "count": len(found), "start": 0})

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"X-Repo-Commit": self._commit, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _commit(revision: str | None) -> str:
    """The commit a revision names: itself, the pull request's, or the one of every branch."""
    if revision and unquote(revision) == "refs/pr/1":
        return CONVERTED
    return revision if revision and _HASH.fullmatch(revision) else COMMIT


def _paths(body: bytes) -> list[str]:
    """The `paths` of a paths-info request, which clients send as a form or as JSON."""
    if body.startswith(b"{"):
        return json.loads(body)["paths"]
    return parse_qs(body.decode()).get("paths", [])


def _entries(folder: Path, files: Sequence[str], paths: Sequence[str]) -> list[dict[str, object]]:
    """Files and folders among `paths`, as the hub describes them."""
    found: list[dict[str, object]] = []
    for path in paths:
        if path in files:
            content = (folder / path).read_bytes()
            found.append({"type": "file", "path": path, "size": len(content), "oid": _oid(content)})
        elif any(name.startswith(f"{path}/") for name in files):
            found.append({"type": "directory", "path": path, "oid": _oid(path.encode())})
    return found


def _tree(
    folder: Path, files: Sequence[str], path: str, recursive: bool
) -> list[dict[str, object]]:
    """Entries below `path`, all of them or the next level."""
    prefix = f"{path}/" if path else ""
    below = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
    names = {
        "/".join(name.split("/")[:depth])
        for name in below
        for depth in range(1, name.count("/") + 2)
    }
    wanted = sorted(name for name in names if recursive or "/" not in name)
    return _entries(folder, files, [prefix + name for name in wanted])


def _oid(content: bytes) -> str:
    """As git names a file."""
    blob = f"blob {len(content)}\0".encode() + content
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()
