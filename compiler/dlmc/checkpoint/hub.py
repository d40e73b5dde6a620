"""Finding a checkpoint: a folder here, or a repository of the Hugging Face hub."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlmc.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from dlmc_runtime.errors import CheckpointError, UsageError

# Data only. Code and pickles are never asked for, nor is anything in sub-folders (other formats of
# the same weights) except an adapter that is named.
WEIGHT_FILES = ["*.safetensors"]
OTHER_FILES = ["*.json", "*.jinja"]
IGNORED_FILES = ["*/*"]

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """A checkpoint folder and where it comes from; ``revision`` is a commit of the hub."""

    path: Path
    source: str
    revision: str | None


def resolve(
    source: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    adapter: str | None = None,
    endpoint: str | None = None,
    cache_dir: Path | None = None,
) -> ResolvedCheckpoint:
    """Return the folder of a checkpoint, downloading it where ``source`` is a hub id.

    Args:
        source: a folder, which wins, or ``owner/name``.
        revision: branch, tag or commit of the hub repository.
        weights: whether the weights are wanted; configuration and tokenizer always are.
        adapter: a folder of the repository with an adapter, which is wanted as well.
        endpoint: address of the hub, instead of ``HF_ENDPOINT`` or the public one.
        cache_dir: where downloads are kept, instead of ``HF_HUB_CACHE``.

    Raises:
        UsageError: ``source`` can be neither, or a folder comes with a revision.
        CheckpointError: the hub does not have it, does not grant it or cannot be reached.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        if revision is not None:
            raise UsageError(f"{source} is a folder and has no revisions", "leave out --revision")
        return ResolvedCheckpoint(folder, source, None)
    if not _HUB_ID.fullmatch(source):
        raise UsageError(
            f"{source!r} is neither a folder nor a hub id", "give a path or owner/name"
        )
    patterns = [*WEIGHT_FILES, *OTHER_FILES] if weights else OTHER_FILES
    path = _download(source, revision, patterns, IGNORED_FILES, endpoint, cache_dir)
    if adapter is not None and _FOLDER.fullmatch(adapter):
        files = [f"{adapter}/{file}" for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
        wanted = files if weights else files[:1]
        _download(source, path.name, wanted, [], endpoint, cache_dir)
    return ResolvedCheckpoint(path, source, path.name)


def _download(
    source: str,
    revision: str | None,
    patterns: list[str],
    ignored: list[str],
    endpoint: str | None,
    cache_dir: Path | None,
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    with _hub_errors(source, revision):
        folder = snapshot_download(
            source,
            revision=revision,
            endpoint=endpoint,
            cache_dir=cache_dir,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            library_name="dlmc",
        )
    return Path(folder)


@contextmanager
def _hub_errors(source: str, revision: str | None) -> Iterator[None]:
    """Turn what the hub client raises into one sentence."""
    from huggingface_hub import errors

    # Releases differ in the HTTP library below and in whether they know Xet storage.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    xet_error: type[Exception] = getattr(errors, "XetDownloadError", OSError)
    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{source} is gated", "accept its terms on the hub and log in with `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no folder {source} here and no such repository on the hub",
            "check the name; a private repository needs `hf auth login`",
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{source} has no revision {revision}", "check --revision") from None
    except errors.LocalEntryNotFoundError:
        raise CheckpointError(
            f"there is no folder {source} here and the hub cannot be reached",
            "check the path, or connect (HF_HUB_OFFLINE unset) and try again",
        ) from None
    except errors.HFValidationError:
        raise UsageError(f"{source!r} is not a hub id", "give a path or owner/name") from None
    except (http_error, xet_error, OSError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"downloading {source} failed ({reason})", "try again") from None
