"""Servers that tests start: waited for, and ended with all that they have started."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 300.0  # seconds for a server to start, on a busy machine
_ENDING = 30.0


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def running(
    command: Sequence[str],
    ready: Callable[[], bool],
    *,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server from when it is ready; its whole process group ends with the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not ready():
                ended = process.poll() is not None
                if ended or time.monotonic() > deadline:
                    what = "ended" if ended else "is not ready in time"
                    tail = log.read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"{command[0]} {what}:\n{tail}")
                time.sleep(0.1)
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
