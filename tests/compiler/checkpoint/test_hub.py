"""Resolving checkpoints against a small imitation of the hub on loopback."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dlmc.checkpoint import hub
from dlmc_runtime.errors import CheckpointError, UsageError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights",
    "modeling_llada.py": b"raise SystemExit('remote code was run')",
    "pytorch_model.bin": b"pickle",
    "training_args.pt": b"pickle",
    "README.md": b"# model",
    "adapter/adapter_config.json": b"{}",
    "adapter/adapter_model.safetensors": b"other weights",
    "adapter/adapter.py": b"raise SystemExit('remote code was run')",
}
REVISIONS = ("main", "v1", COMMIT)


class HubHandler(BaseHTTPRequestHandler):
    """Answers the routes that `huggingface_hub.snapshot_download` calls."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep test output clean."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.requested.append(path)  # type: ignore[attr-defined]
        for pattern, answer in ROUTES.items():
            if match := re.fullmatch(pattern, path):
                answer(self, *match.groups())
                return
        self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def info(self, revision: str) -> None:
        if revision not in REVISIONS:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [{"rfilename": name} for name in FILES]
        record = {"id": "owner/tiny", "sha": COMMIT, "private": False, "siblings": siblings}
        self.answer(200, json.dumps(record).encode(), {"Content-Type": "application/json"})

    def tree(self) -> None:
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}  # noqa: S324
            for name, data in FILES.items()
        ]
        self.answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def file(self, name: str) -> None:
        etag = sha1(FILES[name]).hexdigest()  # noqa: S324 (git's own naming)
        self.answer(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def gated(self) -> None:
        self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})

    def broken(self) -> None:
        self.answer(500, b"{}")


ROUTES: dict[str, Callable[..., None]] = {
    r"/api/models/owner/tiny/revision/(.+)": HubHandler.info,
    rf"/api/models/owner/tiny/tree/{COMMIT}": HubHandler.tree,
    rf"/owner/tiny/resolve/{COMMIT}/(.+)": HubHandler.file,
    r"/api/models/owner/gated/.+": HubHandler.gated,
    r"/api/models/owner/broken/.+": HubHandler.broken,
}


class HubImitation(ThreadingHTTPServer):
    """A hub with one repository, one gated one and one that always fails."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.requested: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def imitation(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubImitation]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with HubImitation() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_local_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = hub.resolve("owner/tiny", endpoint="http://127.0.0.1:1")
    assert (found.path, found.source, found.revision) == (Path("owner/tiny"), "owner/tiny", None)


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_download_takes_data_only(
    imitation: HubImitation,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    revision: str | None,
) -> None:
    found = hub.resolve("owner/tiny", revision, endpoint=imitation.endpoint, cache_dir=tmp_path)
    wanted = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert {path.name for path in found.path.iterdir()} == wanted
    assert (found.path / "model.safetensors").read_bytes() == b"weights"
    assert found.revision == COMMIT
    asked = {path.rsplit("/", 1)[1] for path in imitation.requested if "/resolve/" in path}
    assert asked == wanted
    assert capfd.readouterr().err == ""


def test_configuration_is_had_without_the_weights(imitation: HubImitation, tmp_path: Path) -> None:
    found = hub.resolve(
        "owner/tiny", weights=False, endpoint=imitation.endpoint, cache_dir=tmp_path
    )
    names = {path.name for path in found.path.iterdir()}
    assert names == {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert not [path for path in imitation.requested if path.endswith(".safetensors")]


@pytest.mark.parametrize("weights", [True, False])
def test_a_named_adapter_is_downloaded_as_well(
    imitation: HubImitation, tmp_path: Path, *, weights: bool
) -> None:
    found = hub.resolve(
        "owner/tiny",
        weights=weights,
        adapter="adapter",
        endpoint=imitation.endpoint,
        cache_dir=tmp_path,
    )
    names = {path.name for path in (found.path / "adapter").iterdir()}
    assert names == {"adapter_config.json"} | ({"adapter_model.safetensors"} if weights else set())


def test_an_adapter_elsewhere_is_not_asked_of_the_hub(
    imitation: HubImitation, tmp_path: Path
) -> None:
    endpoint, cache = imitation.endpoint, tmp_path / "cache"
    hub.resolve("owner/tiny", adapter=str(tmp_path), endpoint=endpoint, cache_dir=cache)
    hub.resolve("owner/tiny", adapter="../adapter", endpoint=endpoint, cache_dir=cache)
    assert not [path for path in imitation.requested if "adapter/" in path]


def test_second_download_works_offline(imitation: HubImitation, tmp_path: Path) -> None:
    first = hub.resolve("owner/tiny", endpoint=imitation.endpoint, cache_dir=tmp_path)
    second = hub.resolve("owner/tiny", endpoint="http://127.0.0.1:1", cache_dir=tmp_path)
    assert first == second


@pytest.mark.parametrize(
    ("source", "revision", "sentence"),
    [
        ("owner/unknown", None, "no folder owner/unknown here and no such repository"),
        ("owner/gated", None, "owner/gated is gated: accept its terms"),
        ("owner/tiny", "v9", "owner/tiny has no revision v9"),
        ("owner/broken", None, "the hub cannot be reached"),
    ],
)
def test_hub_refusals(
    imitation: HubImitation, tmp_path: Path, source: str, revision: str | None, sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(sentence)) as caught:
        hub.resolve(source, revision, endpoint=imitation.endpoint, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_no_hub(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the hub cannot be reached"):
        hub.resolve("owner/tiny", endpoint="http://127.0.0.1:1", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "source", ["", "tiny", "./tiny", "/nowhere/tiny", "a/b/c", "a/..", "a--b/c"]
)
def test_neither_folder_nor_id(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hub id"):
        hub.resolve(source, endpoint="http://127.0.0.1:1", cache_dir=tmp_path)


def test_folder_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --revision"):
        hub.resolve(str(tmp_path), "main")
