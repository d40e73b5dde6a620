import errno
import os
from pathlib import Path

import pytest

from dlmc.linking import link_or_copy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"weights")
    return path


def test_a_link_is_the_same_file(source, tmp_path):
    assert link_or_copy(source, tmp_path / "target")
    assert (tmp_path / "target").samefile(source)


def test_what_a_symbolic_link_leads_to_is_shared(source, tmp_path):
    (tmp_path / "snapshot").symlink_to(source)
    assert link_or_copy(tmp_path / "snapshot", tmp_path / "target")
    assert not (tmp_path / "target").is_symlink()
    assert (tmp_path / "target").samefile(source)


def refusing(code: int):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_a_disk_that_cannot_link_gets_a_copy(source, tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "link", refusing(code))
    assert not link_or_copy(source, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"weights"
    assert not (tmp_path / "target").samefile(source)


def test_other_refusals_are_passed_on(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        link_or_copy(source, tmp_path / "target")


def test_what_is_there_is_not_replaced(source, tmp_path):
    (tmp_path / "target").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        link_or_copy(source, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"other"
