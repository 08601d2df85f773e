"""Our and the operator's mistakes end in a RecordError with a remedy, and the record stays readable."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from record_program import a_group

from onthejob.errors import RecordError
from onthejob.record import Run, export, list_runs
from onthejob.record.database import APPLICATION_ID, SCHEMA_VERSION


def with_iterations(root: Path, last: int = 1) -> Path:
    with Run.create(root, config={}, name="r") as run:
        for n in range(last + 1):
            with run.iteration(n) as it:
                it.groups([a_group(f"{n}/{i}", size=8) for i in range(10)])
    return root / "r"


def test_a_missing_run(runs_dir):
    for readonly in (True, False):
        with pytest.raises(RecordError, match=r"no run at .*nothing: it has no run\.sqlite.*runs ls"):
            Run.open(runs_dir / "nothing", readonly=readonly)
    assert list(runs_dir.iterdir()) == []  # asking creates nothing
    with pytest.raises(RecordError, match="cannot list runs in"):
        list_runs(runs_dir / "nothing")


def execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path / "run.sqlite", isolation_level=None)) as connection:
        connection.execute(sql)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM meta WHERE key = 'config'", "`meta` lacks config"),
        ("DELETE FROM meta", "`meta` lacks config and created_at"),
        ("UPDATE meta SET value = '{' WHERE key = 'config'", "`meta` does not have its checksum"),
        ("UPDATE meta SET value = '[1]' WHERE key = 'config'", "`meta` does not have its checksum"),
        ("DROP TABLE meta", "no such table"),
    ],
)
def test_a_run_without_its_configuration_hides_no_other(runs_dir, sql: str, said: str, readonly: bool):
    path = with_iterations(runs_dir)
    Run.create(runs_dir, config={}, name="whole").close()
    execute(path, sql)
    with pytest.raises(RecordError, match=said):
        Run.open(path, readonly=readonly)
    damaged, whole = list_runs(runs_dir)
    assert damaged.name == "r"
    assert said in (damaged.error or "")
    assert (whole.name, whole.error) == ("whole", None)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_schema(runs_dir, readonly):
    path = with_iterations(runs_dir)
    execute(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(RecordError, match=rf"schema version {SCHEMA_VERSION + 1}, .*up to {SCHEMA_VERSION}\. Upgrade onthejob"):
        Run.open(path, readonly=readonly)


def test_a_schema_that_there_never_was(runs_dir):
    """It used to read: application id 0x6f746a31, expected 0x6f746a31."""
    path = with_iterations(runs_dir)
    execute(path, "PRAGMA user_version = 0")
    with pytest.raises(RecordError, match="schema version 0, so its creation was interrupted; versions begin with 1"):
        Run.open(path, readonly=True)


@pytest.mark.parametrize("readonly", [True, False])
def test_another_programs_file(runs_dir, readonly):
    path = with_iterations(runs_dir)
    execute(path, "PRAGMA application_id = 1")
    with pytest.raises(RecordError, match=rf"not a run's record: application id 0x1, expected {APPLICATION_ID:#x}"):
        Run.open(path, readonly=readonly)
    (path / "run.sqlite").write_bytes(b"not a database, but long enough to be read as a header" * 99)
    with pytest.raises(RecordError, match=r"cannot open .*not a database.*not a run's record"):
        Run.open(path, readonly=readonly)


def test_a_damaged_page(runs_dir):
    path = with_iterations(runs_dir)
    file = path / "run.sqlite"
    content = bytearray(file.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(2 * page, len(content), page):
        content[start : start + 64] = b"\xff" * 64
    file.write_bytes(content)
    with pytest.raises(RecordError, match=r"Restore run\.sqlite from a copy"):
        Run.open(path)
    Path(path / "writer.lock").unlink()  # the failed open has released it: nothing to wait for
    assert "Restore" in str(list_runs(runs_dir)[0].error)


def test_a_flipped_bit_in_a_prompt(runs_dir):
    path = with_iterations(runs_dir)
    execute(path, "UPDATE contexts SET tail = CAST(X'4872' || X'0101' || substr(tail, 5) AS BLOB) WHERE id = 1")
    with (
        Run.open(path, readonly=True) as run,
        pytest.raises(RecordError, match=r"group 0/0 of iteration 0 is damaged: prompt 1 is"),
    ):
        list(run.read_groups())


def test_a_half_column(runs_dir):
    path = with_iterations(runs_dir)
    execute(path, "UPDATE turns SET logprobs = X'' WHERE id = 1")
    with Run.open(path, readonly=True) as run, pytest.raises(RecordError, match="group 0/0 of iteration 0 is damaged"):
        list(run.read_groups())


def test_an_adapter_path_that_leaves_the_run(runs_dir):
    path = with_iterations(runs_dir)
    execute(path, "DELETE FROM checksums")
    execute(path, "PRAGMA user_version = 1")
    execute(path, "INSERT INTO adapters VALUES ('sales', 1, 0, NULL, 'd', '../../etc')")
    with Run.open(path, readonly=True) as run, pytest.raises(RecordError, match="leaves the run's folder"):
        run.adapters()


@contextmanager
def without_privileges() -> Iterator[Path]:
    """A folder of this user that it may not write; root becomes the user `nobody` inside, for whom no permission is waived."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        yield folder
    finally:
        for place in (folder, *folder.iterdir()):
            place.chmod(0o755)
        shutil.rmtree(folder)


@contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_write_permission():
    with without_privileges() as folder:
        path = with_iterations(folder)
        before = sorted(path.iterdir())
        for place in (path, folder):
            place.chmod(0o555)
        with as_nobody():
            with pytest.raises(RecordError, match=r"cannot create a run in .*Permission denied.*permissions"):
                Run.create(folder, config={}, name="new")
            # The file's owner may write it, but not the write-ahead log next to it.
            with pytest.raises(RecordError, match=r"cannot open .*(Permission denied|readonly database).*permission"):
                Run.open(path)
            with Run.open(path, readonly=True) as run:
                assert run.last_iteration() == 1
                assert len(list(run.read_groups())) == 20
                with pytest.raises(RecordError, match="cannot export to"):
                    export(run, folder / "out")
        path.chmod(0o755)
        assert sorted(path.iterdir()) == before
        with Run.open(path) as writer:  # another user's viewer also follows a run that is being written
            path.chmod(0o555)
            with writer.iteration(2):
                pass
            with as_nobody(), Run.open(path, readonly=True) as run:
                assert run.last_iteration() == 2


def fill(run: Run, start: int) -> int:
    """Commit iterations until the disk refuses; returns how many were committed."""
    n = start
    while n < start + 500:
        with run.iteration(n) as it:
            it.put_blob(f"{n}", os.urandom(50_000))
        n += 1
    return n - start


def test_a_full_disk_keeps_all_that_was_committed_and_goes_on_when_there_is_space(runs_dir, small_disk):
    with small_disk(runs_dir, megabytes=2):
        ballast = runs_dir / "ballast"
        ballast.write_bytes(bytes(400_000))
        with Run.create(runs_dir, config={}, name="r") as run:
            with pytest.raises(RecordError, match=r"cannot commit iteration \d+ to .*full.*Free disk space"):
                fill(run, 0)
            last = run.last_iteration()
            assert last is not None
            kept = run.digest()
            with pytest.raises(RecordError, match=r"cannot write checkpoint .*No space left.*disk space"):
                run.write_checkpoint(last + 1, {"a": bytes(2_000_000)})
            assert list((run.path / "checkpoints").iterdir()) == []
            with Run.open(run.path, readonly=True) as reader:
                assert reader.digest() == kept
            ballast.unlink()
            with run.iteration(last + 1) as it:
                it.put_blob(f"{last + 1}", os.urandom(50_000))
            assert run.digest(through=last) == kept
        with Run.open(runs_dir / "r", readonly=True) as run:
            assert run.last_iteration() == last + 1
            assert run.digest(through=last) == kept


@pytest.mark.parametrize("pending", [False, True], ids=["closed", "killed"])
def test_a_record_can_be_read_on_a_disk_without_a_free_byte(runs_dir, tmp_path, small_disk, pending):
    with Run.create(tmp_path, config={}, name="r") as run:
        for n in range(3):
            with run.iteration(n) as it:
                it.groups([a_group(f"{n}/{i}", size=8) for i in range(10)])
        kept = run.digest()
        if pending:  # what a kill leaves: commits in the log, and no index that another process may use
            for name in ("run.sqlite", "run.sqlite-wal"):
                shutil.copy(run.path / name, tmp_path / name)
    if not pending:
        shutil.copy(tmp_path / "r" / "run.sqlite", tmp_path / "run.sqlite")
    with small_disk(runs_dir, megabytes=2):
        path = runs_dir / "r"
        path.mkdir()
        for file in tmp_path.glob("run.sqlite*"):
            shutil.copy(file, path / file.name)
        (runs_dir / "ballast").write_bytes(bytes(shutil.disk_usage(runs_dir).free))
        assert shutil.disk_usage(runs_dir).free == 0
        for _ in range(2):
            with Run.open(path, readonly=True) as run:
                assert run.last_iteration() == 2
                assert run.digest() == kept
        assert list_runs(runs_dir)[0].error is None
        with pytest.raises(RecordError, match=r"cannot open .*No space left.*disk space"):
            Run.open(path)
        (runs_dir / "ballast").unlink()
        with Run.open(path) as run:  # the failed open holds nothing
            assert run.digest() == kept


def test_the_file_size_limit_keeps_all_that_was_committed(runs_dir):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # python's default: an error instead of a kill
    with Run.create(runs_dir, config={}, name="r") as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
        try:
            with pytest.raises(RecordError, match=r"cannot commit iteration \d+ to .*resume"):
                fill(run, 0)
            last = run.last_iteration()
            kept = run.digest()
            assert last is not None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with run.iteration(last + 1):
            pass
        assert run.digest(through=last) == kept


def test_a_closed_run(runs_dir):
    path = with_iterations(runs_dir)
    run = Run.open(path)
    run.close()
    run.close()
    with pytest.raises(RecordError, match="closed"):
        run.last_iteration()
