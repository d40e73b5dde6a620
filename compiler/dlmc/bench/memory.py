"""Peak memory of an engine, in a process that holds nothing else.

``python -m dlmc.bench.memory BUNDLE ENGINE`` loads an engine, runs every profile once and prints
JSON. Its numbers are what the process grew by after its libraries were imported. Resident bytes
count pages of mapped files as soon as they are touched, although the system can drop them again;
anonymous bytes are what it cannot.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from dlmc.bench.child import run_child
from dlmc_runtime.errors import DlmcError

_STATUS = Path("/proc/self/status")
_IO = Path("/proc/self/io")
_EVERY = 0.005  # seconds between two looks


@dataclass(frozen=True)
class Footprint:
    """What loading and running an engine took, on the host.

    Attributes:
        load: most resident bytes while loading.
        peak: most resident bytes while loading and running every profile once.
        anonymous: most bytes meanwhile that are no pages of files, looked at every 5 ms.
        read: bytes that were read from files while loading, those of mapped files not counted.
        seconds: how long loading took, every hash checked.
    """

    load: int
    peak: int
    anonymous: int
    read: int
    seconds: float


def measure(bundle: Path, engine: str) -> Footprint | None:
    """Load and run an engine in a process of its own; None where the system does not tell.

    Raises:
        EngineError: the engine does not load or run.
    """
    if not _STATUS.exists():
        return None
    return Footprint(**run_child("dlmc.bench.memory", str(bundle), engine))


def kilobytes(status: str, field: str) -> int:
    """Return a field of ``/proc/self/status`` in bytes."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields[field].split()[0]) * 1024


def _memory(field: str) -> int:
    return kilobytes(_STATUS.read_text(encoding="utf-8"), field)


def _read() -> int:
    fields = dict(line.split(": ") for line in _IO.read_text(encoding="ascii").splitlines())
    return int(fields["rchar"])


class _Anonymous:
    """Watches anonymous memory from a thread, since the system keeps no peak of it."""

    def __init__(self) -> None:
        self.most = _memory("RssAnon")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(_EVERY):
            self.most = max(self.most, _memory("RssAnon"))

    def __enter__(self) -> "_Anonymous":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.most = max(self.most, _memory("RssAnon"))


def here(root: Path, name: str) -> Footprint:
    """Load and run an engine in this process; as `measure`."""
    from dlmc_runtime import engines
    from dlmc_runtime.bundle import Bundle

    bundle = Bundle.open(root, weights=False)
    kind = engines.ENGINES[bundle.engine(name).target]
    import_module(f"dlmc_runtime.engines.{kind.module}")
    before, bare, already = _memory("VmRSS"), _memory("RssAnon"), _read()
    with _Anonymous() as anonymous:
        began = time.perf_counter()
        engine = engines.load(Bundle.open(root, weights=False), name)
        seconds = time.perf_counter() - began
        load, read = _memory("VmHWM") - before, _read() - already
        for profile in engine.profiles:
            cache = engine.cache(profile.batch, profile.cache)
            engine.forward(engine.inputs(profile), cache, ())
    peak = _memory("VmHWM") - before
    engine.close()
    return Footprint(load, peak, anonymous.most - bare, read, seconds)


if __name__ == "__main__":
    try:
        found = here(Path(sys.argv[1]), sys.argv[2])
    except DlmcError as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
