import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dlmc.export.bundle_writer import BundleWriter, check_output, file_record
from dlmc_runtime.bundle import MANIFEST, Bundle
from dlmc_runtime.errors import BundleError, DlmcError, UsageError
from dlmc_runtime.manifest import Manifest, parse_manifest
from dlmc_runtime.record import FileRecord


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "made" / "bundle"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights" * 1000)
    return path


def document(files: Mapping[str, FileRecord]) -> Manifest:
    """Return a small valid manifest that lists ``files``."""
    return Manifest.model_validate(
        {
            "family": "sdar",
            "architecture": "SDARForCausalLM",
            "attention": {"regime": "block", "block_length": 4},
            "shift": 0,
            "tokens": {"mask": 9, "stop": (8,), "pad": 7, "suppressed": (9,)},
            "model": {
                "vocab_size": 10,
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "max_position_embeddings": 64,
                "parameters": 10,
            },
            "head": {"variant": "plain", "candidates": 1},
            "precision": "float32",
            "inputs": (),
            "outputs": (),
            "profiles": ({"batch": 1, "block": 4, "cache": 8, "rows": 4},),
            "sampler": {"name": "sequential"},
            "max_new_tokens": 8,
            "text": None,
            "tolerances": {},
            "provenance": {"source": "test", "versions": {}},
            "config": "config.json",
            "graph": "denoiser.onnx",
            "weights": ("weights/model.safetensors",),
            "files": files,
        }
    )


def fill(bundle: BundleWriter, source: Path) -> None:
    bundle.write("denoiser.onnx", b"graph")
    bundle.write("config.json", b"{}")
    bundle.link(source, "weights/model.safetensors")


def make(output: Path, source: Path, *, force: bool = False) -> None:
    with BundleWriter(output, force=force) as bundle:
        fill(bundle, source)
        bundle.copy(source, "tokenizer/tokenizer.json")
        bundle.finish(document)


def interrupt(output: Path, source: Path, error: type[BaseException], *, force: bool = False):
    with BundleWriter(output, force=force) as bundle:
        fill(bundle, source)
        raise error


def hidden(output: Path) -> list[str]:
    return [path.name for path in output.parent.glob(".*")] if output.parent.exists() else []


def test_a_finished_bundle_loads(output, source):
    make(output, source)
    manifest = Bundle.open(output).manifest
    assert manifest.files["denoiser.onnx"].sha256 == hashlib.sha256(b"graph").hexdigest()
    assert manifest.files["weights/model.safetensors"].size == 7000
    assert sorted(manifest.files) == [
        "config.json",
        "denoiser.onnx",
        "tokenizer/tokenizer.json",
        "weights/model.safetensors",
    ]
    assert not hidden(output)


def test_everybody_may_read_it(output, source):
    make(output, source)
    assert stat.S_IMODE(output.stat().st_mode) == 0o755


def test_weights_are_the_same_file(output, source):
    make(output, source)
    assert (output / "weights" / "model.safetensors").samefile(source)


def test_a_symbolic_link_is_followed(output, source, tmp_path):
    """A hub snapshot is made of them."""
    link = tmp_path / "snapshot.safetensors"
    link.symlink_to(source)
    make(output, link)
    made = output / "weights" / "model.safetensors"
    assert not made.is_symlink()
    assert made.samefile(source)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_weights_are_copied_where_the_disk_cannot_link(output, source, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    make(output, source)
    made = output / "weights" / "model.safetensors"
    assert not made.samefile(source)
    assert made.read_bytes() == source.read_bytes()
    Bundle.open(output)


def test_a_copy_leaves_its_source_alone(output, source):
    make(output, source)
    assert not (output / "tokenizer" / "tokenizer.json").samefile(source)


def test_the_manifest_comes_last(output, source):
    """Whoever sees a manifest sees everything that it lists."""

    def look(files: Mapping[str, FileRecord]) -> Manifest:
        (partial,) = output.parent.iterdir()
        assert not (partial / MANIFEST).exists()
        assert all((partial / name).is_file() for name in files)
        assert not output.exists()
        return document(files)

    with BundleWriter(output) as bundle:
        fill(bundle, source)
        bundle.finish(look)


def test_what_is_written_can_be_parsed_again(output, source):
    make(output, source)
    parse_manifest((output / MANIFEST).read_bytes())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, MemoryError])
