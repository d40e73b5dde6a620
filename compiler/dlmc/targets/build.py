"""`dlmc build`: check, plan, build, record."""

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dlmc.export.bundle_writer import file_record
from dlmc.targets import TARGETS
from dlmc.targets.options import BuildOptions, check_options, engine_name
from dlmc.targets.profiles import ProfileRequest, choose
from dlmc.targets.sizes import BYTES
from dlmc_runtime import preflight
from dlmc_runtime.bundle import ENGINE, PARTIAL, Bundle, engine_folder
from dlmc_runtime.cache import cache_shapes
from dlmc_runtime.engine_record import EngineRecord, Requirements
from dlmc_runtime.engines import ENGINES, make
from dlmc_runtime.engines.base import head_outputs, tensor_shape
from dlmc_runtime.engines.memory import item_size
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.manifest import Manifest, Precision, Profile, Quantization, TargetSpec, TensorSpec
from dlmc_runtime.version import __version__


@dataclass(frozen=True)
class BuildPlan:
    """What a build would make."""

    bundle: Bundle
    spec: TargetSpec
    options: BuildOptions
    profiles: tuple[Profile, ...]

    @property
    def target(self) -> str:
        """Where the engine will run."""
        return self.spec.target

    @property
    def precision(self) -> Precision:
        """What its layers compute in."""
        return self.spec.precision

    @property
    def quantization(self) -> Quantization:
        """How their weights are quantized."""
        return self.spec.quantization

    @property
    def name(self) -> str:
        """What the engine will be called."""
        return engine_name(self.spec, self.options)

    def memory(self) -> list[dict[str, int]]:
        """Return what each profile needs besides the weights, see `memory`."""
        return [memory(self.bundle, profile, self.precision) for profile in self.profiles]

    @property
    def folder(self) -> Path:
        """Where the engine goes."""
        return self.bundle.root / engine_folder(self.name)

    @property
    def output(self) -> Path:
        """Where the engine record goes."""
        return self.folder / ENGINE


@dataclass(frozen=True)
class Built:
    """What a target made.

    Attributes:
        plan: file that the engine loads, inside the engine's folder; None for the bundle's graph.
        device: where it runs, such as ``cpu``.
        requires: what it needs of a machine.
        cache_dtype: of the graph's caches.
        options: what was set in the engine's library, for people to read.
        versions: of whatever decided how it looks.
    """

    plan: str | None
    device: str
    requires: Requirements
    cache_dtype: Precision = "float32"
    options: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def memory(bundle: Bundle, profile: Profile, cache_dtype: Precision = "float32") -> dict[str, int]:
    """Return the bytes a profile needs besides the weights: caches, inputs and head outputs."""
    manifest = bundle.manifest
    model, b, t, r = manifest.model, profile.batch, profile.block, profile.rows
    kept = sum(math.prod(shape) for shape in cache_shapes(model, b, profile.cache).values())
    fed = 2 * b * t * sum(layer.key_value_heads * layer.head_dim for layer in model.caches)
    answered = head_outputs(manifest)
    return {
        "cache": kept * BYTES[cache_dtype],
        "present": fed * BYTES[cache_dtype],
        "inputs": _bytes(
            (x for x in manifest.inputs if not x.name.startswith("past_key_values.")),
            profile,
            manifest,
        ),
        "outputs": _bytes((x for x in manifest.outputs if x.name in answered), profile, manifest),
        "logits": b * r * model.vocab_size * BYTES["float32"],
    }


def _bytes(specs: Iterable[TensorSpec], profile: Profile, manifest: Manifest) -> int:
    return sum(
        math.prod(tensor_shape(spec, profile, manifest.attention)) * item_size(spec.dtype)
        for spec in specs
    )


