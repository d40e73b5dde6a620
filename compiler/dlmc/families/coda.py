"""CoDA (Salesforce, arXiv 2510.03270): a Qwen3 network, bidirectional, decoded as Dream is.

Reference code: SalesforceAIResearch/CoDA, ``CoDALanguageModel/modeling_coda.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc.families.decoder import (
    NO_BIAS,
    PLAIN_ROPE,
    REQUIRED,
    SIZE_KEYS_WITH_HEAD_DIM,
    SUPPORTED,
    decoder_spec,
    read_decoder,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, **PLAIN_ROPE})
    return decoder_spec(
        CODA,
        keys,
        generation_config,
        overrides,
        # The reference never ties its head, whatever the key says.
        replace(read_decoder(keys, qk_norm=True), tie_word_embeddings=False),
        regime="full",
        sampler=SamplerSpec(name="entropy"),
        shift=1,
        candidates=32,
    )


CODA = Family(
    name="coda",
    architectures=("CoDALanguageModel",),
    required=REQUIRED,
    absent=("num_experts",),
    read=_read,
    weights=tensor_names(),
    size_keys=SIZE_KEYS_WITH_HEAD_DIM,
)
