"""The grader fails closed: no link, special file, huge file, pattern or malformed assertion makes it lie, hang or raise."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from onthejob.envs.claw.grader import Grade, GraderConfig, Verdict, grade
from onthejob.envs.claw.task_schema import Assertion, AssertionKind, FileKind, SeedFile
from onthejob.envs.claw.workspace import Found, Workspace
from onthejob.errors import ConfigError

EXISTS, GONE, CONTAINS, MATCHES, UNCHANGED = (
    AssertionKind.FILE_EXISTS,
    AssertionKind.FILE_NOT_EXISTS,
    AssertionKind.FILE_CONTENTS_CONTAIN,
    AssertionKind.FILE_CONTENTS_MATCH_REGEX,
    AssertionKind.FILE_UNCHANGED,
)
TEXT = SeedFile(path="notes.txt", content="caf\u00e9\nsecond\n")
STUB = SeedFile(path="logo.png", kind=FileKind.BINARY_STUB, size_bytes=5000)
SECRET = "only outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace as seeded, with something worth reading next to it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    folder = tmp_path / "work"
    folder.mkdir()
    for file in (TEXT, STUB):
        (folder / file.path).write_bytes(file.data)
    (folder / "docs").mkdir()
    return folder


def check(root: Path, kind: AssertionKind, path: str, *, wanted: tuple[str, ...] = (), regex: str = "") -> Verdict:
    """One assertion, which must not take long whatever it is about."""
    started = time.process_time()
    assertion = Assertion(kind=kind, path=path, must_contain=wanted, regex=regex)
    (verdict,) = grade(root, [assertion], [TEXT, STUB], GraderConfig(regex_s=0.5)).verdicts
    assert time.process_time() - started < 10.0
    assert verdict.passed == (verdict.reason == "")
    return verdict


def test_the_five_kinds_hold_where_they_should(root: Path):
    assert check(root, EXISTS, "notes.txt").passed
    assert check(root, EXISTS, "docs").passed
    assert not check(root, EXISTS, "other.txt").passed
    assert check(root, GONE, "other.txt").passed
    assert check(root, GONE, "no/such/folder").passed
    assert check(root, GONE, "notes.txt/below-a-file").passed
    assert not check(root, GONE, "docs").passed
    assert check(root, CONTAINS, "notes.txt", wanted=("caf\u00e9", "second")).passed
    assert not check(root, CONTAINS, "notes.txt", wanted=("second", "third")).passed
    assert not check(root, CONTAINS, "notes.txt", wanted=("Second",)).passed
    assert check(root, MATCHES, "notes.txt", regex=r"(?m)^second$").passed
    assert not check(root, MATCHES, "notes.txt", regex=r"^second$").passed
    assert check(root, UNCHANGED, "notes.txt").passed
    assert check(root, UNCHANGED, "logo.png").passed


def test_grades_count(root: Path):
    assertions = [
        Assertion(kind=EXISTS, path="notes.txt"),
        Assertion(kind=GONE, path="docs"),
        Assertion(kind=EXISTS, path="docs"),
    ]
    result = grade(root, assertions, [])
    assert (result.n_passed, result.total, result.passed) == (2, 3, False)
    assert result.rate == pytest.approx(2 / 3)
    assert grade(root, assertions[:1], []).passed


def test_nothing_to_check_is_not_passed(root: Path):
    empty = grade(root, [], [])
    assert (empty.passed, empty.rate, empty.total) == (False, 0.0, 0)
    assert Grade(verdicts=()).passed is False


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "docs/../../outside/secret.txt",
        "/etc/passwd",
        "",
        ".",
        "..",
        "docs/",
        "docs//x",
        "./notes.txt",
        "a\0b",
    ],
)
def test_a_path_that_is_no_plain_path_inside_fails(root: Path, path: str):
    absolute = str(root.parent / "outside" / "secret.txt")
    for each in (path, absolute):
        assert not check(root, CONTAINS, each, wanted=(SECRET,)).passed
        assert not check(root, EXISTS, each).passed
        assert not check(root, GONE, each).passed
        assert not check(root, MATCHES, each, regex=".").passed
        assert not check(root, UNCHANGED, each).passed


def test_links_are_not_followed(root: Path):
    (root / "file-link").symlink_to(root.parent / "outside" / "secret.txt")
    (root / "folder-link").symlink_to(root.parent / "outside")
    (root / "inner-link").symlink_to("notes.txt")
    (root / "loop").symlink_to("loop")
    (root / "docs" / "up").symlink_to("..")
    for path in ("file-link", "folder-link/secret.txt", "inner-link", "loop", "docs/up/notes.txt"):
        assert not check(root, CONTAINS, path, wanted=("o",)).passed, path
        assert not check(root, MATCHES, path, regex="o").passed, path
        assert not check(root, EXISTS, path).passed, path
        assert not check(root, GONE, path).passed, path
    assert not check(root, GONE, "folder-link/no-such-file").passed


def test_a_dangling_link_is_something_and_no_file(root: Path):
    (root / "dangling").symlink_to("nowhere")
    assert not check(root, GONE, "dangling").passed
    assert not check(root, EXISTS, "dangling").passed


def test_a_seeded_file_replaced_by_a_link_to_its_copy_is_changed(root: Path):
    (root / "copy.txt").write_bytes(TEXT.data)
    (root / "notes.txt").unlink()
    (root / "notes.txt").symlink_to("copy.txt")
    assert not check(root, UNCHANGED, "notes.txt").passed


@pytest.mark.parametrize("special", ["fifo", "socket", "folder"])
def test_special_files_are_neither_read_nor_waited_for(root: Path, special: str, monkeypatch: pytest.MonkeyPatch):
    path = root / "special"
    if special == "fifo":
        os.mkfifo(path)
    elif special == "folder":
        path.mkdir()
    else:
        monkeypatch.chdir(root)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("special")
    for kind in (CONTAINS, MATCHES, UNCHANGED):
        assert not check(root, kind, "special", wanted=("x",), regex="x").passed
    assert not check(root, GONE, "special").passed
    assert check(root, EXISTS, "special").passed == (special == "folder")
    assert not check(root, CONTAINS, "special/below", wanted=("x",)).passed


def test_a_sparse_giant_is_not_read(root: Path):
    for name in ("giant.txt", "notes.txt", "logo.png"):
        with (root / name).open("ab") as file:
            file.truncate(4 << 30)
    assert "bytes" in check(root, CONTAINS, "giant.txt", wanted=("x",)).reason
    assert not check(root, MATCHES, "giant.txt", regex="x").passed
    assert not check(root, UNCHANGED, "notes.txt").passed
    assert not check(root, UNCHANGED, "logo.png").passed
    assert check(root, EXISTS, "giant.txt").passed


def test_a_file_is_read_up_to_the_limit(root: Path):
    limits = GraderConfig(max_bytes=8)
    wanted = [Assertion(kind=CONTAINS, path="short.txt", must_contain=("x",))]
    (root / "short.txt").write_bytes(b"x" * 8)
    assert grade(root, wanted, [], limits).passed
    (root / "short.txt").write_bytes(b"x" * 9)
    assert not grade(root, wanted, [], limits).passed


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("notes.txt", TEXT.data.replace(b"\n", b"\r\n")),
        ("notes.txt", TEXT.data.replace("\u00e9".encode(), b"\xff\xfe")),
        ("notes.txt", TEXT.data + b"\n"),
        ("notes.txt", TEXT.data[:-1]),
        ("notes.txt", b""),
        ("logo.png", bytes(4999) + b"\1"),
        ("logo.png", bytes(5001)),
        ("logo.png", None),
        ("notes.txt", None),
    ],
)
def test_every_change_of_a_seeded_file_is_seen(root: Path, path: str, data: bytes | None):
    if data is None:
        (root / path).unlink()
    else:
        (root / path).write_bytes(data)
    assert not check(root, UNCHANGED, path).passed


def test_what_was_not_there_at_the_start_cannot_be_unchanged(root: Path):
    (root / "new.txt").write_text("x")
    assert check(root, UNCHANGED, "new.txt").reason == "was not there at the start"


def test_bytes_that_are_no_text_have_no_contents(root: Path):
    (root / "mixed.bin").write_bytes(b"wanted \xff\xfe")
    assert check(root, CONTAINS, "mixed.bin", wanted=("wanted",)).reason == "is not UTF-8 text"
    assert not check(root, MATCHES, "mixed.bin", regex="wanted").passed


def test_malformed_assertions_fail(root: Path):
    assert not check(root, CONTAINS, "notes.txt").passed
    assert not check(root, CONTAINS, "notes.txt", wanted=("second", "")).passed
    assert not check(root, MATCHES, "notes.txt").passed
    assert not check(root, MATCHES, "notes.txt", regex="(").passed
    assert not check(root, MATCHES, "notes.txt", regex="a{99999999999999}").passed
    assert not check(root, "file_is_nice", "notes.txt").passed  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|aa)+$", r"(a|a)*$", r"(.*a){25}$", r"(a*)*b", r"^(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_an_explosive_pattern_fails_in_time(root: Path, pattern: str):
    (root / "bait.txt").write_text("a" * 5_000 + "!")
    verdict = check(root, MATCHES, "bait.txt", regex=pattern)
    assert not verdict.passed
    (root / "fine.txt").write_text("a")
    assert check(root, MATCHES, "fine.txt", regex=r"(a+)+$").passed


def test_other_threads_run_while_a_pattern_explodes(root: Path):
    (root / "bait.txt").write_text("a" * 5_000 + "!")
    ticks: list[float] = []
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    check(root, MATCHES, "bait.txt", regex=r"(a|aa)+$")
    over.set()
    thread.join()
    assert len(ticks) >= 3


def test_modes_do_not_hide_files(root: Path):
    (root / "docs" / "in.txt").write_text("inside")
    (root / "docs" / "in.txt").chmod(0)
    (root / "docs").chmod(0)
    root.chmod(0)
    assert check(root, CONTAINS, "docs/in.txt", wanted=("inside",)).passed
    assert check(root, GONE, "docs/other.txt").passed


def test_odd_names_and_deep_trees(root: Path):
    deep = "/".join(["d"] * 100)
    (root / deep).mkdir(parents=True)
    (root / deep / "line\nbreak").write_text("x")
    (root / os.fsdecode(b"\xff")).write_text("x")
    assert check(root, CONTAINS, f"{deep}/line\nbreak", wanted=("x",)).passed
    assert check(root, GONE, "\ud800").passed is False
    assert check(root, EXISTS, os.fsdecode(b"\xff")).passed


def test_a_hard_link_is_the_file_it_is(root: Path):
    (root / "twin.txt").hardlink_to(root / "notes.txt")
    assert check(root, CONTAINS, "twin.txt", wanted=("second",)).passed


def test_swapping_the_file_while_it_is_graded_never_leads_out(root: Path):
    """A file is replaced by a link to the secret, and its folder by a link to the outside, as fast as possible."""
    over = threading.Event()
    (root / "docs" / "secret.txt").write_text("harmless")

    def swap() -> None:
        count = 0
        while not over.is_set():
            count += 1
            link = root / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(root.parent / "outside" / "secret.txt")
            link.rename(root / "swapped.txt")
            (root / "plain").write_text("harmless")
            (root / "plain").rename(root / "swapped.txt")
            (root / "docs").rename(root / "moved")
            (root / "docs").symlink_to(root.parent / "outside")
            (root / "docs").unlink()
            (root / "moved").rename(root / "docs")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            for path in ("swapped.txt", "docs/secret.txt"):
                assert not check(root, CONTAINS, path, wanted=(SECRET,)).passed
    finally:
        over.set()
        thread.join()


def test_no_descriptor_is_left_open(root: Path):
    (root / "loop").symlink_to("loop")
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    for path in ("notes.txt", "loop/x", "docs/none", "../x", "no/x"):
        for kind in AssertionKind:
            check(root, kind, path, wanted=("x",), regex="x")
    assert len(list(open_files.iterdir())) == before


def test_a_root_that_is_no_folder_is_our_failure(root: Path):
    with pytest.raises(OSError, match="notes"):
        grade(root / "notes.txt", [], [])
    (root / "link").symlink_to("docs")
    with pytest.raises(OSError, match="link"):
        Workspace(root / "link")
    with Workspace(root) as workspace:
        assert workspace.find("docs") is Found.FOLDER


def test_bad_limits_are_refused():
    with pytest.raises(ConfigError, match="max_bytes"):
        GraderConfig(max_bytes=0)
    with pytest.raises(ConfigError, match="regex_s"):
        GraderConfig(regex_s=float("nan"))
