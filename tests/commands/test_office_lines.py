"""`play office` tells days, phases, the customer and nights, and why each paid what it paid, in lines that fit the terminal."""

from __future__ import annotations

import io
import re
from collections import Counter

import pytest

from onthejob.cli import main
from onthejob.commands.office_lines import MENTIONED, OfficeLines
from onthejob.commands.play_office import told
from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import NIGHT
from onthejob.envs.office.reward_parts import TurnLog, team_reward
from onthejob.envs.office.reward_reasons import reasons
from onthejob.office_players import scripted_players
from onthejob.types import Completion, Context, Sampling, Split, Task

DAYS = 6
TASK = Task(id="t", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "churn", "days": DAYS})


def expected() -> tuple[list[str], list[str]]:
    """The rewards of turns and nights of a company of heuristics, and the reasons that are worth a line, in order."""
    rows: list[str] = []
    texts: list[str] = []

    def look(s: CompanyState, role: str, action: Action | None, log: TurnLog) -> None:
        paid = log.rewards()
        whole = team_reward(paid) if role == NIGHT else paid[role]
        rows.append(f"{'team' if role == NIGHT else role} {whole:+.2f}".replace("-0.00", "+0.00"))
        for reason in reasons(s, log):
            amount = reason.team if role == NIGHT else reason.of(role)
            if abs(amount) >= MENTIONED:
                texts.append(f"{amount:+.2f} {reason.text}")

    env = OfficeEnvironment(on_turn=look)
    asked, player = env.reset(TASK), scripted_players()["heuristic"]
    while asked is not None:
        (reply,) = player.act([Context(observation=asked, seed=0)], Sampling())
        asked = env.step(reply.text).observation  # type: ignore[assignment]
    return rows, texts


@pytest.mark.parametrize("columns", [80, 120])
def test_every_turn_and_night_has_a_line_and_its_reasons(columns: int, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["play", "office", "--env.scenarios", "churn", "--env.days", str(DAYS)]) == 0
    printed = capsys.readouterr().out.partition("\noffice-churn-1000:")[0]
    assert all(len(line) <= columns for line in printed.splitlines())
    rows, texts = expected()
    found = re.findall(r"^(?: {1,4}\d+|night) (\w+) +([+-]\d+\.\d\d)  ", printed, flags=re.MULTILINE)
    assert [" ".join(row) for row in found] == rows
    joined = re.sub(r"\n {20,}(?=[^ +-])(?![+-])", " ", printed)
    lines = [" ".join(line.split()) for line in joined.splitlines()]
    reasoned = Counter(line for line in lines if re.match(r"[+-]\d+\.\d\d ", line))
    assert reasoned == Counter(texts)
    assert any("churned" in text for text in texts)
    for day in range(1, DAYS + 1):
        assert [line for line in lines if line.startswith(f"Day {day},")] == [
            f"Day {day}, {phase}" for phase in ("standup", "execution", "review", "planning")
        ]
        assert re.search(rf"^night team .*after day {day}$", printed, flags=re.MULTILINE)
    assert {*SEATS, "customer"} <= {row.split()[0] for row in rows}


def test_a_reply_that_cannot_be_used_is_shown_with_the_problem():
    lines = OfficeLines()
    env = OfficeEnvironment(OfficeConfig(retries=1), on_turn=lines)
    env.reset(TASK)
    shown = []
    for text in ("nonsense", "again"):
        step = env.step(text)
        shown.append(told(lines.take(), Completion(text=text), step))
        assert not step.valid
    (retried,), played = shown
    assert re.match(r" +ceo +replied 'nonsense': The reply holds no JSON object", retried)
    assert played[:2] == ["Day 1, standup", "    0 ceo          -1.01  invalid reply"]
    assert re.match(r" +ceo +replied 'again': ", played[2])
    assert "-1.00    The reply could not be used" in played[3]


def test_a_person_reads_why_their_role_was_paid(tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    replies = "1\n" * 8 + "{}\n" + "quit\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(replies))
    words = [
        "play",
        "office",
        "--role",
        "sales",
        "--policy",
        "human",
        "--env.scenarios",
        "churn",
        "--replay",
        str(tmp_path / "r.json"),
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"sales \+\d\.\d\d    \w+ was qualified \(\$", printed)
    assert "Your reply '{}' could not be used: " in printed
    assert re.search(r"sales -1\.00    The reply could not be used", printed)
    assert re.search(r"^night team", printed, flags=re.MULTILINE)
