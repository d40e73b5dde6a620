"""What whoever starts a server decides."""

from dataclasses import dataclass, field
from ipaddress import ip_address

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Settings:
    """How a server behaves; every bound is one that a request cannot lift.

    Attributes:
        api_keys: who may call ``/v1``; empty lets everyone.
        max_body_bytes: of a request.
        max_concurrent: requests under ``/v1`` that are worked on or wait at the same time.
        max_choices: rows of one request: its prompts times ``n``.
        request_seconds: from a request's arrival to the end of its answer.
        body_seconds: for a request's body to arrive.
        stall_seconds: how long a reader may take no byte of a stream before it is dropped.
        drain_seconds: for running requests to finish once the server is told to stop.
        allowed_hosts: values of the ``Host`` header that are served, without their port; empty
            allows any. On a loopback address this keeps web pages of strangers out, whatever
            name they let point here.
        cors_origins: origins whose pages may call the server from a browser.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    max_body_bytes: int = 4 << 20
    max_concurrent: int = 512
    max_choices: int = 64
    request_seconds: float = 600.0
    body_seconds: float = 30.0
    stall_seconds: float = 60.0
    drain_seconds: float = 30.0
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Return whether an address to bind is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
