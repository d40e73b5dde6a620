import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.errors import UsageError
from dlmc_runtime.serve.security import Keys, read_keys
from dlmc_runtime.serve.settings import Settings

KEYS = ("first-key-1", "second-key-2")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_keys_come_from_a_file_and_a_variable(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-key-1\n\n  second-key-2  \r\nfirst-key-1\n")
    assert read_keys(file, "third-key-3, first-key-1") == (*KEYS, "third-key-3")
    assert read_keys(None, "third-key-3,8-chars-") == ("third-key-3", "8-chars-")
    assert read_keys(None, None) == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no API key"),
        (b"# none\n", "holds no API key"),
        (b"7-chars", "number 1 is too short"),
        (b"long-enough\nhas a space", "number 2"),
        ("schlüssel-eins".encode(), "printable ASCII"),
        (b"\xff\xfe\xff\xfe\xff\xfe\xff", "is not UTF-8"),
        (b"x" * (1 << 21), "is larger than"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_without_showing_keys(tmp_path, content, problem):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=problem) as caught:
        read_keys(file, None)
    assert "has a space" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "none", None)


@given(st.lists(st.binary(min_size=8, max_size=12), min_size=1, max_size=4, unique=True))
def test_a_key_is_found_by_its_place_and_others_not(keys):
    known = Keys(key.hex() for key in keys)
    assert [known.find(key.hex().encode()) for key in keys] == list(range(len(keys)))
    assert known.find(keys[0].hex().encode() + b"0") is None
    assert known.find(b"") is None


@pytest.fixture
def guarded(serving, letters):
    return serving(letters(), Settings(api_keys=KEYS))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        {"Authorization": KEYS[0]},
        {"Authorization": f"Basic {KEYS[0]}"},
    ],
)
def test_without_a_key_nobody_comes_in(guarded, headers):
    for path in ("/v1/models", "/v1/nothing"):
        response = guarded.client.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert guarded.complete(headers=headers).status_code == 401


@pytest.mark.parametrize("key", KEYS)
def test_any_key_comes_in(guarded, key):
    assert guarded.complete().status_code == 401
    body = {"model": "test", "prompt": "abc"}
    response = guarded.client.post("/v1/completions", json=body, headers=bearer(key))
    assert response.status_code == 200


def test_health_and_metrics_need_no_key(guarded):
    assert guarded.client.get("/health").status_code == 200
    assert guarded.client.get("/metrics").status_code == 200


def test_keys_are_in_no_log(guarded, caplog):
    caplog.set_level(0)
    guarded.client.get("/v1/models", headers=bearer(KEYS[0]))
    guarded.client.get("/v1/models", headers=bearer("wrong-key-9"))
    assert KEYS[0] not in caplog.text
    assert "wrong-key-9" not in caplog.text


def test_clients_are_told_apart_by_key(guarded, monkeypatch):
    seen = []
    submit = guarded.served.scheduler.submit

    def watch(request, listener, *, client, seconds):
        seen.append(client)
        return submit(request, listener, client=client, seconds=seconds)

    monkeypatch.setattr(guarded.served.scheduler, "submit", watch)
    body = {"model": "test", "prompt": "abc", "max_tokens": 1}
    for key in (*KEYS, KEYS[0]):
        guarded.client.post("/v1/completions", json=body, headers=bearer(key))
    assert seen == ["key 0", "key 1", "key 0"]


def test_large_bodies_are_refused_by_their_length_and_while_they_arrive(serving, letters):
    running = serving(letters(), Settings(max_body_bytes=2000))
    assert running.complete(prompt="a" * 3000).status_code == 413

    def pieces():
        for _ in range(10):
            yield b" " * 500

    headers = {"content-type": "application/json"}
    response = running.client.post("/v1/completions", content=pieces(), headers=headers)
    assert response.status_code == 413
    assert "2000 bytes" in response.json()["error"]["message"]
    assert running.complete(prompt="a", max_tokens=1).status_code == 200


def test_a_body_may_be_as_large_as_the_limit(serving, letters):
    body = b'{"model": "test", "prompt": "a", "max_tokens": 1}'
    for size, status in ((len(body), 200), (len(body) - 1, 413)):
        running = serving(letters(), Settings(max_body_bytes=size))
        for content in (body, iter([body])):  # with its length, and without
            headers = {"content-type": "application/json"}
            response = running.client.post("/v1/completions", content=content, headers=headers)
            assert response.status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data; boundary=x", "json"])
def test_a_body_must_be_json_by_name(shared, kind):
    content = b'{"model": "test", "prompt": "a"}'
    response = shared.client.post(
        "/v1/completions", content=content, headers={"content-type": kind}
    )
    assert response.status_code == 400
    assert "Content-Type" in response.json()["error"]["message"]


def test_names_that_are_not_ours_are_refused(serving, letters):
    running = serving(letters(), Settings(allowed_hosts=("localhost", "127.0.0.1", "[::1]")))
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "LOCALHOST"):
        assert running.client.get("/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[::2]:80", ""):
        response = running.client.get("/v1/models", headers={"host": host})
        assert response.status_code == 403
        assert response.json()["error"]["type"] == "permission_error"


def test_pages_of_strangers_may_not_call_unless_they_are_named(serving, letters, shared):
    origin = {"origin": "https://page.example"}
    assert "access-control-allow-origin" not in shared.client.get("/health", headers=origin).headers
    settings = Settings(cors_origins=("https://page.example",), api_keys=KEYS)
    running = serving(letters(), settings)
    asked = {
        **origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    preflight = running.client.options("/v1/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://page.example"
    other = running.client.options(
        "/v1/completions", headers={**asked, "origin": "https://evil.example"}
    )
    assert "access-control-allow-origin" not in other.headers


def test_no_more_requests_than_allowed_are_in_work(serving, letters):
    running = serving(letters(), Settings(max_concurrent=1))
    running.client.app.state.site.active = 1
    response = running.complete()
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    running.client.app.state.site.active = 0
    assert running.complete(max_tokens=1).status_code == 200
    assert running.client.app.state.site.active == 0


def test_a_body_that_takes_too_long_is_a_408(live, letters):
    running = live(letters(), Settings(body_seconds=0.1))
    port = int(running.url.rpartition(":")[2])
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(head + b'Content-Length: 100\r\n\r\n{"model":')
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_defect_leaves_nothing_behind(serving, letters, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    running = serving(letters())
    monkeypatch.setattr(running.served.scheduler, "submit", broken)
    assert running.complete().status_code == 500
    assert running.client.app.state.site.active == 0


def test_what_is_refused_leaves_nothing_behind(guarded):
    site = guarded.client.app.state.site
    guarded.complete()
    guarded.complete(headers=bearer(KEYS[0]))
    guarded.client.get("/v1/nothing", headers=bearer(KEYS[0]))
    assert site.active == 0
