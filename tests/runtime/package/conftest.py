"""Packages of a tiny model, and what its generator answers by itself."""

from pathlib import Path

import pytest

from dlmc.package.options import Format, PackageOptions
from dlmc.package.write import write_package
from dlmc_runtime import Generator

QUESTIONS = ("458+386=?", "12+345=?", "77+8=?", "901+99=?", "250+250=?", "6+7=?", "33+44=?")


@pytest.fixture(scope="session")
def packaged(tiny_built, tmp_path_factory):
    """Return a package of tiny-sdar, called tiny: ``packaged("ray")``."""

    def make(form: Format, environment: str | None = None) -> Path:
        output: Path = tmp_path_factory.mktemp("package") / form
        target = "onnxruntime-cpu"
        write_package(PackageOptions(tiny_built, form, output, target, "tiny", environment))
        return output

    return make


@pytest.fixture(scope="session")
def alone(tiny_built) -> dict[str, str]:
    """Prompts, and what each is answered with when it is alone."""
    with Generator.load(tiny_built) as generator:
        assert generator.text is not None
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        prompts = [generator.text.chat(chat) for chat in chats]
        return {prompt: generator.generate(prompt).text for prompt in prompts}
