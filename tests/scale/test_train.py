"""`onthejob train --scale.learners` and `onthejob scale plan|doctor` as commands, with a tiny real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onthejob.record import Run
from onthejob.testing import teach, tiny_model
from onthejob.types import Message

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
ENV = Path(__file__).parent.parent.parent / "examples" / "negotiation.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that offers some price or accepts."""
    folder = tmp_path_factory.mktemp("tiny")
    prices = [str(price) for price in range(1, 21)]
    said = [
        "Buy",
        "Sell",
        "below",
        "above",
        "The",
        "offers",
        "Accept",
        "to",
        "gain",
        "or",
        "Offer",
        "N",
        ".",
        ",",
        "offer",
        "accept",
    ]
    tiny = tiny_model(words=[*said, *prices])
    first = [((Message("user", f"{aim} {limit}. Offer N."),), f"offer {price}")
             for aim, limit in (("Buy below", 9), ("Sell above", 5), ("Buy below", 17)) for price in (7, 8, 6)]  # fmt: skip
    then = [((Message("user", f"{aim} 12. The {other} offers 7. Accept to gain 5, or offer N."),), reply)
            for aim, other in (("Buy below", "seller"), ("Sell above", "buyer")) for reply in ("accept", "offer 10")]  # fmt: skip
    teach(tiny, [*first, *then], steps=80, batch=13)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def ran(folder: Path, *words: str, code: int = 0) -> Any:
    """The JSON of a command that runs in the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "onthejob", *words, "--json"], cwd=folder, capture_output=True, text=True, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_learners_change_no_record_and_leave_logs(tmp_path: Path, model: Path):
    usual = (
        "train", "--env", f"{ENV}:Negotiation", "--model.name", str(model), "--model.dtype", "float32", "--iterations", "2",
        "--collect.episodes", "3", "--branch.group-size", "4", "--learner.lr", "1e-3",
    )  # fmt: skip
    ran(tmp_path, *usual, "--name", "alone")
    ran(tmp_path, *usual, "--name", "two", "--scale.learners", "2")
    digests = {}
    for name in ("alone", "two"):
        with Run.open(tmp_path / "runs" / name, readonly=True) as run:
            assert run.last_iteration() == 2
            assert all(len(run.adapters(role)) > 1 for role in ("buyer", "seller")), "both roles were trained"
            digests[name] = run.digest()
    assert digests["alone"] == digests["two"]
    logs = {file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "runs" / "two" / "logs").iterdir()}
    events = json.loads(logs.pop("timeline.json").rstrip().rstrip(",") + "]")
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(tracks.values()) == {"driver", "learner-0", "learner-1"}
    done = [(tracks[one["tid"]], one["name"], one["ts"], one["ts"] + one["dur"]) for one in events if one["ph"] == "X"]
    iterations = [one for one in done if one[1].startswith("iteration")]
    updates = [one for one in done if one[1].startswith("update/")]
    assert [name for _, name, *_ in iterations] == ["iteration 1", "iteration 2"]
    assert {actor for actor, *_ in updates} == {"learner-0", "learner-1"}
    assert all(any(began <= at and till <= end for *_, began, end in iterations) for *_, at, till in updates)
    assert logs.keys() == {"learner-0.log", "learner-1.log"}
    assert all("is started" in text and "ready after" in text for text in logs.values())
    assert not (tmp_path / "runs" / "alone" / "logs").exists()


def test_a_plan_says_who_sits_where(tmp_path: Path, model: Path):
    found = ran(
        tmp_path, "scale", "plan", "--env", f"{ENV}:Negotiation", "--model.name", str(model), "--scale.learners", "2"
    )  # fmt: skip
    (node,) = found["nodes"]
    assert node["seats"] == {"learner": 2}
    assert found["wrong"] == {}
    assert len(found["expected"]["base"]) == 12
    assert found["expected"]["environment"]
    assert not (tmp_path / "runs").exists()


def test_a_plan_refuses_what_train_refuses(tmp_path: Path, model: Path):
    words = ("scale", "plan", "--env", f"{ENV}:Negotiation", "--model.name", str(model), "--scale.learners", "3")
    done = subprocess.run(
        [sys.executable, "-m", "onthejob", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "--scale.learners 3 is more than there are adapters to train: 2" in done.stderr


def test_the_doctor_of_a_node_lists_what_must_be_equal(tmp_path: Path, model: Path):
    done = subprocess.run(
        [sys.executable, "-m", "onthejob", "scale", "doctor", "--model", str(model), "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = {line["name"]: line for line in json.loads(done.stdout)}
    assert {"ray", "token", "python", "torch", "base", "open files", "folder for temporary files"} <= found.keys()
    assert len(found["base"]["value"]) == 12
    missing = [line for line in found.values() if not line["ok"]]
    assert all(line["remedy"] for line in missing)
    assert done.returncode == (1 if missing else 0)
