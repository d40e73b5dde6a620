"""Making a bundle's records fit its files again, after a test has damaged them on purpose."""

import hashlib
import json
from pathlib import Path


def reseal(root: Path) -> Path:
    """Let the manifest and every engine's record state the files as they are."""
    _refresh(root / "manifest.json", root)
    manifest = hashlib.sha256((root / "manifest.json").read_bytes()).hexdigest()
    for record in root.glob("engines/*/engine.json"):
        _refresh(record, root, manifest_sha256=manifest)
    return root


def _refresh(path: Path, root: Path, **changes: str) -> None:
    document = json.loads(path.read_text())
    for name in document["files"]:
        data = (root / name).read_bytes()
        document["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps({**document, **changes}))


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file anew: it may be hard-linked to one that must not change."""
    path.unlink()
    path.write_bytes(data)
