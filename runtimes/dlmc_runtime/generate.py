"""`Generator`: prompts in, text out."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Unpack, cast, overload

import numpy as np

from dlmc_runtime import decode, engines, infill, legal
from dlmc_runtime.batch import Batch, as_many_as_fit, check_slots, room
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.constraints import Compiler, Constraint
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.errors import BundleError, RequestError, UsageError
from dlmc_runtime.events import Event, Finished, Result
from dlmc_runtime.infill import Template
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.options import (
    InfillOptions,
    Options,
    Prompt,
    check_constraint,
    is_prompt,
    is_some_text,
    whole_number,
)
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.reader import Reader
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import Decode, StopRule
from dlmc_runtime.text import TextCodec

# Most tokens in growing spans, unless a request says otherwise; what DreamOn's authors use.
_SPAN = 64


def _default_sampler(manifest: Manifest) -> SamplerConfig:
    spec = manifest.sampler
    try:
        config = SamplerConfig().updated(**{**spec.parameters, "name": spec.name})
        legal.check(config, manifest)
    except (UsageError, RequestError) as error:
        raise BundleError(f"the manifest's sampler: {error.message}", error.hint) from None
    return config


class Generator:
    """An engine with its tokenizer, ready to generate.

    Use `load`; close it, or use it as a context manager, to release the engine.

    Attributes:
        engine: runs the denoiser.
        text: the bundle's tokenizer and chat template; None where it has none.
        sampler: the bundle's default sampler.

    Raises:
        BundleError: the manifest asks for what this version cannot do.
    """

    def __init__(self, engine: Engine, text: TextCodec | None) -> None:
        self.engine, self.text = engine, text
        self.sampler = _default_sampler(engine.manifest)
        # One for all threads: what two of them ask for at once is compiled once.
        self._compiler = None if text is None else Compiler(text, engine.manifest)

    @classmethod
    def load(cls, bundle: str | Path, target: str = "onnxruntime-cpu") -> "Generator":
        """Check a bundle and load its engine for ``target``, a target or an engine's full name.

        Raises:
            BundleError: the bundle is damaged, unsafe, or of a newer version.
            EngineError: no engine was built for the target, or it does not run here.
        """
        return cls.of(Bundle.open(Path(bundle), weights=False), target)

    @classmethod
    def of(cls, bundle: Bundle, target: str) -> "Generator":
        """Load the engine for ``target`` of a bundle that was opened, and so checked, already.

        Raises:
            BundleError: as `load`.
            EngineError: as `load`.
        """
        spec = bundle.manifest.text
        text = None if spec is None else TextCodec.load(bundle.root, spec)
        return cls(engines.load(bundle, target), text)

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.engine.manifest

    @property
    def constraints(self) -> Compiler:
        """Makes constraints from regular expressions and JSON schemas.

        Raises:
            RequestError: the bundle has no tokenizer.
        """
        if self._compiler is None:
            raise RequestError("the bundle has no tokenizer", "give no constraint")
        return self._compiler

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The shapes the engine was built for."""
        return self.engine.profiles

    def request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        sampler: SamplerConfig | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        early_exit: bool = True,
        keep_cache: bool = False,
        skip_special_tokens: bool = True,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> Request:
        """Check and complete what a row asks for.

        Args:
            prompt: text or token ids; a conversation is text that `TextCodec.chat` rendered.
            max_new_tokens: most tokens to generate; None for the bundle's own.
            sampler: None for the bundle's own.
            seed: of every random number of the row.
            stop: texts that end the answer before them.
            ignore_eos: go on at stop ids.
            early_exit: stop as soon as the text is known, see `Request`.
            keep_cache: finish and commit the last block, see `Request`.
            skip_special_tokens: leave special tokens out of the text, and out of what ``stop`` is
                searched in. Where they delimit reasoning or calls of tools, as in
                ``<|channel>thought … <channel|>``, only a text with them shows what is what.
            logprobs: report how probable each token was, with so many alternatives, see
                `TokenLogprob`.
            constraint: what the text must match, made by `Generator.constraints`.

        Raises:
            UsageError: an argument has an illegal value.
            RequestError: this bundle cannot do what is asked.
        """
        ids = self._encode(prompt)
        default = self.manifest.max_new_tokens
        count = (
            default if max_new_tokens is None else whole_number("max_new_tokens", max_new_tokens, 1)
        )
        if not isinstance(stop, list | tuple) or not all(map(is_some_text, stop)):
            problem = "stop is no list of strings, or one of them is empty"
            raise UsageError(problem, "give texts of at least one character")
        if stop and self.text is None:
            raise RequestError("the bundle has no tokenizer", "give no stop strings")
        self._check_length(len(ids), count)
        config = self._config(sampler, constrained=constraint is not None)
        tokens = self.manifest.tokens
        if constraint is not None:
            check_constraint(constraint, count, stop=bool(stop), ignore_eos=ignore_eos)
        stop_ids = frozenset() if ignore_eos else frozenset(tokens.stop)
        rule = StopRule(stop_ids, tuple(stop), self._decoder(skip_special_tokens))
        return Request(
            ids,
            count,
            config,
            whole_number("seed", seed, 0),
            rule,
            early_exit,
            keep_cache,
            skip_special_tokens=skip_special_tokens,
            logprobs=self._alternatives(logprobs),
            constraint=constraint,
        )

    def infill_request(
        self,
        template: Template,
        *,
        max_new_tokens: int | None = None,
        sampler: SamplerConfig | None = None,
        seed: int = 0,
        logprobs: int | None = None,
    ) -> Request:
        """Check and complete what a row with holes asks for.

        Args:
            template: text in which ``<mask:16>`` stands for 16 missing tokens, or a list of texts,
                token ids and `Hole`.
            max_new_tokens: most tokens in all holes together, where the model lets them grow
                (DreamOn); other models fill holes as they are.
            sampler: of the row.
            seed: of the row.
            logprobs: as in `request`; not where spans grow.

        Raises:
            UsageError: the template or an argument is illegal.
            RequestError: this model cannot fill spans.
        """
        encoded = infill.encode(template, self.manifest, self._tokenize)
        self._check_ids(encoded.ids)
        length = sum(end - begin for begin, end in encoded.holes)
        grows = self.manifest.tokens.expand is not None
        if max_new_tokens is not None and not grows:
            raise RequestError(
                f"{self.manifest.family} fills spans as long as they are",
                "leave out max_new_tokens",
            )
        most = (
            max(length, _SPAN)
            if max_new_tokens is None
            else whole_number("max_new_tokens", max_new_tokens, length)
        )
        count = most if grows else length
        self._check_length(len(encoded.ids) - length, count)
        config = self._config(sampler)
        if grows:
            legal.check_growing(config, self.manifest)
        if grows and logprobs is not None:
            raise RequestError("spans that grow move their tokens", "leave logprobs out")
        return Request(
            encoded.ids,
            count,
            config,
            whole_number("seed", seed, 0),
            holes=encoded.holes,
            logprobs=self._alternatives(logprobs),
        )

    def _alternatives(self, logprobs: int | None) -> int | None:
        kept = self.manifest.head.candidates
        if logprobs is None or whole_number("logprobs", logprobs, 0) <= kept:
            return logprobs
        raise RequestError(
            f"logprobs {logprobs} asks for more alternatives than the {kept} the graph keeps",
            f"ask for at most {kept}, or export with --candidates {logprobs}",
        )

    def _config(self, sampler: SamplerConfig | None, *, constrained: bool = False) -> SamplerConfig:
        config = self.sampler if sampler is None else sampler
        if not isinstance(config, SamplerConfig):
            raise UsageError(f"sampler is {config!r}", "give a SamplerConfig")
        legal.check(config, self.manifest, constrained=constrained)
        return config

    def _check_length(self, given: int, count: int) -> None:
        limit = self.manifest.model.max_position_embeddings
        if given + count > limit:
            raise RequestError(
                f"prompt ({given} tokens) and answer ({count}) exceed the model's {limit}",
                "shorten the prompt or ask for fewer tokens",
            )

    def _tokenize(self, text: str) -> list[int]:
        if self.text is None:
            raise RequestError("the bundle has no tokenizer", "give token ids")
        return self.text.encode(text)

    def _decoder(self, skip: bool) -> Decode | None:  # noqa: FBT001  (says what it skips)
        if self.text is None:
            return None
        return self.text.decode if skip else partial(self.text.decode, skip_special_tokens=False)

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self.manifest.model.vocab_size
        outside = [token for token in ids if not 0 <= token < size]
        if outside:
            raise RequestError(
                f"the prompt holds token id {outside[0]}", f"ids go from 0 to {size - 1}"
            )

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            ids = tuple(self._tokenize(prompt))
        elif is_prompt(prompt):
            ids = tuple(int(token) for token in prompt)
        else:
            raise UsageError(
                "a prompt is neither text nor token ids", "give a str or a list of int"
            )
        if not ids:
            raise RequestError("the prompt is empty", "give at least one token")
        self._check_ids(ids)
        return ids

    # To a type checker a string is also a sequence of strings: the first overload decides.
    @overload
    def generate(self, prompt: str, **options: Unpack[Options]) -> Result: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[int], **options: Unpack[Options]) -> Result: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], **options: Unpack[Options]) -> list[Result]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Result | list[Result]:
        """Generate the answer of one prompt, or of a list of prompts in one batch.

        Args:
            prompt: text or token ids, or a list of those.
            options: the keyword arguments of `request`, the same for every prompt; use `run`
                for rows that differ.

        Returns:
            One result, or a list in the order of the prompts.
        """
        if is_prompt(prompt):
            return self.run([self.request(prompt, **options)])[0]
        several = cast("Sequence[Prompt]", prompt)
        if not isinstance(several, Sequence | np.ndarray):
            raise UsageError(
                "a prompt is neither text nor token ids", "give a str or a list of int"
            )
        return self.run([self.request(one, **options) for one in several])

    def infill(self, template: Template, **options: Unpack[InfillOptions]) -> Result:
        """Fill the holes of a template.

        Args:
            template: as in `infill_request`; ``prefix<mask:16>suffix`` fills in the middle.
            options: the keyword arguments of `infill_request`.

        Returns:
            A result whose ``text`` is the whole template, filled, and ``spans`` what is in it.
        """
        return self.run([self.infill_request(template, **options)])[0]

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Serve requests in batches as wide as the engine allows."""
        results: dict[int, Result] = {}
        for event in self.events(requests):
            if isinstance(event, Finished):
                results[event.row] = event.result
        return [results[index] for index in range(len(requests))]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[Event]:
        """Generate the answer of one prompt, reporting every forward; options as in `request`."""
        return self.events([self.request(prompt, **options)])

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Serve requests, reporting every forward. ``row`` in an event indexes ``requests``."""
        table = ProfileTable(self.profiles)
        rows = [Row(request, self.manifest) for request in requests]
        for row in rows:  # what no profile takes is refused now, not in the middle of the work
            size, _ = room(table, [row])
            check_slots(row, size)
        first = 0
        while first < len(rows):
            count = as_many_as_fit(table, rows[first : first + table.widest])
            yield from self._batch(Batch.of(self.engine, rows[first : first + count]), first)
            first += count

    def _batch(self, batch: Batch, first: int) -> Iterator[Event]:
        began = time.perf_counter()
        readers = [Reader(row, self.text, first + i) for i, row in enumerate(batch.rows)]
        active = batch.active
        while active:
            for event in decode.step(batch):
                yield replace(event, row=event.row + first) if first else event
            for index in active:
                yield from readers[index].advance(time.perf_counter() - began)
            active = batch.active

    def close(self) -> None:
        """Release the engine."""
        self.engine.close()

    def __enter__(self) -> "Generator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
