"""The application that Ray Serve runs: the HTTP API on every replica.

Every replica has an engine and a scheduler of its own; Ray's proxies hand it requests, and
replicas are started and stopped by load. A replica that must stop first finishes what it has.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.package.record import BUNDLE, read_package

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dlmc_runtime.serve.models import Site

DEPLOYMENT = "Replica"
KEYS_VARIABLE = "DLMC_API_KEYS"
"""The variable of a replica's environment with API keys, separated by commas."""


class Replica:
    """Adds health to the application, which Ray keeps in ``app``."""

    app: "FastAPI"

    def check_health(self) -> None:
        """Let Ray restart this replica where its engine has failed.

        Raises:
            EngineError: it runs no forwards any more.
        """
        site: Site = self.app.state.site
        for name in site.failed:
            raise EngineError(f"the engine of {name} has stopped or hangs", "restart the replica")


def build(root: Path) -> "FastAPI":
    """Load the package in ``root``; called on a replica.

    Raises:
        BundleError: the package is damaged.
        EngineError: its engine does not run here.
        UsageError: an API key is too short.
    """
    from dlmc_runtime.package.loading import load_app
    from dlmc_runtime.scheduler import Limits
    from dlmc_runtime.serve.security import read_keys
    from dlmc_runtime.serve.settings import Settings

    package = read_package(root)
    settings = Settings(api_keys=read_keys(None, os.environ.get(KEYS_VARIABLE)))
    return load_app(root / BUNDLE, package.name, package.target, Limits(), settings)


def application(root: Path) -> Any:
    """Return the Ray Serve application of the package in ``root``.

    Args:
        root: a path that leads to the package on every node.

    Raises:
        BundleError: there is no package.
        UsageError: the package was made for something else.
    """
    package = read_package(root)
    if package.format != "ray":
        hint = "make one with dlmc package --format ray"
        raise UsageError(f"{root} is a package for {package.format}", hint)
    from ray import serve

    def on_replica() -> "FastAPI":
        return build(root)

    return serve.deployment(name=DEPLOYMENT)(serve.ingress(on_replica)(Replica)).bind()
