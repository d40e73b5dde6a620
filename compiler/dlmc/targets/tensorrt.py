"""TensorRT: a strongly typed network from the graph, one optimization profile for each of ours."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dlmc.targets.build import BuildPlan, Built
from dlmc.targets.lowered import Graph, lowered
from dlmc_runtime import preflight
from dlmc_runtime.engine_record import Requirements
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.engines.base import plan_dtype, tensor_shape
from dlmc_runtime.engines.cuda import compute_capability
from dlmc_runtime.engines.tensorrt import NAMES, Log, library, logger
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.manifest import Precision

PLAN = "engine.plan"
_AMPERE = "sm80"

Configure = Callable[[Any, Any], None]
"""Sets what a target wants in a builder's configuration, given the library and it."""


def build(plan: BuildPlan, folder: Path) -> Built:
    """Build a plan for the GPU that is here.

    Raises:
        UsageError: the GPU is too old for what is asked.
        EngineError: there is no GPU, or TensorRT refuses the graph or a profile.
    """
    here, options = compute_capability(), plan.options
    if here is None:
        raise EngineError(
            "tensorrt builds only on the GPU that will run the engine, none answers here",
            "build there, or for tensorrt-rtx with --compute-capability",
        )
    wide = options.hardware_compatible
    if wide and int(here[2:]) < int(_AMPERE[2:]):
        raise UsageError("--hardware-compatible begins with sm80", f"this GPU is {here}")

    def configure(trt: Any, config: Any) -> None:
        if wide:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
            # A plan with a runtime inside would carry host code to whoever loads it.
            config.set_flag(trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME)

    return build_plan(
        plan,
        folder,
        configure,
        match="later" if options.version_compatible else "exact",
        system=preflight.ThisMachine().system(),
        compute_capabilities=(_AMPERE,) if wide else (here,),
        newer_gpus=wide,
    )


def build_plan(plan: BuildPlan, folder: Path, configure: Configure, **needs: Any) -> Built:
    """Build a plan with whatever library ``plan.target`` names.

    Args:
        plan: what to build.
        folder: gets the plan.
        configure: see `Configure`.
        needs: fields of the engine's `Requirements` besides library, version and memory.

    Raises:
        EngineError: the library is not installed, or refuses the graph or a profile.
    """
    trt = library(plan.target)
    own_logger, log = logger(trt)
    with _listening(log, plan.options.log), _scratch(folder) as scratch:
        graph = lowered(plan, scratch, "qdq")
        if graph.plan is None:
            plan.bundle.check_graph(plan.bundle.manifest.graph)
        _write(trt, own_logger, log, plan, graph, folder / PLAN, configure)
    size = (folder / PLAN).stat().st_size
    distribution = ENGINES[plan.target].distribution
    found = _version(distribution, trt)
    return Built(
        plan=PLAN,
        device="cuda",
        cache_dtype=graph.cache_dtype,
        requires=Requirements(
            library=distribution,
            version=found,
            memory=size + graph.memory - graph.weights,
            **needs,
        ),
        options=_described(plan),
        versions={distribution: found},
    )


def _version(distribution: str, trt: Any) -> str:
    """Return the version as an installer states it, which is what is compared before loading."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return str(trt.__version__)


def _described(plan: BuildPlan) -> dict[str, str]:
    options = plan.options
    said = {
        "tf32": False,
        "refit": options.refit,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
    }
    return {name: "on" if value else "off" for name, value in said.items()}


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield a folder for what the build reads and the engine does not need."""
    scratch = folder / "lowered"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _listening(log: Log, path: Path | None) -> Iterator[None]:
    """Write all that the library says to a file, where one is asked for.

    Raises:
        EngineError: the file cannot be written.
    """
    log.errors.clear()
    if path is None:
        yield
        return
    problems: list[OSError] = []
    try:
        with path.open("w", encoding="utf-8") as file:

            def listen(severity: str, message: str) -> None:
                try:
                    file.write(f"[{severity}] {message}\n")
                except OSError as error:  # the library knows no exceptions
                    problems.append(error)

            log.listen = listen
            yield
        if problems:
            raise problems[0]
    except OSError as error:
        raise EngineError(f"--log {path} cannot be written ({error.strerror})", "") from error
    finally:
        log.listen = None


