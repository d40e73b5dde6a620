"""From a bundle to a package: everything is checked before the first file is written."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dlmc.folder_writer import FolderWriter, check_output
from dlmc.package.contents import KIND, Contents
from dlmc.package.options import Format, PackageOptions
from dlmc.package.pbtxt import quoted
from dlmc_runtime.errors import UsageError
from dlmc_runtime.preflight import install

README = "README.md"


def write_package(options: PackageOptions) -> Contents:
    """Write a package and return what is in it.

    Raises:
        UsageError: the options do not go together, or the output is taken.
        BundleError: the bundle is damaged, or has no such engine.
        DlmcError: the disk is full or something cannot be read or written.
    """
    if options.environment is not None and options.format != "triton":
        problem = f"--environment says nothing to {options.format}"
        raise UsageError(problem, "leave it out: replicas run in the environment of ray")
    check_output(options.output, KIND, force=options.force)
    contents = Contents.read(options)
    with FolderWriter(options.output, KIND, force=options.force) as package:
        _WRITERS[options.format](package, contents)
        contents.add_record(package)
        package.publish()
    return contents


def _write_triton(package: FolderWriter, contents: Contents) -> None:
    """Write a model repository with one model of one version."""
    name = contents.name
    given = {
        "name": name,
        "kind": "KIND_GPU" if contents.gpu else "KIND_CPU",
        "target": contents.engine,
        "environment": contents.options.environment,
        "library": _library(contents),
    }
    package.write(f"{name}/config.pbtxt", _render("config.pbtxt.jinja", given))
    package.write(f"{name}/1/model.py", _render("model.py.jinja", given))
    contents.add_bundle(package, f"{name}/1/bundle")
    package.write(README, _render("triton.md.jinja", given))


def _write_ray(package: FolderWriter, contents: Contents) -> None:
    """Write an application of Ray Serve and its configuration."""
    given = {"name": contents.name, "gpus": int(contents.gpu), "library": _library(contents)}
    package.write("app.py", _render("app.py.jinja", given))
    package.write("serve.yaml", _render("serve.yaml.jinja", given))
    contents.add_bundle(package, "bundle")
    package.write(README, _render("ray.md.jinja", given))


_WRITERS: dict[Format, Callable[[FolderWriter, Contents], None]] = {
    "triton": _write_triton,
    "ray": _write_ray,
}


def _library(contents: Contents) -> str | None:
    """Return the command that installs the engine's library; None where dlmc brings it along."""
    library = contents.record.requires.library
    return None if library == "onnxruntime" else install(library)


def _render(template: str, given: Mapping[str, Any]) -> bytes:
    environment = Environment(  # noqa: S701  (what it writes is no HTML)
        loader=PackageLoader("dlmc.package", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    return environment.get_template(template).render(given).encode()
