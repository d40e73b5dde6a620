"""Loaded bundles, found by the name that clients ask for."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from pydantic import BaseModel

from dlmc_runtime import legal
from dlmc_runtime.errors import EngineError, RequestError
from dlmc_runtime.generate import Generator
from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import errors
from dlmc_runtime.serve.settings import Settings
from dlmc_runtime.serve.strict import StrictRoute
from dlmc_runtime.text import TextCodec
from dlmc_runtime.ticket import Ticket

CLOSING_SECONDS = 2.0
"""How long an end waits for the last answers to be sent, and for the forward under way."""

_COMPILING = 4
_TOKEN_TEXTS = 1 << 16  # of which the text is remembered, since canvases repeat them


def _forget(_: Ticket) -> None:
    """Listen to nothing."""


class Served:
    """One loaded bundle.

    Args:
        name: what clients call it.
        generator: checks requests; owns the engine.
        scheduler: runs them.
        engine: what to call the engine in descriptions; None for its class.

    Attributes:
        created: seconds since 1970, when it was loaded.
        token: the text of one token, special tokens by name.
        observe: is told of every request that was answered; a server's metrics listen here.
    """

    def __init__(
        self, name: str, generator: Generator, scheduler: Scheduler, engine: str | None = None
    ) -> None:
        self.name, self.generator, self.scheduler = name, generator, scheduler
        self.engine = engine or type(generator.engine).__name__
        self.created = int(time.time())
        self.token = lru_cache(_TOKEN_TEXTS)(self._token)
        self.observe: Callable[[Ticket], None] = _forget

    @property
    def text(self) -> TextCodec:
        """The bundle's tokenizer.

        Raises:
            RequestError: it has none.
        """
        if self.generator.text is None:
            raise RequestError(f"{self.name} has no tokenizer", "serve a bundle with one")
        return self.generator.text

    def close(self) -> None:
        """Release the engine, once the application that served it has ended.

        Raises:
            EngineError: it does not come back from a forward; it is left as it is.
        """
        if not self.scheduler.close(0):
            problem = f"the engine of {self.name} does not come back from a forward"
            raise EngineError(problem, "end the process, and see what its device is doing")
        self.generator.close()

    def _token(self, token: int) -> str:
        codec = self.generator.text
        return "" if codec is None else codec.token(token)

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its answer together.

        Where blocks are counted from the answer, the last of it may be a block too many.
        """
        manifest, profiles = self.generator.manifest, self.generator.profiles
        if manifest.attention.regime == "full":
            room = max(profile.block for profile in profiles)
        else:
            room = max(profile.cache for profile in profiles) + manifest.attention.block_length
        return min(manifest.model.max_position_embeddings, room)


class Catalog(Mapping[str, Served]):
    """What a server serves, by name."""

    def __init__(self, served: Sequence[Served]) -> None:
        self._served = {one.name: one for one in served}
        if not served or len(self._served) < len(served):
            raise ValueError("models without names of their own")

    def __getitem__(self, name: str) -> Served:
        return self._served[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    def find(self, name: str) -> Served:
        """Return a model.

        Raises:
            FieldError: there is none of that name; its response is a 404.
        """
        if name not in self._served:
            known = ", ".join(self._served)
            raise errors.FieldError(
                "model",
                f"there is no model {name[:80]!r}",
                f"choose one of {known}",
                status=404,
                code="model_not_found",
            )
        return self._served[name]


@dataclass
class Site:
    """What endpoints find at a request's application.

    Attributes:
        catalog: the models.
        settings: the server's.
        draining: whether the server was told to stop.
        active: requests that are being answered.
        compiling: threads for requests whose format or tools may have to be compiled first, which
            takes seconds: however many there are, others do not wait for them.
    """

    catalog: Catalog
    settings: Settings = field(default_factory=Settings)
    draining: bool = False
    active: int = 0
    compiling: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_COMPILING))

    @property
    def schedulers(self) -> list[Scheduler]:
        """Those of the models."""
        return [served.scheduler for served in self.catalog.values()]

    @property
    def failed(self) -> list[str]:
        """The models that answer nobody: their engine is gone, or outlasts any request."""
        longest = self.settings.request_seconds
        named = zip(self.catalog, self.schedulers, strict=True)
        return [name for name, one in named if not one.alive or one.round_seconds > longest]

    async def wait(self, seconds: float) -> None:
        """Wait until no model has anything to do, at most for so long."""
        await _at_once(seconds, [one.wait for one in self.schedulers])

    async def close(self) -> None:
        """Close all schedulers; none waits for its engine for more than `CLOSING_SECONDS`."""
        await _at_once(CLOSING_SECONDS, [one.close for one in self.schedulers])

    @classmethod
    def of(cls, request: Request) -> "Site":
        """Return the site that a request came to."""
        site = request.app.state.site
        if not isinstance(site, cls):
            raise TypeError("the application has no site")
        return site


async def _at_once(seconds: float, calls: Sequence[Callable[[float], bool]]) -> None:
    await asyncio.gather(*(asyncio.to_thread(call, seconds) for call in calls))


class ModelCard(BaseModel):
    """A model, as ``/v1/models`` shows it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "dlmc"
    family: str
    regime: str
    engine: str
    context_length: int
    max_tokens: int
    samplers: list[str]
    sampler: dict[str, Any]


class ModelList(BaseModel):
    """All models."""

    object: str = "list"
    data: list[ModelCard]


def card(served: Served) -> ModelCard:
    """Describe a model."""
    generator = served.generator
    manifest, default = generator.manifest, generator.sampler
    changed = {
        name: value
        for name in default.__dataclass_fields__
        if (value := getattr(default, name)) != default.__dataclass_fields__[name].default
    }
    return ModelCard(
        id=served.name,
        created=served.created,
        family=manifest.family,
        regime=manifest.attention.regime,
        engine=served.engine,
        context_length=served.context,
        max_tokens=manifest.max_new_tokens,
        samplers=legal.samplers_for(manifest.attention.regime, manifest.tokens),
        sampler={"name": default.name, **changed},
    )


router = APIRouter(route_class=StrictRoute, tags=["models"])


@router.get("/v1/models", responses={s: errors.RESPONSES[s] for s in (401, 429, 503)})
async def list_models(request: Request) -> ModelList:
    """List the models."""
    return ModelList(data=[card(served) for served in Site.of(request).catalog.values()])


@router.get(
    "/v1/models/{name:path}", responses={s: errors.RESPONSES[s] for s in (401, 404, 429, 503)}
)
async def retrieve_model(name: str, request: Request) -> ModelCard:
    """Describe one model."""
    return card(Site.of(request).catalog.find(name))
