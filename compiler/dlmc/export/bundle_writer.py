"""Writes a bundle so that it is either whole and under its name, or not there at all."""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from dlmc.export.progress import byte_progress
from dlmc.linking import link_or_copy
from dlmc_runtime.bundle import MANIFEST, PARTIAL
from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.record import FileRecord

_CHUNK = 1 << 20


def check_output(output: Path, *, force: bool) -> None:
    """Check that a bundle may be written to ``output``.

    Raises:
        UsageError: something is there, and ``force`` is not given or would delete what is no
            bundle.
    """
    if not os.path.lexists(output):
        return
    if not force:
        raise UsageError(f"{output} exists", "choose another output or pass --force to replace it")
    if output.is_symlink() or not output.is_dir():
        raise UsageError(f"{output} is not a folder", "choose another output")
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise UsageError(f"{output} is not a bundle, so --force does not replace it", "delete it")


class BundleWriter:
    """Collects a bundle's files in a hidden sibling of ``output``, renamed to it at the end.

    Leaving the context without `finish`, for whatever reason, removes everything. A process
    killed inside it leaves a folder with `PARTIAL` in its name, which nothing loads.

    Raises:
        UsageError: as `check_output`, on entering.
        DlmcError: the disk is full or something cannot be read or written, on leaving.
    """

    def __init__(self, output: Path, *, force: bool = False) -> None:
        self._output, self._force = output, force
        self._finished = False

    def __enter__(self) -> Self:
        check_output(self._output, force=self._force)
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{self._output.name}{PARTIAL}"
            self.root = Path(tempfile.mkdtemp(prefix=prefix, dir=self._output.parent))
            self.root.chmod(0o755)
        except OSError as error:
            raise _refusal(self._output, error) from error
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
            raise _refusal(self._output, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write ``data`` to the file ``name`` of the bundle."""
        with self.make(name).open("xb") as file:
            file.write(data)
            _sync(file.fileno())

    def copy(self, source: Path, name: str) -> None:
        """Copy ``source`` to the file ``name`` of the bundle."""
        target = self.make(name)
        shutil.copyfile(source, target)
        sync_file(target)

    def link(self, source: Path, name: str) -> None:
        """Make ``name`` the same file as ``source``, or a copy where the disk cannot link.

        Nobody may write to ``name`` afterwards: it would change the checkpoint.
        """
        target = self.make(name)
        if not link_or_copy(source, target):
            sync_file(target)

    def finish(self, manifest: Callable[[Mapping[str, FileRecord]], Manifest]) -> None:
        """Hash all files, write the manifest made from that, and give the bundle its name."""
        document = manifest(self._hash()).model_dump_json(indent=2)
        self.write(MANIFEST, document.encode() + b"\n")
        for folder in [path for path in self.root.rglob("*") if path.is_dir()] + [self.root]:
            _sync_folder(folder)
        self._publish()
        self._finished = True
        _sync_folder(self._output.parent)

    def make(self, name: str) -> Path:
        """Return where the file ``name`` of the bundle is to be written; its folder exists."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _hash(self) -> dict[str, FileRecord]:
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        total = sum(path.stat().st_size for path in files)
        with byte_progress("hashing", total) as advance:
            return {
                path.relative_to(self.root).as_posix(): file_record(path, advance) for path in files
            }

    def _publish(self) -> None:
        """Rename to the final name; what was there is moved aside first and deleted after."""
        if not os.path.lexists(self._output):
            self.root.rename(self._output)
            return
        check_output(self._output, force=self._force)
        old = Path(tempfile.mkdtemp(prefix=f".{self._output.name}.old-", dir=self._output.parent))
        self._output.rename(old)
        try:
            self.root.rename(self._output)
        except BaseException:
            old.rename(self._output)
            raise
        shutil.rmtree(old, ignore_errors=True)


def file_record(path: Path, advance: Callable[[int], None] = lambda _: None) -> FileRecord:
    """Return size and hash of a file, reading it in small pieces."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
    return FileRecord(size=size, sha256=digest.hexdigest())


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


def _refusal(output: Path, error: OSError) -> DlmcError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space or choose another disk" if full else "check the path and its rights"
    where = f" ({error.filename})" if error.filename else ""
    return DlmcError(f"cannot write the bundle {output}: {error.strerror or error}{where}", hint)
