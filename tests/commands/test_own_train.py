"""`train`, `--resume`, `compare` and `--config` in an environment that only a file of the user's knows."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.commands.servers import check_roles
from onthejob.commands.train import recorded_options
from onthejob.errors import ConfigError
from onthejob.models.base_model import load_base
from onthejob.models.native.engine import suiting_library
from onthejob.models.native.shared_library import load_library
from onthejob.record import Run

LETTERS = '''
"""Two pick letters; what pays is private."""

from onthejob import Env, Next, Split, Task

ALPHABET = "abcdefgh"


class Letters(Env):
    roles = ("first", "second")
    max_turns, max_new_tokens = 4, 3
    bonus: float = 1.0
    """Paid for the letter that pays."""

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=40)

    def reset(self, task: Task) -> Next:
        self.paying, self.picked = task.draw("letter") % 3, []
        return self.request(0)

    def request(self, number: int) -> Next:
        return self.ask(self.roles[number % 2], "pick a letter", legal=list(ALPHABET))

    def step(self, reply: str) -> Next:
        if reply.strip() not in ALPHABET or not reply.strip():
            return self.end(rewards={self.role: -1.0}, valid=False)
        self.picked.append(reply.strip())
        paid = {self.role: self.bonus * (ALPHABET.index(reply.strip()) % 3 == self.paying)}
        if len(self.picked) == 4:
            return self.end(rewards=paid, metrics={"letters": len(set(self.picked))})
        following = self.request(len(self.picked))
        return Next(request=following.request, rewards=paid)

    def players(self):
        return {"always_a": lambda seen, seed: "a"}
'''
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_update.py"
SMALL = ("--collect.episodes", "2", "--branch.group-size", "4", "--lora.rank", "2", "--sampling.temperature", "1")


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """The file, in the empty folder in which `call` runs commands."""
    path = tmp_path / "letters.py"
    path.write_text(LETTERS, encoding="utf-8")
    return path


def model(path: Path) -> tuple[str, ...]:
    return "--model.name", str(path), "--model.dtype", "float32"


def test_a_run_records_what_it_played_and_resumes_exactly(call, letters: Path, letter_model: Path):
    env = ("--env", "letters.py:Letters", "--env.bonus", "2", *SMALL, *model(letter_model))
    call("train", *env, "--iterations", "2", "--name", "a")
    with Run.open(Path("runs/a"), readonly=True) as run:
        assert run.config["env"]["ref"] == f"{letters}:Letters"
        assert run.config["env"]["bonus"] == 2.0
        assert len(run.config["env"]["fingerprint"]) == 16
        assert run.config["roles"] == ["first", "second"]
        assert not {"scenarios", "partner", "claw"} & set(run.config)
        paid = {t["rewards"]["first"] for e in run.read_episodes(1) for t in e.timeline if t["actor"] == "first"}
        assert paid <= {-1.0, 0.0, 2.0}
        assert len(paid) > 1
        assert run.read_metrics("train/second", name="delta_l2")
    straight = call("train", *env, "--iterations", "3", "--name", "b")
    resumed = call("train", "--resume", "a", "--extend", "3")
    for role in ("first", "second"):
        assert resumed["adapters"][role]["digest"] == straight["adapters"][role]["digest"], "resumed = uninterrupted"
        assert resumed["adapters"][role]["version"] == 3, "every iteration taught something"

    compared = call("compare", "b", "random", "always_a", "--env", "letters.py", "--limit", "6", *model(letter_model))
    assert {row["team"] for row in compared["episodes"]} == {"b", "random", "always_a"}


def test_patience_says_after_how_many_dead_iterations_a_run_has_converged(call, letters: Path, letter_model: Path):
    """No letter pays anything, so that no group can teach something."""
    letters.write_text(LETTERS.replace("-1.0", "0.0"), encoding="utf-8")
    env = ("--env", "letters.py", "--env.bonus", "0", *SMALL, *model(letter_model), "--iterations", "5")
    for patience in (1, 2):
        ended = call("train", *env, "--patience", patience, "--name", f"after{patience}", code=3)
        assert (ended["stop"], ended["iterations"]) == ("pool_converged", patience)
    assert "--patience" in call("train", "--resume", "after1", "--patience", 2, code=2)
    assert "patience must be >= 1, got 0" in call("train", *env, "--patience", 0, code=2)


def test_decisions_are_branched_without_any_more_code(call, letters: Path, letter_model: Path):
    branch = (
        "--grouping", "branch", "--library-tasks", "10", "--scale-states", "8",
        "--collect.segment-turns", "4", "--branch.turns", "4", "--branch.worlds", "1",
    )  # fmt: skip
    result = call(
        "train", "--env", "letters.py", *SMALL, *branch, *model(letter_model), "--iterations", "1", "--name", "branches"
    )
    assert result["iterations"] == 1
    with Run.open(Path("runs/branches"), readonly=True) as run:
        groups = list(run.read_groups(1))
        assert {group.actor for group in groups} == {"first", "second"}
        assert any(len({t.ret for t in group.trajectories}) > 1 for group in groups), "replies differ in what they are worth"
    letters.write_text(LETTERS.replace("    max_turns,", '    forks = "no"\n    max_turns,'), encoding="utf-8")
    other = letters.rename(letters.with_name("fixed.py"))
    assert "needs a workplace that can be forked" in call("train", "--env", other.name, "--grouping", "branch", code=2)


def test_a_file_of_options_names_the_environment_and_states_its_own(call, letters: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--env", "letters.py", "--env.bonus", "3", "--print-config"]) == 0
    written = capsys.readouterr().out
    assert f'[env]\nref = "{letters}"\nbonus = 3.0' in written
    Path("mine.toml").write_text(written, encoding="utf-8")
    assert main(["train", "--config", "mine.toml", "--print-config"]) == 0
    again = capsys.readouterr().out
    Path("again.toml").write_text(again, encoding="utf-8")
    assert main(["train", "--config", "again.toml", "--print-config"]) == 0
    assert capsys.readouterr().out == again
    assert again.endswith(written[written.index("[env]") :])
    assert main(["train", "--config", "mine.toml", "--env.bonus", "4", "--print-config"]) == 0
    assert "bonus = 4.0" in capsys.readouterr().out
    for wrong, said in (
        ("[env]\nbonus = 1.0\n", 'names no environment. Add ref = "path/to/file.py:Class"'),
        ('[env]\nref = "letters.py"\nbons = 1.0\n', "unknown key 'bons'; known: bonus. Did you mean bonus?"),
        ('[env]\nref = "letters.py"\nbonus = "much"\n', "bonus = 'much'"),
        ('env = "elsewhere.py"\n', "there is no file elsewhere.py"),
    ):
        Path("wrong.toml").write_text(wrong, encoding="utf-8")
        assert said in call("train", "--config", "wrong.toml", code=2)


def test_options_of_other_workplaces_are_not_offered(call, letters: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(AssertionError, match="Unrecognized options"):
        call("train", "--env", "letters.py", "--scenarios", "churn", code=0)
    assert main(["train", "--env", "letters.py", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "--env.bonus" in shown
    assert "Paid for the letter that pays" in shown
    assert not [flag for flag in ("--scenarios", "--claw.count", "--profile") if flag in shown]
    assert "roles must be some of first, second" in call("train", "--env", "letters.py", "--roles", "third", code=2)


@pytest.mark.parametrize(
    ("words", "tokens", "turns"),
    [
        ((), 3, 4),
        (("--env.max-new-tokens", "9", "--env.max-turns", "6"), 9, 6),
        (("--env.max-new-tokens", "9", "--sampling.max-new-tokens", "5"), 5, 4),
    ],
)
def test_limits_that_are_options_hold_in_training(call, letters: Path, words: tuple[str, ...], tokens: int, turns: int):
    limits = "    max_turns: int = 4\n    max_new_tokens: int = 3\n"
    letters.write_text(LETTERS.replace("    max_turns, max_new_tokens = 4, 3\n", limits), encoding="utf-8")
    config = call("train", "--env", "letters.py", *words, "--print-config")["train"]
    assert (config["sampling"]["max_new_tokens"], config["max_turns"]) == (tokens, turns)


@pytest.mark.slow
def test_a_changed_source_is_said_when_a_run_goes_on(letters: Path, letter_model: Path, tmp_path: Path):
    command = [sys.executable, "-m", "onthejob", "train"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)

    small = ("--lora.rank", "2", "--collect.episodes", "1", "--branch.group-size", "2")
    run("--env", "letters.py", *small, *model(letter_model), "--iterations", "1", "--name", "a")
    assert "has changed" not in run("--resume", "a", "--extend", "2").stderr
    letters.write_text(f"{LETTERS}\n# another line\n", encoding="utf-8")
    assert "the source of" in run("--resume", "a", "--extend", "3").stderr
    letters.unlink()
    gone = subprocess.run([*command, "--resume", "a"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert gone.returncode == 2
    assert f"there is no file {letters}" in gone.stderr


@pytest.mark.slow
@pytest.mark.parametrize("native", ["auto", "off"])
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    letters: Path, letter_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
):
    monkeypatch.setenv("ONTHEJOB_NATIVE", native)
    if native == "auto" and load_library(bf16=False):
        assert suiting_library(load_base(letter_model, dtype="float32").model), "compiled code runs this model"
    command = [sys.executable, "-m", "onthejob", "train"]
    words = ["--env", "letters.py", *SMALL, *model(letter_model), "--iterations", "8", "--quiet"]
    with subprocess.Popen([*command, *words, "--name", "killed"], cwd=tmp_path) as process:
        deadline = time.monotonic() + 240
        while last_iteration(tmp_path / "runs" / "killed") < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    for last in (["--resume", "killed"], [*words, "--name", "straight"]):
        subprocess.run([*command, *last], cwd=tmp_path, timeout=240, check=True)
    with (
        Run.open(tmp_path / "runs" / "killed", readonly=True) as run,
        Run.open(tmp_path / "runs" / "straight", readonly=True) as other,
    ):
        for role in ("first", "second"):
            digests = [[adapter.digest for adapter in one.adapters(role)] for one in (run, other)]
            assert digests[0][-1] == digests[1][-1]


def last_iteration(folder: Path) -> int:
    """Of a run that may not exist yet."""
    if not (folder / "run.sqlite").is_file():
        return -1
    with Run.open(folder, readonly=True) as run:
        return run.last_iteration() or 0


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ((), "got none"),
        (("ceo", "agent"), "got ceo, agent"),
        (("ceo", "first"), "got ceo, first"),
        (("Sales",), "got Sales"),
        (("first", "second"), ""),
        (("ceo", "dev"), ""),
    ],
)
def test_a_worker_trains_roles_of_one_workplace(roles: tuple[str, ...], said: str):
    if not said:
        check_roles(roles)
        return
    with pytest.raises(ConfigError, match=f"roles must be some of one workplace's, {said}"):
        check_roles(roles)


def seats_of(run: Run, iteration: int) -> list[dict[str, str]]:
    """Role -> who played it, of every episode of an iteration."""
    return [{turn["actor"]: turn["policy"] for turn in episode.timeline} for episode in run.read_episodes(iteration)]


def test_a_frozen_seat_is_played_by_its_adapter_and_never_trained(call, letters: Path, letter_model: Path, tmp_path: Path):
    env = ("--env", "letters.py", *SMALL, *model(letter_model))
    call("train", *env, "--iterations", "2", "--name", "before")
    result = call(
        "train", *env, "--freeze", "second=before:1", "--iterations", "2", "--name", "after",
        "--eval-every", "1", "--eval-tasks", "2",
    )  # fmt: skip
    assert set(result["adapters"]) == {"first"}
    with Run.open(Path("runs/after"), readonly=True) as run:
        assert run.config["roles"] == ["first"]
        assert run.config["freeze"] == [f"second={tmp_path / 'runs' / 'before'}:1"]
        for iteration in (1, 2):
            seats = {"first": f"first@{iteration - 1:04d}", "second": "second@0001"}
            # An unusable reply ends an episode before the other is asked.
            assert all(played.items() <= seats.items() for played in seats_of(run, iteration))
            assert seats in seats_of(run, iteration)
        assert {group.actor for n in (1, 2) for group in run.read_groups(n)} == {"first"}
        assert not run.adapters("second")
    straight = call("train", *env, "--freeze", "second=before:1", "--iterations", "3", "--name", "straight")
    resumed = call("train", "--resume", "after", "--extend", "3")
    assert resumed["adapters"]["first"]["digest"] == straight["adapters"]["first"]["digest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--freeze", "third=before"), "with ROLE of first, second; got 'third=before'"),
        (("--freeze", "second"), "must be ROLE=ADAPTERS"),
        (("--freeze", "second=nowhere"), "unknown player 'nowhere'"),
        (("--freeze", "second=.", "--roles", "second"), "second is among --roles, which are trained"),
        (("--freeze", "first=.", "second=."), "roles must be some of first, second, got none"),
        (("--opponents", "past:0"), "opponents must be present or past:N with N >= 1, got 'past:0'"),
        (("--opponents", "old"), "got 'old'"),
        (("--opponents", "past:2", "--roles", "first"), "needs two or more trained roles"),
        (("--opponents", "past:2", "--sampler", "vllm"), "has one of each"),
        (("--adapters", "first+third"), "got 'third' in 'first+third'"),
        (("--adapters", "shared", "--from-groups", "runs/any:1"), "--adapters has no effect with --from-groups"),
    ],
)
def test_seats_that_cannot_be_frozen_and_opponents_that_are_never_met(call, letters: Path, words: tuple[str, ...], said: str):
    assert said in call("train", "--env", "letters.py", *words, "--iterations", "1", code=2)


@pytest.mark.parametrize("grouping", ["episodes", "branch"])
def test_opponents_from_the_past_are_drawn_recorded_and_met_again(call, letters: Path, letter_model: Path, grouping: str):
    branch = (
        "--library-tasks", "10", "--scale-states", "8", "--collect.segment-turns", "4",
        "--branch.turns", "4", "--branch.worlds", "1", "--collect.partner-share", "0",
    )  # fmt: skip
    env = ("--env", "letters.py", *SMALL, "--collect.episodes", "6", *model(letter_model), "--opponents", "past:2")
    env = (*env, "--grouping", grouping, *(branch if grouping == "branch" else ()))
    straight = call("train", *env, "--iterations", "5", "--name", "straight")
    call("train", *env, "--iterations", "4", "--name", "again")
    resumed = call("train", "--resume", "again", "--extend", "5")
    for role in ("first", "second"):
        assert resumed["adapters"][role]["digest"] == straight["adapters"][role]["digest"], "resumed = uninterrupted"
    met: set[str] = set()
    with Run.open(Path("runs/straight"), readonly=True) as run:
        published = {role: run.adapters(role) for role in ("first", "second")}
        for iteration in range(1, 6):
            # A version is numbered by the iteration that made it.
            may = {role: [a.name for a in made if a.version < iteration][-3:] for role, made in published.items()}
            for seats in seats_of(run, iteration):
                present = [role for role, version in seats.items() if version == may[role][-1]]
                # An unusable reply of the opponent's may end an episode before the other is asked.
                assert present or len(seats) == 1, "who is trained plays as it is now"
                assert all(version in may[role] for role, version in seats.items())
                met |= {version for role, version in seats.items() if version != may[role][-1]}
            by_task = [(group.trajectories[0].task_id, group.actor) for group in run.read_groups(iteration)]
            assert all(
                trajectory.turns[0].policy_version == may[group.actor][-1]
                for group in run.read_groups(iteration)
                for trajectory in group.trajectories
            ), "only what the present version sampled is trained on"
            if grouping == "episodes":
                assert len({task for task, _ in by_task}) == len(by_task), "one role is trained in the episodes of a task"
    assert len(met) >= 3, "earlier versions were met"


def test_roles_that_share_an_adapter_are_trained_on_the_groups_of_both(
    call, letters: Path, letter_model: Path, caplog: pytest.LogCaptureFixture
):
    env = ("--env", "letters.py", *SMALL, *model(letter_model))
    call("collect", "--env", "letters.py", "--policy", "random", "--count", "12", "--out", "shown")
    call("sft", "shown", "--adapters", "first+second", "--out", "start", "--lora.rank", "2", *model(letter_model))
    call("sft", "shown", "--out", "apart", "--lora.rank", "2", *model(letter_model))
    assert "share one adapter, and apart holds two that differ" in call(
        "train", *env, "--init", "apart", "--adapters", "shared", "--iterations", "1", code=2
    )
    shared = (*env, "--init", "start", "--adapters", "shared")
    straight = call("train", *shared, "--iterations", "3", "--name", "straight")
    call("train", *shared, "--iterations", "2", "--name", "again")
    resumed = call("train", "--resume", "again", "--extend", "3")
    digests = {made["adapters"][role]["digest"] for made in (straight, resumed) for role in ("first", "second")}
    assert len(digests) == 1, "both roles are equal, and resumed = uninterrupted"
    apart = call("train", *env, "--init", "start", "--iterations", "3", "--name", "apart")
    assert apart["adapters"]["first"]["digest"] != apart["adapters"]["second"]["digest"]
    with Run.open(Path("runs/straight"), readonly=True) as run:
        versions = [[adapter.digest for adapter in run.adapters(role)] for role in ("first", "second")]
        assert versions[0] == versions[1]
        assert len(set(versions[0])) == len(versions[0]) >= 2
        actors = {group.actor for n in (1, 2, 3) for group in run.read_groups(n)}
        assert actors == {"first", "second"}, "the record keeps whose groups they were"
        metrics = [{m.name: m.value for m in run.read_metrics(f"train/{role}", iteration=1)} for role in ("first", "second")]
        assert metrics[0]["loss"] == metrics[1]["loss"]
        repeated = call("train", "--from-groups", "straight:1", *env, "--roles", "second")
        assert repeated["second"]["loss"] == metrics[1]["loss"], "the recorded update was made of both roles' groups"


def test_a_loss_and_an_estimator_of_ones_own_train_resume_and_are_watched(
    call, letters: Path, letter_model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    mine = letters.with_name("mine.py")
    mine.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    own = ("--learner.loss.loss", "mine.py:clipped", "--advantage.estimator", "mine.py:leave_one_out")
    env = ("--env", "letters.py", *SMALL, *model(letter_model), *own)
    straight = call("train", *env, "--iterations", "2", "--name", "straight")
    call("train", *env, "--iterations", "1", "--name", "again")
    with Run.open(Path("runs/again"), readonly=True) as run:
        assert run.config["learner"]["loss"]["loss"] == f"{mine}:clipped"
        assert set(run.config["sources"]) == {f"{mine}:clipped", f"{mine}:leave_one_out"}
        recorded = {key: values for key, values in run.read_advantages(1).items() if values is not None}
        assert recorded
        assert all(sum(values) == pytest.approx(0) for values in recorded.values()), "the estimator's, which only centre"
    resumed = call("train", "--resume", "again", "--extend", "2")
    for role in ("first", "second"):
        assert resumed["adapters"][role]["digest"] == straight["adapters"][role]["digest"]
    # The commands keep their lines from the root's handlers.
    monkeypatch.setattr(logging.getLogger("onthejob"), "propagate", True)
    for changes in (0, 2):
        with Run.open(Path("runs/again"), readonly=True) as run:
            recorded_options(run)
        assert caplog.text.count("has changed since") == changes
        mine.write_text(f"{mine.read_text(encoding='utf-8')}\n# another line\n", encoding="utf-8")
    kept = mine.rename(mine.with_name("kept.py"))
    told = call("runs", "replay", "again", code=1)  # Its advantages cannot be computed again.
    assert told["episodes"]
    assert all(one["hash"] == one["recorded_hash"] for one in told["episodes"]), "episodes are executed again without them"
    assert "there is no file" in call("train", "--resume", "again", "--extend", "3", code=2)
    kept.rename(mine)
    for words, said in (
        (("--learner.loss.loss", "mine.py:other"), "mine.py has no 'other'"),
        (("--learner.loss.loss", "gone.py:clipped"), "there is no file gone.py"),
        (("--learner.loss.loss", "clip"), "loss must be one of grpo"),
        (("--advantage.estimator", "mine.py:np"), "is a module. Name a function"),
        ((*own, "--trainer", "http://127.0.0.1:9"), "is code of this machine"),
    ):
        assert said in " ".join(call("train", "--env", "letters.py", *words, code=2).split()), words
