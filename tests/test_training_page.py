"""docs/training.md: options and defaults are those of `onthejob train`, none is missing, and the progress line is real."""

from __future__ import annotations

import ast
import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import tyro

from onthejob.commands.env_options import starting
from onthejob.commands.train import Train
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.loss import Name
from onthejob.rollout.summary import GroupSummary
from onthejob.train.config import TrainConfig
from onthejob.train.reports import IterationReport, RoleReport, line

ROW = re.compile(r"^\| `--([a-z0-9.-]+)` \| ([^|]+?) \|", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/training.md").read_text(encoding="utf-8")


def default(flag: str, env: str) -> Any:
    """The option's default; the loop's stand without a prefix on the command line."""
    command = Train.starting(env)
    first, *rest = flag.replace("-", "_").split(".")
    if first == "env":
        return getattr(starting(env, "Train"), *rest)
    value = getattr(command, first) if hasattr(command, first) else getattr(command.train, first)
    for name in rest:
        value = getattr(value, name)
    return value


def written(text: str) -> Any:
    if text in ("on", "off"):
        return text == "on"
    if text == "none":
        return None
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def test_the_defaults_in_the_tables_are_those_of_the_command(page: str):
    rows = ROW.findall(page)
    assert len(rows) > 50
    for flag, told in rows:
        office, _, claw = told.partition(", claw ")
        for env, text in (("office", office), ("claw", claw or office)):
            if flag.startswith("env.") and env != "office":
                continue
            value = default(flag, env)
            value = value.value if isinstance(value, Enum) else value
            if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
                value = " ".join(value)
            assert value == written(text), f"--{flag} of {env} is {value!r}, the page says {text!r}"


def leaves(config: Any, prefix: str = "") -> list[str]:
    found = []
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = prefix + field.name.replace("_", "-")
        if tyro.conf.Fixed not in getattr(hints[field.name], "__metadata__", ()):
            found += leaves(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return found


def test_the_names_and_defaults_of_trl_are_its_own(page: str):
    config = dataclasses.fields(pytest.importorskip("trl").GRPOConfig)
    known = {field.name: field.default for field in config}
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|.*\|$", page.partition("## For users of TRL")[2], flags=re.MULTILINE)[1:]
    assert len(rows) == 13
    for names, defaults in rows:
        for name in re.findall(r"`([a-z_]+)`", names):
            assert name in known
        if "," not in names:
            default = known[names.strip("`")]
            assert (default if isinstance(default, str) else float(default)) == (
                defaults if isinstance(default, str) else float(defaults)
            )


def test_no_option_of_the_loop_and_of_the_learner_is_left_out(page: str):
    options = [*leaves(TrainConfig()), *leaves(LearnerConfig(), "learner.")]
    missing = [flag for flag in options if f"`--{flag}`" not in page]
    assert missing == []
    ours = page.partition("## For users of TRL")[0]
    losses = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", ours, flags=re.MULTILINE)))
    assert set(losses) == set(Name.__args__)


def test_the_progress_line_is_what_is_printed(page: str):
    (shown,) = re.findall(r"<!-- progress:begin -->\n```\n(.*)\n```\n<!-- progress:end -->", page)
    report = IterationReport(
        iteration=10,
        iterations=20,
        roles=(
            RoleReport(
                role="dev",
                summary=GroupSummary(groups=50, alive=44, mean_return=0.104, valid_rate=0.97),
                update={},
                adapter="dev@0010",
                published=True,
            ),
            RoleReport(
                role="sales",
                summary=GroupSummary(groups=50, alive=48, mean_return=-0.021, valid_rate=0.99),
                update={},
                adapter="sales@0010",
                published=True,
            ),
        ),
        seconds=212.0,
        tokens_per_second=143.0,
        eta_s=46 * 60.0,
        evaluation={"company_value": 198_000.0, "best_iteration": 5.0, "best_score": 201_344.0},
    )
    assert line(report, "branch") == shown


def test_whole_episodes_say_how_long_they_are_and_how_many_ended_by_themselves(page: str):
    (shown,) = re.findall(r"<!-- progress-episodes:begin -->\n```\n(.*)\n```\n<!-- progress-episodes:end -->", page)
    role = RoleReport(
        role="agent",
        summary=GroupSummary(groups=8, alive=7, mean_return=0.412, valid_rate=1.0),
        update={},
        adapter="agent@0010",
        published=True,
    )
    report = IterationReport(
        iteration=10,
        iterations=34,
        roles=(role,),
        seconds=881.0,
        tokens_per_second=120.0,
        eta_s=352 * 60.0,
        loop={"mean_turns": 5.28125, "stop_done": 0.9375, "stop_max_turns": 0.0625},
    )
    assert line(report, "episodes") == shown
    assert "mean_turns" not in line(report, "branch"), "segments of branches have the length that was asked for"
    never = dataclasses.replace(report, loop={"mean_turns": 12.0, "stop_max_turns": 1.0})
    assert "mean_turns 12.00, stop_done 0%" in line(never, "episodes")
