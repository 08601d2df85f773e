"""A prompt is pruned to the context of the model that reads it; policies without one, and other environments, are as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.evaluate.teams import Team
from onthejob.models.chat import ChatEncoder
from onthejob.models.counting import chat_window
from onthejob.models.scripted import ScriptedPolicy
from onthejob.office import Office
from onthejob.rollout.play import play
from onthejob.rollout.reading import messages_for
from onthejob.testing import ScriptedTokens, ToyShell, shell_tasks, tiny_tokenizer
from onthejob.types import Observation, PromptBudget, Sampling, Split, StopReason, Task

TOKENIZER = tiny_tokenizer()
REPLY = 40
TASK = Task(id="t", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "baseline", "days": 3})


class Limited(ScriptedTokens):
    """With a budget for its prompts."""

    def __init__(self, reply: Callable[[Observation, int], str], budget: PromptBudget | None) -> None:
        super().__init__(TOKENIZER, reply)
        self.prompt_budget = budget


def loud(observation: Observation, seed: int) -> str:
    """Writes to HR as much as a role may."""
    return json.dumps({"action_type": "IDLE", "target": "", "message": "hr: " + "we need you " * 20})


def talkative(observation: Observation, seed: int) -> str:
    legal = next(reply for reply in observation.view["legal"])
    return json.dumps(json.loads(legal) | {"message": "hr: " + "we need you " * 20})


def played(window: int, budget: PromptBudget | None, *, retries: int) -> Any:
    """HR never writes anything usable, and as much as it may; all others write to it."""
    office = Office(profile="full", retries=retries)
    policies = dict.fromkeys(SEATS, ScriptedPolicy(talkative, version="talkative"))
    hr = Limited(lambda observation, seed: "no " * 200, budget)
    (episode,) = play(
        [office.make_environment()], [TASK], {**policies, "hr": hr}, Sampling(max_new_tokens=REPLY), seed=0,
        encoder=ChatEncoder(TOKENIZER, window=window), max_turns=1_000,
    )  # fmt: skip
    return episode


def test_a_pruned_prompt_its_reply_and_every_correction_fit_the_context():
    tokens, office = 10_000, Office(profile="full", retries=8)
    window = chat_window(ChatEncoder(TOKENIZER, window=tokens), reply=REPLY)
    assert window is not None
    budget = office.budget_for(window)
    assert budget is not None
    whole = played(10**6, None, retries=8)
    longest = max(len(turn.prompt_ids) for turn in whole.trajectories["hr"].turns)
    assert longest + REPLY > tokens, "without a budget it does not fit"
    assert played(tokens, None, retries=8).stop is StopReason.CONTEXT
    fitting = played(tokens, budget, retries=8)
    assert fitting.stop is StopReason.HORIZON
    assert max(len(turn.prompt_ids) for turn in fitting.trajectories["hr"].turns) + REPLY <= tokens


def test_who_has_no_budget_and_what_cannot_be_pruned_are_read_whole():
    office = OfficeEnvironment()
    asked = office.reset(TASK)
    budget = PromptBudget(tokens=80, count=lambda text: len(text.split()))
    free, short = Limited(loud, None), Limited(loud, budget)
    assert messages_for(free, asked) == messages_for(ScriptedTokens(TOKENIZER, loud), asked) == asked.messages
    assert messages_for(short, asked) == asked.within(budget)
    shell = ToyShell().reset(shell_tasks(1, max_turns=2)[0])
    assert messages_for(short, shell) == shell.messages


def test_teams_with_other_budgets_are_cached_apart_and_without_one_as_before():
    def team(tokens: int | None) -> Team:
        budget = None if tokens is None else PromptBudget(tokens=tokens, count=len)
        return Team(name="a", policies={"hr": Limited(loud, budget)}, fingerprints={"hr": "lm:1"})

    assert team(None).identity("hr") == "lm:1"
    plain = Team(name="b", policies={"hr": ScriptedTokens(TOKENIZER, loud)}, fingerprints={"hr": "lm:1"})
    assert team(None).fingerprint == plain.fingerprint
    assert len({team(tokens).fingerprint for tokens in (None, 900, 901)}) == 3
    assert team(900).fingerprint == team(900).fingerprint
