"""From a denoiser's shape to its ONNX graph, on the meta device: no weight is ever in memory."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping

import onnx_ir as ir
import torch
from onnxscript import optimizer
from torch import Tensor
from torch._dynamo import config as tracing

from dlmc.denoiser.config import MIXTURE, DenoiserConfig
from dlmc.denoiser.head import DenoiserWithHead, Head
from dlmc.export.graph_io import (
    BATCH,
    BLOCK,
    CACHE,
    CONTEXT,
    LAST,
    LAST_CONTEXT,
    ROWS,
    arguments,
    graph_inputs,
    graph_outputs,
)
from dlmc.export.passes.check_graph import CheckGraph
from dlmc.export.passes.define_mixture import DefineMixture
from dlmc.export.passes.fill_constants import FillConstants
from dlmc.export.passes.name_io import NameIo
from dlmc.export.passes.name_nodes import NameNodes
from dlmc.export.passes.repeat_layer import RepeatLayer, kinds_to_trace
from dlmc.export.passes.strip_metadata import StripMetadata
from dlmc.export.translation import TRANSLATIONS, decomposing_where_needed
from dlmc_runtime.manifest import TensorSpec
from dlmc_runtime.version import __version__

OPSET = 23

# Sizes the example inputs have while tracing. All differ and none is 0 or 1, so that the tracer
# neither takes two dimensions for the same one nor one of them for a constant.
_BATCH, _BLOCK, _CACHE, _LAST, _ROWS = 2, 7, 5, 4, 3

_DTYPES = {"int64": torch.int64, "bool": torch.bool, "float32": torch.float32}

# `DenoiserWithHead` holds the denoiser under this name; parameters in the graph go without it.
_PREFIX = "denoiser."


def trace(config: DenoiserConfig, head: Head) -> ir.Model:
    """Trace the denoiser of ``config`` with ``head``.

    Args:
        config: shape of the denoiser.
        head: the head to put on it, on any device.

    Returns:
        A model with the inputs and outputs of `graph_io`, whose parameters are initializers
        named as in `Denoiser` and hold no values yet.
    """
    kinds = [config.kind(layer) for layer in range(config.num_hidden_layers)]
    traced = config.with_kinds(kinds_to_trace(kinds))
    with torch.device("meta"):
        module = DenoiserWithHead(
            traced,
            Head(
                head.vocab_size,
                head.candidates,
                head.suppressed_ids,
                head.variant,
                len(head.parts),
            ),
        ).eval()
    with _quiet():
        model = _export(module, graph_inputs(traced, head.variant), _example_sizes(traced))
        FillConstants(constants(module))(model)
        optimizer.optimize_ir(model)
        ir.passes.Sequential(
            NameIo(*_io(traced, head)),
            NameNodes(_PREFIX),
            StripMetadata(),
            RepeatLayer(kinds),
            DefineMixture(),
            CheckGraph(*_io(config, head), {MIXTURE[0]}),
        )(model)
    model.producer_name, model.producer_version = "dlmc", __version__
    return model


def _io(
    config: DenoiserConfig, head: Head
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    return graph_inputs(config, head.variant), graph_outputs(config, head.candidates, head.variant)


def constants(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the values of all buffers that modules inside ``module`` state, by full name."""
    return {
        f"{name}.{key}": value
        for name, part in module.named_modules()
        if hasattr(part, "constants")
        for key, value in part.constants().items()
    }


def _example_sizes(config: DenoiserConfig) -> dict[str, int]:
    """Return the size that every symbolic dimension has while tracing."""
    together = config.moe.routing_block if config.moe is not None else 0
    block = _BLOCK * max(together, 1)
    whole = {CACHE: _CACHE, CONTEXT: _CACHE + block}
    last = {LAST: _LAST, LAST_CONTEXT: _LAST + block}
    return {BATCH: _BATCH, BLOCK: block, **whole, **last, ROWS: _ROWS}


def _export(
    module: DenoiserWithHead, specs: tuple[TensorSpec, ...], sizes: Mapping[str, int]
) -> ir.Model:
    """Run the exporter over meta tensors of the example sizes."""
    tensors = {spec.name: _example(spec, sizes) for spec in specs}
    dims = {s.name: {i: d for i, d in enumerate(s.shape) if isinstance(d, str)} for s in specs}
    # To look up a result of symbolic sizes takes longer than to work it out.
    with decomposing_where_needed(), tracing.patch(fake_tensor_cache_enabled=False):
        program = torch.onnx.export(
            module,
            kwargs=arguments(tensors),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=arguments(dims),
            custom_translation_table=TRANSLATIONS,
            # The optimizer would read values that meta tensors do not have: it runs afterwards.
            optimize=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model


def _example(spec: TensorSpec, sizes: Mapping[str, int]) -> Tensor:
    """Return a meta tensor of the type and example size of a graph input."""
    shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
    return torch.zeros(shape, dtype=_DTYPES[spec.dtype], device="meta")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says about itself: missing torchvision, its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
