"""The real trackers, each read back through its own package."""

from __future__ import annotations

import csv
import importlib
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onthejob.files import sha256
from onthejob.record import Run

TENSORS = "ignore::DeprecationWarning"


def recorded(path: Path) -> dict[str, dict[int, float]]:
    """Metric -> iteration -> value."""
    found: dict[str, dict[int, float]] = {}
    with Run.open(path, readonly=True) as run:
        for metric in run.read_metrics():
            found.setdefault(f"{metric.scope}/{metric.name}", {})[metric.iteration] = metric.value
    return found


def same(found: dict[int, float], expected: dict[int, float]) -> bool:
    return found.keys() == expected.keys() and all(
        math.isnan(found[n]) if math.isnan(value) else math.isclose(found[n], value, rel_tol=1e-6)
        for n, value in expected.items()
    )


@pytest.mark.filterwarnings(TENSORS)
def test_tensorboard_reads_scalars_and_texts_once(recorder, sync):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder.add(2)
    sync("tensorboard")
    recorder.add(2)
    sync("tensorboard")
    read = EventAccumulator(str(recorder.path / "track" / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    for name, values in recorded(recorder.path).items():
        events = read.Scalars(name)
        assert len(events) == len(values), "no doubled points"
        assert same({event.step: event.value for event in events}, values)
    texts = read.Tensors("transcripts/text_summary")
    assert [event.step for event in texts] == [0, 1, 2, 3]
    assert b"| episode | turn |" in texts[0].tensor_proto.string_val[0]
    assert b'"seed": 0' in read.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.filterwarnings(TENSORS)
def test_tensorboard_forgets_what_was_written_and_not_confirmed(recorder, sync):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from onthejob.track.sent_state import SentState, write_state

    recorder.add(3)
    sync("tensorboard")
    write_state(recorder.path, SentState(tracker="tensorboard", sent=1))  # as if killed before that was noted
    time.sleep(1.1)  # event files are read in the order of the seconds in their names
    sync("tensorboard")
    read = EventAccumulator(str(recorder.path / "track" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in read.Scalars("train/guesser/reward")] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_keeps_a_local_project(recorder, sync):
    pytest.importorskip("trackio")
    recorder.add(2)
    program = [sys.executable, "-m", "onthejob", "runs", "sync", "a", "--track", "trackio:guessing", "--adapters"]
    subprocess.run(program, check=True, timeout=200)
    recorder.add(1)
    (recorder.path / "track" / "trackio-guessing.json").unlink(missing_ok=True)
    for path in (recorder.path / "track").glob("*.json"):
        path.unlink()  # what was sent is found in the project itself
    done = subprocess.run([*program, "--json"], check=True, timeout=200, capture_output=True, text=True)
    assert json.loads(done.stdout) == [{"tracker": "trackio:guessing", "sent": 1}], "nothing else is on stdout"
    reading = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("guessing")
print(json.dumps([SQLiteStorage.get_logs("guessing", name), SQLiteStorage.get_run_config("guessing", name)]))
"""
    out = subprocess.run([sys.executable, "-c", reading], check=True, timeout=200, capture_output=True, text=True).stdout
    logs, config = json.loads(out.splitlines()[-1])
    assert [log["step"] for log in logs] == [0, 1, 2]
    assert [log["train/guesser/reward"] for log in logs] == [0.0, 0.25, 0.5]
    assert logs[0]["transcripts"]["_type"] == "trackio.table"
    assert config["seed"] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_run_in_sqlite(recorder, sync, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    recorder.add(2)
    sync("mlflow:guessing")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("guessing")
    (run,) = client.search_runs([experiment.experiment_id])
    # As if killed in the middle of the next iteration.
    recorder.add(1)
    client.log_metric(run.info.run_id, "train/guesser/reward", 0.5, step=2)
    for path in (recorder.path / "track").glob("*.json"):
        path.unlink()
    sync("mlflow:guessing")
    sync("mlflow:guessing", "--adapters")
    (run,) = client.search_runs([experiment.experiment_id])
    for name, values in recorded(recorder.path).items():
        history = client.get_metric_history(run.info.run_id, name)
        assert len(history) == len(values), "no doubled points"
        assert same({metric.step: metric.value for metric in history}, values)
    assert run.data.params == {"seed": "0", "env.ref": "guess.py:Guess"}
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    kept = Path(client.download_artifacts(run.info.run_id, "adapters/guesser@0002"))
    with Run.open(recorder.path, readonly=True) as opened:
        assert sha256(kept / "adapter_model.safetensors") == opened.adapters()[-1].digest
    assert [Path(item.path).name for item in client.list_artifacts(run.info.run_id, "adapters")] == ["guesser@0002"]
    artifacts = client.list_artifacts(run.info.run_id, "transcripts")
    assert [Path(item.path).name for item in artifacts] == ["000000.json", "000001.json", "000002.json"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_offline_files(recorder, sync):
    pytest.importorskip("wandb")
    wandb_internal_pb2: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    from onthejob.track.to_wandb import log_records

    recorder.add(2)
    program = [sys.executable, "-m", "onthejob", "runs", "sync", "a", "--track", "wandb:guessing", "--adapters"]
    subprocess.run(program, check=True, timeout=200)
    recorder.add(1)
    for path in (recorder.path / "track").glob("*.json"):
        path.unlink()
    subprocess.run(program, check=True, timeout=200)
    steps: list[int] = []
    projects: set[str] = set()
    artifacts: list[str] = []
    for path in sorted(recorder.path.glob("track/wandb/offline-run-*/*.wandb")):
        for content in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                projects.add(record.run.project)
                assert record.run.display_name == "a"
            elif kind == "artifact":
                artifacts.append(record.artifact.name)
            elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
                artifacts.append(record.request.log_artifact.artifact.name)
            elif kind == "history":
                steps.append(record.history.step.num)
                names = {item.key or "/".join(item.nested_key) for item in record.history.item}
                assert {"train/guesser/reward", "train/guesser/loss", "transcripts/_type"} <= names
    assert steps == [0, 1, 2]
    assert projects == {"guessing"}
    assert artifacts, "the newest adapters"


KILLED = """
import os, signal
from onthejob.track.to_{kind} import tracker as make
from onthejob.track.tracker import Tracker
from onthejob.track import send_record as module
write, calls = module.write_state, []

def killing(run, state):
    write(run, state)
    calls.append(state)
    if len(calls) > 2:
        os.kill(os.getpid(), signal.SIGKILL)

module.write_state, module.AT_ONCE = killing, 2
from onthejob.cli import main
main(["runs", "sync", "a", "--track", "{name}"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("jsonl", "jsonl:x.jsonl"), ("csv", "x.csv"), ("xlsx", "x.xlsx")])
def test_a_killed_sync_started_again_continues(recorder, sync, rows_of, kind: str, name: str):
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
    recorder.add(7)
    done = subprocess.run([sys.executable, "-c", KILLED.format(kind=kind, name=name)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    sync(name)
    if kind == "jsonl":
        assert [json.loads(line)["iteration"] for line in Path("x.jsonl").read_text().splitlines()] == list(range(7))
    elif kind == "csv":
        with Path("x-turns.csv").open(newline="") as file:
            assert len(list(csv.reader(file))) - 1 == rows_of(recorder.path)[1]
    else:
        import openpyxl

        assert openpyxl.load_workbook("x.xlsx")["turns"].max_row - 1 == rows_of(recorder.path)[1]
