"""The reference: a bundle's own weights in the torch module that was traced."""

import json

import torch
from safetensors import safe_open

from dlmc import families
from dlmc.denoiser.head import DenoiserWithHead, Head
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.manifest import Profile


def load_reference(bundle: Bundle, profiles: tuple[Profile, ...]) -> TorchEngine:
    """Load a bundle into torch, in float32 whatever the weights are stored in."""
    manifest = bundle.manifest
    config = json.loads((bundle.root / manifest.config).read_text(encoding="utf-8"))
    family = families.detect(config, manifest.family)
    overrides = families.Overrides(
        mask_id=manifest.tokens.mask, block_length=manifest.attention.block_length
    )
    spec = family.read(config, {}, overrides)
    names = family.weight_names(spec)
    head = Head(spec.denoiser.vocab_size, manifest.head.candidates, manifest.tokens.suppressed)
    module = DenoiserWithHead(spec.denoiser, head)
    parameters = dict(module.denoiser.named_parameters())
    wanted = {theirs: ours for ours, theirs in names.items()}
    for path in manifest.weights:
        with safe_open(bundle.root / path, "pt") as file, torch.no_grad():
            for name in wanted.keys() & set(file.keys()):
                parameters[wanted[name]].copy_(file.get_tensor(name))
    return TorchEngine(module, manifest, profiles)
