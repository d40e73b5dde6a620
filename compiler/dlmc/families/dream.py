"""Dream (arXiv 2508.15487), Dream-Coder, DiffuCoder and DreamOn: a Qwen2 network, bidirectional.

The whole answer is denoised at once, and the logit of a position predicts the token after it.
Reference code: NVlabs/Fast-dLLM, ``dream/model``, and DreamLM/Dream.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc.families.decoder import (
    PLAIN_ROPE,
    REQUIRED,
    SIZE_KEYS,
    SUPPORTED,
    decoder_spec,
    read_decoder,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc.families.tokens import first_present
from dlmc_runtime.manifest import SamplerSpec


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **PLAIN_ROPE, "attention_bias": (True, None)})
    spec = decoder_spec(
        DREAM,
        keys,
        generation_config,
        overrides,
        read_decoder(keys, qkv_bias=True),
        regime="full",
        sampler=SamplerSpec(name="entropy"),
        shift=1,
        candidates=32,
    )
    generation = Keys(generation_config, "generation_config.json")
    expand, delete = (
        first_present(keys, generation, f"{role}_token_id", spec.denoiser.vocab_size)
        for role in ("expand", "delete")
    )
    if not expand:
        return spec
    # DreamOn: spans grow, and shrink where the end of text is predicted.
    ids = (*expand, *(delete or spec.stop_ids[:1]))
    if len(expand) > 1 or len(delete) > 1 or len({*ids, spec.mask_id}) != len(ids) + 1:
        keys.refuse(
            f"expand, delete and mask are the tokens {[*ids, spec.mask_id]}",
            "they must be one token each, and differ",
        )
    return replace(spec, expand_id=ids[0], delete_id=ids[1] if ids[1:] else None)


DREAM = Family(
    name="dream",
    architectures=("DreamModel",),
    required=REQUIRED,
    absent=("num_experts", "block_size"),
    read=_read,
    weights=tensor_names(),
    size_keys=SIZE_KEYS,
)
