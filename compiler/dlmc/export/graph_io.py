"""The graph's inputs and outputs: names, order, types and shapes, stated once.

The tracer, the passes, the manifest and the dry run all read them from here; torch is not needed.
"""

from typing import Literal

from dlmc.denoiser.config import DenoiserConfig
from dlmc_runtime.manifest import DataType, TensorSpec

BATCH, BLOCK, CACHE, CONTEXT, ROWS = "batch", "block", "cache", "context", "rows"
"""Symbolic dimensions; ``context`` is always ``cache`` + ``block``."""

_BLOCK_INPUTS: tuple[tuple[str, DataType, tuple[int | str, ...]], ...] = (
    ("input_ids", "int64", (BATCH, BLOCK)),
    ("position_ids", "int64", (BATCH, BLOCK)),
    ("attention_mask", "bool", (BATCH, 1, BLOCK, CONTEXT)),
)
_HEAD_INPUTS: tuple[tuple[str, DataType, tuple[int | str, ...]], ...] = (
    ("head_rows", "int64", (BATCH, ROWS)),
    ("temperature", "float32", (BATCH,)),
    ("uniform", "float32", (BATCH, ROWS)),
)
_HEAD_OUTPUTS: tuple[tuple[str, DataType], ...] = (
    ("logsumexp", "float32"),
    ("entropy", "float32"),
    ("tempered_logsumexp", "float32"),
    ("sampled_id", "int64"),
    ("sampled_logit", "float32"),
)


def _specs(
    table: tuple[tuple[str, DataType, tuple[int | str, ...]], ...],
) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in table)


def _key_values(stem: str, length: str, config: DenoiserConfig) -> tuple[TensorSpec, ...]:
    shape = (BATCH, config.num_key_value_heads, length, config.head_dim)
    return tuple(
        TensorSpec(name=f"{stem}.{layer}.{kind}", dtype="float32", shape=shape)
        for layer in range(config.num_hidden_layers)
        for kind in ("key", "value")
    )


def graph_inputs(config: DenoiserConfig) -> tuple[TensorSpec, ...]:
    """Return the graph's inputs, in order."""
    past = _key_values("past_key_values", CACHE, config)
    return (*_specs(_BLOCK_INPUTS), *past, *_specs(_HEAD_INPUTS))


def graph_outputs(
    config: DenoiserConfig, candidates: int, variant: Literal["plain", "logits"]
) -> tuple[TensorSpec, ...]:
    """Return the graph's outputs, in order, of a head with ``candidates`` (K) of that variant."""
    top = (BATCH, ROWS, candidates)
    outputs = [
        TensorSpec(name="top_ids", dtype="int64", shape=top),
        TensorSpec(name="top_logits", dtype="float32", shape=top),
        *_specs(tuple((name, dtype, (BATCH, ROWS)) for name, dtype in _HEAD_OUTPUTS)),
    ]
    if variant == "logits":
        shape = (BATCH, ROWS, config.vocab_size)
        outputs.append(TensorSpec(name="logits", dtype="float32", shape=shape))
    return (*outputs, *_key_values("present", BLOCK, config))
