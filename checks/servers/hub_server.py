"""A Hub on loopback: repositories with commits, branches and content, behind the requests that huggingface_hub makes.

It answers from what it stores: files below 10 MB of text are kept in the commits, everything else goes through Git LFS and is
known by its sha256, which is checked. Written for the client's HTTP transfers; Xet needs `HF_HUB_DISABLE_XET=1`.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LARGE = ("*.safetensors", "*.parquet", "*.bin", "*.gguf")
"""Names that a new repository's `.gitattributes` sends through LFS."""
REGULAR_BYTES = 10_000_000
_ID = r"(?P<id>[^/]+/[^/]+)"
_API = rf"/api/(?P<kind>models|datasets)/{_ID}"
_YAML = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, *, code: str = "", body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


class Stored(NamedTuple):
    """One file of a commit."""

    content: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git(self) -> str:
        """The id of the Git object: of the content, or of the pointer that stands for it."""
        content = self.pointer if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.git


class Commit(NamedTuple):
    """One state of a repository."""

    id: str
    parent: str | None
    title: str
    files: Mapping[str, Stored]


@dataclass(slots=True, kw_only=True)
class Repository:
    """Commits and the branches that point at them."""

    id: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def at(self, revision: str) -> Commit:
        found = self.commits.get(self.branches.get(revision, revision))
        if found is None:
            raise Refusal(404, f"Invalid rev id: {revision}", code="RevisionNotFound")
        return found

    def add(self, branch: str, title: str, files: Mapping[str, Stored]) -> Commit:
        parent = self.branches.get(branch)
        stated = [parent, title, len(self.commits), sorted((path, stored.git) for path, stored in files.items())]
        commit = Commit(hashlib.sha1(json.dumps(stated).encode()).hexdigest(), parent, title, dict(files))
        self.commits[commit.id] = commit
        self.branches[branch] = commit.id
        return commit


@dataclass(slots=True, kw_only=True)
class Fault:
    """Requests that go wrong."""

    method: str
    path: str
    """Pattern (`fnmatch`) of the paths."""
    status: int = 503
    """Answered instead; 0 closes the connection in the middle of the body."""
    times: int = 1


class Hub:
    """A running Hub. `users` maps a token to the namespaces that it may write to, its user's first."""

    def __init__(self) -> None:
        self.users: dict[str, tuple[str, ...]] = {}
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        """Contents that came through LFS, by sha256."""
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str]] = []
        """Method and path of every request."""
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.storage = f"http://localhost:{self.server.server_address[1]}"
        """Where large files are: on another host than the Hub, to which clients send no token."""

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, id: str, *, kind: str = "models", revision: str = "main") -> dict[str, bytes]:
        """Path -> content of a repository."""
        return {path: stored.content for path, stored in self.repositories[kind, id].at(revision).files.items()}

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault that meets this request, if any; it is used up by it."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fnmatch.fnmatch(path, fault.path):
                    fault.times -= 1
                    return fault
        return None

    def repository(self, kind: str, id: str, token: str | None, *, write: bool = False) -> Repository:
        """A repository that the holder of `token` may read, or write to."""
        found = self.repositories.get((kind, id))
        may_write = id.split("/")[0] in self.users.get(token or "", ())
        if found is None or (found.private and not may_write):
            raise Refusal(404 if token else 401, "Repository not found", code="RepoNotFound")
        if write and not may_write:
            raise Refusal(403 if token else 401, "You don't have the rights to write to this repository")
        return found

    def create(self, body: Mapping[str, Any], token: str | None) -> dict[str, Any]:
        """`POST /api/repos/create`."""
        if token is None:
            raise Refusal(401, "Invalid username or password.")
        namespace, kind = body["organization"] or self.users[token][0], f"{body.get('type', 'model')}s"
        id = f"{namespace}/{body['name']}"
        if namespace not in self.users[token]:
            raise Refusal(403, f"You don't have the rights to create a {kind[:-1]} under the namespace {namespace!r}")
        url = f"{self.url}/{'datasets/' if kind == 'datasets' else ''}{id}"
        if (kind, id) in self.repositories:
            raise Refusal(409, f"You already created this {kind[:-1]} repo", body={"url": url})
        made = Repository(id=id, private=body.get("visibility") == "private")
        rules = "".join(f"{name} filter=lfs diff=lfs merge=lfs -text\n" for name in LARGE)
        made.add("main", "initial commit", {".gitattributes": Stored(rules.encode(), large=False)})
        self.repositories[kind, id] = made
        return {"url": url, "name": id}

    def commit(self, repository: Repository, branch: str, lines: list[dict[str, Any]]) -> Commit:
        """`POST .../commit/BRANCH`: apply all operations, or none."""
        files = dict(repository.at(branch).files)
        title = ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, repository.branches[branch]):
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif line["key"] == "file":
                files[value["path"]] = Stored(base64.b64decode(value["content"]), large=False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refusal(400, f"LFS pointer pointed to a file that does not exist: {value['oid']}")
                files[value["path"]] = Stored(self.objects[value["oid"]], large=True)
            elif line["key"] in ("deletedFile", "deletedFolder"):
                path = value["path"].rstrip("/")
                gone = [name for name in files if name == path or name.startswith(f"{path}/")]
                if not gone:
                    raise Refusal(404, "A file with this name doesn't exist", code="EntryNotFound")
                for name in gone:
                    del files[name]
        return repository.add(branch, title, files)


def _listing(files: Mapping[str, Stored], below: str, *, recursive: bool) -> list[dict[str, Any]]:
    """Files and folders of a commit as `GET .../tree` lists them."""
    rows: dict[str, dict[str, Any]] = {}
    for path, stored in sorted(files.items()):
        if below and not path.startswith(f"{below}/"):
            continue
        parts = path.removeprefix(f"{below}/" if below else "").split("/")
        folders = ["/".join(path.split("/")[: -len(parts) + depth]) for depth in range(1, len(parts))]
        for folder in folders if recursive else folders[:1]:
            rows[folder] = {"type": "directory", "oid": hashlib.sha1(folder.encode()).hexdigest(), "size": 0, "path": folder}
        if recursive or len(parts) == 1:
            rows[path] = {"type": "file", "oid": stored.git, "size": len(stored.content), "path": path}
            if stored.large:
                rows[path]["lfs"] = {"oid": stored.sha256, "size": len(stored.content), "pointerSize": len(stored.pointer)}
    return list(rows.values())


def _check_card(content: str) -> dict[str, Any]:
    """`POST /api/validate-yaml`: what is wrong with a README's metadata."""
    found = _YAML.match(content)
    try:
        data = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        raise Refusal(400, "bad YAML", body={"errors": [{"message": str(error)}], "warnings": []}) from error
    wrong = [f'"{key}" must be a string' for key in ("license", "library_name") if not isinstance(data.get(key, ""), str)]
    base = data.get("base_model", "a/b")
    if not isinstance(base, str) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base):
        wrong.append('"base_model" must be the id of a model')
    if wrong:
        raise Refusal(400, wrong[0], body={"errors": [{"message": text} for text in wrong], "warnings": []})
    return {"errors": [], "warnings": [] if found else [{"message": "empty or missing yaml metadata in repo card"}]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        self.hub.seen.append((self.command, path))
        fault = self.hub.fault(self.command, path)
        if fault is not None and fault.status == 0:
            self.rfile.read(self._length() // 2)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self._body()
        try:
            if fault is not None:
                raise Refusal(fault.status, f"fault {fault.status}")
            with self.hub.lock:
                if self.command in ("GET", "HEAD"):
                    self._read(path, query)
                else:
                    self._send(self._written(path, body))
        except Refusal as refused:
            headers = {"X-Error-Message": refused.message, "X-Error-Code": refused.code}
            self._send({"error": refused.message, **(refused.body or {})}, status=refused.status, headers=headers)

    def _length(self) -> int:
        return int(self.headers.get("content-length") or 0)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(self._length())
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _token(self) -> str | None:
        given = self.headers.get("authorization", "").removeprefix("Bearer ")
        if given and given not in self.hub.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return given or None

    def _read(self, path: str, query: Mapping[str, list[str]]) -> None:
        if path == "/api/whoami-v2":
            token = self._token()
            if token is None:
                raise Refusal(401, "Invalid username or password.")
            names = self.hub.users[token]
            orgs = [{"type": "org", "name": name} for name in names[1:]]
            self._send({"type": "user", "name": names[0], "orgs": orgs, "auth": {"accessToken": {"role": "write"}}})
        elif match := re.fullmatch(r"/cdn/(?P<oid>[0-9a-f]{64})", path):
            self._content(Stored(self.hub.objects[match["oid"]], large=True), {})
        elif match := re.fullmatch(rf"{_API}(/revision/(?P<revision>.+))?", path):
            found = self.hub.repository(match["kind"], match["id"], self._token())
            commit = found.at(match["revision"] or "main")
            siblings = [{"rfilename": name} for name in sorted(commit.files)]
            self._send({"id": found.id, "private": found.private, "sha": commit.id, "siblings": siblings, "tags": []})
        elif match := re.fullmatch(rf"{_API}/tree/(?P<revision>[^/]+)(/(?P<below>.+))?", path):
            commit = self.hub.repository(match["kind"], match["id"], self._token()).at(match["revision"])
            recursive = query.get("recursive", ["false"])[0].lower() in ("1", "true")
            self._send(_listing(commit.files, match["below"] or "", recursive=recursive))
        elif match := re.fullmatch(rf"/(?P<data>datasets/)?{_ID}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", path):
            found = self.hub.repository("datasets" if match["data"] else "models", match["id"], self._token())
            self._resolve(found.at(match["revision"]), match["name"])
        else:
            raise Refusal(404, f"there is no {path}")

    def _resolve(self, commit: Commit, name: str) -> None:
        if name not in commit.files:
            raise Refusal(404, "Entry not found", code="EntryNotFound")
        stored = commit.files[name]
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{stored.etag}"'}
        if not stored.large:
            self._content(stored, headers)
            return
        linked = {"X-Linked-Etag": f'"{stored.etag}"', "X-Linked-Size": str(len(stored.content))}
        self._send({}, status=302, headers=headers | linked | {"Location": f"{self.hub.storage}/cdn/{stored.sha256}"})

    def _written(self, path: str, body: bytes) -> Any:
        hub, token = self.hub, self._token()
        if match := re.fullmatch(r"/lfs/(?P<oid>[0-9a-f]{64})", path):
            if hashlib.sha256(body).hexdigest() != match["oid"]:
                raise Refusal(400, "the content does not have its sha256")
            hub.objects[match["oid"]] = body
            return {}
        if match := re.fullmatch(rf"{_API}/commit/(?P<branch>.+)", path):
            found = hub.repository(match["kind"], match["id"], token, write=True)
            made = hub.commit(found, match["branch"], [json.loads(line) for line in body.splitlines() if line])
            return {"success": True, "commitOid": made.id, "commitUrl": f"{hub.url}/{found.id}/commit/{made.id}"}
        data = json.loads(body or b"{}")
        if path == "/api/repos/create":
            return hub.create(data, token)
        if path == "/api/validate-yaml":
            return _check_card(data["content"])
        if path == "/lfs-verify":
            if len(hub.objects.get(data["oid"], b"")) != data["size"]:
                raise Refusal(404, "the object was not uploaded")
            return {}
        if match := re.fullmatch(rf"{_API}/branch/(?P<branch>.+)", path):
            found = hub.repository(match["kind"], match["id"], token, write=True)
            if match["branch"] in found.branches:
                raise Refusal(409, "Reference already exists")
            found.branches[match["branch"]] = found.at(data.get("startingPoint", "main")).id
            return {}
        if match := re.fullmatch(rf"{_API}/preupload/(?P<revision>.+)", path):
            found = hub.repository(match["kind"], match["id"], token, write=True)
            return {"files": [_mode(row, found.at(match["revision"]).files) for row in data["files"]]}
        if match := re.fullmatch(rf"/(?P<data>datasets/)?{_ID}\.git/info/lfs/objects/batch", path):
            hub.repository("datasets" if match["data"] else "models", match["id"], token, write=True)
            return {"transfer": "basic", "objects": [self._transfer(row) for row in data["objects"]]}
        raise Refusal(404, f"there is no {path}")

    def _transfer(self, row: Mapping[str, Any]) -> dict[str, Any]:
        wanted = {"oid": row["oid"], "size": row["size"]}
        if row["oid"] in self.hub.objects:
            return wanted
        places = {"upload": {"href": f"{self.hub.url}/lfs/{row['oid']}"}, "verify": {"href": f"{self.hub.url}/lfs-verify"}}
        return wanted | {"actions": places}

    def _content(self, stored: Stored, headers: Mapping[str, str]) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        size = len(stored.content)
        ranged = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if wanted else {}
        self._send(stored.content[start:], status=206 if wanted else 200, headers={**headers, **ranged})

    def _send(self, answer: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            if value:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _mode(row: Mapping[str, Any], files: Mapping[str, Stored]) -> dict[str, Any]:
    """How one file is to be sent, and the id of the file that it would replace."""
    name, sample = row["path"], base64.b64decode(row["sample"])
    large = row["size"] > REGULAR_BYTES or b"\0" in sample or any(fnmatch.fnmatch(name, rule) for rule in LARGE)
    held = files.get(name)
    found = {"path": name, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
    return found if held is None else found | {"oid": held.etag}
