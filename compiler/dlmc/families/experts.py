"""What families share whose checkpoints store experts one by one, as Qwen3-MoE does."""

from dataclasses import replace
from typing import Any

from dlmc.denoiser.config import DENSE, SPARSE, DenoiserConfig, Moe
from dlmc.families.decoder import REQUIRED, SIZE_KEYS, SIZE_KEYS_WITH_HEAD_DIM, tensor_names
from dlmc.families.keys import Keys

MOST_EXPERTS = 4096

_MLP = "layers.{i}.mlp."
_EXPERT = "model." + _MLP + "experts.{e}."

STACKED: dict[str, tuple[str, ...]] = {
    _MLP + "experts.gate_up_proj": (_EXPERT + "gate_proj.weight", _EXPERT + "up_proj.weight"),
    _MLP + "experts.down_proj": (_EXPERT + "down_proj.weight",),
}
"""Tensors of one expert, by the parameter that holds all of them."""

SPARSE_REQUIRED = (*REQUIRED, "num_experts", "num_experts_per_tok")

SPARSE_SIZE_KEYS = SIZE_KEYS | {
    "experts": ("num_experts",),
    "top_k_experts": ("num_experts_per_tok",),
    "expert_intermediate": ("moe_intermediate_size",),
}
SPARSE_SIZE_KEYS_WITH_HEAD_DIM = SPARSE_SIZE_KEYS | SIZE_KEYS_WITH_HEAD_DIM


def sparse_tensor_names() -> dict[str, str]:
    """Return the tensor of every parameter but those of experts, by parameter."""
    router = _MLP + "gate.weight"
    return tensor_names() | {router: "model." + router}


def choices(keys: Keys) -> tuple[int, int]:
    """Read how many experts a layer has, and how many of them a token uses.

    Raises:
        CheckpointError: a key is missing, or its value cannot be.
    """
    experts = keys.integer("num_experts", most=MOST_EXPERTS)
    return experts, keys.integer("num_experts_per_tok", most=experts)


def qwen3_moe(keys: Keys, denoiser: DenoiserConfig) -> DenoiserConfig:
    """Return ``denoiser`` with the experts of Qwen3-MoE: softmax, no groups, nothing shared.

    Raises:
        CheckpointError: a key is missing, or its value cannot be.
    """
    experts, top_k = choices(keys)
    return replace(
        denoiser,
        kinds=_kinds(keys, denoiser.num_hidden_layers),
        moe=Moe(
            experts=experts,
            top_k=top_k,
            width=keys.integer("moe_intermediate_size"),
            normalised=keys.flag("norm_topk_prob", default=False),
        ),
    )


def fit_qwen3_moe(config: dict[str, Any], _: DenoiserConfig) -> None:
    """Keep of the layers that are listed as dense those that a scaled ``config`` has."""
    dense = config.get("mlp_only_layers")
    if dense:
        config["mlp_only_layers"] = [i for i in dense if i < config["num_hidden_layers"]]


def _kinds(keys: Keys, layers: int) -> tuple[str, ...]:
    """Read which layers have experts: every ``decoder_sparse_step``-th that is not listed."""
    step = keys.integer("decoder_sparse_step", default=1)
    dense = keys.values.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(type(i) is int and 0 <= i < layers for i in dense):
        keys.refuse(
            "'mlp_only_layers' is no list of layers", f"it must hold numbers from 0 to {layers - 1}"
        )
    return tuple(DENSE if i in dense or (i + 1) % step else SPARSE for i in range(layers))
