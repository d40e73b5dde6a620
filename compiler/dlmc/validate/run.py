"""`dlmc validate`: a built engine against torch, on states of real generations."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

import numpy as np

from dlmc.validate.compare import compare_states
from dlmc.validate.recording import RecordingEngine
from dlmc.validate.reference import load_reference
from dlmc.validate.replay import save_states
from dlmc.validate.report import Report, Row
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import EngineError
from dlmc_runtime.generate import Generator, Prompt
from dlmc_runtime.row import Request

_QUESTIONS = ("What is 12 + 7?", "Write the numbers 3 1 2 in order.")
_LONGEST = 64  # generated tokens a prompt: enough to cross several blocks


def validate_bundle(
    root: Path,
    target: str,
    prompts: Sequence[str] = (),
    max_new_tokens: int = _LONGEST,
    save_to: Path | None = None,
) -> Report:
    """Compare the engine for ``target`` with torch and keep the report in the bundle.

    The reference generates from every prompt at temperature 0; each of its forwards is replayed
    on the engine and compared. Then the engine generates by itself, and must give the same tokens.

    Args:
        root: the bundle.
        target: which of its engines.
        prompts: what to generate from; by default two short questions, or arbitrary ids for a
            bundle without a tokenizer.
        max_new_tokens: most tokens to generate from each.
        save_to: where to keep the recorded states for Polygraphy, see `replay.save_states`.

    Raises:
        BundleError: the bundle or the engine's record does not load.
        EngineError: the engine does not load or fails, or the report cannot be written.
    """
    bundle = Bundle.open(root)
    with Generator.of(bundle, target) as generator:
        engine = load_reference(bundle, generator.profiles)
        recorder = RecordingEngine(engine)
        reference = Generator(recorder, generator.text)
        asked = _requests(generator, prompts, max_new_tokens)
        wanted = [reference.run([request])[0] for request in asked]
        rows = compare_states(recorder.states, generator.engine, bundle.manifest.tolerances)
        found = [generator.run([request])[0] for request in asked]
    pairs = [(a.tokens, b.tokens) for a, b in zip(found, wanted, strict=True)]
    report = Report(
        bundle=root.name,
        target=target,
        reference="torch",
        prompts=len(asked),
        forwards=len(recorder.states),
        rows=(*rows, _generations(pairs)),
    )
    if save_to is not None:
        _write(save_to, lambda: save_states(recorder.states, engine.run, save_to))
    _save(report, root / "validation" / f"{target}.json")
    return report


def _requests(generator: Generator, prompts: Sequence[str], longest: int) -> list[Request]:
    text, manifest = generator.text, generator.manifest
    given: list[Prompt] = list(prompts)
    if not given and text is not None:
        given = [
            text.chat([{"role": "user", "content": question}]) if text.has_template else question
            for question in _QUESTIONS
        ]
    if not given:
        draws = np.random.default_rng(0)
        allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
        given = [draws.choice(allowed, size).tolist() for size in (5, 12)]
    tokens = min(longest, manifest.max_new_tokens)
    sampler = generator.sampler.updated(temperature=0.0)
    options = {"max_new_tokens": tokens, "sampler": sampler, "ignore_eos": True}
    return [generator.request(prompt, **options) for prompt in given]  # type: ignore[arg-type]


def _generations(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Row:
    different = [(i, ours, theirs) for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
    where = ""
    if different:
        prompt, ours, theirs = different[0]
        both = zip_longest(ours, theirs, fillvalue="no token")
        at, (found, wanted) = next((i, pair) for i, pair in enumerate(both) if pair[0] != pair[1])
        where = f"prompt {prompt}, token {at}: {found}, not {wanted}"
    return Row("generation", len(pairs), float(len(different)), 0.0, not different, where)


def _save(report: Report, path: Path) -> None:
    def write() -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**asdict(report), "ok": report.ok}, indent=2) + "\n")

    _write(path, write)


def _write(path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise EngineError(f"{path} cannot be written ({error.strerror})", "make room") from error
