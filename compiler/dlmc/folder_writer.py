"""Writes a folder so that it is either whole and under its name, or not there at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dlmc.linking import link_or_copy
from dlmc_runtime.bundle import PARTIAL
from dlmc_runtime.errors import DlmcError, UsageError


@dataclass(frozen=True)
class Kind:
    """What a folder is.

    Attributes:
        noun: what errors call it.
        marker: the file that only folders of this kind have; what lacks it is never replaced.
    """

    noun: str
    marker: str


def check_output(output: Path, kind: Kind, *, force: bool) -> None:
    """Check that a folder may be written to ``output``.

    Raises:
        UsageError: something is there, and ``force`` is not given or would delete what is not of
            this kind.
    """
    if not os.path.lexists(output):
        return
    if not force:
        raise UsageError(f"{output} exists", "choose another output or pass --force to replace it")
    if output.is_symlink() or not output.is_dir():
        raise UsageError(f"{output} is not a folder", "choose another output")
    if any(output.iterdir()) and not (output / kind.marker).is_file():
        problem = f"{output} is not a {kind.noun}, so --force does not replace it"
        raise UsageError(problem, "delete it")


class FolderWriter:
    """Collects files in a hidden sibling of ``output``, renamed to it at the end.

    Leaving the context without `publish`, for whatever reason, removes everything. A process
    killed inside it leaves a folder with `PARTIAL` in its name, which nothing loads.

    Raises:
        UsageError: as `check_output`, on entering.
        DlmcError: the disk is full or something cannot be read or written, on leaving.
    """

    def __init__(self, output: Path, kind: Kind, *, force: bool = False) -> None:
        self._output, self._kind, self._force = output, kind, force
        self._finished = False

    def __enter__(self) -> Self:
        check_output(self._output, self._kind, force=self._force)
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{self._output.name}{PARTIAL}"
            self.root = Path(tempfile.mkdtemp(prefix=prefix, dir=self._output.parent))
            self.root.chmod(0o755)
        except OSError as error:
            raise self._refusal(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            shutil.rmtree(self.root, ignore_errors=True)
        if isinstance(error, OSError):
            raise self._refusal(error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write ``data`` to the file ``name`` of the folder."""
        with self.make(name).open("xb") as file:
            file.write(data)
            _sync(file.fileno())

    def copy(self, source: Path, name: str) -> None:
        """Copy ``source`` to the file ``name`` of the folder."""
        target = self.make(name)
        shutil.copyfile(source, target)
        sync_file(target)

    def link(self, source: Path, name: str) -> None:
        """Make ``name`` the same file as ``source``, or a copy where the disk cannot link.

        Nobody may write to ``name`` afterwards: it would change the source.
        """
        target = self.make(name)
        if not link_or_copy(source, target):
            sync_file(target)

    def make(self, name: str) -> Path:
        """Return where the file ``name`` is to be written; its folder exists."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self) -> None:
        """Flush everything to the disk and give the folder its name."""
        for folder in [path for path in self.root.rglob("*") if path.is_dir()] + [self.root]:
            _sync_folder(folder)
        self._rename()
        self._finished = True
        _sync_folder(self._output.parent)

    def _rename(self) -> None:
        """Rename to the final name; what was there is moved aside first and deleted after."""
        if not os.path.lexists(self._output):
            self.root.rename(self._output)
            return
        check_output(self._output, self._kind, force=self._force)
        old = Path(tempfile.mkdtemp(prefix=f".{self._output.name}.old-", dir=self._output.parent))
        self._output.rename(old)
        try:
            self.root.rename(self._output)
        except BaseException:
            old.rename(self._output)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _refusal(self, error: OSError) -> DlmcError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space or choose another disk" if full else "check the path and its rights"
        where = f" ({error.filename})" if error.filename else ""
        what = f"the {self._kind.noun} {self._output}"
        return DlmcError(f"cannot write {what}: {error.strerror or error}{where}", hint)


def _sync(descriptor: int) -> None:
    """Flush a file to the disk, where its file system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_file(path: Path) -> None:
    """Flush a file that has been written to the disk."""
    with path.open("rb") as file:
        _sync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries; some systems cannot open folders, and lose nothing by it."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)
