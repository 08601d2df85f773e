"""Companies whose features and accounts have names that their seed draws."""

from __future__ import annotations

import json

import pytest

from onthejob.cli import main
from onthejob.envs.office.actions import Action, parse
from onthejob.envs.office.company_state import CATALOGUE, FEATURE_INDEX, HELD_OUT_FEATURES
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.names import (
    COMPANY_NAMES,
    FEATURE_NAMES,
    HELD_OUT_NAMES,
    MOST_NAMES,
    NAMES,
    drawn_companies,
    drawn_features,
)
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.roles import Role
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.snapshot import dumps, loads
from onthejob.envs.office.tasks import office_tasks
from onthejob.envs.office.vaporware import Registry
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

EXAMPLE = '"target":"Acme","message":"dev: need sync"'
"""The prompt's example of the reply's form, which is the same everywhere."""
DRAWN_FEATURES = [name for names in FEATURE_NAMES.values() for name in names]


def a_task(seed: int = 100_003, **payload) -> Task:
    return Task(id="t", env="office", split=Split.TRAIN, seed=seed, payload={"scenario": "churn", "names": "drawn", **payload})


def test_the_pools_share_no_name_with_other_worlds() -> None:
    pool = [*DRAWN_FEATURES, *COMPANY_NAMES]
    assert len(set(pool)) == len(pool)
    assert not set(pool) & {*NAMES, *HELD_OUT_NAMES, *HELD_OUT_FEATURES, *(spec.name for spec in CATALOGUE)}
    assert [*FEATURE_NAMES] == [spec.name for spec in CATALOGUE]
    assert all(FEATURE_INDEX[name] == place for place, names in enumerate(FEATURE_NAMES.values()) for name in names)
    Registry(dict.fromkeys(DRAWN_FEATURES, ()))  # no two are the same to who reads texts


def test_seeds_draw_different_names_and_all_of_them() -> None:
    assert {name for seed in range(400) for name in drawn_features(seed)} == set(DRAWN_FEATURES)
    assert {name for seed in range(100) for name in drawn_companies(seed)} == set(COMPANY_NAMES)
    for seed in range(50):
        assert len(set(drawn_companies(seed))) == MOST_NAMES == len(NAMES)
        assert len(set(drawn_features(seed))) == len(CATALOGUE)
    assert drawn_features(7) != drawn_features(8)


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_only_drawn_names_are_shown(profile: str) -> None:
    env = OfficeEnvironment(OfficeConfig(profile=profile))  # type: ignore[arg-type]
    observation = env.reset(a_task(days=4))
    shown = []
    while observation is not None:
        shown += [message.content for message in observation.messages]
        shown += env.legal_replies()
        observation = env.step(env.legal_replies()[len(shown) % len(env.legal_replies())]).observation
    text = "\n".join(shown).replace(EXAMPLE, "")
    words = {word.strip(".,:;\"'()[]{}*") for word in text.replace('"', " ").split()}
    assert not words & {*NAMES, *(spec.name for spec in CATALOGUE)}
    assert words & set(drawn_features(100_003))
    assert words & set(drawn_companies(100_003))


@pytest.mark.parametrize("scenario", SHIPPED)
def test_nothing_but_the_names_changes(scenario: str) -> None:
    """An expert, who reads names, plays the same company under both."""
    simulator = Simulator(load(scenario))
    usual, drawn = simulator.found(5), simulator.found(5, drawn_names=True)
    for s in (usual, drawn):
        run(simulator, s, dict.fromkeys(SEATS, expert), turns=140)
    assert usual.cash == drawn.cash
    assert usual.feature_shipped == drawn.feature_shipped
    assert usual.reward_total == drawn.reward_total
    assert [a.price for a in usual.accounts] == [a.price for a in drawn.accounts]
    assert not {a.name for a in usual.accounts} & {a.name for a in drawn.accounts}


def test_snapshots_keep_them_in_columns_and_as_json() -> None:
    simulator = Simulator(load("viral"))
    s = simulator.found(9, drawn_names=True)
    run(simulator, s, dict.fromkeys(SEATS, expert), turns=100)
    packed = dumps(s)
    assert json.loads(packed.partition(b"\n")[0])[0] == 6
    back = loads(packed)
    assert back.drawn_names
    assert back.catalogue == s.catalogue
    assert dumps(back) == packed
    s.accounts[0].touches = 300  # more than the columns hold
    packed = dumps(s)
    assert json.loads(packed)[0] == 7
    assert loads(packed).drawn_names
    assert dumps(loads(packed)) == packed


def test_promises_of_features_under_drawn_names_cost() -> None:
    simulator = Simulator(load("baseline"))
    s = simulator.found(3, drawn_names=True)
    name = s.catalogue[0].name
    text = json.dumps({"action_type": "WRITE_BLOG", "target": "security", "parameters": {"title": f"{name} is here"}})
    action = parse(text, Role.CONTENT)
    assert isinstance(action, Action)
    assert simulator._promised(s, "content", action) == {name}
    assert not simulator._promised(simulator.found(3), "content", action)


def test_tasks_say_so() -> None:
    usual, drawn = (office_tasks(Split.TRAIN, seeds=1, drawn_names=share)[0] for share in (0, 1))
    assert (usual.seed, drawn.seed) == (100_000, 100_000)
    assert drawn.id == f"{usual.id}-drawn"
    assert "names" not in usual.payload
    some = office_tasks(Split.TRAIN, seeds=200, drawn_names=0.3)
    assert 0.25 < sum("names" in task.payload for task in some) / len(some) < 0.35
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\], got 1.5"):
        office_tasks(Split.TRAIN, seeds=1, drawn_names=1.5)
    with pytest.raises(ConfigError, match="names must be 'drawn' or absent, got 'odd'"):
        OfficeEnvironment().reset(a_task(names="odd"))


def test_demonstrations_under_drawn_names(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d"
    options = [
        "--env.drawn-names",
        "1",
        "--env.seeds",
        "1",
        "--env.days",
        "5",
        "--env.scenarios",
        "baseline",
        "--random-share",
        "0",
    ]
    assert main(["collect", *options, "--out", str(out), "--quiet"]) == 0
    rows = [json.loads(line) for line in (out / "dev.jsonl").read_text().splitlines()]
    targets = {json.loads(row["reply"]).get("target", "") for row in rows}
    assert targets & set(drawn_features(100_000))
    assert rows[0]["task"] == "office-baseline-100000-d5-drawn"
