"""An update ends between two layers, and being watched changes no bit of it."""

from __future__ import annotations

import pytest
import torch

from onthejob.learn.interrupt import Interrupt, Interrupted
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import state, weight_delta

from ..serve.test_trainer import group, tiny_learner
from .conftest import update


class After(Interrupt):
    """Asks for itself after so many looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def check(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            self.ask()
        super().check()


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"epochs": 2}], ids=str)
def test_a_watched_update_is_the_same_to_the_bit(options: dict):
    config = LearnerConfig(lr=1e-2, **options)
    plain, watched = tiny_learner(config), tiny_learner(config)
    update(plain, "sales", [group(), group()])
    with Interrupt().watched(watched.model):
        update(watched, "sales", [group(), group()])
    assert weight_delta(state(plain.model, "sales"), state(watched.model, "sales")) == (0, 0)


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=str)
def test_it_is_met_in_forward_and_backward(options: dict):
    config = LearnerConfig(lr=1e-2, **options)
    learner, met = tiny_learner(config), set()
    before = learner.export_state("sales")
    for looks in range(1, 5):
        with pytest.raises(Interrupted) as raised, After(looks).watched(learner.model):
            update(learner, "sales", [group()])
        names, trace = [], raised.value.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        met.add("backward" in names)
        learner.import_state("sales", before)
    assert met == {True, False}
    # What is left behind changes no later update.
    fresh = tiny_learner(config)
    for one in (learner, fresh):
        update(one, "sales", [group()])
    states = [one.export_state("sales") for one in (learner, fresh)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_no_hook_remains():
    learner = tiny_learner()
    with Interrupt().watched(learner.model):
        assert any(module._forward_hooks for module in learner.model.modules())
    assert not any(module._forward_hooks for module in learner.model.modules())
