"""Every family on every target built here, against torch: generations, and forwards."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import networks
import numpy as np
import pytest
import torch
from networks import AHEAD, NETWORKS, TARGETS

from dlmc.families import FAMILIES
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc.validate.built import validate_built
from dlmc.validate.reference import load_reference
from dlmc.validate.tolerances import COMMITTED, GENERATION
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.events import Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.infill import Hole, Part
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig

HALF = ("sdar", "modernbert", "nemotron_labs_diffusion", "llada2")
PROMPTS = (13, 22)
ANSWER = 40  # crosses the longest block
BLOCK = 16  # of the approximate caches, which need several blocks

Bundles = Callable[[str], Path]
Build = Callable[[str, str], str]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Return the bundle of a network, exported once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = networks.write(NETWORKS[name], tmp_path_factory.mktemp("network"))
        return made[name]

    return get


@pytest.fixture(scope="module")
def built(bundles: Bundles) -> Build:
    """Return the name of a network's engine with room for two rows, built once."""
    made: dict[tuple[str, str], str] = {}

    def get(name: str, target: str) -> str:
        if (name, target) not in made:
            plan = plan_build(bundles(name), target, ProfileRequest(batch=(2,)))
            build_engine(plan)
            made[name, target] = plan.name
        return made[name, target]

    return get


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work without helpers, which wait for one another longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prompts(generator: Generator) -> list[list[int]]:
    """Return arbitrary ids that are no mask."""
    draws, manifest = np.random.default_rng(7), generator.manifest
    allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
    return [draws.choice(allowed, size).tolist() for size in PROMPTS]


def samplers(generator: Generator) -> Iterator[SamplerConfig]:
    """Yield the family's own sampler, and every other way of going through its forwards."""
    own, manifest = generator.sampler, generator.manifest
    yield own
    if manifest.head.variant == "guided":
        yield own.updated(guidance=1.5)
    if manifest.attention.regime == "full":
        for cache in ("prefix", "dual"):
            yield own.updated(cache=cache, block_length=BLOCK)
    elif own.sub_block_length is not None:
        yield own.updated(cache="dual")
    if manifest.attention.regime == "context" and manifest.tokens.mask is not None:
        yield SamplerConfig(name="autoregressive")
        yield SamplerConfig(name="linear_speculation")


def requests(generator: Generator) -> Iterator[Request]:
    """Yield everything that is asked of an engine: answers, and templates to fill."""
    given = prompts(generator)
    for sampler in samplers(generator):
        for prompt in given:
            yield generator.request(prompt, sampler=sampler, max_new_tokens=ANSWER, ignore_eos=True)
    if generator.manifest.attention.regime == "full":
        grows = generator.manifest.tokens.expand is not None
        template: list[Part] = [given[0], Hole(5), given[1], Hole(3), given[0][:2]]
        yield generator.infill_request(template, max_new_tokens=20 if grows else None)


def trace(generator: Generator, asked: list[Request]) -> list[list[list[int]]]:
    """Return every answer, after what was known of it after each forward, drafts included."""
    canvases: list[list[list[int]]] = [[] for _ in asked]
    for event in generator.events(asked):
        if isinstance(event, Denoised):
            canvases[event.row].append(event.canvas.tolist())
        elif isinstance(event, Finished):
            canvases[event.row].append(list(event.result.tokens))
    return canvases


def test_every_family_has_a_network():
    assert list(networks.plain()) == [family.name for family in FAMILIES]


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_are_those_of_torch(bundles, built, name):
    engines = [built(name, target) for target in TARGETS]
    bundle = Bundle.open(bundles(name))
    with Generator.of(bundle, engines[0]) as first, Generator.of(bundle, engines[1]) as second:
        asked = list(requests(first))
        with closing(load_reference(bundle, first.profiles)) as reference, one_thread():
            expected = trace(Generator(reference, first.text), asked)
        assert all(len(set(canvases[-1])) > 3 for canvases in expected)
        for generator in (first, second):
            assert trace(generator, asked) == expected


@pytest.mark.parametrize("name", NETWORKS)
def test_forwards_are_those_of_the_reference(bundles, built, name):
    for target in TARGETS:
        engine = built(name, target)
        report = validate_built(Bundle.open(bundles(name)), engine)
        assert not isinstance(report, str), report
        assert report.ok, [row for row in report.rows if not row.ok]


@pytest.mark.parametrize("name", HALF)
def test_bfloat16_is_as_near_as_it_promises(bundles, name):
    root, options = bundles(name), BuildOptions(precision="bfloat16")
    plan = plan_build(root, "openvino-cpu", ProfileRequest(batch=(2,)), options)
    build_engine(plan)
    report = validate_built(Bundle.open(root), plan.name)
    assert not isinstance(report, str), report
    # Random weights are sure of nothing, so rounding changes which tokens are chosen.
    chosen = (COMMITTED, GENERATION)
    assert not [row for row in report.rows if not row.ok and row.output not in chosen]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_for_a_gpu_that_is_not_here(bundles, name):
    pytest.importorskip("tensorrt_rtx")
    root = bundles(name)
    record = build_engine(
        plan_build(
            root,
            AHEAD,
            ProfileRequest(batch=(2,)),
            BuildOptions(compute_capability=("sm89",)),
        )
    )
    manifest = Bundle.open(root).manifest
    assert (root / record.plan).stat().st_size > 4 * manifest.model.parameters
    assert record.requires.compute_capabilities == ("sm89",)
    assert len(record.profiles) >= 2
