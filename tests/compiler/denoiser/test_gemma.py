"""DiffusionGemma's network, beside a restatement of its reference in plain steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dlmc.denoiser.config import DenoiserConfig, Gemma
from dlmc.denoiser.gemma import FULL, SLIDING, GemmaAttention, GemmaDenoiser, GemmaRouter

GEMMA = Gemma(
    num_experts=5,
    top_k=2,
    expert_intermediate_size=6,
    self_conditioning_size=10,
    global_head_dim=16,
    global_key_value_heads=1,
    global_rope_theta=1e6,
    global_turning=2,
    softcap=3.0,
    embed_scale=4.0,
)
CONFIG = DenoiserConfig(
    vocab_size=19,
    hidden_size=12,
    intermediate_size=14,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    qk_norm=True,
    tie_word_embeddings=True,
    kinds=(SLIDING, FULL, FULL),
    sliding_context=3,
    gemma=GEMMA,
)
Weights = dict[str, Tensor]


def denoiser(**changes: Any) -> GemmaDenoiser:
    """Return a network none of whose weights is one or zero."""
    torch.manual_seed(0)
    config = replace(CONFIG, gemma=replace(GEMMA, **changes))
    assert config.gemma is not None
    network = GemmaDenoiser(config, config.gemma)
    for name, weight in network.named_parameters():
        torch.nn.init.normal_(weight, mean=0.8 if weight.ndim == 1 else 0.0, std=0.3)
        assert "scalar" not in name or weight.numel() == 1
    return network


def norm(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotated(x: Tensor, theta: float, turning: int | None) -> Tensor:
    """Rotate [T,H,D] by its row number, in pairs half a head apart."""
    half = x.shape[-1] // 2
    found = x.clone()
    for position in range(x.shape[0]):
        for i in range(half if turning is None else turning):
            angle = torch.tensor(position * theta ** (-2 * i / x.shape[-1]))
            a, b = x[position, :, i], x[position, :, i + half]
            found[position, :, i] = a * angle.cos() - b * angle.sin()
            found[position, :, i + half] = b * angle.cos() + a * angle.sin()
    return found


def mlp(own: Weights, stem: str, x: Tensor) -> Tensor:
    gate = functional.gelu(x @ own[stem + "gate_proj.weight"].T, approximate="tanh")
    return (gate * (x @ own[stem + "up_proj.weight"].T)) @ own[stem + "down_proj.weight"].T


def attention(own: Weights, x: Tensor, kind: str, mask: Tensor) -> Tensor:
    heads, size = CONFIG.cache_shape(kind)
    query = (x @ own["self_attn.q_proj.weight"].T).unflatten(-1, (4, size))
    raw = (x @ own["self_attn.k_proj.weight"].T).unflatten(-1, (heads, size))
    # Layers that see everything take their keys, before norm and rotation, for values.
    values = raw
    if kind == SLIDING:
        values = (x @ own["self_attn.v_proj.weight"].T).unflatten(-1, (heads, size))
    rope = (1e4, None) if kind == SLIDING else (1e6, GEMMA.global_turning)
    query = rotated(norm(query, own["self_attn.q_norm.weight"]), *rope)
    key, value = rotated(norm(raw, own["self_attn.k_norm.weight"]), *rope), norm(values)
    mixed = []
    for head in range(4):
        group = head * heads // 4
        scores = query[:, head] @ key[:, group].T  # not divided by the root of the head size
        mixed.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value[:, group])
    return torch.cat(mixed, -1) @ own["self_attn.o_proj.weight"].T


def experts(own: Weights, residual: Tensor) -> Tensor:
    scaled = norm(residual) * own["router.scale"] * 12**-0.5  # the residual itself, not its norm
    shares = (scaled @ own["router.proj.weight"].T).softmax(-1)
    x = norm(residual, own["pre_feedforward_layernorm_2.weight"])
    rows = []
    for token, share in zip(x, shares, strict=True):
        best = share.topk(2)
        total = torch.zeros(12)
        for weight, index in zip(best.values / best.values.sum(), best.indices, strict=True):
            gate, up = (own["experts.gate_up_proj"][index] @ token).split(6)
            out = own["experts.down_proj"][index] @ (functional.gelu(gate, approximate="tanh") * up)
            total += weight * own["router.per_expert_scale"][index] * out
        rows.append(total)
    return torch.stack(rows)


def layer(own: Weights, x: Tensor, kind: str, mask: Tensor, scalar: str) -> Tensor:
    mixed = attention(own, norm(x, own["input_layernorm.weight"]), kind, mask)
    x = x + norm(mixed, own["post_attention_layernorm.weight"])
    dense = mlp(own, "mlp.", norm(x, own["pre_feedforward_layernorm.weight"]))
    both = norm(dense, own["post_feedforward_layernorm_1.weight"])
    both = both + norm(experts(own, x), own["post_feedforward_layernorm_2.weight"])
    return (x + norm(both, own["post_feedforward_layernorm.weight"])) * own[scalar]


def restated(
    network: GemmaDenoiser, ids: Tensor, mask: Tensor, expected: Tensor, *, denoising: bool
) -> Tensor:
    """Return the logits [T,V] of one row without a cache."""
    weights: Weights = {name: value.detach() for name, value in network.named_parameters()}
    table = weights["embed_tokens.weight"]
    x = table[ids] * 4.0
    if denoising:
        stem = "self_conditioning."
        x = norm(x + mlp(weights, stem, norm(expected, weights[stem + "pre_norm.weight"])))
    scalar = "layer_scalar" if denoising else "encoder_layer_scalar"
    for i, kind in enumerate(CONFIG.kinds):
        stem = f"layers.{i}."
        own = {n.removeprefix(stem): v for n, v in weights.items() if n.startswith(stem)}
        x = layer(own, x, kind, mask, scalar)
    raw = norm(x, weights["norm.weight"]) @ table.T
    return 3.0 * (raw / 3.0).tanh()


IDS = torch.tensor([3, 17, 3, 8, 11])
CAUSAL = torch.ones(5, 5).tril().bool()
BOTH = torch.ones(5, 5).bool()


def run(
    network: GemmaDenoiser, mask: Tensor, expected: Tensor, denoising: bool
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return logits [T,V] and keys and values of one row without a cache."""
    shapes = [CONFIG.cache_shape(kind) for kind in CONFIG.kinds]
    empty = [(torch.zeros(1, heads, 0, size),) * 2 for heads, size in shapes]
    hidden, present = network(
        IDS[None],
        torch.arange(5)[None],
        mask[None, None],
        empty,
        self_conditioning=expected[None],
        denoising=torch.tensor([denoising]),
        sliding_attention_mask=mask[None, None],
    )
    return network.logits(hidden)[0].detach(), present


