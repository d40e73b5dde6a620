"""A progress bar for work on many bytes, where a person is watching."""

import contextlib
import sys
from collections.abc import Callable, Iterator

# Below this the work is over before a bar could be read.
_WORTH_A_BAR = 256 << 20


@contextlib.contextmanager
def byte_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of bytes just done.

    It draws a bar on standard error if that is a terminal and ``total`` bytes take a while;
    otherwise it does nothing.
    """
    if total < _WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
