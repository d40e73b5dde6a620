"""The application: which routers it has, what surrounds them, and how it starts and stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from dlmc_runtime.serve import errors
from dlmc_runtime.serve.metrics import Metrics
from dlmc_runtime.serve.models import Catalog, Site
from dlmc_runtime.serve.security import Gate
from dlmc_runtime.serve.settings import Settings
from dlmc_runtime.version import __version__

ROUTERS: tuple[str, ...] = (
    "models",
    "completions",
    "chat",
    "fim",
    "edit",
    "metrics",
    "playground",
)
"""Modules of `dlmc_runtime.serve` with a ``router`` each."""


def create_app(catalog: Catalog, settings: Settings | None = None) -> FastAPI:
    """Return an application that serves a catalog.

    Args:
        catalog: its schedulers are started and closed with the application; generators are not.
        settings: defaults for None.
    """
    site = Site(catalog, settings or Settings())
    app = _Application(
        title="dlmc",
        version=__version__,
        summary="Diffusion language models behind the API that OpenAI's clients speak.",
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.site = site
    app.state.metrics = Metrics(catalog)
    errors.install(app)
    app.add_middleware(Gate, site=site)
    if site.settings.cors_origins:  # added last, so outermost: preflights carry no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=site.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    for name in ROUTERS:
        app.include_router(_router(name))
    return app


class _Application(FastAPI):
    """FastAPI without queries, and without 422: what is wrong with a body is a 400 here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            scope["query_string"] = b""  # means nothing here, and may hold a key: it is in no log
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the description of the API."""
        if self.openapi_schema is None:
            found = super().openapi()
            for path in found["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                found["components"]["schemas"].pop(name, None)
        return super().openapi()


def _router(name: str) -> APIRouter:
    router: APIRouter = import_module(f"dlmc_runtime.serve.{name}").router
    return router


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the schedulers as long as the application; let what runs finish before they close."""
    site: Site = app.state.site
    try:
        for scheduler in site.schedulers:
            scheduler.start()
        yield
        if not site.draining:  # else a server has seen to it
            site.draining = True
            for scheduler in site.schedulers:
                scheduler.drain()
            await site.wait(site.settings.drain_seconds)
    finally:
        await site.close()
