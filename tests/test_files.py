"""Files and folders are seen whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from onthejob.files import TEMPORARY, connected, json_lines, published, published_file, remove_abandoned


def test_a_line_of_json_ends_at_a_line_feed_alone(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('"a\u2028b"\n\n"c\x85d"\n', encoding="utf-8")
    assert json_lines(file) == [(1, '"a\u2028b"'), (3, '"c\x85d"')]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_the_one_before_it_when_it_is_whole(tmp_path: Path):
    final = tmp_path / "report.html"
    final.write_text("old")
    with published_file(final) as draft:
        draft.write_text("new")
        assert final.read_text() == "old"
        assert draft.name.startswith(TEMPORARY)
    assert final.read_text() == "new"
    assert names(tmp_path) == ["report.html"]


def test_a_file_that_was_not_finished_changes_nothing(tmp_path: Path):
    final = tmp_path / "report.html"
    final.write_text("old")

    def interrupted() -> None:
        with published_file(final) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert final.read_text() == "old"
    assert names(tmp_path) == ["report.html"]


def test_a_folder_that_was_not_finished_is_absent(tmp_path: Path):
    def full() -> None:
        with published(tmp_path / "sales@0001") as draft:
            (draft / "a").write_text("1")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        full()
    assert names(tmp_path) == []


def test_drafts_of_the_living_and_other_files_stay(tmp_path: Path):
    dead = 2**22 + 1
    for name in (f"a-{dead}.123456", f"b@0001-{dead}-old", f"name-with-{os.getpid()}-{dead}"):
        (tmp_path / f"{TEMPORARY}{name}").touch()
    kept = {f"{TEMPORARY}a-{os.getpid()}.{dead}", f"{TEMPORARY}odd", f"a-{dead}"}
    for name in kept:
        (tmp_path / name).touch()
    remove_abandoned(tmp_path)
    assert set(names(tmp_path)) == kept


def test_a_folder_appears_with_all_its_files_and_drafts_of_the_dead_are_removed(tmp_path: Path):
    final = tmp_path / "sales@0001"
    dead = tmp_path / f"{TEMPORARY}{final.name}-{2**22 + 1}"  # above what a kernel gives
    dead.mkdir()
    with published(final) as draft:
        (draft / "a").write_text("1")
        assert not final.exists()
        remove_abandoned(tmp_path, final.name)
        assert names(tmp_path) == [draft.name]
    assert (final / "a").read_text() == "1"
    assert names(tmp_path) == ["sales@0001"]


def test_a_database_that_cannot_be_set_up_is_closed(tmp_path: Path):
    file = tmp_path / "no.sqlite"
    file.write_text("no database\n" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database") as kept:
        connected(file, "CREATE TABLE rows (id)")
    opened = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert kept.value.__traceback__ is not None, "what the failed call held is still alive"
    assert str(file) not in opened


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("publish", [published, published_file])
def test_an_error_without_a_file_name_gets_the_one_that_is_being_written(tmp_path: Path, publish, number: int):
    """The system names no file where a write fails, as on a full disk."""
    with pytest.raises(OSError, match=r"place") as raised, publish(tmp_path / "place"):
        raise OSError(number, os.strerror(number))
    assert raised.value.filename == str(tmp_path / "place")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kilobytes", [1, 5, 50, 100, 150])
def test_a_disk_that_is_full_at_any_size_is_named(tmp_path: Path, small_disk, kilobytes: int):
    with small_disk(tmp_path, megabytes=1):
        (tmp_path / "ballast").write_bytes(bytes(shutil.disk_usage(tmp_path).free - 1024 * kilobytes))

        def publish() -> None:
            with published(tmp_path / "place") as folder:
                (folder / "config").write_bytes(bytes(3000))
                (folder / "weights").write_bytes(bytes(160_000))

        with pytest.raises(OSError, match="place") as raised:
            publish()
        assert raised.value.errno == errno.ENOSPC
        assert [path.name for path in tmp_path.iterdir()] == ["ballast"]
