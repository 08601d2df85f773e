"""The timeline: events as they were, of several threads and drivers, in a file that can be read at any moment."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onthejob.scale import timeline as module
from onthejob.scale.timeline import BEFORE, DRIVER, Timeline


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8").rstrip().rstrip(",") + "]")


def repeat(made: Timeline, actor: str) -> None:
    for _ in range(50):
        made.did(actor, "job", 0.1)


def test_what_actors_did_is_on_their_tracks(tmp_path: Path):
    file, made = tmp_path / "logs" / "timeline.json", Timeline()
    made.did("worker-0", "before there is a file", 0.5)
    made.into(file)
    made.did("worker-1", "branch-000001 and 3 more", 0.25)
    now = 1e6 * time.time()
    made.did(DRIVER, "play and score", 2.0, ago=1.0)
    found = events(file)
    names = {event["tid"]: event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {1: "worker-0", 2: "worker-1", 0: "driver"}
    done = [(names[event["tid"]], event["name"], event["dur"]) for event in found if event["ph"] == "X"]
    assert done == [
        ("worker-0", "before there is a file", 500_000),
        ("worker-1", "branch-000001 and 3 more", 250_000),
        ("driver", "play and score", 2_000_000),
    ]
    assert found[-1]["ts"] + found[-1]["dur"] == pytest.approx(now - 1e6, abs=1e6)


def test_a_run_in_one_process_has_no_timeline(tmp_path: Path):
    made = Timeline()
    made.into(tmp_path / "logs" / "timeline.json")
    made.did(DRIVER, "iteration 1", 1.0)
    assert not (tmp_path / "logs").exists()


def test_a_second_driver_appends_and_threads_do_not_mix_lines(tmp_path: Path):
    file = tmp_path / "timeline.json"
    for _ in range(2):
        made = Timeline()
        made.into(file)
        threads = [threading.Thread(target=partial(repeat, made, f"worker-{number}")) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([event for event in events(file) if event["ph"] == "X"]) == 400


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LARGEST", 2000)
    made = Timeline()
    for _ in range(2 * BEFORE):
        made.did("worker-0", "early", 0.1)
    assert len(made._waiting) == BEFORE
    made._waiting.clear()
    file = tmp_path / "timeline.json"
    made.into(file)
    for _ in range(200):
        made.did("worker-0", "job", 0.1)
    assert 2000 <= file.stat().st_size < 2500
    assert events(file)
