import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from dlmc import families
from dlmc.denoiser.config import Moe
from dlmc.denoiser.moe import Router, SparseMlp, mix, spread, within_blocks, within_groups
from dlmc.denoiser.network import network

MOE = Moe(experts=8, top_k=2, width=6)
HIDDEN = 12


def router(moe: Moe, seed: int = 0) -> Router:
    torch.manual_seed(seed)
    found = Router(HIDDEN, moe)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter)
    return found


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(1))


def test_what_every_expert_gets():
    chosen, weights = torch.tensor([[3, 0]]), torch.tensor([[0.25, 0.75]])
    assert spread(chosen, weights, 4).tolist() == [[0.75, 0, 0, 0.25]]


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_the_mixture_is_the_sum_of_the_experts_that_are_used(kind):
    torch.manual_seed(0)
    x, weights = tokens(2, 3), torch.rand(2, 3, 8)
    weights[weights < 0.6] = 0
    gate_up, down = torch.randn(8, 12, HIDDEN), torch.randn(8, HIDDEN, 6)
    wanted = torch.zeros(2, 3, HIDDEN)
    for row, column, expert in (weights > 0).nonzero().tolist():
        gate, up = (gate_up[expert] @ x[row, column]).split(6)
        act = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
        wanted[row, column] += weights[row, column, expert] * (down[expert] @ (act * up))
    torch.testing.assert_close(mix(x, weights, gate_up, down, kind, 8), wanted)


def test_softmax_router():
    x = tokens(2, 3)
    gate = router(MOE)
    scores = (x @ gate.weight.T).softmax(-1)
    best = scores.topk(2)
    found = gate(x)
    assert ((found > 0).sum(-1) == 2).all()
    torch.testing.assert_close(found.gather(-1, best.indices).sum(-1), torch.ones(2, 3))
    raw = router(replace(MOE, normalised=False, scale=3.0))(x)
    torch.testing.assert_close(raw.gather(-1, best.indices), best.values * 3)


def test_the_bias_counts_in_the_choice_only():
    gate = router(replace(MOE, scoring="sigmoid", normalised=False, expert_bias=True))
    with torch.no_grad():
        gate.expert_bias.copy_(torch.tensor([9.0, 9.0] + [0.0] * 6))
    x = tokens(1, 5)
    found = gate(x)
    assert (found > 0).tolist() == [[[True, True] + [False] * 6] * 5]
    torch.testing.assert_close(found[..., :2], torch.sigmoid(x @ gate.weight.T)[..., :2])


def test_groups_are_ranked_by_their_two_best():
    scores = torch.tensor([[[0.9, 0.0, 0.5, 0.5, 0.1, 0.1, 0.6, 0.5]]])
    inf = -torch.inf
    found = within_groups(scores, groups=4, kept=2)
    assert found.tolist() == torch.tensor([[[inf, inf, 0.5, 0.5, inf, inf, 0.6, 0.5]]]).tolist()


def test_blocks_choose_by_the_best_score_of_their_tokens():
    scores = torch.zeros(1, 4, 5)
    scores[0, 0] = torch.tensor([0.9, 0.0, 0.5, 0.0, 0.0])  # the third is the best on average
    scores[0, 1] = torch.tensor([0.0, 0.8, 0.5, 0.0, 0.0])
    scores[0, 3] = torch.tensor([0.0, 0.0, 0.0, 0.7, 0.6])
    found = within_blocks(scores, length=2, capacity=2)
    assert (found > -torch.inf)[0].tolist() == [[True, True, False, False, False]] * 2 + [
        [False, False, False, True, True]
    ] * 2


@pytest.mark.parametrize("rows", [1, 3])
def test_what_fills_whole_blocks_changes_nothing(rows):
    gate = router(replace(MOE, scoring="sigmoid", capacity=3, routing_block=4))
    x, padding = tokens(rows, 8), 100 * torch.randn(rows, 8, HIDDEN)
    alone = gate(x)
    torch.testing.assert_close(gate(torch.cat((x, padding), 1))[:, :8], alone, rtol=0, atol=0)
    others = gate(torch.cat((x, x.flip(0)), 0))
    torch.testing.assert_close(others[:rows], alone, rtol=0, atol=0)


def test_a_part_of_a_block_is_refused():
    gate = router(replace(MOE, capacity=3, routing_block=4))
    with pytest.raises(RuntimeError):
        gate(tokens(1, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_routers_compute_in_float32(dtype):
    gate, x = router(MOE), tokens(1, 64)
    low = router(MOE).to(dtype)
    assert low(x.to(dtype)).dtype == torch.float32
    wide = router(MOE)
    with torch.no_grad():
        wide.weight.copy_(gate.weight.to(dtype))
    torch.testing.assert_close(low(x.to(dtype)), wide(x.to(dtype).float()), rtol=0, atol=0)


def test_the_shared_expert_is_added_as_it_is():
    torch.manual_seed(0)
    alone, shared = SparseMlp(HIDDEN, MOE), SparseMlp(HIDDEN, replace(MOE, shared_width=10))
    for parameter in shared.parameters():
        torch.nn.init.normal_(parameter)
    alone.load_state_dict({n: p for n, p in shared.state_dict().items() if "shared" not in n})
    x = tokens(1, 4)
    assert shared.shared_experts is not None
    torch.testing.assert_close(shared(x), alone(x) + shared.shared_experts(x))


def test_experts_of_the_reference(goldens: Path):
    """The pack records which experts every position of each layer has used."""
    pack = goldens / "llada2"
    stated = json.loads((pack / "config.json").read_text())
    family = families.detect(stated)
    spec = family.read(stated, {}, families.Overrides(mask_id=316))
    stored, parameters = load_file(pack / "model.safetensors"), {}
    for ours, theirs in family.weight_names(spec).items():
        parameters[ours] = stored[theirs]
    for ours, names in family.stacked_names(spec).items():
        both = len(names) // 16  # experts
        parts = [
            torch.cat([stored[n] for n in names[i : i + both]]) for i in range(0, len(names), both)
        ]
        parameters[ours] = torch.stack(parts)
    model = network(spec.denoiser).eval()
    model.load_state_dict(parameters)

    recorded = load_file(pack / "denoiser.safetensors")
    used: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(model.layers):
        if isinstance(gate := getattr(layer.mlp, "gate", None), Router):
            gate.register_forward_hook(
                lambda _m, _i, out, index=index: used.__setitem__(index, out)
            )
    empty = (torch.zeros(1, spec.denoiser.num_key_value_heads, 0, spec.denoiser.head_dim),) * 2
    for case in ("case0", "case2"):
        ids, positions, mask = (
            recorded[f"{case}.{name}"][None]
            for name in ("input_ids", "position_ids", "attention_mask")
        )
        with torch.inference_mode():
            model(ids, positions, mask[:, None].bool(), [empty] * 3)
        assert used
        for index, weights in used.items():
            for token, wanted in zip(
                weights[0], recorded[f"{case}.router_topk.{index}"], strict=True
            ):
                np.testing.assert_array_equal(token.nonzero()[:, 0], wanted)