def expected() -> Tensor:
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("denoising", "mask"), [(True, BOTH), (False, CAUSAL)])
def test_both_phases(denoising: bool, mask: Tensor, zeros: bool):
    network, before = denoiser(), torch.zeros(5, 12) if zeros else expected()
    found, present = run(network, mask, before, denoising)
    wanted = restated(network, IDS, mask, before, denoising=denoising)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert [key.shape for key, _ in present] == [(1, 2, 5, 8), (1, 1, 5, 16), (1, 1, 5, 16)]


def test_committed_text_does_not_hear_of_the_step_before():
    network = denoiser()
    found, _ = run(network, CAUSAL, expected(), denoising=False)
    other, _ = run(network, CAUSAL, torch.zeros(5, 12), denoising=False)
    assert torch.equal(found, other)


def test_without_a_step_before_tokens_are_normalised_all_the_same():
    conditioning = denoiser().self_conditioning
    x = expected()[None] * 7
    found = conditioning(x, torch.zeros(1, 5, 12))
    torch.testing.assert_close(found, norm(x))
    torch.testing.assert_close(found.square().mean(-1), torch.ones(1, 5))


def test_rows_of_both_phases_in_one_batch():
    network = denoiser()
    shapes = [CONFIG.cache_shape(kind) for kind in CONFIG.kinds]
    mask = torch.stack((CAUSAL, BOTH))[:, None]
    hidden, _ = network(
        IDS.expand(2, 5),
        torch.arange(5).expand(2, 5),
        mask,
        [(torch.zeros(2, heads, 0, size),) * 2 for heads, size in shapes],
        self_conditioning=expected().expand(2, 5, 12),
        denoising=torch.tensor([False, True]),
        sliding_attention_mask=mask,
    )
    for row, denoising in enumerate((False, True)):
        alone, _ = run(network, mask[row, 0], expected(), denoising)
        torch.testing.assert_close(network.logits(hidden[row]), alone, atol=1e-5, rtol=1e-5)


