"""A dead workspace as items: what is kept, what is left behind, what is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from onthejob.envs.claw.copying import COPIED_FILES, MAX_DEPTH, copied
from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S
from onthejob.envs.claw.sandbox.sandbox_interface import WORKSPACE, Item, Kind
from onthejob.envs.claw.sandbox.surveying import survey
from onthejob.envs.claw.workspace import Unreadable, Workspace


def test_kinds_modes_and_times_are_kept(tmp_path: Path):
    (tmp_path / "a" / "empty").mkdir(parents=True)
    (tmp_path / "a" / "run.sh").write_text("x", encoding="utf-8")
    (tmp_path / "a" / "run.sh").chmod(0o710)
    (tmp_path / "a" / "locked").write_text("y", encoding="utf-8")
    (tmp_path / "a" / "locked").chmod(0o000)
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"z")
    for path in ("a/run.sh", "a/empty", "a/locked", os.fsdecode(b"\xff")):
        os.utime(tmp_path / path, ns=(5, 7))
    os.mkfifo(tmp_path / "pipe")
    found = copied(tmp_path)
    folder = found.pop("a")
    assert (folder.kind, folder.mode) == (Kind.FOLDER, 0o755)
    assert found == {
        "a/empty": Item(kind=Kind.FOLDER, mode=0o755, mtime_ns=7),
        # Readable for the checker, as everything is for root.
        "a/locked": Item(data=b"y", mode=0o400, mtime_ns=7),
        "a/run.sh": Item(data=b"x", mode=0o710, mtime_ns=7),
        os.fsdecode(b"\xff"): Item(data=b"z", mode=0o644, mtime_ns=7),
    }


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("file", True),
        ("./d/../file", True),
        ("d", True),
        ("missing/deep", True),
        (WORKSPACE, True),
        (f"{WORKSPACE}/d", True),
        (f"{WORKSPACE}/..{WORKSPACE}/file", False),
        ("/", False),
        ("/etc/hostname", False),
        ("/workshop", False),
        ("//work/file", False),
        ("..", False),
        ("../work/file", False),
        ("d/up/../../x", False),
        ("d/out/x", False),
        ("d/../d/../..", False),
        ("self", False),
        ("chain", False),
    ],
)
def test_a_link_is_kept_when_following_it_stays_inside(tmp_path: Path, target: str, kept: bool):
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "d" / "out").symlink_to("../..")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "chain").symlink_to("d/out")
    (tmp_path / "link").symlink_to(target)
    found = copied(tmp_path)
    assert {"d/out", "self", "chain"}.isdisjoint(found)
    assert found.get("d/up") is not None
    assert ("link" in found) is kept
    if kept:
        assert (found["link"].kind, found["link"].data.decode()) == (Kind.LINK, target)


def test_what_is_too_deep_or_too_much_cannot_be_checked(tmp_path: Path):
    (tmp_path / "deep" / "/".join("d" * (MAX_DEPTH + 1))).mkdir(parents=True)
    with pytest.raises(Unreadable, match="folders deep"):
        copied(tmp_path / "deep")
    (tmp_path / "many").mkdir()
    for number in range(COPIED_FILES + 1):
        (tmp_path / "many" / str(number)).symlink_to("0")
    with pytest.raises(Unreadable, match="holds more than"):
        copied(tmp_path / "many")


def leave(kind: str, root: Path) -> None:
    """Something at `found` on which a reader could wait, or which it would never have read."""
    place = root / "found"
    match kind:
        case "fifo":
            os.mkfifo(place)
        case "fifo with a writer":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))
        case "link to a fifo":
            os.mkfifo(root / "pipe")
            place.symlink_to("pipe")
        case "link to itself":
            place.symlink_to("found")
        case "terminal":
            place.symlink_to("/dev/ptmx")
        case "sparse file":
            with place.open("wb") as file:
                file.truncate(1 << 40)
        case "many names":
            place.mkdir()
            (root / "one").touch()
            for number in range(COPIED_FILES + 10):
                (place / str(number)).hardlink_to(root / "one")
        case "long names":
            folder = os.open(root, os.O_RDONLY)
            for _ in range(MAX_DEPTH - 2):
                os.mkdir("n" * 255, dir_fd=folder)
                folder, above = os.open("n" * 255, os.O_RDONLY, dir_fd=folder), folder
                os.close(above)
            os.symlink("x", "l" * 255, dir_fd=folder)
            os.close(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "fifo",
        "fifo with a writer",
        "socket",
        "link to a fifo",
        "link to itself",
        "terminal",
        "sparse file",
        "many names",
        "long names",
    ],
)
def test_no_reader_waits_for_what_an_agent_left(tmp_path: Path, kind: str):
    leave(kind, tmp_path)
    writer = os.open(tmp_path / "found", os.O_RDWR | os.O_NONBLOCK) if kind == "fifo with a writer" else -1
    said: list[str] = []

    def read() -> None:
        survey(tmp_path)
        try:
            copied(tmp_path)
        except Unreadable as error:
            said.append(str(error))
        with Workspace(tmp_path) as workspace:
            for path in ("found", "pipe", "found/0"):
                with contextlib.suppress(Unreadable):
                    workspace.read(path, limit=1_000_000)
                workspace.find(path)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert not reader.is_alive(), f"it still reads: {kind}"
    assert bool(said) == (kind in ("sparse file", "many names", "long names")), said
    if writer >= 0:
        os.close(writer)