def test_an_interruption_leaves_nothing(output, source, error):
    with pytest.raises(error):
        interrupt(output, source, error)
    assert not output.exists()
    assert not hidden(output)
    assert source.read_bytes() == b"weights" * 1000


def test_not_finishing_leaves_nothing(output, source):
    with BundleWriter(output) as bundle:
        fill(bundle, source)
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("stage", ["os.fsync", "shutil.copyfile", "os.link"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(output, source, monkeypatch, stage):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stage, full)
    with pytest.raises(DlmcError, match=r"No space left on device.*: free some space") as caught:
        make(output, source)
    assert str(output) in caught.value.message
    assert list(output.parent.iterdir()) == []


def test_a_failing_rename_leaves_nothing(output, source, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(DlmcError, match="cannot write the bundle"):
        make(output, source)
    assert list(output.parent.iterdir()) == []


def test_a_parent_that_is_a_file_is_one_sentence(source):
    with pytest.raises(DlmcError, match="cannot write the bundle"):
        make(source / "bundle", source)


KILLED = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from dlmc.export import bundle_writer
from dlmc.export.bundle_writer import BundleWriter

def wait(*_):
    print("ready", flush=True)
    time.sleep(60)

output, source, stage = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
with BundleWriter(output) as bundle:
    bundle.write("denoiser.onnx", b"graph")
    bundle.link(source, "weights/model.safetensors")
    if stage == "hash":
        bundle_writer.file_record = wait
    if stage == "publish":
        BundleWriter._rename = wait
    whole = SimpleNamespace(model_dump_json=lambda indent: "{}")
    bundle.finish(wait if stage == "manifest" else lambda files: whole)
"""


@pytest.mark.parametrize("stage", ["hash", "manifest", "publish"])
def test_a_killed_process_leaves_nothing_that_loads(output, source, stage):
    command = [sys.executable, "-c", KILLED, str(output), str(source), stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert not output.exists()
    (partial,) = output.parent.iterdir()
    assert partial.name.startswith(".bundle.partial-")
    assert (partial / "manifest.json").exists() == (stage == "publish")
    with pytest.raises(BundleError, match="interrupted"):
        Bundle.open(partial)
    assert source.read_bytes() == b"weights" * 1000
    make(output, source)  # what the killed one left is not in the way


def test_refuses_what_is_there(output, source):
    make(output, source)
    before = (output / MANIFEST).stat().st_mtime_ns
    with pytest.raises(UsageError, match="exists: choose another output or pass --force"):
        make(output, source)
    assert (output / MANIFEST).stat().st_mtime_ns == before


def test_force_replaces_a_bundle_and_its_engines(output, source):
    make(output, source)
    (output / "engines").mkdir()
    make(output, source, force=True)
    assert not (output / "engines").exists()
    assert not hidden(output)
    Bundle.open(output)


def test_force_keeps_the_old_bundle_when_the_new_one_fails(output, source):
    make(output, source)
    with pytest.raises(KeyboardInterrupt):
        interrupt(output, source, KeyboardInterrupt, force=True)
    Bundle.open(output)


def test_force_brings_the_old_bundle_back_when_renaming_fails(output, source, monkeypatch):
    make(output, source)
    rename = Path.rename

    def refuse_the_new(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(DlmcError, match="cannot write the bundle"):
        make(output, source, force=True)
    Bundle.open(output)
    assert not hidden(output)


def test_force_takes_an_empty_folder(output, source):
    output.mkdir(parents=True)
    make(output, source, force=True)
    Bundle.open(output)


def test_force_deletes_nothing_that_is_no_bundle(output, source):
    output.mkdir(parents=True)
    (output / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not a bundle"):
        make(output, source, force=True)
    assert (output / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_force_replaces_folders_only(tmp_path, kind):
    target = tmp_path / "target"
    target.mkdir()
    (target / MANIFEST).write_text("{}")
    output = tmp_path / "output"
    if kind == "file":
        output.write_text("")
    else:
        output.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not a folder"):
        check_output(output, force=True)


def test_hashes_in_pieces_and_reports_them(tmp_path):
    path = tmp_path / "file"
    data = os.urandom((1 << 21) + 17)
    path.write_bytes(data)
    pieces: list[int] = []
    record = file_record(path, pieces.append)
    assert record == FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    assert sum(pieces) == len(data)
    assert len(pieces) == 3