def test_layers_that_see_everything_have_no_values_of_their_own():
    assert GemmaAttention(CONFIG, SLIDING).v_proj is not None
    own = GemmaAttention(CONFIG, FULL)
    assert own.v_proj is None
    assert (own.k_proj.out_features, own.q_proj.out_features) == (16, 64)


def test_kinds_of_layers_have_masks_of_their_own():
    network, nothing = denoiser(), torch.zeros(5, 12)
    shapes = [CONFIG.cache_shape(kind) for kind in CONFIG.kinds]
    found = {}
    for name, full, sliding in (("both", BOTH, BOTH), ("full", CAUSAL, BOTH), ("s", BOTH, CAUSAL)):
        found[name], _ = network(
            IDS[None],
            torch.arange(5)[None],
            full[None, None],
            [(torch.zeros(1, heads, 0, size),) * 2 for heads, size in shapes],
            self_conditioning=nothing[None],
            denoising=torch.tensor([True]),
            sliding_attention_mask=sliding[None, None],
        )
    assert not torch.allclose(found["both"][0, 0], found["full"][0, 0])
    assert not torch.allclose(found["both"][0, 0], found["s"][0, 0])


def test_a_router_gives_shares_of_one_before_the_scale_of_experts():
    torch.manual_seed(0)
    router = GemmaRouter(CONFIG, GEMMA)
    shares = router(torch.randn(2, 3, 12))
    assert ((shares > 0).sum(-1) == 2).all()
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 3))
    router.per_expert_scale.data = torch.full((5,), 2.5)
    torch.testing.assert_close(router(torch.randn(2, 3, 12)).sum(-1), torch.full((2, 3), 2.5))


def test_a_router_does_not_mind_the_length_of_its_input():
    torch.manual_seed(0)
    router = GemmaRouter(CONFIG, GEMMA)
    x = torch.randn(1, 4, 12)
    torch.testing.assert_close(router(x), router(x * 100), atol=1e-5, rtol=1e-4)


def test_logits_stay_within_their_bound():
    hidden = expected() * 100
    bound, free = denoiser().logits(hidden), denoiser(softcap=0.0).logits(hidden)
    assert bound.abs().max() <= 3.0 < free.abs().max()
    torch.testing.assert_close(bound, 3.0 * (free / 3.0).tanh())


def test_what_is_expected_is_the_mean_of_scaled_embeddings():
    network = denoiser()
    certain = functional.one_hot(IDS, 19).float()
    wanted = network.embed_tokens(IDS) * GEMMA.embed_scale
    torch.testing.assert_close(network.expected(certain), wanted)
    half = (certain[:1] + certain[1:2]) / 2
    torch.testing.assert_close(network.expected(half), wanted[:2].mean(0, keepdim=True))


def test_an_untied_head_is_a_matrix_of_its_own():
    config = replace(CONFIG, tie_word_embeddings=False)
    torch.manual_seed(0)
    network = GemmaDenoiser(config, GEMMA)
    hidden = torch.randn(2, 12)
    wanted = 3.0 * (network.lm_head(hidden) / 3.0).tanh()
    torch.testing.assert_close(network.logits(hidden), wanted)
    assert "lm_head.weight" not in dict(denoiser().named_parameters())
