"""ONNX Runtime on the CPU."""

from collections.abc import Sequence
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Cache
from dlmc_runtime.engines.base import OUTPUTS, Inputs, Outputs, Store
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import EngineRecord, Profile, TensorSpec

_ERRORS_ONLY = 3


def open_session(bundle: Bundle, plan: str) -> onnxruntime.InferenceSession:
    """Open a session on a graph of the bundle.

    Raises:
        EngineError: ONNX Runtime refuses the graph, or it lacks what the manifest promises.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    path = bundle.root / plan
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path} ({reason})",
            "export the bundle again",
        ) from error
    _compare(session.get_inputs(), bundle.manifest.inputs, str(path))
    _compare(session.get_outputs(), bundle.manifest.outputs, str(path))
    return session


def _compare(
    found: Sequence[onnxruntime.NodeArg], promised: Sequence[TensorSpec], where: str
) -> None:
    """Check that a graph has the inputs or outputs its manifest lists."""
    names, wanted = [arg.name for arg in found], [spec.name for spec in promised]
    if names != wanted:
        odd = sorted(set(names) ^ set(wanted)) or names
        raise EngineError(f"{where} and its manifest disagree about {odd[0]}", "export it again")


class OnnxRuntimeEngine:
    """A session whose caches live on the host."""

    def __init__(self, bundle: Bundle, record: EngineRecord) -> None:
        self.manifest = bundle.manifest
        self.profiles: tuple[Profile, ...] = record.profiles
        self._session: onnxruntime.InferenceSession | None = open_session(bundle, record.plan)
        self._present = [
            spec.name for spec in bundle.manifest.outputs if spec.name.startswith("present.")
        ]

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        return Cache(self.manifest.model, batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate the input buffers of a profile."""
        return Inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then append what ``stores`` names to the cache.

        Raises:
            EngineError: ONNX Runtime fails, or the engine was closed.
        """
        if self._session is None:
            raise EngineError("the engine was closed", "load the bundle again")
        names = [*OUTPUTS, *self._present] if stores else [*OUTPUTS]
        try:
            answers: list[NDArray[Any]] = self._session.run(
                names, {**inputs.arrays(), **cache.past}
            )
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            reason = str(error).splitlines()[0]
            raise EngineError(
                f"ONNX Runtime failed at {inputs.profile} ({reason})", "run dlmc validate"
            ) from error
        for store in stores:
            cache.write(store.row, store.count, answers[len(OUTPUTS) :])
        return Outputs(*answers[: len(OUTPUTS)])

    def close(self) -> None:
        """Release the session; calling it again does nothing."""
        self._session = None
