"""The page at `/`: files of this package, as they are, under a policy that trusts nothing else."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

# What the page may load and do: files and endpoints of its own origin. Text that reached an HTML
# parser would be refused by the browser too (Trusted Types without a policy).
POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",  # kept, but asked about each time: a new version shows at once
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: with the character set, for text.
        etag: a strong validator, quoted.
    """

    content: bytes
    media_type: str
    etag: str

    def respond(self, request: Request) -> Response:
        """Return the file, or 304 where the browser has it already."""
        headers = _HEADERS | {"ETag": self.etag}
        known = request.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


@cache
def assets() -> dict[str, Asset]:
    """Return the files of the page by name.

    They are read once, so that a request names a key of this table and never a path.
    """
    found = {}
    for entry in (files("dlmc_runtime.serve") / "static").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[entry.name] = Asset(content, _TYPES[suffix], etag)
    return found


router = APIRouter(include_in_schema=False)
"""`/`, and the page's files under `/playground/`.

They need no API key: nothing in them is secret, and the page asks for the key itself.
"""


@router.api_route("/", methods=["GET", "HEAD"])
def page(request: Request) -> Response:
    """Return the page."""
    return assets()["index.html"].respond(request)


@router.api_route("/playground/{name}", methods=["GET", "HEAD"])
def file(name: str, request: Request) -> Response:
    """Return a file of the page."""
    asset = assets().get(name)
    if asset is None:
        return Response("no such file\n", 404, _HEADERS, "text/plain; charset=utf-8")
    return asset.respond(request)
