"""Options of earlier versions: on the command line, in files for --config, and in recorded runs."""

from __future__ import annotations

import copy
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.commands.removed import CHOICES, COMMANDS, TRAIN, flag_of
from onthejob.errors import ConfigError
from onthejob.record import Run


@pytest.mark.parametrize(("command", "name"), [(command, name) for command, gone in COMMANDS.items() for name in gone])
def test_the_command_line_says_what_to_do_instead(command: str, name: str, capsys: pytest.CaptureFixture[str]):
    for words in ([flag_of(name), "1"], [f"{flag_of(name)}=1"]):
        assert main([*command.split(), *words]) == 2
        told = f"ConfigError: {flag_of(name)} is no longer an option of `{command}`. {COMMANDS[command][name].instead}"
        assert capsys.readouterr().err.strip() == told


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.value)
def test_a_value_that_is_gone_names_its_successor(choice: Any, capsys: pytest.CaptureFixture[str]):
    flags = [flag_of(choice.option), *(["--loss"] if choice.option == "learner.loss.loss" else [])]
    for flag in flags:
        assert main(["train", flag, choice.value]) == 2
        assert f"{flag} no longer takes {choice.value}. Set {flag} {choice.successor}." in capsys.readouterr().err


def test_a_table_that_moved_is_named_and_a_record_with_it_reads(
    tmp_path: Path, runs_dir: Path, earlier: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    from onthejob.commands.train import Train
    from onthejob.learn.advantage import AdvantageConfig

    for words in (["--learner.advantage.invalid-gap", "2"], ["--learner.advantage.invalid-gap=2"]):
        assert main(["train", *words]) == 2
        assert "--learner.advantage.invalid-gap is now --advantage.invalid-gap." in capsys.readouterr().err
    file = tmp_path / "mine.toml"
    file.write_text("[learner.advantage]\nscale = 'none'\n", encoding="utf-8")
    assert main(["train", "--config", str(file), "--print-config"]) == 2
    assert "the table [learner.advantage] is now [train.advantage]" in capsys.readouterr().err
    file.write_text("[train.advantage]\nscale = 'none'\n", encoding="utf-8")
    assert printed(capsys, "--config", str(file))["train"]["advantage"]["scale"] == "none"
    then = copy.deepcopy(earlier)
    then["learner"]["advantage"] |= {"scale": "none", "bound": 2.5}
    path = recorded(runs_dir, then)
    assert Train(resume=path)._recorded(path).train.advantage == AdvantageConfig(scale="none", bound=2.5)


def test_nothing_that_is_an_option_today_is_among_them():
    from onthejob.commands.train import Train

    from ..test_options_ignored import leaves

    today = {name.removeprefix("train.") for name in leaves(Train())}
    assert len(today) > 80
    assert not today & TRAIN.keys()


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["train", *words, "--print-config"]) == 0
    return tomllib.loads(capsys.readouterr().out)


def test_a_file_with_the_values_of_today_reads_and_another_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.toml"
    usual = printed(capsys)
    file.write_text(
        "[train]\niterations = 7\nmax_turns = 1000\nlibrary_share = 0.2\nadapter_dtype = 'float32'\n"
        "[learner]\nminibatches = 1\nadam_eps = 1e-8\n[learner.loss]\nold = 'trainer'\ncorrection_max = 3.0\n"
        "[server]\nextra = []\nprobe_mean = 0.5\n[lora]\ndropout = 0.0\n",
        encoding="utf-8",
    )
    assert printed(capsys, "--config", str(file)) == usual | {"train": usual["train"] | {"iterations": 7}}
    for text, name in (
        ("[learner]\nminibatches = 2", "learner.minibatches"),
        ("[train]\nmax_turns = 12", "max_turns"),
        ("[learner.loss]\nmax_completion_tokens = 256", "learner.loss.max_completion_tokens"),
        ("[judging]\ncanary_every = 10", "judging.canary_every"),
    ):
        file.write_text(text, encoding="utf-8")
        assert main(["train", "--config", str(file), "--print-config"]) == 2
        assert f"{name} = {text.split()[-1]} is no longer an option. {TRAIN[name].instead}" in capsys.readouterr().err
    file.write_text("[learner.loss]\nloss = 'bnpo'", encoding="utf-8")
    assert main(["train", "--config", str(file), "--print-config"]) == 2
    assert "learner.loss.loss no longer takes 'bnpo'. Set 'dapo'." in capsys.readouterr().err


