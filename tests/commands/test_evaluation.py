"""What evaluation says while it is under way."""

from __future__ import annotations

import pytest

from onthejob.commands.evaluation import turns
from onthejob.commands.terminal import Output, Terminal
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.play import play
from onthejob.testing import ToyWorkplace, heuristic_reply, toy_tasks
from onthejob.types import Sampling


def test_a_long_batch_says_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]):
    def said(seconds_a_turn: float) -> list[str]:
        now = [0.0]

        def clock() -> float:
            now[0] += seconds_a_turn
            return now[0]

        policy = ScriptedPolicy(heuristic_reply, version="heuristic")
        play(
            [ToyWorkplace(), ToyWorkplace()],
            toy_tasks(2),
            {"maker": policy, "seller": policy},
            Sampling(),
            seed=0,
            max_turns=100,
            on_turn=turns(Terminal(Output()), every_s=5.0, clock=clock),
        )
        return capsys.readouterr().err.splitlines()

    assert said(0.01) == []
    # Twenty turns of about a second, in two episodes of ten.
    lines = said(1.0)
    assert 2 <= len(lines) <= 4
    assert lines[0].strip() == "2 episodes side by side, at turn 2"
