"""DiffusionGemma beside transformers, on random checkpoints.

``DLMC_SEED=… pytest tests/golden/test_transformers.py`` draws another one.
"""

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gemma import CONTEXT, Graph, arrived

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.generate import Generator
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.renoise import random_tokens
from dlmc_runtime.stop import StopRule

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # transformers' own

STATED = os.environ.get("DLMC_SEED")
SEEDS = [int(STATED)] if STATED else [1, 2, 3]
# A random network that is fed what it said makes more and more of tiny differences: choices of the
# reference must be so much farther apart than what it says in float32 and float64.
APART = 10
RUNS, TRIES = 4, 40


def configuration(rng: np.random.Generator) -> dict[str, Any]:
    """Draw what a config.json says."""

    def one(*values):
        return values[int(rng.integers(len(values)))]

    layers, heads, head_dim = one(2, 3, 4, 5), one(2, 4), one(8, 16)
    experts = one(3, 4, 8)
    often = ("sliding_attention", "sliding_attention", "full_attention")
    kinds = [one(*often) for _ in range(layers - 1)]
    return {
        "text_config": {
            "vocab_size": one(40, 77, 130, 300),
            "hidden_size": one(32, 48),
            "intermediate_size": one(16, 40),
            "moe_intermediate_size": one(8, 20),
            "num_hidden_layers": layers,
            "layer_types": [*kinds, "full_attention"],
            "num_attention_heads": heads,
            "num_key_value_heads": one(1, heads // 2, heads),
            "head_dim": head_dim,
            "num_global_key_value_heads": one(1, heads),
            "global_head_dim": one(head_dim, 2 * head_dim),
            "sliding_window": one(2, 5, 9, 17, 40),
            "max_position_embeddings": 512,
            "num_experts": experts,
            "top_k_experts": one(1, 2, 3),
            "use_bidirectional_attention": "vision",
            "final_logit_softcapping": one(5.0, 30.0),
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 37,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "patch_size": 5,
            "pooling_kernel_size": 2,
        },
        "image_token_id": 4,
        "boi_token_id": 5,
        "eoi_token_id": 6,
        "canvas_length": one(3, 8, 12),
    }


def reference(seed: int) -> Any:
    """Return a model of transformers with random weights that is sure of some things."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    rng = np.random.default_rng(seed)
    config = DiffusionGemmaConfig(**configuration(rng))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model: Any = DiffusionGemmaForBlockDiffusion(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.model.decoder.named_parameters():
            if parameter.dim() > 1:
                size = 0.4 if "self_conditioning.down" in name else 1.0
                parameter.normal_(0, size / parameter.shape[-1] ** 0.5)
            elif "layer_scalar" not in name:
                parameter.uniform_(0.6, 1.3)
        model.model.decoder.embed_tokens.weight.normal_(0, 0.7)
        for phase in (model.model.decoder, model.model.encoder.language_model):
            for layer in phase.layers:
                layer.layer_scalar.fill_(float(rng.uniform(0.5, 1.2)))
    model.generation_config.eos_token_id = None
    return model


@dataclass
class Margins:
    """How close the reference's closest choices were: of tokens and positions, and of experts."""

    choice: float = 1.0
    expert: float = 1.0
    routed: list[torch.Tensor] = field(default_factory=list)
    seen: list[torch.Tensor] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)

    def watch(self, model: Any) -> None:
        """Look at every router from now on."""
        count = model.config.text_config.top_k_experts
        for name, module in model.named_modules():
            if name.endswith("router"):
                self.hooks.append(
                    module.register_forward_hook(lambda _, __, out: self.route(out[0], count))
                )

    def route(self, probabilities: torch.Tensor, count: int) -> None:
        self.routed.append(probabilities)
        ranked = probabilities.sort(descending=True).values
        if ranked.shape[-1] > count:
            gap = (ranked[..., count - 1] - ranked[..., count]).min()
            self.expert = min(self.expert, float(gap))

    def see(self, gaps: torch.Tensor) -> None:
        self.choice = min(self.choice, float(gaps.abs().min()))

    def step(self, logits: torch.Tensor, config: SamplerConfig) -> None:
        """Look at a step's logits after temperature, [1,C,V]."""
        self.seen.append(logits)
        two = logits.topk(2).values
        self.see(two[..., 0] - two[..., 1])
        entropy = torch.distributions.Categorical(logits=logits).entropy()[0].double()
        ordered = entropy.sort().values
        bound, sure = config.entropy_bound or 0.0, config.confidence_threshold or 0.0
        spent = ordered.cumsum(0) - ordered
        self.see(spent[1:] - bound)
        self.see(entropy.mean() - sure)
        kept = int((spent <= bound).sum())
        if kept < len(ordered):
            self.see(ordered[kept] - ordered[kept - 1])

    def clear(self, exact: "Margins") -> bool:
        """Return whether rounding changes no choice, given those in float64."""
        tokens, experts = apart(self.seen, exact.seen), apart(self.routed, exact.routed)
        return self.choice > APART * tokens and self.expert > APART * experts

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def apart(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return how far two lists of arrays are apart; infinitely where not as many are in them."""
    if len(some) != len(others):
        return np.inf
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


def generated(model: Any, request: Request, monkeypatch: Any) -> tuple[Any, Margins]:
    """Run the reference's `generate` on the random numbers that a row of dlmc draws."""
    from transformers import EntropyBoundSamplerConfig, LogitsProcessor, LogitsProcessorList

    numbers, margins, config = np.random.default_rng(request.seed), Margins(), request.sampler
    coldest, hottest, steps = config.t_min or 0.0, config.t_max or 0.0, config.steps or 1

    def randint(*_: Any, high: int, size: tuple[int, int], **__: Any) -> torch.Tensor:
        return torch.from_numpy(random_tokens(numbers.random(size[1]), high))[None]

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        uniform = torch.from_numpy(numbers.random(len(weights)))[:, None]
        ends = (weights.double() / weights.double().sum(-1, keepdim=True)).cumsum(-1)
        margins.see((ends - uniform) * 30)  # the sum of probabilities is far more exact
        return (ends <= uniform).sum(-1, keepdim=True).clamp(max=weights.shape[-1] - 1)

    class Look(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: torch.Tensor, cur_step: Any) -> torch.Tensor:
            heat = coldest + (hottest - coldest) * (int(cur_step) / steps)
            margins.step(scores / heat, config)
            return scores

    margins.watch(model)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "multinomial", multinomial)
        said = model.generate(
            torch.tensor([request.prompt]),
            max_new_tokens=request.max_new_tokens,
            max_denoising_steps=steps,
            sampler_config=EntropyBoundSamplerConfig(float(config.entropy_bound or 0)),
            t_min=coldest,
            t_max=hottest,
            stability_threshold=config.stability_threshold,
            confidence_threshold=config.confidence_threshold or None,
            eos_token_id=sorted(request.stop.ids) or None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([Look()]),
            disable_compile=True,
        )
    margins.close()
    return said, margins


