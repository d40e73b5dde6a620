"""A memory for traces: the tracer takes ten seconds for each, and many tests export alike."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dlmc.export import pipeline

if TYPE_CHECKING:
    import onnx_ir as ir

    from dlmc.checkpoint import TensorLocation
    from dlmc.denoiser.config import DenoiserConfig
    from dlmc.denoiser.head import Head

    Trace = Callable[[DenoiserConfig, Head], ir.Model]

_TRACER = "dlmc.export.trace"  # imported where something is exported: torch takes seconds to load


class Memory:
    """What was traced in this process, by who traced it and what was asked."""

    def __init__(self) -> None:
        self._made: dict[object, ir.Model] = {}

    def of(self, trace: "Trace") -> "Trace":
        """Return ``trace``, which then works once for all that it is asked alike.

        A trace depends on nothing but the configuration and the numbers of the head. Whoever asks
        gets a copy, which passes may change.
        """

        def remembered(config: "DenoiserConfig", head: "Head") -> "ir.Model":
            asked = (head.vocab_size, head.candidates, head.suppressed_ids, head.variant)
            key = trace, repr((config, *asked, head.parts))
            if key not in self._made:
                self._made[key] = trace(config, head)
            return self._made[key].clone()

        return remembered


@contextmanager
def traced_once() -> Iterator[None]:
    """Let exports in this process share traces; what calls the tracer itself traces anew."""
    memory, make = Memory(), pipeline._graph

    def graph(plan: pipeline.ExportPlan, weights: "Mapping[str, TensorLocation]") -> bytes:
        tracer = importlib.import_module(_TRACER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracer, "trace", memory.of(tracer.trace))
            return make(plan, weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_graph", graph)
        yield
