"""Packages of a tiny model, and what its generator answers by itself."""

from pathlib import Path

import pytest

from dlmc.package.options import Format, PackageOptions
from dlmc.package.write import write_package
from dlmc_runtime import Generator

# Long enough to be interrupted, and none is the beginning of another.
PROMPTS = tuple(f"{n}+{n * 7 % 10}=" for n in range(1, 9))


@pytest.fixture(scope="session")
def packaged(tiny_built, tmp_path_factory):
    """Return a package of tiny-sdar, called tiny: ``packaged("ray")``."""

    def make(form: Format, environment: str | None = None) -> Path:
        output = tmp_path_factory.mktemp("package") / form
        target = "onnxruntime-cpu"
        write_package(PackageOptions(tiny_built, form, output, target, "tiny", environment))
        return output

    return make


@pytest.fixture(scope="session")
def alone(tiny_built) -> dict[str, str]:
    """What each prompt is answered with when it is alone, in 24 tokens."""
    with Generator.load(tiny_built) as generator:
        options = {"max_new_tokens": 24, "ignore_eos": True}
        return {prompt: generator.generate(prompt, **options).text for prompt in PROMPTS}


@pytest.fixture
def body():
    """Return the fields that ask for what `alone` holds."""

    def make(**fields: object) -> dict[str, object]:
        return {"max_tokens": 24, "diffusion": {"ignore_eos": True}, **fields}

    return make
