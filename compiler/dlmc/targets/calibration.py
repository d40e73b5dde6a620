"""What activations look like while a bundle denoises, for static quantization."""

from dataclasses import replace
from pathlib import Path

from dlmc.lowering.calibrate import Feeds
from dlmc.lowering.states import record_states
from dlmc.validate.prompts import Wanted, ask
from dlmc.validate.reference import load_graph
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.text import TextCodec

# Without a threshold it would take its default one.
_PATIENT = {"low_confidence_dynamic": "low_confidence_static"}
_MOST = 1000  # prompts: more take hours and change no scale


def calibration_states(
    bundle: Bundle, profiles: tuple[Profile, ...], prompts: Path | None
) -> list[Feeds]:
    """Generate with the bundle's float32 graph and keep forwards at several noise levels.

    One position is committed a forward, so that every noise level is met.

    Args:
        bundle: the bundle.
        profiles: shapes to generate with.
        prompts: file of prompts, one a line; None for the short questions of `dlmc validate`.

    Raises:
        UsageError: the file cannot be read or holds no prompt.
        DlmcError: the graph does not run.
    """
    engine = load_graph(bundle, profiles)
    spec = bundle.manifest.text
    text = None if spec is None else TextCodec.load(bundle.root, spec)
    with Generator(engine, text) as generator:
        wanted = Wanted(() if prompts is None else read_prompts(prompts))
        requests = [
            replace(one.request, sampler=_one_at_a_time(one.request.sampler))
            for one in ask(generator, wanted)
        ]
        return record_states(generator, requests)


def _one_at_a_time(sampler: SamplerConfig) -> SamplerConfig:
    """Return a sampler that commits one position a forward, the surest first."""
    name = _PATIENT.get(sampler.name, sampler.name)
    return replace(sampler, name=name, steps=None, threshold=None, factor=None)


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the lines of a file that are not blank.

    Raises:
        UsageError: it cannot be read, or has no such line or too many.
    """
    hint = "give a text file with one prompt a line"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error})", hint) from None
    prompts = tuple(line for line in lines if line.strip())
    if not 1 <= len(prompts) <= _MOST:
        raise UsageError(f"{path} holds {len(prompts)} prompts, not 1 to {_MOST}", hint)
    return prompts
