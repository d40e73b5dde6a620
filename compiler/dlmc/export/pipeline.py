"""`dlmc export`: from a checkpoint to a bundle, as one list of stages."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from dlmc.checkpoint import ADAPTER_CONFIG, TensorLocation
from dlmc.export.bundle_writer import BundleWriter
from dlmc.export.document import CONFIG, GRAPH, build_manifest
from dlmc.export.options import ExportOptions
from dlmc.export.plan import ExportPlan, plan_export
from dlmc.export.stacking import referenced, write_own_files

__all__ = ["ExportOptions", "ExportPlan", "export_checkpoint", "plan_export"]


def export_checkpoint(
    options: ExportOptions, announce: Callable[[ExportPlan], None] = lambda _: None
) -> Path:
    """Make a bundle and return its folder.

    Args:
        options: what to export, and how.
        announce: called with the plan before the work starts.

    Raises:
        UsageError: as `plan_export`.
        CheckpointError: as `plan_export`.
        DlmcError: the bundle cannot be written. Nothing is left behind, whatever happens.
    """
    plan = plan_export(options)
    announce(plan)
    with BundleWriter(options.output, force=options.force) as bundle:
        weights = _add_weights(plan, bundle)
        bundle.write(GRAPH, _graph(plan, weights))
        bundle.write(CONFIG, json.dumps(plan.config, indent=2).encode() + b"\n")
        if plan.adapter is not None:
            bundle.write(ADAPTER_CONFIG, json.dumps(plan.adapter.config, indent=2).encode() + b"\n")
        _add_text(plan, bundle)
        bundle.finish(lambda files: build_manifest(plan, files))
    return options.output


def _graph(plan: ExportPlan, weights: Mapping[str, TensorLocation]) -> bytes:
    """Trace the denoiser and point its parameters at the bytes of the bundle's files."""
    import onnx_ir as ir

    from dlmc.denoiser.head import Head
    from dlmc.export.passes.attach_weights import AttachWeights
    from dlmc.export.passes.share_slices import ShareSlices
    from dlmc.export.trace import trace
    from dlmc.export.weights import external_tensors

    config, spec = plan.spec.denoiser, plan.spec
    parts = -(-config.vocab_size // plan.options.head_part) if config.gemma is not None else 1
    head = Head(config.vocab_size, spec.candidates, plan.suppressed, plan.options.variant, parts)
    model = trace(config, head)
    AttachWeights(external_tensors(weights))(model)
    ShareSlices()(model)
    graph: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return graph


def _add_weights(plan: ExportPlan, bundle: BundleWriter) -> dict[str, TensorLocation]:
    """Link the checkpoint's files, write those of the bundle's own; return where each weight lies.

    Without weights it is where they would lie.
    """
    for name, source in plan.files.items():
        bundle.link(source, name)
    return referenced(plan.weights) | write_own_files(plan.weights, plan.own_files, bundle)


def _add_text(plan: ExportPlan, bundle: BundleWriter) -> None:
    if plan.text is None:
        return
    for name, source in plan.text.copies.items():
        bundle.copy(source, name)
    if plan.text.spec.chat_template and plan.text.template is not None:
        bundle.write(plan.text.spec.chat_template, plan.text.template.encode())