def test_what_is_printed_can_be_read_with_a_constant_that_follows_from_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """dr_grpo's denominator is the sampling limit, and no key of its own."""
    from onthejob.cli import parse
    from onthejob.commands.train import Train

    words = ("--loss", "dr_grpo", "--sampling.max-new-tokens", "48")
    first = printed(capsys, *words)
    assert "max_completion_tokens" not in first["learner"]["loss"]
    file = tmp_path / "printed.toml"
    assert main(["train", *words, "--print-config"]) == 0
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert printed(capsys, "--config", str(file)) == first
    made = parse(Train, words, prog="onthejob train").fitted()
    assert made.learner.loss.max_completion_tokens == 48


@pytest.fixture
def earlier(repository: Path) -> dict[str, Any]:
    """The configuration of a run of the office that an earlier version made; it states every option of then."""
    return json.loads((repository / "tests/data/options_before_env_table.json").read_text(encoding="utf-8"))["office"]


def recorded(runs: Path, config: dict[str, Any]) -> Path:
    with Run.create(runs, config=config) as run:
        return run.path


def test_a_record_with_the_values_of_today_is_continued(runs_dir: Path, earlier: dict[str, Any]):
    from onthejob.commands.train import Train
    from onthejob.learn.learner import LearnerConfig

    then = json.dumps(earlier)
    assert all(f'"{name}"' in then for name in ("minibatches", "adam_eps", "kl_ratio", "canary_every", "deadline_s", "startup_s"))
    changed = copy.deepcopy(earlier)
    changed["learner"]["loss"]["loss"] = "bnpo"  # the same numbers as dapo
    changed["train"] |= {"max_turns": 9, "library_share": 0.5}  # settings that the library still has
    path = recorded(runs_dir, changed)
    again = Train(resume=path)._recorded(path)
    assert again.learner == LearnerConfig(loss=again.learner.loss)
    assert again.learner.loss.loss == "dapo"
    assert (again.train.max_turns, again.train.library_share) == (9, 0.5)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("learner", "minibatches"), 2, "--learner.minibatches 2"),
        (("learner", "layout"), "padded", "--learner.layout padded"),
        (("learner", "loss", "correction"), "token_mask", "--learner.loss.correction token_mask"),
        (("learner", "advantage", "negative_weight"), 0.0, "--learner.advantage.negative-weight 0.0"),
        (("train", "adapter_dtype"), "bfloat16", "--adapter-dtype bfloat16"),
        (("judging", "canary_every"), 10, "--judging.canary-every 10"),
    ],
)
def test_a_record_with_another_value_is_read_and_not_continued(
    runs_dir: Path, earlier: dict[str, Any], caplog: pytest.LogCaptureFixture, place: tuple[str, ...], value: Any, said: str
):
    from onthejob.commands.train import Train, recorded_options

    *tables, key = place
    table = earlier
    for name in tables:
        table = table[name]
    table[key] = value
    path = recorded(runs_dir, earlier)
    with Run.open(path, readonly=True) as run, caplog.at_level(logging.WARNING):
        assert recorded_options(run).own.days == 7
    assert f"was made with {said}, which this version does not have: it cannot be continued" in caplog.text
    with pytest.raises(ConfigError, match=rf"was made with {said}, .*or start a new run from its adapters: --init {path}"):
        Train(resume=path)._recorded(path)
