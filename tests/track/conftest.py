"""A real record of a real environment, without a model: `examples/guess.py` played by its scripted players."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from onthejob.cli import main
from onthejob.commands.named_env import Workplace
from onthejob.files import sha256
from onthejob.plugins import resolve
from onthejob.record import Run
from onthejob.record.iteration import WEIGHTS_FILE
from onthejob.rollout.play import play
from onthejob.types import Adapter, Sampling, Split

EPISODES = 3
"""Of an iteration."""
SECRET = "sk-never-to-be-seen-0123456789"


class Recorder:
    """Writes iterations of one run."""

    def __init__(self, folder: Path, guess: Path) -> None:
        self.path = folder / "runs" / "a"
        self._place = Workplace(ref=f"{guess}:Guess", env=resolve(f"{guess}:Guess")())
        self._run: Run | None = Run.create(folder / "runs", config={"seed": 0, "env": {"ref": "guess.py:Guess"}}, name="a")
        self.next = 0

    def add(self, iterations: int) -> None:
        """Play and commit."""
        assert self._run is not None
        tasks = self._place.tasks(Split.TRAIN)
        with self._place.opened() as make_env:
            for step in range(self.next, self.next + iterations):
                chosen = tasks[step * EPISODES : (step + 1) * EPISODES]
                player = self._place.players(chosen)["random" if step % 2 else "halving"]
                envs = [make_env() for _ in chosen]
                played = play(envs, chosen, {"guesser": player}, Sampling(max_new_tokens=4), seed=step, encoder=None, max_turns=3)
                for env in envs:
                    env.close()
                with self._run.iteration(step) as it:
                    for index, episode in enumerate(played):
                        it.episode(
                            f"s{index:02d}/{episode.task.id}",
                            policies={turn.actor: turn.policy for turn in episode.transcript},
                            metrics=episode.metrics,
                            timeline=[asdict(turn) for turn in episode.transcript],
                            facts={"task": episode.task.id, "stop": str(episode.stop), "error": None, "unseated": {}},
                        )
                    it.metrics("train/guesser", {"reward": step / 4, "loss": float("nan") if step == 1 else -step / 8})
                    it.metrics("time", {"iteration_s": 0.5})
                    it.adapter(self._adapter(step))
        self.next += iterations

    def _adapter(self, version: int) -> Adapter:
        assert self._run is not None
        path = self._run.adapter_path("guesser", version)
        path.mkdir()
        save_file({"weight": np.full((2, 2), float(version), np.float32)}, path / WEIGHTS_FILE)
        return Adapter(role="guesser", version=version, path=path, digest=sha256(path / WEIGHTS_FILE))

    def close(self) -> None:
        """Let others write."""
        if self._run is not None:
            self._run.close()
        self._run = None


@pytest.fixture
def recorder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A run `runs/a` in an empty folder, into which commands are called, open for writing; nothing is recorded yet."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_API_KEY": SECRET,
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_ERROR_REPORTING": "false",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    made = Recorder(tmp_path, repository / "examples" / "guess.py")
    yield made
    made.close()


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`sync("jsonl")` runs `onthejob runs sync a --track jsonl`; returns what it wrote to stderr."""

    def send(*words: str, code: int = 0, run: str = "a") -> str:
        capsys.readouterr()
        assert main(["runs", "sync", run, "--track", *words, "--json", "--quiet"]) == code
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err
        return said.err

    return send


@pytest.fixture
def rows_of() -> Callable[[Path], tuple[int, int]]:
    """Numbers of episodes and turns in a record."""

    def counted(run: Path) -> tuple[int, int]:
        with Run.open(run, readonly=True) as opened:
            episodes = list(opened.read_episodes())
        return len(episodes), sum(len(episode.timeline) for episode in episodes)

    return counted
