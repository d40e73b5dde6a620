import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from dlmc_runtime.serve import playground

STATIC = Path(playground.__file__).parent / "static"


@pytest.fixture(scope="module")
def client():
    app = FastAPI()
    app.include_router(playground.router)
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("name", sorted(path.name for path in STATIC.iterdir()))
def test_every_file_of_the_page_is_served_as_what_it_is(client, name):
    types = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg"}
    response = client.get(f"/playground/{name}")
    assert response.status_code == 200
    assert response.content == (STATIC / name).read_bytes()
    assert response.headers["content-type"].startswith(types[name.rpartition(".")[2]])


def test_the_page_is_at_the_root(client):
    response = client.get("/")
    assert response.content == (STATIC / "index.html").read_bytes()
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert client.head("/").headers["etag"] == response.headers["etag"]


@pytest.mark.parametrize("path", ["/", "/playground/app.js", "/playground/none.js"])
def test_the_page_may_load_its_own_origin_only(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'self'"
    assert not re.search(r"unsafe|\*|https?:|data:", headers["content-security-policy"])
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_a_file_is_sent_again_only_when_it_changed(client):
    first = client.get("/playground/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = client.get("/playground/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"]
    stale = client.get("/playground/app.js", headers={"if-none-match": '"other"'})
    assert (stale.status_code, stale.content) == (200, first.content)


@pytest.mark.parametrize(
    "name",
    [
        "../playground.py",
        "..%2fplayground.py",
        "%2e%2e%2fplayground.py",
        "..%5cplayground.py",
        "%2fetc%2fpasswd",
        "app.js%00",
        "none.js",
        "",
    ],
)
def test_nothing_but_the_page_is_served(client, name):
    response = client.get(f"/playground/{name}")
    assert response.status_code == 404
    assert b"APIRouter" not in response.content


def test_the_page_is_no_part_of_the_described_api(client):
    assert not client.get("/openapi.json").json()["paths"]


def test_no_text_reaches_an_html_parser_and_nothing_is_inline():
    scripts = "".join(path.read_text() for path in STATIC.glob("*.js"))
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in scripts
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|style=|<style|javascript:|//", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_each_file_of_the_page_can_be_read():
    for path in STATIC.iterdir():
        assert len(path.read_text().splitlines()) <= 400, path.name
