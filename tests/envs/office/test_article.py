"""The article's reward, by its nine lines worked by hand, in the forms in which TRL and `train --reward` call it."""

from __future__ import annotations

import json

import pytest

from onthejob.cli import main
from onthejob.envs.office import article_reward
from onthejob.errors import ConfigError

PROMPT = "You are Sam, sales.\nQUALIFY_LEAD: Acme 3d, Pine 1d\nShipped: SSO\nJSON:"
FULL = {
    "action_type": "QUALIFY_LEAD",
    "target": "Acme Corp",
    "parameters": {"approach": "technical_demo"},
    "reasoning": "Acme has been waiting for three days and wants what we shipped",
    "message": "marketing: can you send the case study?",
}


def form(reply: str, role: str = "sales", prompt: str = PROMPT) -> float:
    (value,) = article_reward([prompt], [reply], [role])
    return value


def without(*names: str, **others: object) -> str:
    return json.dumps({name: value for name, value in (FULL | others).items() if name not in names})


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (json.dumps(FULL), 1.45),
        ("Let us qualify Acme.", 0.0),
        ("Here it is: " + json.dumps(FULL), 1.35),  # other text around the object
        (without("action_type"), 0.95),  # neither named nor right nor wrong for the role
        (without(action_type="BUILD_FEATURE"), 0.95),  # of another role: -0.20 instead of 0.30
        (without("reasoning"), 1.25),
        (without(reasoning="five words are not ten"), 1.35),
        (without(reasoning="too few of them"), 1.25),
        (without("target"), 1.25),  # the target and that it refers to something
        (without(target="Zinc"), 1.35),  # an account that the prompt does not name
        (without(target="sso"), 1.45),  # a feature that it names
        (without(message="send the case study"), 1.35),
        (without("parameters"), 1.40),
        (without(parameters={}), 1.40),
    ],
)
def test_each_line_of_the_articles_scorer(reply: str, value: float) -> None:
    assert form(reply) == pytest.approx(value)


def test_entities_come_from_what_the_prompt_tells() -> None:
    chat = [{"role": "system", "content": 'e.g. {"target":"Acme"}'}, {"role": "user", "content": "QUALIFY_LEAD: Pine 1d"}]
    acme, pine = (json.dumps({"action_type": "QUALIFY_LEAD", "target": name}) for name in ("Acme", "Pine"))
    values = article_reward([chat, chat], [[{"role": "assistant", "content": text}] for text in (acme, pine)], ["sales"] * 2)
    assert values == pytest.approx([1.0, 1.1])  # the example of the system message is no entity


def test_the_judge_is_added_and_a_missing_opinion_is_a_quarter() -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs):
        asked.extend(pairs)
        return [1.0, 0.0, None]

    chat = [{"role": "system", "content": "You are Sam."}, {"role": "user", "content": "Acme"}]
    replies = [json.dumps(FULL), "no", "no"]
    assert article_reward([PROMPT, chat, PROMPT], replies, ["sales"] * 3, judge=judge) == pytest.approx([2.45, 0.0, 0.25])
    assert asked == [(PROMPT, replies[0]), ("You are Sam.\n\nAcme", "no"), (PROMPT, "no")]


def test_a_tool_call_of_trl_counts_as_its_arguments() -> None:
    """What `OfficeSeat.act` is called with, as text or as an object, and what follows is not the model's."""
    for arguments in (FULL, json.dumps(FULL)):
        call = {"type": "function", "function": {"name": "act", "arguments": arguments}}
        talk = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "act", "content": "Day 2"},
            {"role": "assistant", "content": "Done."},
        ]
        assert article_reward([PROMPT], [talk], ["sales"], seed=[1]) == pytest.approx([1.45])
    assert article_reward([PROMPT], [[]], ["sales"]) == [0.0]


@pytest.mark.parametrize(
    ("arguments", "judge", "message"),
    [
        ((["a", "b"], ["x"], ["hr"]), None, "one prompt and one role for each completion, got 2, 1 and 1"),
        ((["a"], ["x"], ["boss"]), None, r"role must be one of ceo, .*, got 'boss'"),
        ((["a"], ["x"], ["hr"]), lambda pairs: [], r"one score in \[0, 1\], or None, for each of 1 replies, got \[\]"),
        ((["a"], ["x"], ["hr"]), lambda pairs: [4.0], r"got \[4.0\]"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, judge, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        article_reward(*arguments, judge=judge)


def test_train_takes_it_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--env", "office", "--reward", "onthejob.envs.office:article_reward", "--print-config", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == "onthejob.envs.office:article_reward"
    assert main([*words[:3], "--reward", "onthejob.envs.office:no_such", "--print-config"]) == 2


def test_a_comparison_run_is_paid_by_it(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of `train --reward` are the ones it needs: one group of replies of a role, valued as in a run."""
    from onthejob.rollout.reward import RewardFunction
    from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

    def member(text: str) -> Trajectory:
        completion = Completion(text=text, token_ids=(1,), logprobs=(-1.0,))
        turn = Turn(prompt_ids=(7,), completion=completion, policy_version="sales@0000")
        return Trajectory(task_id="t", actor="sales", turns=(turn,), rewards=(3.0,), stop=StopReason.BRANCH)

    group = Group(key="g", actor="sales", trajectories=(member(json.dumps(FULL)), member("no")))
    (paid,), metrics = RewardFunction(article_reward, "article").rewarded([group], [], lambda ids: PROMPT)
    assert [one.ret for one in paid.trajectories] == pytest.approx([1.45, 0.0])
    assert metrics == pytest.approx({"reward_return": 0.725, "env_return": 3.0})
