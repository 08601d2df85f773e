"""The command line: help, exit codes, JSON, and clear ends for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from onthejob.cli import COMMANDS, main
from onthejob.models.base_model import weights_digest
from onthejob.testing import tiny_model


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in this process."""

    def run(*words: str | Path) -> Ended:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


def refused(ended: Ended, code: int, *words: str) -> None:
    """It ended with `code` and one clear line that contains `words`; no traceback, nothing on stdout."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.err
    assert ended.out == ""
    for word in words:
        assert word in ended.err, ended.err


def test_help_lists_every_command(call):
    ended = call("--help")
    assert ended.code == 0
    for path, entry in COMMANDS.items():
        assert path in ended.out
        assert entry.summary.split()[0] in ended.out
    assert call().out == ended.out


@pytest.mark.parametrize("path", COMMANDS)
def test_help_of_each_command(call, path: str):
    ended = call(*path.split(), "--help")
    assert ended.code == 0, ended
    assert f"onthejob {path}" in ended.out
    assert "--json" in ended.out


@pytest.mark.parametrize(("path", "flag"), [("train", "--help-all"), ("collect", "--help"), ("compare", "--help")])
def test_help_without_an_environment_says_whose_options_it_shows(call, path: str, flag: str):
    said = " ".join(call(path, flag).out.replace("│", " ").split())
    assert f"These are the options for --env office, the default. With --env REF before {flag}" in said
    assert "the default. With --env REF before" not in call(path, "--env", "claw", flag).out


def test_a_topic_alone_lists_its_commands(call):
    ended = call("runs")
    assert ended.code == 0
    assert "runs export" in ended.out
    assert "doctor" not in ended.out


def test_version(call):
    import onthejob

    assert call("--version").out == f"onthejob {onthejob.__version__}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["tarin"], "train"),
        (["runs", "lst"], "ls"),
        (["scenarios", "shw"], "show"),
    ],
)
def test_unknown_commands_are_usage_errors(call, words: list[str], meant: str):
    refused(call(*words), 2, f"Did you mean {meant}?")


@pytest.mark.parametrize("words", [["doctor", "--nope"], ["scenarios", "show"], ["model", "fetch", "--cache"]])
def test_unknown_or_incomplete_options_are_usage_errors(call, words: list[str]):
    ended = call(*words)
    assert ended.code == 2
    assert "Traceback" not in ended.err + ended.out


def test_scenarios(call, tmp_path: Path, repository: Path):
    listed = json.loads(call("scenarios", "list", "--json").out)
    assert {"baseline", "churn"} <= {row["name"] for row in listed}
    shown = json.loads(call("scenarios", "show", "churn", "--json").out)
    assert shown["name"] == "churn"
    assert shown["schedule"]
    refused(call("scenarios", "show", "bankrupt"), 2, "bankrupt", "baseline")

    shipped = repository / "src/onthejob/envs/office/scenarios/churn.toml"
    assert call("scenarios", "lint", shipped).code == 0
    broken = tmp_path / "mine.toml"
    broken.write_text(shipped.read_text(encoding="utf-8").replace("pressure", "stress", 1), encoding="utf-8")
    ended = call("scenarios", "lint", shipped, broken)
    assert ended.code == 2
    assert "stress" in ended.out
    assert call("scenarios", "lint", tmp_path / "missing.toml").code == 2


def test_a_model_is_fetched_and_described(call, smollm2_path: Path):
    fetched = json.loads(call("model", "fetch", "--json").out)
    assert Path(fetched["path"]) == smollm2_path
    shown = json.loads(call("model", "show", "--json").out)
    assert shown["digest"] == weights_digest(smollm2_path)
    assert shown["digest"] in call("model", "show").out
    assert shown["layers"] == 30
    assert 134_000_000 < shown["parameters"] < 136_000_000


def test_missing_models(call, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(call("model", "fetch", empty), 2, "config.json")
    refused(call("model", "show", tmp_path / "nowhere"), 2, "nowhere")
    refused(call("model", "fetch", "not a model"), 2, "not a model", "smollm2-135m")


def test_a_cache_that_cannot_be_written(call, tmp_path: Path):
    """A file where the cache's folder should be: refused for every user, root included."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    refused(call("model", "fetch", "--cache", blocked / "cache"), 2, "ONTHEJOB_CACHE")