def request_of(rng: np.random.Generator, vocab: int, canvas: int) -> Request:
    """Draw a request; no prompt holds what stands for images."""
    allowed = [token for token in range(vocab) if token not in (4, 5, 6)]
    prompt = rng.choice(allowed, int(rng.integers(1, 45))).tolist()
    stop = rng.choice(vocab, int(rng.integers(0, vocab // 16))).tolist()
    config = SamplerConfig(
        "renoise",
        steps=int(rng.integers(1, 8)),
        entropy_bound=float(rng.choice([0.05, 0.5, 2.0])),
        t_min=float(rng.choice([0.0, 0.3])),
        t_max=float(rng.choice([0.5, 1.2])),
        stability_threshold=int(rng.integers(0, 3)),
        confidence_threshold=float(rng.choice([0.0, 0.02, 1.0])),
    )
    count = int(rng.integers(1, 4 * canvas))
    seed = int(rng.integers(1 << 30))
    return Request(tuple(prompt), count, config, seed, StopRule(frozenset(stop)))


@dataclass
class Both:
    """A checkpoint in transformers, and the bundle that is made of it."""

    seed: int
    model: Any
    bundle: Path

    @property
    def canvas(self) -> int:
        return int(self.model.config.canvas_length)

    @property
    def vocab(self) -> int:
        return int(self.model.config.text_config.vocab_size)


@pytest.fixture(scope="module", params=SEEDS, ids=[f"DLMC_SEED={seed}" for seed in SEEDS])
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformers")
    model = reference(request.param)
    model.save_pretrained(folder / "checkpoint")
    options = ExportOptions(
        source=str(folder / "checkpoint"),
        output=folder / "bundle",
        tokenizer=False,
        variant="logits",
    )
    return Both(request.param, model, export_checkpoint(options))


def test_prompts_are_stored_and_canvases_denoised_alike(both):
    model, rng = both.model, np.random.default_rng(both.seed)
    graph = Graph(Bundle.open(both.bundle))
    ids = rng.integers(7, both.vocab, int(rng.integers(1, 60)))
    first, second = (rng.integers(0, both.vocab, both.canvas) for _ in range(2))
    heat, chunk = float(rng.uniform(0.3, 1.0)), int(rng.integers(1, 20))
    with torch.no_grad():
        cache = model.model.encoder(torch.from_numpy(ids)[None]).cache
        place = torch.arange(len(ids), len(ids) + both.canvas)[None]
        told = None
        wanted = []
        for canvas in (first, second):
            said = model(
                cache=cache,
                decoder_input_ids=torch.from_numpy(canvas)[None],
                self_conditioning_logits=told,
                decoder_position_ids=place,
            ).logits
            told = said / heat
            wanted.append(said[0].numpy())
    for start in range(0, len(ids), chunk):
        graph.feed(ids[start : start + chunk], start, causal=True)
    for layer, kept in enumerate(cache.layers):
        for part, whole in enumerate((kept.keys, kept.values)):
            close(arrived(graph, 2 * layer + part), whole[0].numpy(), f"layer {layer}")
    expected = None
    for canvas, recorded in zip((first, second), wanted, strict=True):
        logits, expected, _ = graph.feed(
            canvas, len(ids), causal=False, expected=expected, temperature=heat
        )
        close(logits, recorded, "logits")


def close(found, wanted, where):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3, err_msg=where)


def test_texts_are_the_same(both, monkeypatch):
    wanted = ProfileRequest(batch=(RUNS,), block=both.canvas, cache=CONTEXT, prefill=16)
    build_engine(plan_build(both.bundle, "onnxruntime-cpu", wanted))
    rng, exact, clear = np.random.default_rng(both.seed), copy.deepcopy(both.model).double(), []
    for _ in range(TRIES):
        request = request_of(rng, both.vocab, both.canvas)
        said, margins = generated(both.model, request, monkeypatch)
        if margins.clear(generated(exact, request, monkeypatch)[1]):
            clear.append((request, said))
        if len(clear) == RUNS:
            break
    assert clear, f"none of {TRIES} texts was clear enough to compare"
    with Generator.load(both.bundle) as generator:
        results = generator.run([request for request, _ in clear])
    for result, (request, said) in zip(results, clear, strict=True):
        new = said.sequences[0, len(request.prompt) :].tolist()
        ends = [place for place, token in enumerate(new) if token in request.stop.ids]
        asked = new[: min([request.max_new_tokens, *ends])]
        assert result.tokens == tuple(asked), request
        per_forward = float(said.tokens_per_forward[0])
        assert result.tokens_per_forward == pytest.approx(per_forward), request
