"""Fast-dLLM v2 (arXiv 2509.26328): a Qwen2 network, block-causal, with shifted logits.

The last logit of a stored block gives the first token of the next one. Reference code: the
``modeling.py`` shipped with Efficient-Large-Model/Fast_dLLM_v2_7B.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.families.decoder import (
    PLAIN_ROPE,
    REQUIRED,
    SIZE_KEYS,
    SUPPORTED,
    decoder_spec,
    positions_of,
    read_decoder,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

# Arguments of the reference's `generate`, which no file of the released checkpoints states.
_RELEASED_VOCABULARIES = (151936, 152064)
_RELEASED_MASK = 151665
_RELEASED_END_OF_TURN = 151645


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **PLAIN_ROPE, "attention_bias": (True, None)})
    denoiser = read_decoder(keys, qkv_bias=True)
    block = keys.integer("bd_size", most=positions_of(keys))
    released = denoiser.vocab_size in _RELEASED_VOCABULARIES
    return decoder_spec(
        FAST_DLLM_V2,
        keys,
        generation_config,
        overrides,
        denoiser,
        regime="block",
        block_length=block,
        # Above 0.9 all at once, the best one in any case, by sub-blocks: what the model card runs.
        sampler=SamplerSpec(
            name="maskgit_plus", parameters={"threshold": 0.9, "sub_block_length": min(8, block)}
        ),
        shift=1,
        candidates=32,
        default_mask=_RELEASED_MASK if released else None,
        extra_stop=_RELEASED_END_OF_TURN if released else None,
        seeded=True,
    )


FAST_DLLM_V2 = Family(
    name="fast_dllm_v2",
    architectures=("Fast_dLLM_QwenForCausalLM",),
    required=(*REQUIRED, "bd_size"),
    absent=("num_experts",),
    read=_read,
    weights=tensor_names(),
    size_keys=SIZE_KEYS,
    mask_text="|<MASK>|",
)
