"""The manifest of a planned export."""

from collections.abc import Mapping
from importlib.metadata import version

from dlmc.denoiser.config import DenoiserConfig
from dlmc.export.graph_io import graph_inputs, graph_outputs
from dlmc.export.plan import ExportPlan
from dlmc_runtime.manifest import Head, LayerCache, Manifest, Model, Provenance
from dlmc_runtime.record import FileRecord
from dlmc_runtime.version import __version__

GRAPH = "denoiser.onnx"
CONFIG = "config.json"

# Whatever decides how the graph looks.
_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript")


def build_manifest(plan: ExportPlan, files: Mapping[str, FileRecord]) -> Manifest:
    """Return the manifest of a bundle made by ``plan`` that holds ``files``."""
    spec, options = plan.spec, plan.options
    return Manifest(
        family=spec.family,
        architecture=spec.architecture,
        attention=spec.attention,
        shift=spec.shift,
        tokens=spec.tokens.model_copy(update={"suppressed": plan.suppressed}),
        model=_model(plan),
        head=Head(variant=options.variant, candidates=spec.candidates),
        precision="float32",
        inputs=graph_inputs(spec.denoiser, options.variant),
        outputs=graph_outputs(spec.denoiser, spec.candidates, options.variant),
        profiles=plan.profiles,
        sampler=plan.sampler,
        max_new_tokens=plan.max_new_tokens,
        text=plan.text.spec if plan.text else None,
        tolerances=dict(plan.tolerances),
        targets=plan.targets,
        provenance=Provenance(
            source=plan.source,
            revision=plan.revision,
            recipe=plan.recipe,
            versions={"dlmc": __version__} | {tool: version(tool) for tool in _TOOLS},
        ),
        config=CONFIG,
        graph=GRAPH,
        weights=(*plan.files, *plan.own_files),
        files=dict(files),
    )


def _model(plan: ExportPlan) -> Model:
    denoiser = plan.spec.denoiser
    return Model(
        vocab_size=denoiser.vocab_size,
        hidden_size=denoiser.hidden_size,
        num_hidden_layers=denoiser.num_hidden_layers,
        num_attention_heads=denoiser.num_attention_heads,
        num_key_value_heads=denoiser.num_key_value_heads,
        head_dim=denoiser.head_dim,
        max_position_embeddings=plan.spec.max_position_embeddings,
        parameters=plan.parameters,
        layers=_caches(denoiser) if denoiser.gemma is not None else (),
    )


def _caches(denoiser: DenoiserConfig) -> tuple[LayerCache, ...]:
    """Return what each layer keeps of the context."""
    found = []
    for layer in range(denoiser.num_hidden_layers):
        kind = denoiser.kind(layer)
        heads, head_dim = denoiser.cache_shape(kind)
        window = denoiser.sliding_context if denoiser.keeps_last(kind) else None
        found.append(LayerCache(key_value_heads=heads, head_dim=head_dim, window=window))
    return tuple(found)
