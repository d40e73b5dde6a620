"""Writes a bundle: files, then the manifest that lists them with their hashes."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from dlmc import folder_writer
from dlmc.export.progress import byte_progress
from dlmc.folder_writer import FolderWriter, Kind
from dlmc_runtime.bundle import MANIFEST
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.record import FileRecord

_CHUNK = 1 << 20
_BUNDLE = Kind("bundle", MANIFEST)


def check_output(output: Path, *, force: bool) -> None:
    """Check that a bundle may be written to ``output``.

    Raises:
        UsageError: something is there, and ``force`` is not given or would delete what is no
            bundle.
    """
    folder_writer.check_output(output, _BUNDLE, force=force)


class BundleWriter(FolderWriter):
    """A `FolderWriter` that `finish` completes with a manifest."""

    def __init__(self, output: Path, *, force: bool = False) -> None:
        super().__init__(output, _BUNDLE, force=force)

    def finish(self, manifest: Callable[[Mapping[str, FileRecord]], Manifest]) -> None:
        """Hash all files, write the manifest made from that, and give the bundle its name."""
        document = manifest(self._hash()).model_dump_json(indent=2)
        self.write(MANIFEST, document.encode() + b"\n")
        self.publish()

    def _hash(self) -> dict[str, FileRecord]:
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        total = sum(path.stat().st_size for path in files)
        with byte_progress("hashing", total) as advance:
            return {
                path.relative_to(self.root).as_posix(): file_record(path, advance) for path in files
            }


def file_record(path: Path, advance: Callable[[int], None] = lambda _: None) -> FileRecord:
    """Return size and hash of a file, reading it in small pieces."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
    return FileRecord(size=size, sha256=digest.hexdigest())
