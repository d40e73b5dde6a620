"""Opening a bundle: everything is checked before any other library sees a byte of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlmc_runtime.errors import BundleError
from dlmc_runtime.external_data import external_files
from dlmc_runtime.manifest import (
    MAX_MANIFEST_BYTES,
    EngineRecord,
    FileRecord,
    Manifest,
    parse_engine_record,
    parse_manifest,
)

MANIFEST = "manifest.json"
PARTIAL = ".partial-"
"""Part of the name of a folder that an export is still writing."""


def engine_folder(target: str) -> str:
    """Return where in a bundle the engine for ``target`` lies."""
    return f"engines/{target}"


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, what: str, hint: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"no {what} found at {path}", hint) from None
    except OSError as error:
        raise BundleError(f"the {what} at {path} cannot be read ({error.strerror})", hint) from None


def check_files(root: Path, files: Mapping[str, FileRecord], *, hashes: bool = True) -> None:
    """Check that files are where a manifest says, inside ``root``, with their size and hash.

    Raises:
        BundleError: names the first file that is missing, outside, or different.
    """
    for name, record in files.items():
        try:
            problem = _problem(root, name, record, hashes=hashes)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, Python < 3.13
            problem = f"{name} in {root} cannot be read ({error})"
        if problem:
            raise BundleError(problem, "export or build it again")


def _problem(root: Path, name: str, record: FileRecord, *, hashes: bool) -> str:
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        return f"{name} leads out of the bundle {root}"
    if not path.is_file():
        return f"{name} is missing from the bundle {root}"
    size = path.stat().st_size
    if size != record.size:
        return f"{name} in {root} has {size} bytes, the manifest says {record.size}"
    if hashes and sha256_of(path) != record.sha256:
        return f"{name} in {root} has another hash than the manifest says"
    return ""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest and files have been checked."""

    root: Path
    manifest: Manifest
    manifest_sha256: str

    @classmethod
    def open(cls, root: Path, *, hashes: bool = True) -> "Bundle":
        """Read the manifest and check every file it lists.

        Args:
            root: the bundle's folder.
            hashes: also read all files and compare their SHA-256; sizes and paths always are.

        Raises:
            BundleError: something does not fit; the message names it.
        """
        if PARTIAL in root.absolute().name:
            raise BundleError(f"{root} is an export that was interrupted", "delete it")
        text = _read(root / MANIFEST, "bundle manifest", "make a bundle with dlmc export")
        manifest = parse_manifest(text, str(root / MANIFEST))
        check_files(root, manifest.files, hashes=hashes)
        return cls(root, manifest, hashlib.sha256(text).hexdigest())

    def check_graph(self, plan: str) -> None:
        """Check that an ONNX graph of the bundle reads no weights but those the manifest lists.

        Raises:
            BundleError: it names another file, or is not ONNX.
        """
        path = self.root / plan
        try:
            strays = external_files(path.read_bytes()) - set(self.manifest.weights)
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} cannot be read ({error})", "export it again") from None
        if strays:
            raise BundleError(
                f"{path} reads {min(strays)!r}, which the manifest does not list as weights",
                "export it again",
            )

    def require_weights(self) -> None:
        """Refuse a bundle that was exported without weights."""
        if not self.manifest.weights:
            raise BundleError(
                f"the bundle {self.root} has no weights", "export it without --no-weights"
            )

    def engine_targets(self) -> list[str]:
        """Return the targets an engine lies here for."""
        return sorted(path.parent.name for path in self.root.glob("engines/*/engine.json"))

    def engine(self, target: str) -> EngineRecord:
        """Read and check the engine record for ``target``.

        Raises:
            BundleError: there is none, it belongs to another manifest, or a file does not fit.
        """
        folder = self.root / engine_folder(target)
        command = f"run dlmc build {self.root} --target {target}"
        built = ", ".join(self.engine_targets()) or "none"
        text = _read(
            folder / "engine.json", f"engine for {target}", f"{command} (built here: {built})"
        )
        record = parse_engine_record(text, str(folder / "engine.json"))
        if record.target != target or record.manifest_sha256 != self.manifest_sha256:
            raise BundleError(f"{folder / 'engine.json'} was built from another bundle", command)
        if record.plan not in {**self.manifest.files, **record.files}:
            raise BundleError(
                f"{folder / 'engine.json'} states no size and hash of {record.plan}", command
            )
        check_files(self.root, record.files)
        return record
