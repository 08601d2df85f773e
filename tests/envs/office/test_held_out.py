"""Held-out worlds: other events, other names, refused by everything that trains."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from checks.office.gates.audit import audit
from checks.office.gates.matches import Match
from onthejob.cli import main
from onthejob.compat.served import served
from onthejob.envs.office import scenarios
from onthejob.envs.office.company_state import CATALOGUE, HELD_OUT, HELD_OUT_CATALOGUE, HELD_OUT_FEATURES
from onthejob.envs.office.curriculum import Rising
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.events import HELD_OUT_EVENTS, RANDOM_EVENTS, SCHEDULED_EVENTS
from onthejob.envs.office.names import HELD_OUT_NAMES, NAMES
from onthejob.envs.office.policies.heuristic import PAIN_OF
from onthejob.envs.office.policies.partners import HELD_OUT_PARTNERS
from onthejob.envs.office.scenarios import SHIPPED, as_data, from_data, is_held_out, load
from onthejob.envs.office.scenarios.difficulty import at_difficulty
from onthejob.envs.office.simulator import FEATURE_ALIASES, HELD_OUT_ALIASES, Simulator
from onthejob.envs.office.snapshot import dumps
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.office_players import team
from onthejob.rollout.play import play
from onthejob.rollout.pool import FamilyStatistics, TaskPool
from onthejob.types import Sampling, Split, Task

EXAMPLE = '"target":"Acme","message":"dev: need sync"'
"""The prompt's example of the reply's form, which is the same everywhere."""
OLD_NAMES = {*NAMES, *(spec.name for spec in CATALOGUE)}


def a_task(scenario: str, seed: int = 50_001, split: Split = Split.TEST, **payload) -> Task:
    return Task(id=f"t-{scenario}-{seed}", env="office", split=split, seed=seed, payload={"scenario": scenario, **payload})


def test_five_families_with_events_of_their_own() -> None:
    assert HELD_OUT == ("downturn", "acquisition", "outage", "key_person", "price_war")
    for name in HELD_OUT:
        scenario = load(name)
        assert is_held_out(scenario)
        assert scenario.name == name
        assert {event.kind for event in scenario.schedule} & set(HELD_OUT_EVENTS)
        assert scenario.goal
    assert not any(is_held_out(load(name)) for name in SHIPPED)
    assert not set(HELD_OUT_EVENTS) & ({*RANDOM_EVENTS} | {*SCHEDULED_EVENTS})
    used = {event.kind for name in HELD_OUT for event in load(name).schedule}
    assert set(HELD_OUT_EVENTS) <= used


@pytest.mark.parametrize("kind", HELD_OUT_EVENTS)
def test_held_out_events_change_the_company_and_keep_it_sound(office, kind: str) -> None:
    company = office("viral")
    before = dumps(company.state)
    HELD_OUT_EVENTS[kind](company.state)
    assert dumps(company.state) != before
    for _ in range(6):
        HELD_OUT_EVENTS[kind](company.state)
    assert list(audit(company.state)) == []


@pytest.mark.parametrize("scenario", HELD_OUT)
def test_no_name_that_training_saw_is_shown(scenario: str) -> None:
    env = OfficeEnvironment(OfficeConfig(profile="full"))
    observation = env.reset(a_task(scenario, days=4))
    shown = []
    while observation is not None:
        shown += [message.content for message in observation.messages]
        shown += env.legal_replies()
        action = env.legal_replies()[len(shown) % len(env.legal_replies())]
        observation = env.step(action).observation
    text = "\n".join(shown).replace(EXAMPLE, "")
    words = {word.strip(".,:;\"'()[]{}") for word in text.replace('"', " ").split()}
    assert not words & OLD_NAMES
    assert words & set(HELD_OUT_FEATURES)
    assert words & set(HELD_OUT_NAMES)


def test_held_out_names_are_new_and_the_features_are_the_same() -> None:
    assert not set(HELD_OUT_NAMES) & OLD_NAMES
    assert not set(HELD_OUT_FEATURES) & OLD_NAMES
    assert len(set(HELD_OUT_NAMES)) == len(NAMES) == 48
    assert [spec[1:] for spec in HELD_OUT_CATALOGUE] == [spec[1:] for spec in CATALOGUE]
    assert {PAIN_OF[a.name] == PAIN_OF[b.name] for a, b in zip(CATALOGUE, HELD_OUT_CATALOGUE, strict=True)} == {True}
    assert set(HELD_OUT_ALIASES) == set(HELD_OUT_FEATURES)
    assert set(FEATURE_ALIASES) == {spec.name for spec in CATALOGUE}


def test_vaporware_knows_the_new_names(office) -> None:
    company = office("outage", leads=0)
    log = company.act("content", "WRITE_BLOG", "security", title="Passwordless login is here")
    assert log.parts()["content"]["penalty"] == -5.0
    log = company.act("content", "WRITE_EMAIL_SEQUENCE", "sync", title="SSO is here")  # no feature of this company
    assert log.parts()["content"]["penalty"] == 0.0


@pytest.mark.parametrize("scenario", HELD_OUT)
def test_scripted_players_play_held_out_worlds(scenario: str) -> None:
    results = {name: Match(scenario=scenario, team=name, seed=5).run() for name in ("random", "heuristic", "expert")}
    assert results["random"].value < results["heuristic"].value < results["expert"].value
    assert all(not result.problems and result.ledger_gap == 0 for result in results.values())


def test_a_snapshot_of_a_held_out_world_goes_on(tmp_path: Path) -> None:
    env = OfficeEnvironment()
    env.reset(a_task("acquisition"))
    env.step(env.legal_replies()[0])
    twin = OfficeEnvironment()
    twin.restore(env.snapshot())
    assert [m.content for m in twin.observe().messages] == [m.content for m in env.observe().messages]  # type: ignore[union-attr]
    assert twin.snapshot() == env.snapshot()


def test_training_refuses_held_out_scenarios_however_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in HELD_OUT:
        with pytest.raises(ConfigError, match=f"training refuses held-out scenarios, got '{name}'"):
            office_tasks(Split.TRAIN, seeds=1, scenarios=[name])
        with pytest.raises(ConfigError, match="held-out ones are for splits dev and test"):
            OfficeEnvironment().reset(a_task(name, 100_001, Split.TRAIN))
        assert office_tasks(Split.TEST, seeds=1, scenarios=[name])
    disguised = {**as_data(load("price_war")), "name": "mine", "title": "Mine"}
    assert is_held_out(from_data(disguised))
    assert main(["collect", "--env.scenarios", "outage", "--out", str(tmp_path / "d")]) == 2
    assert "held-out" in capsys.readouterr().err
    assert main(["collect", "--policy", "builder", "--out", str(tmp_path / "d")]) == 2
    assert "held-out partner 'builder'" in capsys.readouterr().err
    assert not set(served(Office()).players) & set(HELD_OUT_PARTNERS)


@pytest.mark.slow  # imports torch
def test_the_train_command_refuses_them_before_it_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--env.scenarios", "outage"]) == 2
    assert "held-out" in capsys.readouterr().err
    assert main(["train", "--env.partner", "carer"]) == 2
    assert "held-out partner 'carer'" in capsys.readouterr().err


def test_training_refuses_evaluation_seeds() -> None:
    for seed in (5, 1_000, 50_000, 99_999):
        with pytest.raises(ConfigError, match=f"training refuses evaluation seeds: task 't-baseline-{seed}' has seed {seed}"):
            OfficeEnvironment().reset(a_task("baseline", seed, Split.TRAIN))
    assert OfficeEnvironment().reset(a_task("baseline", 100_000, Split.TRAIN)).actor == "ceo"


def test_held_out_worlds_can_be_evaluated() -> None:
    env = OfficeEnvironment()
    (episode,) = play([env], [a_task("downturn", days=2)], team("heuristic"), Sampling(), seed=0, max_turns=100)
    assert episode.stop == "horizon"


def test_difficulty_is_continuous_and_its_middle_is_the_file() -> None:
    for name in (*SHIPPED, *HELD_OUT):
        scenario = load(name)
        assert at_difficulty(scenario, 0.5) is scenario
        easy, hard = at_difficulty(scenario, 0.0), at_difficulty(scenario, 1.0)
        assert (easy.name, easy.schedule, easy.segment_mix) == (hard.name, hard.schedule, hard.segment_mix)
        assert easy.hazard < scenario.hazard < hard.hazard
        assert easy.traffic > scenario.traffic > hard.traffic
        assert scenarios.lint(as_data(hard)) == scenarios.lint(as_data(easy)) == []
    near = [at_difficulty(load("churn"), 0.7 + i * 1e-4).hazard for i in range(5)]
    assert near == sorted(near)
    assert near[-1] - near[0] < 0.01
    for wrong in (-0.1, 1.01, True, "hard", float("nan")):
        with pytest.raises(ConfigError, match=r"difficulty must be a number in \[0, 1\]"):
            at_difficulty(load("churn"), wrong)


def test_harder_worlds_are_harder() -> None:
    def worth(difficulty: float) -> float:
        scenario = at_difficulty(load("competitor"), difficulty)
        return fmean(_value(scenario, seed) for seed in range(700, 706))

    easy, middle, hard = worth(0.0), worth(0.5), worth(1.0)
    assert easy > middle > hard


def _value(scenario: scenarios.Scenario, seed: int) -> float:
    from onthejob.envs.office.env import SEATS
    from onthejob.envs.office.fast_play import run
    from onthejob.envs.office.market import company_value
    from onthejob.envs.office.policies.expert import expert

    simulator = Simulator(scenario)
    s = simulator.found(seed)
    run(simulator, s, dict.fromkeys(SEATS, expert), turns=s.horizon)
    return company_value(s) / 100.0


def test_a_task_may_say_how_hard_it_is() -> None:
    easy, hard, plain, middle = (OfficeEnvironment() for _ in range(4))
    easy.reset(a_task("churn", difficulty=0.0))
    hard.reset(a_task("churn", difficulty=1.0))
    plain.reset(a_task("churn"))
    middle.reset(a_task("churn", difficulty=0.5))
    cash = [env.state()["metrics"]["cash"] for env in (easy, middle, plain, hard)]
    assert cash == [125_000, 100_000, 100_000, 75_000]
    twin = OfficeEnvironment()
    twin.restore(hard.snapshot())
    assert twin.snapshot() == hard.snapshot()
    with pytest.raises(ConfigError, match="difficulty must be"):
        plain.reset(a_task("churn", difficulty=2))


def test_the_curriculum_rises_and_eases_what_teaches_nothing() -> None:
    rising = Rising(start=0.2, end=0.8, iterations=10)
    assert [rising.difficulty(i, None) for i in (0, 5, 10, 99)] == [0.2, 0.5, 0.8, 0.8]
    dead = FamilyStatistics(groups=20, alive=0, mean_return=0.0)
    half = FamilyStatistics(groups=16, alive=2, mean_return=0.0)
    lively = FamilyStatistics(groups=20, alive=19, mean_return=0.0)
    young = FamilyStatistics(groups=3, alive=0, mean_return=0.0)
    assert [rising.difficulty(10, seen) for seen in (dead, half, lively, young)] == [0.2, 0.5, 0.8, 0.8]
    for wrong in ({"start": 1.2}, {"iterations": 0}, {"floor": -1}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
            Rising(**wrong)


def test_the_pool_plays_what_the_curriculum_makes_of_its_tasks() -> None:
    tasks = office_tasks(Split.TRAIN, seeds=4, days=3)
    pool = TaskPool(tasks, seed=1, curriculum=Rising(iterations=4))
    first, last = pool.sample(6, iteration=0), pool.sample(6, iteration=9)
    assert {task.payload["difficulty"] for task in first} == {0.2}
    assert {task.payload["difficulty"] for task in last} == {0.8}
    assert {task.split for task in first} == {Split.TRAIN}
    assert pool.sample(6, iteration=0) == first
    assert TaskPool(tasks, seed=1).sample(6, iteration=0) == [
        next(task for task in tasks if new.id.startswith(task.id)) for new in first
    ]
    OfficeEnvironment().reset(first[0])

    def into_the_exam(task: Task, iteration: int, statistics: object) -> Task:
        return a_task("churn")

    with pytest.raises(ConfigError, match="training refuses held-out tasks"):
        TaskPool(tasks, seed=1, curriculum=into_the_exam).sample(1, iteration=0)


def test_scenarios_are_listed_and_linted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["scenarios", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [*SHIPPED, *HELD_OUT]
    file = tmp_path / "mine.toml"
    text = (Path(scenarios.__file__).parent / "viral.toml").read_text(encoding="utf-8")
    file.write_text(text.replace("goal = { mrr = 24_000 }", "goal = { fame = 3 }"), encoding="utf-8")
    assert main(["scenarios", "lint", str(file)]) == 2
    assert "goal must give lower bounds >= 0 on some of mrr" in " ".join(capsys.readouterr().out.split())
    file.write_text(text.replace("goal = { mrr = 24_000 }\n", ""), encoding="utf-8")
    assert main(["scenarios", "lint", str(file)]) == 0
    assert load(file).goal == {}
