"""A workspace through its descriptor: what an ordinary user must be able to read, however much there is of it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox.tmpfs_workspace import DEEPEST, FOLDER, make_readable
from onthejob.errors import SandboxError


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything anyway and would skip what is tested."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("ordinary")
def test_more_folders_than_a_process_may_open_are_made_readable(tmp_path: Path):
    top = tmp_path / FOLDER
    for number in range(400):
        (top / f"d{number}" / "inner").mkdir(parents=True)
        (top / f"d{number}" / "inner" / "file").touch(mode=0)
        (top / f"d{number}").chmod(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    before = len(list(Path("/proc/self/fd").iterdir()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
    try:
        make_readable(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        after = len(list(Path("/proc/self/fd").iterdir()))
        os.close(folder)
    assert after == before
    modes = {path.stat().st_mode & 0o700 for path in top.rglob("*")}
    assert modes == {0o700, 0o400}


@pytest.mark.usefixtures("ordinary")
def test_what_lies_deeper_than_is_looked_at_stays_as_it_is(tmp_path: Path):
    deep = tmp_path / FOLDER
    for _ in range(DEEPEST + 2):
        deep /= "d"
    deep.mkdir(parents=True)
    deep.chmod(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        make_readable(folder)
    finally:
        os.close(folder)
    assert deep.stat().st_mode & 0o777 == 0


@pytest.mark.usefixtures("ordinary")
def test_a_link_in_place_of_the_workspace_is_our_failure_and_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FOLDER).symlink_to("elsewhere")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(SandboxError, match="cannot be made readable"):
            make_readable(folder)
    finally:
        os.close(folder)
