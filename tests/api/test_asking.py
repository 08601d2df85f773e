"""A seat plays as its run did: the same prompt, the same limit of a reply."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.api.asking import Asking, asking_in, asking_of
from onthejob.api.players import Loaded
from onthejob.api.recorded_frames import rules_of
from onthejob.commands.train import Train
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.evaluate.teams import Team
from onthejob.models.chat import ChatEncoder
from onthejob.models.counting import token_counter
from onthejob.office import Office
from onthejob.office_players import scripted
from onthejob.record import Run
from onthejob.testing import tiny_tokenizer
from onthejob.types import Completion, Context, Sampling, Split, Task

TOKEN = "a-token-for-tests-0123"
USUAL = Asking()
TASK = Task(id="office-baseline-1000", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "baseline", "days": 8})


def trained(profile: str = "full", budget: int | None = 900, tokens: int = 160) -> dict:
    """The configuration that `train` records."""
    options = Train(own=Office(profile=profile, prompt_budget=budget, crisis_bonus=False))  # type: ignore[arg-type]
    sampling = replace(options.train.sampling, max_new_tokens=tokens)
    model = replace(options.model, template_arguments=("enable_thinking=false",))
    return replace(options, train=replace(options.train, sampling=sampling), model=model)._settings()


def test_a_record_says_how_its_models_were_asked(tmp_path: Path):
    asked = asking_of(trained(), USUAL)
    assert asked == Asking(
        profile="full",
        budget=900,
        tokenizer="smollm2-135m",
        max_new_tokens=160,
        template_arguments=("enable_thinking=false",),
        base="smollm2-135m",
    )
    assert asked.describe() == "full prompt of up to 900 tokens, replies of up to 160 tokens"
    served = trained() | {"sampler": "vllm", "server": {"max_model_len": 2_048}}
    assert asking_of(served, USUAL).window == 2_048
    # Runs of earlier versions, whose environment's options were the run's own, and of the demo.
    assert asking_of({"profile": "full", "prompt_budget": 700}, USUAL).budget == 700
    assert asking_of({"env": "office", "own": {"profile": "full"}}, USUAL).profile == "full"
    with Run.create(tmp_path, config=trained(), name="mine") as run:
        adapter = run.path / "adapters" / "sales@0001"
        # The rules under which its episodes are shown again are those of the same table.
        assert rules_of(run) == OfficeConfig(profile="full", budget=900, crisis_bonus=False)
    adapter.mkdir(parents=True)
    assert asking_in(adapter, USUAL) == asked
    kept = Asking(profile="full", max_new_tokens=96)
    (tmp_path / "kept").mkdir()
    assert asking_in(tmp_path / "kept", kept) == kept


@pytest.mark.parametrize(("profile", "budget"), [("compact", None), ("full", None), ("full", 250)])
def test_the_prompt_is_that_of_training(profile: str, budget: int | None, smollm2_path: Path):
    """Step by step with the environment that a run with these options trains in, past the first reflections."""
    count = token_counter(str(smollm2_path))
    training = OfficeEnvironment(OfficeConfig(profile=profile, budget=budget), count_tokens=count)
    viewed = OfficeEnvironment(OfficeConfig(profile="full"))
    asked, _ = training.reset(TASK), viewed.reset(TASK)
    asking = Asking(profile=profile, budget=budget, tokenizer=str(smollm2_path))  # type: ignore[arg-type]
    heuristic, pruned = scripted("heuristic"), 0
    for _ in range(80):
        assert tuple(asking.messages(viewed, viewed.observe())) == tuple(asked.messages)
        pruned += budget is not None and sum(count(block.text) for block in viewed.sections(asked.actor)) > budget
        (reply,) = heuristic.act([Context(observation=asked)], Sampling())
        following = training.step(reply.text).observation
        viewed.step(reply.text)
        assert following is not None
        asked = following
    assert budget is None or pruned > 0, "a budget that never prunes shows nothing"


class Asked:
    """Notes what it is given, and does nothing."""

    version, reads = "asked", "tokens"

    def __init__(self) -> None:
        self.seen: list[tuple[int, Sampling]] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        self.seen += [(len(context.prompt_ids), sampling) for context in contexts]
        return [Completion(text="{}") for _ in contexts]


def test_a_seat_reads_and_replies_as_in_its_run(tmp_path: Path):
    policy, chat = Asked(), ChatEncoder(tiny_tokenizer())
    asking = {"ceo": Asking(profile="full", max_new_tokens=160)}

    def load(source: str, seated: Collection[str]) -> Loaded:
        team = Team(name=source, policies=dict.fromkeys(SEATS, policy), fingerprints=dict.fromkeys(SEATS, "asked"))
        return Loaded(team=team, encoder=chat, asking=asking if source == "mine" else {})

    app = create_app(token=TOKEN, hosts=("testserver",), load=load, extra_players=["mine"], pages=tmp_path)
    with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
        for player in ("base", "mine"):
            client.post("/api/reset", json={"days": 1, "seats": {"ceo": player}})
            assert client.post("/api/step", json={}).status_code == 200
        suggested = client.post("/api/suggest", json={"seq": 0, "player": "mine", "count": 2, "temperature": 0.7})
        assert len(suggested.json()["replies"]) == 2
    (compact, usual), (full, longer), *suggestions = policy.seen
    assert full > compact
    assert (usual, longer) == (Sampling(temperature=0.0, max_new_tokens=48), Sampling(temperature=0.0, max_new_tokens=160))
    assert suggestions == [(full, Sampling(temperature=0.7, max_new_tokens=160))] * 2