def test_runs(call, runs_dir: Path, tmp_path: Path):
    from onthejob.record import Run

    with Run.create(runs_dir, config={"seed": 7}, name="first") as run, run.iteration(0) as iteration:
        iteration.metrics("sales", {"reward": 0.5})
    assert [row["name"] for row in json.loads(call("runs", "ls", runs_dir, "--json").out)] == ["first"]
    shown = json.loads(call("runs", "show", runs_dir / "first", "--json").out)
    assert shown["config"] == {"seed": 7}
    assert shown["metrics"]["sales"]["reward"] == 0.5
    for kind in ("jsonl", "parquet"):
        files = json.loads(call("runs", "export", runs_dir / "first", "--format", kind, "--out", tmp_path / kind, "--json").out)
        assert Path(files["metrics"]).stat().st_size > 0
    assert "reward" in (tmp_path / "jsonl/metrics.jsonl").read_text(encoding="utf-8")
    assert "first" in call("runs", "ls", runs_dir).out


def test_runs_that_are_not_there_or_damaged(call, runs_dir: Path, tmp_path: Path):
    refused(call("runs", "ls", tmp_path / "nowhere"), 2, "nowhere")
    for command in (("show",), ("export",), ("replay",), ("rescore", "--stops", "seed")):
        refused(call("runs", *command, runs_dir / "nothing"), 2, "nothing")
    refused(call("train", "--resume", runs_dir / "nothing"), 2, "nothing")
    damaged = runs_dir / "damaged"
    damaged.mkdir()
    (damaged / "run.sqlite").write_bytes(b"no database" * 100)
    refused(call("runs", "show", damaged), 1, "run.sqlite")
    refused(call("runs", "export", damaged), 1, "run.sqlite")
    ended = call("runs", "ls", runs_dir)
    assert ended.code == 0
    assert "damaged" in ended.out


