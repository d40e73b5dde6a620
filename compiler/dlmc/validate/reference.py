"""References: the bundle's weights in torch, its graph in ONNX Runtime, or another engine."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle, check_files
from dlmc_runtime.cache import Cache
from dlmc_runtime.engine_record import EngineRecord, Requirements
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Manifest, Profile

if TYPE_CHECKING:
    from dlmc.validate.recording import Arrays
    from dlmc.validate.torch_engine import TorchEngine

TORCH, GRAPH = "torch", "graph"

Profiles = tuple[Profile, ...]


def open_reference(bundle: Bundle, against: str, profiles: Profiles) -> Engine:
    """Load what an engine is compared with.

    Args:
        bundle: the bundle.
        against: ``torch``, ``graph``, or an engine of the bundle as `Bundle.engine_name` takes it.
        profiles: what ``torch`` and ``graph``, which take any shape, say they were built for.

    Raises:
        UsageError: nothing is called that.
        BundleError: the weights are missing or damaged, or the other engine is not whole.
        EngineError: the reference does not load or does not run here.
    """
    if against == TORCH:
        return load_reference(bundle, profiles)
    if against == GRAPH:
        return load_graph(bundle, profiles)
    return engines.load(bundle, against)


class Reshaped:
    """A reference with the profiles of the engine that is compared with it.

    Args:
        engine: the reference.
        name: as `open_reference` takes it.
        profiles: of the engine to compare; a reference that is an engine runs those it shares.

    Raises:
        UsageError: it shares none.
    """

    def __init__(self, engine: Engine, name: str, profiles: Profiles) -> None:
        self._engine = engine
        if name not in (TORCH, GRAPH):
            profiles = tuple(one for one in profiles if one in engine.profiles)
        if not profiles:
            raise UsageError(
                f"{name} was built for other shapes than the engine to compare",
                "build both with the same profiles, or compare with torch",
            )
        self._profiles = profiles

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._engine.manifest

    @property
    def profiles(self) -> Profiles:
        """The shapes to run."""
        return self._profiles

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache."""
        return self._engine.cache(batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate input buffers."""
        return self._engine.inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser."""
        return self._engine.forward(inputs, cache, stores)

    def close(self) -> None:
        """Leave the reference open: other shapes may follow."""


def load_reference(bundle: Bundle, profiles: Profiles) -> "TorchEngine":
    """Load a bundle's weights into torch, in float32 whatever they are stored in.

    Raises:
        BundleError: the bundle has no weights, or they are not those of the manifest.
    """
    import torch
    from safetensors import safe_open

    from dlmc import families
    from dlmc.checkpoint import ADAPTER_CONFIG, parse_adapter
    from dlmc.checkpoint.bounded_json import read_json
    from dlmc.denoiser.head import DenoiserWithHead, Head
    from dlmc.validate.torch_engine import TorchEngine

    manifest = bundle.manifest
    _check_weights(bundle)
    config = json.loads((bundle.root / manifest.config).read_text(encoding="utf-8"))
    family = families.detect(config, manifest.family)
    overrides = families.Overrides(
        mask_id=manifest.tokens.mask, block_length=manifest.attention.block_length
    )
    spec = family.read(config, {}, overrides)
    if ADAPTER_CONFIG in manifest.files:
        adapter = read_json(bundle.root / ADAPTER_CONFIG)
        spec = parse_adapter(adapter).applied(family, spec)
    names = family.weight_names(spec)
    head = Head(
        spec.denoiser.vocab_size,
        manifest.head.candidates,
        manifest.tokens.suppressed,
        manifest.head.variant,
    )
    module = DenoiserWithHead(spec.denoiser, head)
    parameters = dict(module.denoiser.named_parameters())
    # Files of the bundle's own name tensors as the denoiser does.
    wanted = {theirs: ours for ours, theirs in names.items()} | {ours: ours for ours in parameters}
    for path in manifest.weights:
        with safe_open(bundle.root / path, "pt") as file, torch.no_grad():
            for name in wanted.keys() & set(file.keys()):
                parameters[wanted[name]].copy_(file.get_tensor(name))
    return TorchEngine(module, manifest, profiles)


def _check_weights(bundle: Bundle) -> None:
    """Refuse weights that are missing or not those of the manifest, before anything parses them."""
    bundle.require_weights()
    if not bundle.weights_checked:
        manifest = bundle.manifest
        check_files(bundle.root, {name: manifest.files[name] for name in manifest.weights})


def load_graph(bundle: Bundle, profiles: Profiles) -> Engine:
    """Load the bundle's own float32 graph in ONNX Runtime, which takes any shape.

    Raises:
        BundleError: as `load_reference`.
        EngineError: ONNX Runtime refuses the graph.
    """
    _check_weights(bundle)
    return engines.make(bundle, graph_record(bundle, profiles))


def graph_record(bundle: Bundle, profiles: Profiles) -> EngineRecord:
    """Return the record that an engine of the bundle's own graph would have."""
    return EngineRecord(
        target="onnxruntime-cpu",
        device="cpu",
        precision="float32",
        profiles=profiles,
        plan=bundle.manifest.graph,
        requires=Requirements(library="onnxruntime", version="", match="any"),
        manifest_sha256=bundle.manifest_sha256,
        versions={},
        files={},
    )


def is_graph(bundle: Bundle, record: EngineRecord) -> bool:
    """Return whether an engine is what `load_graph` would load, however its plan is written.

    Comparing it with that would compare ONNX Runtime with itself.
    """
    kind = (record.target, record.precision, record.quantization)
    return kind == ("onnxruntime-cpu", bundle.manifest.precision, "none")


@contextmanager
def answering(
    bundle: Bundle, against: str, engine: Engine
) -> Iterator[Callable[["Arrays"], "Arrays"]]:
    """Yield a function that returns all outputs of the graph, by name, for its inputs.

    Raises:
        UsageError: the reference is an engine, which answers only what the runtime asks for.
    """
    from dlmc.validate.torch_engine import TorchEngine

    if isinstance(engine, TorchEngine):
        yield engine.run
    elif against == GRAPH:
        from dlmc.validate.probes import session

        with session(bundle.root / bundle.manifest.graph) as runner:
            yield lambda feeds: dict(runner.infer(feeds))
    else:
        raise UsageError(
            f"states cannot be saved against {against}", "save them against torch or graph"
        )