def plan_build(
    root: Path, target: str, request: ProfileRequest, options: BuildOptions | None = None
) -> BuildPlan:
    """Check everything that can be checked before the work starts.

    Raises:
        UsageError: unknown target, options it does not have, or shapes that contradict the family.
        BundleError: the bundle does not load or has no weights.
        EngineError: a library that building takes is not installed.
    """
    bundle = Bundle.open(root)
    bundle.require_weights()
    manifest = bundle.manifest
    spec = check_options(target, options or BuildOptions(), manifest.targets)
    _check_installed(target)
    if spec.profiles:
        manifest = manifest.model_copy(update={"profiles": spec.profiles})
    profiles = choose(manifest, request)
    for profile in profiles:
        if sum(memory(bundle, profile).values()) > _MOST_MEMORY:
            raise UsageError(
                f"a forward of {profile} needs more memory than any machine has",
                "give smaller --batch, --block, --cache or --prefill",
            )
    return BuildPlan(bundle, spec, options or BuildOptions(), profiles)


_MOST_MEMORY = 1 << 40  # bytes, what a record can state


def _check_installed(target: str) -> None:
    """Refuse to begin what would end in an import that fails.

    Raises:
        EngineError: says what is missing and how to install it.
    """
    library = TARGETS[target].library
    if library is not None and preflight.ThisMachine().library(library) is None:
        raise EngineError(
            f"building for {target} needs {library}, which is not installed",
            preflight.install(library),
        )
    if find_spec("onnx_ir") is None:
        raise EngineError(
            "building needs onnx-ir, which is not installed", "pip install 'dlmc[compile]'"
        )


def build_engine(plan: BuildPlan) -> EngineRecord:
    """Build the engine and write its record, which is what makes it loadable.

    Raises:
        EngineError: the target's library refuses the graph or a profile, or the disk is full.
    """
    build: Callable[[BuildPlan, Path], Built] = import_module(TARGETS[plan.target].module).build
    with _staged(plan.folder) as folder:
        built = build(plan, folder)
        _try(plan.bundle, _record(plan, built, folder, f"{folder.parent.name}/{folder.name}"))
        record = _record(plan, built, folder, engine_folder(plan.name))
        (folder / ENGINE).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return record


def _try(bundle: Bundle, record: EngineRecord) -> None:
    """Run every profile once, where this machine can run such engines."""
    if record.target not in ENGINES or preflight.obstacle(record) is not None:
        return
    engine = make(bundle, record)
    try:
        for profile in record.profiles:
            cache = engine.cache(profile.batch, profile.cache)
            engine.forward(engine.inputs(profile), cache, [])
    finally:
        engine.close()


def _record(plan: BuildPlan, built: Built, folder: Path, own: str) -> EngineRecord:
    """Describe what lies in ``folder``, which is or will be called ``own`` in the bundle."""
    manifest = plan.bundle.manifest
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return EngineRecord(
        target=plan.target,
        device=built.device,
        precision=plan.precision,
        quantization=plan.quantization,
        tolerances=plan.spec.tolerances,
        cache_dtype=built.cache_dtype,
        profiles=plan.profiles,
        plan=manifest.graph if built.plan is None else f"{own}/{built.plan}",
        options=built.options,
        requires=built.requires,
        manifest_sha256=plan.bundle.manifest_sha256,
        versions={"dlmc": __version__, **built.versions},
        files={f"{own}/{path.relative_to(folder).as_posix()}": file_record(path) for path in files},
    )


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """Yield a sibling of ``output`` that replaces it at the end, or disappears."""
    folder: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{output.name}{PARTIAL}"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
        folder.chmod(0o755)
        yield folder
        _replace(output, folder)
    except OSError as error:
        raise EngineError(
            f"{output / ENGINE} cannot be written ({error.strerror})", "make room and build again"
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            output.parent.rmdir()  # only where nothing else lies in it


def _replace(output: Path, folder: Path) -> None:
    """Give ``folder`` the name ``output``; what was there goes first, in one step of its own."""
    if output.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{output.name}{PARTIAL}", dir=output.parent))
        os.replace(output, old / "old")  # noqa: PTH105  (atomic on every platform)
        os.replace(folder, output)  # noqa: PTH105
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(folder, output)  # noqa: PTH105
