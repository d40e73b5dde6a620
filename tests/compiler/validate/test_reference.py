import torch
from safetensors.torch import load_file

from dlmc.validate.reference import load_reference


def test_every_weight_of_the_bundle_is_loaded(bundle, goldens):
    engine = load_reference(bundle, bundle.manifest.profiles)
    checkpoint = load_file(goldens / "sdar" / "model.safetensors")
    loaded = engine.module.denoiser.state_dict()
    assert len(loaded) == len(checkpoint)
    for name, value in loaded.items():
        theirs = name if name.startswith("lm_head") else f"model.{name}"
        assert torch.equal(value, checkpoint[theirs].float()), name


def test_the_reference_suppresses_what_the_manifest_says(bundle):
    engine = load_reference(bundle, bundle.manifest.profiles)
    assert engine.module.head.suppressed_ids == bundle.manifest.tokens.suppressed
