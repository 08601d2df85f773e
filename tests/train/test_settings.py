"""A run is resumed with the settings that it was made with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onthejob.errors import ConfigError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.pool import TaskPool
from onthejob.testing import ToyWorkplace, random_legal_reply, toy_tasks
from onthejob.train import TrainConfig
from onthejob.types import Sampling

CONFIG = TrainConfig(
    iterations=1,
    collect=CollectConfig(episodes=1, segment_turns=2, partner_share=0.0),
    branch=BranchConfig(group_size=2, turns=2, worlds=1),
    sampling=Sampling(max_new_tokens=3),
    library_tasks=0,
    scale_states=0,
    dry_run=True,
)
OTHER = ScriptedPolicy(random_legal_reply, version="random")


@pytest.mark.parametrize(
    ("changed", "arguments", "lr", "said"),
    [
        ({"seed": 7}, {}, 1e-3, r"made with seed 0 \(now 7\)\. Resume"),
        ({"sampling": Sampling(temperature=0.5, max_new_tokens=3)}, {}, 1e-3, r"sampling\.temperature 1\.0 \(now 0\.5\)"),
        ({}, {}, 2e-3, r"learner\.lr 0\.001 \(now 0\.002\)"),
        ({}, {"pool": TaskPool(toy_tasks(6), seed=0)}, 1e-3, r"pool\.tasks 8 \(now 6\), pool\.tasks_digest"),
        ({}, {"pool": TaskPool(toy_tasks(8, days=4), seed=0)}, 1e-3, r"made with pool\.tasks_digest"),
        ({}, {"partners": {"maker": OTHER, "seller": OTHER}}, 1e-3, r'partners\.maker "heuristic" \(now "random"\)'),
        ({"branch": BranchConfig(group_size=3, turns=2, worlds=1)}, {}, 1e-3, r"branch\.group_size 2 \(now 3\)"),
    ],
)
def test_other_settings_are_refused_by_name(start, changed: dict[str, Any], arguments: dict[str, Any], lr: float, said: str):
    first = start()
    first.train(CONFIG, ToyWorkplace)
    first.run.close()
    again = start(lr=lr)
    with pytest.raises(ConfigError, match=said):
        again.train(replace(CONFIG, iterations=2, **changed), ToyWorkplace, resume=True, **arguments)
    assert again.run.last_iteration() == 1
    assert again.run.read_live() == []


def test_more_iterations_are_allowed_and_recorded(start):
    first = start()
    first.train(CONFIG, ToyWorkplace)
    first.run.close()
    again = start()
    again.train(replace(CONFIG, iterations=2, minutes=5.0), ToyWorkplace, resume=True)
    assert again.run.last_iteration() == 2
    (live,) = again.run.read_live()
    assert (live.kind, live.payload) == ("resumed", {"iteration": 1, "changed": {"iterations": [1, 2], "minutes": [0.0, 5.0]}})
