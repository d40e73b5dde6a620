import itertools
import math

import numpy as np
import pytest
import torch

import canvas
from canvas import LENGTH, CanvasLoss, corrupt_canvases
from checkpoint import read_spec
from dlmc.denoiser.gemma import GemmaDenoiser
from dlmc.denoiser.network import network
from dlmc.recipes import load
from vocabulary import VOCAB_SIZE, Encoded

PAD = 256
SHORT = Encoded(prompt=list(range(10)), answer=list(range(100, 112)))
LONG = Encoded(prompt=list(range(20, 60)), answer=list(range(100, 100 + LENGTH + 5)))


def corrupted(*encoded, seed=0, most_steps=3):
    rng = np.random.default_rng(seed)
    return corrupt_canvases(list(encoded), VOCAB_SIZE, PAD, rng, most_steps=most_steps)


@pytest.fixture(scope="module")
def denoiser():
    torch.manual_seed(0)
    made = network(read_spec(load("tiny/tiny-gemma")).denoiser)
    assert isinstance(made, GemmaDenoiser)
    canvas.initialise(made)
    return made


def test_the_versions_of_a_row_are_its_canvases_in_turn():
    batch = corrupted(SHORT, LONG)
    assert batch.lengths.tolist() == [[10, 10], [40, 40 + LENGTH]]
    assert batch.context[1].tolist() == LONG.prompt + LONG.answer[:LENGTH]
    assert batch.context[0, :10].tolist() == SHORT.prompt
    first, second = batch.targets[1].split(LENGTH)
    assert first.tolist() == LONG.answer[:LENGTH]
    assert second[:5].tolist() == LONG.answer[LENGTH:]


def test_all_of_an_answer_counts_and_a_part_of_what_follows():
    after = []
    for seed in range(20):
        targets = corrupted(SHORT, seed=seed).targets[0, :LENGTH]
        assert targets[: len(SHORT.answer)].tolist() == SHORT.answer
        after += targets[len(SHORT.answer) :].tolist()
    assert set(after) == {PAD, -100}
    assert 0.15 < after.count(PAD) / len(after) < 0.35


def test_half_of_the_canvases_are_all_noise():
    batch = corrupted(*[LONG] * 100)
    kept = (batch.canvas == batch.targets).view(100, canvas.VERSIONS, LENGTH)[:, 0].float().mean(1)
    assert 0.3 < (kept < 0.1).float().mean() < 0.75
    assert (kept > 0.9).any()
    assert int(batch.canvas.max()) < VOCAB_SIZE


def test_a_batch_follows_from_its_generator():
    first, same, other = (corrupted(SHORT, LONG, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.canvas, same.canvas)
    assert (first.steps, first.temperature, first.seed) == (
        same.steps,
        same.temperature,
        same.seed,
    )
    assert not torch.equal(first.canvas, other.canvas)


def test_steps_stay_within_the_most():
    assert {corrupted(SHORT, seed=seed, most_steps=1).steps for seed in range(20)} == {0, 1}


def test_a_canvas_sees_its_own_context_and_nothing_else(denoiser):
    batch = corrupted(SHORT, LONG)
    shape = (*batch.canvas.shape, denoiser.config.hidden_size)
    conditioning = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        past = canvas.encode(denoiser, batch.context)
        together = canvas.denoise(denoiser, past, batch.lengths, batch.canvas, conditioning)
        for row, version in itertools.product(range(2), range(canvas.VERSIONS)):
            length = batch.lengths[row, version]
            own = slice(version * LENGTH, (version + 1) * LENGTH)
            alone = canvas.denoise(
                denoiser,
                canvas.encode(denoiser, batch.context[row : row + 1, :length]),
                length.view(1, 1),
                batch.canvas[row : row + 1, own],
                conditioning[row : row + 1, own],
            )
            torch.testing.assert_close(alone[0], together[row, own], atol=1e-4, rtol=1e-4)


def logits_of(surest, share):
    """Logits that give ``surest`` [T] tokens the probability ``share`` [T]."""
    rest = (1 - share) / (VOCAB_SIZE - 1)
    found = rest.log()[:, None].repeat(1, VOCAB_SIZE)
    return found.scatter(1, surest[:, None], share.log()[:, None])[None]


def test_sure_positions_are_accepted_and_others_renewed():
    sure = torch.arange(2 * LENGTH) % 3 == 0
    tokens = torch.full((2 * LENGTH,), 7)
    logits = logits_of(tokens, torch.where(sure, 1 - 1e-6, 0.01))
    following, probabilities = canvas.advance(logits, 1.0, torch.Generator().manual_seed(0))
    assert (following[0][sure] == 7).all()
    assert (following[0][~sure] == 7).float().mean() < 0.2
    torch.testing.assert_close(probabilities, logits.softmax(-1))


def test_every_canvas_accepts_one_position_at_least():
    share = torch.full((2 * LENGTH,), 0.3)
    share[5], share[LENGTH + 9] = 0.9, 0.9  # more entropy than the bound, yet the least
    assert -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / (VOCAB_SIZE - 1)) > 0.1
    logits = logits_of(torch.full((2 * LENGTH,), 7), share)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([canvas.advance(logits, 1.0, generator)[0][0] for _ in range(100)])
    often = (drawn == 7).float().mean(0)
    assert often[5] > 0.8 < often[LENGTH + 9]
    assert (often > 0.1).sum() == 2


@pytest.mark.parametrize("steps", [0, 2])
def test_the_loss_teaches_every_weight(denoiser, steps):
    batch = next(
        batch
        for batch in (corrupted(SHORT, LONG, seed=seed) for seed in itertools.count())
        if batch.steps == steps
    )
    denoiser.zero_grad()
    loss = CanvasLoss(denoiser)(batch)
    loss.backward()
    assert 3 < loss.item() < 10
    untaught = {
        name
        for name, weight in denoiser.named_parameters()
        if weight.grad is None or not weight.grad.any()
    }
    # Nothing to take in before the first step; and nobody reads what the last layer makes of text.
    last = f"layers.{denoiser.config.num_hidden_layers - 1}.encoder_layer_scalar"
    assert {name for name in untaught if "self_conditioning" not in name} <= {last}
    assert any("self_conditioning" in name for name in untaught) == (steps == 0)
