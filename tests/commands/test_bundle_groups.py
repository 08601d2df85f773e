"""A run's groups as a file of bundles, and what is trained on it: the same updates, and imitation of the better part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onthejob.commands.sft_data import bundled_demonstrations
from onthejob.errors import ConfigError, RecordError
from onthejob.record import Run
from onthejob.record.bundle import FILE
from onthejob.record.bundle_file import by_iteration, read_bundles
from onthejob.testing import tiny_model

WORDS = '''
"""Two letters one after the other; a letter of the task pays."""

from onthejob import Env, Next, Split, Task

ALPHABET = "abcdefgh"


class Words(Env):
    roles = ("player",)
    max_turns, max_new_tokens = 2, 3

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=40)

    def reset(self, task: Task) -> Next:
        self.paying, self.picked = task.draw("letter") % 3, []
        return self.ask("player", "pick a letter", legal=list(ALPHABET))

    def step(self, reply: str) -> Next:
        letter = reply.strip()
        paid = float(letter in ALPHABET and bool(letter) and ALPHABET.index(letter) % 3 == self.paying)
        self.picked.append(letter)
        return self.end(reward=paid) if len(self.picked) == 2 else self.tell("pick a letter", reward=paid)
'''
LEARNS = ("--lora.rank", "2", "--learner.lr", "1e-3")
SMALL = ("--collect.episodes", "2", "--branch.group-size", "4", "--sampling.temperature", "1", *LEARNS)


def model(path: Path) -> tuple[str, ...]:
    return "--model.name", str(path), "--model.dtype", "float32"


@pytest.fixture
def played(call, tmp_path: Path, letter_model: Path) -> dict[str, Any]:
    """A run of three iterations, `runs/played`, and its bundles."""
    (tmp_path / "words.py").write_text(WORDS, encoding="utf-8")
    env = ("--env", "words.py", *model(letter_model))
    result = call("train", *env, *SMALL, "--iterations", "3", "--name", "played")
    result["file"] = call("runs", "export", "played", "--bundles")["bundles"]
    return result


def test_updates_from_bundles_are_those_of_the_run(call, played: dict[str, Any], letter_model: Path, tmp_path: Path):
    file = tmp_path / "runs/played/export" / FILE
    assert Path(played["file"]) == file.relative_to(tmp_path)
    bundled = read_bundles(file)
    with Run.open(Path("runs/played"), readonly=True) as run:
        recorded = {n: list(run.read_groups(n)) for n in (1, 2, 3)}
        advantages = run.read_advantages()
    for n, groups in by_iteration(bundled).items():
        for read, group in zip(groups, recorded[n], strict=True):
            assert (read.key, read.actor, read.trajectories) == (group.key, group.actor, group.trajectories)
            assert read.facts["metrics"] == group.facts["metrics"]
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        values = advantages[row["key"]]
        assert row["advantages"] == ([0.0] * 4 if values is None else values.tolist())
        assert [len(rollout["turns"]) for rollout in row["rollouts"]] == [2] * 4
    env = ("--env", "words.py", *LEARNS, *model(letter_model))
    again = call("train", *env, "--from-bundles", file, "--name", "again")
    assert again["updates"] == 3
    assert again["adapters"]["player"]["digest"] == played["adapters"]["player"]["digest"]
    with Run.open(Path("runs/again"), readonly=True) as run:
        assert [list(run.read_groups(n)) for n in (1, 2, 3)] == [by_iteration(bundled)[n] for n in (1, 2, 3)]
        assert (run.read_events(kind="bundles")[0].payload["iterations"], run.iterations()) == ([1, 2, 3], [0, 1, 2, 3])
        assert [m.value for m in run.read_metrics("train/player", name="groups")] == [2.0] * 3
        parents = [adapter.parent for adapter in run.adapters("player")]
    assert parents == [None, "player@0000", "player@0001", "player@0002"]
    one = call("runs", "export", "played", "--bundles", "--iteration", "1", "--out", "one")["bundles"]
    first = call("train", *env, "--from-bundles", one, "--name", "first")
    with Run.open(Path("runs/played"), readonly=True) as run:
        assert first["adapters"]["player"]["digest"] == run.adapters("player")[1].digest
    pulled = call("train", *env, "--from-bundles", one, "--reference", "played", "--learner.loss.beta", "0.1", "--name", "pulled")
    assert pulled["metrics"]["kl"] > 0.0, "the reference is the trained adapter, and not the start"


def test_the_better_trajectories_are_imitated(call, played: dict[str, Any], letter_model: Path):
    bundled = read_bundles(Path(played["file"]))
    rows = [(row, one.group) for one in bundled for row in one.group.trajectories]
    better = [row for row, group in rows if row.ret > sum(other.ret for other in group.trajectories) / len(group)]
    (shown,) = bundled_demonstrations(Path(played["file"]), (), min_reward=None, limit=0).values()
    assert [one.sampled for one in shown] == [row.turns for row in better]
    assert 0 < len(better) < len(rows)
    paid = [row for row, _ in rows if row.ret >= 2.0]
    options = ("--from-bundles", played["file"], "--lora.rank", "2", *model(letter_model))
    if paid:
        (made,) = call("sft", *options, "--min-reward", "2", "--out", "paid")
        assert made["demonstrations"] == 2 * len(paid), "each reply of a conversation"
    (made,) = call("sft", *options, "--out", "better", "--epochs", "2")
    assert (made["adapter"], made["demonstrations"]) == ("player@0000", 2 * len(better))
    assert made["last loss"] < made["first loss"] or made["steps"] == 1
    assert "no trajectory of player with a return of at least 3" in call("sft", *options, "--min-reward", "3", code=2)


def test_what_does_not_fit_is_refused(call, played: dict[str, Any], letter_model: Path, tmp_path: Path):
    file = played["file"]
    env = ("--env", "words.py", *LEARNS, *model(letter_model))
    other = tiny_model(words=["pick", "a", "letter"], seed=3)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    shifted = json.loads(lines[0])
    for rollout in shifted["rollouts"]:
        for turn in rollout["turns"]:
            turn["completion_ids"] = [token + 1 for token in turn["completion_ids"]]
    Path("shifted.jsonl").write_text(json.dumps(shifted), encoding="utf-8")
    for words, said in (
        (("train", *env, "--from-bundles", file, "--track", "jsonl"), "--track has no effect with --from-bundles"),
        (("train", *env, "--from-bundles", file, "--judge", "openai:x"), "--judge has no effect with --from-bundles"),
        (("train", *env, "--from-bundles", file, "--roles", "player", "--name", "played"), "a run named 'played' exists"),
        (("train", *env, "--reference", "played"), "--reference has no effect without --from-groups or --from-bundles"),
        (("train", "--env", "claw", *model(letter_model), "--from-bundles", file), "claw has the roles agent. Name the"),
        (("train", "--env", "words.py", *model(tmp_path / "other"), "--from-bundles", file), "was sampled with the base"),
        (("train", *env, "--from-bundles", "shifted.jsonl"), "sampled with another tokenizer"),
        (("sft", "--from-bundles", "shifted.jsonl", *model(letter_model)), "sampled with another tokenizer"),
        (("sft", "--from-bundles", file, "--roles", "sales"), "no trajectories of sales; it has those of player"),
        (("sft", "elsewhere", "--from-bundles", file), "both say what is imitated"),
        (("sft", "--from-bundles", file, "--marks", "expert"), "--marks has no effect with --from-bundles"),
        (("sft", "--min-reward", "1"), "--min-reward has no effect without --from-bundles"),
        (("runs", "export", "played", "--iteration", "1"), "--iteration has no effect without --bundles"),
        (("runs", "export", "played", "--bundles", "--format", "parquet"), "--format parquet has no effect with --bundles"),
        (("runs", "export", "played", "--bundles", "--iteration", "9"), "has no iteration 9; its last one is 3"),
        (("runs", "export", "played", "--bundles", "--iteration", "0"), "holds no group in iteration 0"),
    ):
        assert said in call(*words, code=2), words
    assert sorted(path.name for path in Path("runs").iterdir() if path.is_dir()) == ["played"], "no empty run is left"


def test_a_broken_line_is_named(played: dict[str, Any], tmp_path: Path):
    lines = Path(played["file"]).read_text(encoding="utf-8").splitlines()
    broken = tmp_path / "broken.jsonl"
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda row: row.update(schema=1), "its schema is 1, and this version reads 2"),
        (lambda row: row["rollouts"][0].update(reward=9.0), "a rollout's reward is 9.0, and its turns were paid"),
        (lambda row: row["rollouts"][0]["turns"][0].update(logprobs=[]), "completion_ids and 0 logprobs"),
        (lambda row: row["rollouts"][0]["turns"][0].update(completion_ids=[]), "rollouts.0.turns.0.completion_ids"),
        (lambda row: row["rollouts"][0].update(stopped="tired"), "'tired' is not a valid StopReason"),
        (lambda row: row.pop("actor"), "actor: Field required"),
    ]
    for change, said in changes:
        row = json.loads(lines[1])
        change(row)
        broken.write_text("\n".join([lines[0], json.dumps(row)]), encoding="utf-8")
        with pytest.raises(RecordError, match=r"line 2 of .* is no bundle") as refused:
            read_bundles(broken)
        assert said in str(refused.value)
    broken.write_text("\n".join([lines[0], lines[0]]), encoding="utf-8")
    with pytest.raises(RecordError, match=r"line 2 of .* repeats the group"):
        read_bundles(broken)
    broken.write_text("\n", encoding="utf-8")
    with pytest.raises(RecordError, match="holds no bundle"):
        read_bundles(broken)
    with pytest.raises(ConfigError, match="no trajectory of player with a return of at least 99"):
        bundled_demonstrations(Path(played["file"]), (), min_reward=99.0, limit=0)
