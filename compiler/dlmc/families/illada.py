"""iLLaDA (arXiv 2606.25331): LLaDA's second generation, a Llama network with Llama's key names.

Bidirectional over the whole sequence, logits not shifted, decoded as LLaDA is. Reference code: the
``modeling_illada.py`` shipped with GSAI-ML/iLLaDA-8B-Base, and ML-GSAI/LLaDA.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.families.decoder import (
    NO_BIAS,
    REQUIRED,
    SIZE_KEYS,
    SUPPORTED,
    decoder_spec,
    read_decoder,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

# What the authors' README passes; only the tokenizer says so, as <[MASK]>.
_RELEASED_VOCABULARY = 155136
_RELEASED_MASK = 5


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, "layer_norm_eps": (None,)})
    _check_rope(keys)
    denoiser = read_decoder(keys)
    released = denoiser.vocab_size == _RELEASED_VOCABULARY
    return decoder_spec(
        ILLADA,
        keys,
        generation_config,
        overrides,
        denoiser,
        regime="full",
        block_length=32,
        sampler=SamplerSpec(name="low_confidence"),
        default_mask=_RELEASED_MASK if released else None,
    )


def _check_rope(keys: Keys) -> None:
    """Accept an object that asks for no scaling, as the reference does."""
    scaling = keys.values.get("rope_scaling")
    if scaling is None or keys.has("rope_parameters"):
        return
    if not isinstance(scaling, dict):
        keys.refuse("'rope_scaling' is not an object", "copy it from the original checkpoint")
    Keys(scaling, f"{keys.file}, rope_scaling").require(
        {"rope_type": ("default", None), "type": ("default", None), "factor": (1, 1.0, None)}
    )


ILLADA = Family(
    name="illada",
    architectures=("ILLaDAForCausalLM",),
    required=REQUIRED,
    absent=("num_experts",),
    read=_read,
    weights=tensor_names(),
    size_keys=SIZE_KEYS,
    mask_text="<[MASK]>",
)