def test_printed_options_are_a_config_file_that_flags_override(call, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(call("train", "--env.seeds", "3", "--learner.lr", "0.5", "--print-config").out, encoding="utf-8")
    again = json.loads(
        call("train", "--config", file, "--branch.group-size", "5", "--env.seeds", "4", "--print-config", "--json").out
    )
    assert again["learner"]["lr"] == 0.5, "the file overrides the default"
    assert again["env"]["seeds"] == 4, "a flag overrides the file"
    assert again["train"]["branch"]["group_size"] == 5
    printed = tomllib.loads(call("train", f"--config={file}", "--print-config").out)
    assert printed == tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--branch.group-size", "1"], ["group_size must be >= 2", "Set --branch.group-size 8"]),
        (["--sampling.temperature", "nan"], ["temperature"]),
        (["--learner.lr", "nan"], ["lr"]),
        (["--learner.betas", "nan", "0.9"], ["betas"]),
        (["--seed", "-1"], ["seed must be >= 0"]),
        (["--env.days", "0"], ["days must be in 1..90"]),
        (["--learner.loss.loss", "ppo"], ["ppo"]),
        (["--roles", "boss"], ["boss", "sales"]),
        (["--env.scenarios", "nowhere"], ["nowhere", "baseline"]),
        (["--env.partner", "nobody"], ["nobody", "heuristic"]),
        (["--model.name", "no such model"], ["no such model"]),
        (["--init", "no-such-run"], ["no-such-run"]),
        (["--extend", "9"], ["--extend", "--resume"]),
        (["--reference", "x"], ["--reference", "--from-groups"]),
        (["--resume", "runs/x", "--env.seeds", "3"], ["--resume", "env.seeds"]),
        (["--from-groups", "runs/x"], ["RUN:ITERATION"]),
        (["--config", "missing.toml"], ["missing.toml"]),
    ],
)
def test_training_refuses_what_cannot_work(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: list[str]
):
    monkeypatch.chdir(tmp_path)
    ended = call("train", *words)
    assert ended.code == 2, ended
    assert "Traceback" not in ended.out + ended.err
    shown = " ".join((ended.out + ended.err).replace("\u2502", " ").split())
    for word in said:
        assert word in shown
    assert not (tmp_path / "runs").exists(), "nothing is recorded before the options are known to work"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["play", "--env.days", "0"], "days must be in 1..90"),
        (["play", "--temperature", "nan"], "temperature"),
        (["play", "--max-new-tokens", "0"], "max_new_tokens"),
        (["play", "--transcript", "/dev/null/said.jsonl"], "--transcript cannot be written to /dev/null/said.jsonl"),
        (["play", "claw", "--transcript", "/dev/null/said.jsonl"], "--transcript cannot be written to /dev/null/said.jsonl"),
        (["eval", "heuristic", "--env.days", "0"], "days must be in 1..90"),
        (["eval", "heuristic", "--temperature", "0"], "temperature must be above 0, got 0.0"),
        (["eval", "heuristic", "--temperature", "nan"], "temperature must be above 0, got nan"),
        (["compare", "heuristic", "--env.days", "91"], "days must be in 1..90"),
        (["sft", "--seed", "-1"], "seed must be >= 0"),
        (["demo", "--minutes", "-1"], "minutes must be finite and >= 0"),
        (["demo", "--states", "39"], "states must be >= 40, got 39"),
        (["demo", "--iterations", "0"], "iterations must be >= 1"),
        (["demo", "--report", "."], "folder"),
        (["demo", "--start", "elsewhere"], "elsewhere is neither a run nor a folder of adapters"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    ended = call(*words)
    assert ended.code == 2, ended
    assert said in " ".join(ended.err.replace("\u2502", " ").split())
    assert "Traceback" not in ended.err
    assert not list(tmp_path.iterdir())


def test_a_demo_whose_record_cannot_be_kept_ends_at_once(call, tmp_path: Path):
    """A file where the folder of all runs should be: refused for every user, root included."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    refused(call("demo", "--runs", blocked), 1, "File exists")


def test_damaged_weights_and_devices_that_are_not_there(call, tmp_path: Path):
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    words = ("play", "--team", "base", "--env.days", "1", "--model.name", tmp_path)
    if not torch.cuda.is_available():
        ended = call(*words, "--model.device", "cuda")
        assert ended.code == 2
        assert "finds no GPU" in ended.err
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    ended = call(*words)
    assert ended.code == 1
    assert "cannot be loaded" in ended.err
    assert "Traceback" not in ended.err


def test_malformed_config_files(call, tmp_path: Path):
    for text, word in (
        ("learner = 3", "learner"),
        ("[learner]\nrate = 1", "rate"),
        ("seeds = ", "TOML"),
        ("seeds = 'x'", "seeds"),
    ):
        file = tmp_path / "bad.toml"
        file.write_text(text, encoding="utf-8")
        refused(call("train", "--config", file), 2, word)


def test_doctor_reports_and_fails_without_a_model(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))
    ended = call("doctor", "--json")
    found = {row["name"]: row for row in json.loads(ended.out)}
    assert ended.code == 1
    assert found["model smollm2-135m"]["ok"] is False
    assert "model fetch" in found["model smollm2-135m"]["remedy"]
    assert found["torch"]["ok"]
    assert not (tmp_path / "cache").exists(), "looking must not create anything"


def test_an_interrupt_ends_with_130(tmp_path: Path):
    """Ctrl-C while a command works: one line, no traceback, and the shell's code for an interrupt."""
    fifo = tmp_path / "scenario.toml"
    os.mkfifo(fifo)
    child = subprocess.Popen(
        [sys.executable, "-m", "onthejob.cli", "scenarios", "lint", str(fifo)],
        stderr=subprocess.PIPE,
        text=True,
        # A suite that was started in a shell's background ignores the signal, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # Opening a FIFO for writing without waiting succeeds only once the child has opened it for reading.
    deadline = time.monotonic() + 30
    while True:
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # A signal between the opening and the reading is noted, and then the reading waits until Ctrl-C is pressed again.
    for _ in range(6):
        child.send_signal(signal.SIGINT)
        try:
            _, err = child.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        child.kill()
        child.communicate()
        pytest.fail("not interrupted")
    os.close(writer)
    assert child.returncode == 130
    assert err == "interrupted\n"


def test_a_reader_that_goes_away_is_no_error_message():
    command = f"{sys.executable} -m onthejob.cli scenarios list --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str):
    for words in ("--help", "doctor --help", "scenarios list"):
        command = f"{sys.executable} -m onthejob.cli {words} {closed}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr
