"""The machine: what it is, and who else uses it while something is measured."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

BUSY_LOAD = 0.3
"""Load a core, before anything is measured, above which a machine counts as busy."""
BUSY_OTHERS = 0.05
"""Share of the processor time that others may take before a measurement counts as disturbed."""

_PROC = Path("/proc")
_IDLE = (3, 4)  # columns idle and iowait of /proc/stat
_GUEST = 8  # from here on what the columns before it have counted already


@dataclass(frozen=True)
class Machine:
    """Processor, cores this process may use, memory in bytes and operating system."""

    processor: str
    cores: int
    memory: int | None
    system: str
    python: str


def this_machine() -> Machine:
    """Describe the machine this process runs on."""
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    return Machine(_processor(), cores(), memory, platform.platform(), platform.python_version())


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@dataclass(frozen=True)
class Noise:
    """Who else used the machine.

    Attributes:
        load: one-minute load average before anything was measured; None where unknown.
        others: share of the machine's processor time that other programs took meanwhile, 0 to 1;
            None where unknown.
        cores: cores of the machine.
    """

    load: float | None
    others: float | None
    cores: int

    @property
    def warning(self) -> str:
        """One sentence where the numbers deserve mistrust; empty where they do not."""
        if self.others is not None and self.others > BUSY_OTHERS:
            return (
                f"other programs took {self.others:.0%} of the processor while this was measured:"
                " the times are too long; measure again on an idle machine"
            )
        if self.load is not None and self.load > BUSY_LOAD * self.cores:
            return (
                f"the load average was {self.load:.2f} on {self.cores} cores before the first"
                " measurement: times may be too long"
            )
        return ""


def busy_share(before: tuple[float, float], after: tuple[float, float], own: float) -> float:
    """Return which share of the machine's time went to others.

    Args:
        before: seconds busy and seconds in all, summed over cores.
        after: the same, later.
        own: seconds that this process was busy in between.
    """
    busy, total = (late - early for late, early in zip(after, before, strict=True))
    return min(max(busy - own, 0.0) / total, 1.0) if total > 0 else 0.0


class Watch:
    """Notes who uses the machine while its block runs; `noise` tells afterwards."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self.noise = Noise(self.load, None, cores())

    def __enter__(self) -> "Watch":
        self._before, self._own = _seconds(), _own_seconds()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        after, own = _seconds(), _own_seconds() - self._own
        if self._before is not None and after is not None:
            self.noise = Noise(self.load, busy_share(self._before, after, own), cores())


def _own_seconds() -> float:
    """Return processor seconds of this process and of children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _seconds() -> tuple[float, float] | None:
    """Return the machine's seconds busy and in all, over all cores; None where unknown."""
    try:
        line = (_PROC / "stat").read_text(encoding="ascii").partition("\n")[0]
        ticks = [int(field) for field in line.split()[1:]][:_GUEST]
    except (OSError, ValueError):
        return None
    rate = os.sysconf("SC_CLK_TCK")
    total = sum(ticks)
    return (total - sum(ticks[i] for i in _IDLE)) / rate, total / rate


def settle(seconds: float = 0.05) -> None:
    """Wait until the threads of the library that ran last have stopped spinning for work."""
    time.sleep(seconds)