def _write(
    trt: Any,
    own_logger: Any,
    log: Log,
    plan: BuildPlan,
    graph: Graph,
    output: Path,
    configure: Configure,
) -> None:
    """Parse the graph, build it for all profiles, and write the plan as it is made."""
    builder = trt.Builder(own_logger)
    strong = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strong is None else 1 << int(strong))
    parser = trt.OnnxParser(network, own_logger)
    # From a file, the parser maps the weights into memory; from bytes it would copy them.
    if not parser.parse_from_file(str(graph.path)):
        raise EngineError(
            f"{trt.__name__} {trt.__version__} cannot read {graph.path} ({log.first()})",
            "export the bundle again",
        )
    _check(trt, network, plan, graph.cache_dtype)
    allow_plain_attention(trt, network)
    config = _config(trt, builder, plan)
    configure(trt, config)
    cache = plan.options.timing_cache
    if cache is not None:
        _start_from(config, cache, log)
    writer = _writer(trt, output)
    made = builder.build_serialized_network_to_stream(network, config, writer)
    writer.close()
    if not made or not output.stat().st_size:
        raise EngineError(
            f"{trt.__name__} {trt.__version__} cannot build {plan.name} ({log.first()})",
            "--log FILE writes down all that it says",
        )
    if cache is not None:
        _update(cache, bytes(config.get_timing_cache().serialize()))


def _check(trt: Any, network: Any, plan: BuildPlan, cache_dtype: Precision) -> None:
    """Check that the network has the inputs and outputs that the manifest promises."""
    manifest = plan.bundle.manifest
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    for found, specs in ((inputs, manifest.inputs), (outputs, manifest.outputs)):
        names = {tensor.name for tensor in found} ^ {spec.name for spec in specs}
        tensors = {tensor.name: tensor for tensor in found}
        odd = sorted(names) or [
            spec.name
            for spec in specs
            if tensors[spec.name].dtype
            != getattr(trt.DataType, NAMES[plan_dtype(spec, cache_dtype)])
            or len(tensors[spec.name].shape) != len(spec.shape)
        ]
        if odd:
            raise EngineError(
                f"{plan.bundle.root / manifest.graph} and its manifest disagree about {odd[0]}",
                "export it again",
            )


def allow_plain_attention(trt: Any, network: Any) -> None:
    """Let attention be built of plain layers where no kernel has its shape and type.

    There is none for float32, and the parser leaves that off.
    """
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
            layer.attention.decomposable = True


def _config(trt: Any, builder: Any, plan: BuildPlan) -> Any:
    """Return a configuration with what all targets want, and the profiles."""
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    if plan.options.refit:
        config.set_flag(trt.BuilderFlag.REFIT)
    if plan.options.log is not None:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for profile in plan.profiles:
        shapes = builder.create_optimization_profile()
        for spec in plan.bundle.manifest.inputs:
            shape = tensor_shape(spec, profile, plan.bundle.manifest.attention)
            shapes.set_shape(spec.name, shape, shape, shape)
        config.add_optimization_profile(shapes)
    return config


def _writer(trt: Any, path: Path) -> Any:
    """Return a writer that passes a plan on to a file, and has what went wrong raised later."""

    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self._file = path.open("wb")
            self._problem: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                return self._file.write(data)
            except OSError as error:  # the library knows no exceptions
                self._problem = self._problem or error
                return 0

        def close(self) -> None:
            self._file.close()
            if self._problem is not None:
                raise self._problem

    return Writer()


def _start_from(config: Any, path: Path, log: Log) -> None:
    """Give a build the kernel times that an earlier one measured."""
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise EngineError(f"--timing-cache {path} cannot be read ({error.strerror})", "") from error
    cache = config.create_timing_cache(data)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise EngineError(
            f"--timing-cache {path} does not fit this library and GPU ({log.first()})",
            "name a new file",
        )


def _update(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)  # noqa: PTH105  (atomic on every platform)
    except OSError as error:
        raise EngineError(
            f"--timing-cache {path} cannot be written ({error.strerror})", ""
        ) from error
    finally:
        partial.unlink(missing_ok=True)
