"""Opening a bundle: everything is checked before any other library sees a byte of it."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dlmc_runtime.engine_record import EngineRecord, parse_engine_record
from dlmc_runtime.errors import BundleError
from dlmc_runtime.external_data import external_files
from dlmc_runtime.manifest import Manifest, parse_manifest
from dlmc_runtime.record import MAX_MANIFEST_BYTES, FileRecord

MANIFEST = "manifest.json"
ENGINE = "engine.json"
PARTIAL = ".partial-"
"""Part of the name of a folder that an export is still writing."""


def engine_folder(name: str) -> str:
    """Return where in a bundle the engine called ``name`` lies."""
    return f"engines/{name}"


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
    weights_checked: bool = False

    @classmethod
    def open(cls, root: Path, *, hashes: bool = True, weights: bool = True) -> "Bundle":
        """Read the manifest and check every file it lists.

        Args:
            root: the bundle's folder.
            hashes: also read all files and compare their SHA-256; sizes and paths always are.
            weights: the weights' too; an engine with weights of its own does not need them, and
                `check_engine_files` reads them for one that does.

        Raises:
            BundleError: something does not fit; the message names it.
        """
        if PARTIAL in root.absolute().name:
            raise BundleError(f"{root} is an export that was interrupted", "delete it")
        text = _read(root / MANIFEST, "bundle manifest", "make a bundle with dlmc export")
        manifest = parse_manifest(text, str(root / MANIFEST))
        small = {k: v for k, v in manifest.files.items() if weights or k not in manifest.weights}
        check_files(root, manifest.files, hashes=False)
        if hashes:
            check_files(root, small)
        return cls(root, manifest, hashlib.sha256(text).hexdigest(), hashes and weights)

    def check_graph(self, plan: str, files: Iterable[str] = ()) -> None:
        """Check that an ONNX graph of the bundle reads no weights but those that are listed.

        Args:
            plan: the graph.
            files: what it may read besides the bundle's weights, as an engine's record lists it.

        Raises:
            BundleError: it names another file, or is not ONNX.
        """
        path = self.root / plan
        folder = PurePosixPath(plan).parent
        try:
            named = {str(folder / name) for name in external_files(path.read_bytes())}
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} cannot be read ({error})", "export it again") from None
        strays = named - {*self.manifest.weights, *files}
        if strays:
            raise BundleError(
                f"{path} reads {min(strays)!r}, which is not listed as weights",
                "export or build it again",
            )

    def require_weights(self) -> None:
        """Refuse a bundle that was exported without weights."""
        if not self.manifest.weights:
            raise BundleError(
                f"the bundle {self.root} has no weights", "export it without --no-weights"
            )

    def engine_names(self) -> list[str]:
        """Return the names of the engines that lie here."""
        found = self.root.glob(f"{engine_folder('*')}/{ENGINE}")
        return sorted(path.parent.name for path in found if PARTIAL not in path.parent.name)

    def engine_name(self, name: str) -> str:
        """Return the full name of the engine that ``name`` means.

        A target means the engine that has its very name, else the only one that was built for it
        (``openvino-cpu`` may mean ``openvino-cpu-bf16``).

        Raises:
            BundleError: it may mean more than one.
        """
        built = self.engine_names()
        if name in built:
            return name
        meant = [one for one in built if self._record(one, "").target == name]
        if not meant:
            return name
        if len(meant) > 1:
            raise BundleError(
                f"{self.root} holds several engines for {name}", f"name one of {', '.join(meant)}"
            )
        return meant[0]

    def engine(self, name: str) -> EngineRecord:
        """Read and check the record of an engine; `check_engine_files` reads its files.

        Args:
            name: as `engine_name` takes it.

        Raises:
            BundleError: there is none, it belongs to another manifest, or a file is missing.
        """
        full = self.engine_name(name)
        folder = self.root / engine_folder(full)
        built = ", ".join(self.engine_names()) or "none"
        hint = f"run dlmc build {self.root} --target {name} (built here: {built})"
        record = self._record(full, hint)
        again = f"run dlmc build {self.root} --target {record.target}"
        own = full == record.target or full.startswith(f"{record.target}-")
        if not own or record.manifest_sha256 != self.manifest_sha256:
            raise BundleError(f"{folder / ENGINE} was built from another bundle", again)
        if record.plan not in {**self.manifest.files, **record.files}:
            raise BundleError(f"{folder / ENGINE} states no size and hash of {record.plan}", again)
        check_files(self.root, record.files, hashes=False)
        return record

    def _record(self, name: str, hint: str) -> EngineRecord:
        path = self.root / engine_folder(name) / ENGINE
        return parse_engine_record(_read(path, f"engine for {name}", hint), str(path))

    def check_engine_files(self, record: EngineRecord) -> None:
        """Read every file that an engine runs from and compare its hash.

        Raises:
            BundleError: names the first that differs.
        """
        files = dict(record.files)
        if record.plan not in files:  # the bundle's own graph, which reads the bundle's weights
            own = () if self.weights_checked else self.manifest.weights
            files |= {name: self.manifest.files[name] for name in own}
        check_files(self.root, files)
