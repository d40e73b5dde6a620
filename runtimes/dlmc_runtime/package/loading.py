"""From a package's bundle to the application that serves it."""

from pathlib import Path

from fastapi import FastAPI

from dlmc_runtime.generate import Generator
from dlmc_runtime.scheduler import Limits, Scheduler
from dlmc_runtime.serve.app import create_app
from dlmc_runtime.serve.models import Catalog, Served, Site
from dlmc_runtime.serve.settings import Settings


def load_app(bundle: Path, name: str, target: str, limits: Limits, settings: Settings) -> FastAPI:
    """Check a bundle, load its engine and return the application of `dlmc serve` around it.

    Args:
        bundle: the bundle's folder.
        name: what clients call the model.
        target: the engine's full name.
        limits: of the one scheduler, which all requests share.
        settings: of the application.

    Raises:
        BundleError: the bundle is damaged, unsafe, or of a newer version.
        EngineError: the engine is missing or does not run here.
    """
    generator = Generator.load(bundle, target)
    served = Served(name, generator, Scheduler(generator, limits))
    return create_app(Catalog([served]), settings)


def loaded(app: FastAPI) -> list[Served]:
    """Return the models of an application."""
    site: Site = app.state.site
    return list(site.catalog.values())


def close(app: FastAPI) -> None:
    """Release the engines of an application that has been shut down.

    Raises:
        EngineError: one does not come back from a forward.
    """
    for served in loaded(app):
        served.close()
