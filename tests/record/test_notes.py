"""Notes on a run stay out of its record; its status says how it was left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, RecordError
from onthejob.record import Run, list_runs
from onthejob.record.listing import ENDED, RunStatus
from onthejob.record.notes import FILE, Notes, read_notes, write_notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Run.create(
        tmp_path, config={"train": {"iterations": 5}, "model": {"name": "m"}, "env": {"ref": "office"}}, name="a"
    ) as run:
        for n in range(3):
            with run.iteration(n) as it:
                it.metrics("time", {"iteration_s": 1.5})
    return tmp_path / "a"


def test_notes_are_kept_next_to_the_record_and_never_in_it(folder: Path):
    with Run.open(folder, readonly=True) as run:
        before = run.digest(clocks=True)
    assert read_notes(folder) == Notes()
    (folder / FILE).write_text('{"groups": {"k": "of another page"}}', encoding="utf-8")
    notes = Notes(tags=("cautious", "for the talk"), note="two\nlines é", star=True)
    write_notes(folder, notes)
    assert read_notes(folder) == notes
    assert json.loads((folder / FILE).read_text(encoding="utf-8"))["groups"] == {"k": "of another page"}
    with Run.open(folder, readonly=True) as run:
        assert run.digest(clocks=True) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tags": tuple(f"t{n}" for n in range(21))}, "at most 20 tags"),
        ({"tags": ("a", "a")}, "each once"),
        ({"tags": ("",)}, "1 to 40"),
        ({"tags": ("x" * 41,)}, "1 to 40"),
        ({"tags": ("a,b",)}, "no comma"),
        ({"tags": ("a\nb",)}, "printable"),
        ({"note": "x" * 4001}, "at most 4000"),
    ],
)
def test_bad_notes_are_refused(fields: dict, said: str):
    with pytest.raises(ConfigError, match=said):
        Notes(**fields)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"tags": 3}', '{"tags": ["a,b"]}', "\udc00".encode("utf-8", "surrogatepass").decode("latin-1")]
)
def test_a_broken_file_is_no_notes(folder: Path, text: str):
    (folder / FILE).write_text(text, encoding="utf-8")
    assert read_notes(folder) == Notes()


def test_a_place_that_takes_no_notes(folder: Path, tmp_path: Path):
    with pytest.raises(RecordError, match="no run 'b'"):
        write_notes(tmp_path / "b", Notes())
    (folder / FILE).mkdir()
    with pytest.raises(RecordError, match=r"cannot write .*notes\.json"):
        write_notes(folder, Notes(star=True))


def status(folder: Path) -> RunStatus:
    (found,) = list_runs(folder.parent)
    return found.status


def test_the_status_says_how_a_run_was_left(folder: Path):
    assert status(folder) is RunStatus.STOPPED, "3 of 5 iterations"
    with Run.open(folder) as run:
        assert status(folder) is RunStatus.RUNNING
        run.live(ENDED, {"stop": "minutes", "iteration": 2})
    assert status(folder) is RunStatus.ENDED
    with Run.open(folder) as run, run.iteration(3):
        pass
    assert status(folder) is RunStatus.STOPPED, "continued since, and stopped again"
    with Run.open(folder) as run:
        for n in (4, 5):
            with run.iteration(n):
                pass
    assert status(folder) is RunStatus.ENDED, "of a version that left no message"
    (found,) = list_runs(folder.parent)
    assert (found.seconds, found.model, found.env) == (4.5, "m", "office")


def test_a_killed_writer_is_seen(folder: Path):
    opened = f"from onthejob.record import Run; run = Run.open({str(folder)!r})"
    script = f"import time; {opened}; print('open', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            assert status(folder) is RunStatus.RUNNING
        finally:
            writer.send_signal(signal.SIGKILL)
    assert status(folder) is RunStatus.KILLED
    with Run.open(folder):
        pass
    assert status(folder) is RunStatus.STOPPED, "opened and closed by another since"
