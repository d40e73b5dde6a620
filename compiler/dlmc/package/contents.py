"""Which files of a bundle a package needs: those whose hashes are on record, and no others."""

from collections.abc import Iterator
from dataclasses import dataclass

from dlmc.folder_writer import FolderWriter, Kind
from dlmc.package.options import PackageOptions, model_name
from dlmc_runtime.bundle import ENGINE, MANIFEST, Bundle, engine_folder
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.package.record import PACKAGE, PackageRecord
from dlmc_runtime.version import __version__

KIND = Kind("package", PACKAGE)


@dataclass(frozen=True)
class Contents:
    """A bundle and the one of its engines that a package serves; all hashes have been compared.

    Attributes:
        bundle: the bundle.
        engine: full name of the engine.
        record: the engine's record.
        name: what clients call the model.
        options: what was asked for.
    """

    bundle: Bundle
    engine: str
    record: EngineRecord
    name: str
    options: PackageOptions

    @classmethod
    def read(cls, options: PackageOptions) -> "Contents":
        """Open the bundle and read every file that the package will hold.

        Raises:
            BundleError: something is missing, damaged or does not belong together.
            UsageError: the name cannot be part of an address.
        """
        name = model_name(options)
        bundle = Bundle.open(options.bundle)
        bundle.require_weights()
        record = bundle.engine(options.target)
        bundle.check_engine_files(record)
        return cls(bundle, bundle.engine_name(options.target), record, name, options)

    @property
    def gpu(self) -> bool:
        """Whether the engine runs on a GPU."""
        return self.record.device != "cpu"

    def files(self) -> Iterator[str]:
        """Return the files, relative to the bundle."""
        yield MANIFEST
        yield from sorted({*self.bundle.manifest.files, *self.record.files})
        yield f"{engine_folder(self.engine)}/{ENGINE}"

    def add_bundle(self, package: FolderWriter, folder: str) -> None:
        """Put the bundle into a folder of the package, as hard links where the disk can."""
        for name in self.files():
            package.link(self.bundle.root / name, f"{folder}/{name}")

    def add_record(self, package: FolderWriter) -> None:
        """Write ``package.json``."""
        record = PackageRecord(
            format=self.options.format,
            name=self.name,
            target=self.engine,
            manifest_sha256=self.bundle.manifest_sha256,
            version=__version__,
        )
        package.write(PACKAGE, record.model_dump_json(indent=2).encode() + b"\n")
