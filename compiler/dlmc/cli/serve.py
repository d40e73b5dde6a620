"""`dlmc serve`: bundles behind an HTTP API."""

import logging
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import DEFAULT_TARGET, AsJson, Target, note, say_json, size
from dlmc_runtime.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dlmc_runtime.scheduler import Limits
    from dlmc_runtime.serve.models import Served
    from dlmc_runtime.serve.settings import Settings

KEYS_VARIABLE = "DLMC_API_KEYS"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_SIZE = re.compile(r"([0-9]{1,15})(|k|M|G|T)B?", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def command(
    bundles: Annotated[
        list[Path],
        typer.Argument(metavar="BUNDLE...", help="Folders that dlmc export has made."),
    ],
    target: Target = DEFAULT_TARGET,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="What clients call a bundle; one for each. [default: its folder's name]"
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"API keys, one a line; those of {KEYS_VARIABLE} count too, separated by commas.",
        ),
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 256,
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that share forwards. [default: the engine's widest]"),
    ] = None,
    cache_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="For context caches. [default: half of what is free]"),
    ] = None,
    prefix_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="For blocks that prompts share; 0 keeps none.")
    ] = "256MB",
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request, waiting included.")
    ] = 600.0,
    max_body_bytes: Annotated[int, typer.Option(min=1024, help="Of a request.")] = 4 << 20,
    max_concurrent: Annotated[
        int, typer.Option(min=1, help="Requests under /v1 at the same time.")
    ] = 512,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds for running requests after SIGTERM.")
    ] = 30.0,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Pages that may call from a browser; repeatable.",
        ),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="Names the server goes by; repeatable. [default: localhost on a loopback address]",
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line for each request to stderr.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve bundles over HTTP, with the API that OpenAI's clients speak.

    SIGTERM lets running requests finish; a second one does not.
    """
    from dlmc_runtime.scheduler import Limits
    from dlmc_runtime.serve import security, server
    from dlmc_runtime.serve.app import create_app
    from dlmc_runtime.serve.models import Catalog
    from dlmc_runtime.serve.settings import LOCAL_HOSTS, Settings, is_loopback

    called = served_names(bundles, names)
    limits = Limits(
        queue=max_queue,
        rows=max_batch,
        cache_bytes=None if cache_memory is None else read_size("--cache-memory", cache_memory),
        prefix_bytes=read_size("--prefix-memory", prefix_memory),
    )
    known = tuple(allowed_hosts or (LOCAL_HOSTS if is_loopback(host) else ()))
    settings = Settings(
        api_keys=security.read_keys(api_key_file, os.environ.get(KEYS_VARIABLE)),
        max_body_bytes=max_body_bytes,
        max_concurrent=max_concurrent,
        request_seconds=request_timeout,
        drain_seconds=drain_timeout,
        allowed_hosts=tuple(name.lower() for name in known),
        cors_origins=tuple(cors_origins or ()),
    )
    logging.basicConfig(level=logging.INFO if access_log else logging.WARNING, format=_LOG)
    with ExitStack() as stack:
        opened = stack.enter_context(server.bind(host, port))  # taken before a load of minutes
        if not (settings.api_keys or is_loopback(host)):
            note(f"dlmc: warning: {host} is open to other machines, and no API key is asked for")
        served = [_load(stack, *one, target, limits) for one in zip(called, bundles, strict=True)]
        app = create_app(Catalog(served), settings)
        url = f"http://{host}:{opened.getsockname()[1]}"
        _tell(url, served, limits, settings, as_json=as_json)
        ready = server.prepare(app, lambda: note(f"serving on {url}"), log=access_log)
        ready.run(sockets=[opened])


def served_names(bundles: Sequence[Path], names: Sequence[str] | None) -> list[str]:
    """Return what each bundle is called.

    Raises:
        UsageError: there are not as many names as bundles, or one is illegal or there twice.
    """
    called = [path.resolve().name for path in bundles] if not names else list(names)
    if len(called) != len(bundles):
        raise UsageError(
            f"there are {len(called)} names for {len(bundles)} bundles", "give --name for each"
        )
    for name in called:
        if not _NAME.fullmatch(name):
            raise UsageError(f"a model cannot be called {name!r}", "give a --name of ASCII letters")
        if called.count(name) > 1:
            raise UsageError(f"two bundles are called {name}", "give --name for each")
    return called


def read_size(option: str, text: str) -> int:
    """Return a number of bytes that was written as ``2GB``, ``512MB`` or ``0``.

    Raises:
        UsageError: it was written otherwise.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text[:40]} is no size", "write 2GB, 512MB or 0")
    return int(found[1]) * _UNITS[found[2]]


def _load(stack: ExitStack, name: str, path: Path, target: str, limits: "Limits") -> "Served":
    from dlmc_runtime.generate import Generator
    from dlmc_runtime.scheduler import Scheduler
    from dlmc_runtime.serve.models import Served

    generator = Generator.load(path, target)
    served = Served(name, generator, Scheduler(generator, limits), target)
    stack.callback(_release, served)
    needed = served.scheduler.longest_cache
    if limits.cache_bytes is not None and limits.cache_bytes < needed:
        raise UsageError(
            f"--cache-memory {size(limits.cache_bytes)} is too small for the longest request to "
            f"{name}",
            f"give it {needed} at least",
        )
    widest = max(profile.batch for profile in generator.profiles)
    if limits.rows is not None and limits.rows > widest:
        note(f"dlmc: warning: --max-batch {limits.rows}: {name} has room for {widest} rows")
    return served


def _release(served: "Served") -> None:
    """Close an engine. With a thread inside one, an interpreter cannot end without a crash."""
    try:
        served.close()
    except EngineError as error:
        note(f"dlmc: error: {error}")
        os._exit(1)


def _tell(
    url: str, served: Sequence["Served"], limits: "Limits", settings: "Settings", *, as_json: bool
) -> None:
    """Say what is about to be served, and within which bounds; keys are counted, not shown."""
    bounds: dict[str, Any] = asdict(settings)
    bounds["api_keys"] = len(settings.api_keys)
    if as_json:
        from dlmc_runtime.serve.models import card

        models = [card(one).model_dump() for one in served]
        say_json({"url": url, "models": models, "limits": asdict(limits), "settings": bounds})
        return
    for one in served:
        manifest = one.generator.manifest
        note(
            f"{one.name}: {manifest.family}, {one.generator.sampler.name}, "
            f"context of {one.context} tokens, {manifest.max_new_tokens} to an answer"
        )
    caches = "half of the free memory" if limits.cache_bytes is None else size(limits.cache_bytes)
    rows = "the widest batch" if limits.rows is None else f"batches of {limits.rows} at most"
    note(
        f"{rows}, {limits.queue} may wait, {settings.max_concurrent} at once; "
        f"caches {caches}, prefixes {size(limits.prefix_bytes)}"
    )
    note(
        f"{settings.request_seconds:g} s and {size(settings.max_body_bytes)} a request, "
        f"{settings.drain_seconds:g} s to drain, {len(settings.api_keys) or 'no'} API keys"
    )
