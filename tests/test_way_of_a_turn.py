"""docs/architecture.md lists every function on the way of a turn from `Env.step` to `loss.backward()`: traced in tiny runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from onthejob import loop
from onthejob.learn.batch import Batch
from onthejob.learn.learner import LearnerConfig, LocalLearner
from onthejob.learn.lora import LoraSpec, attach
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import LocalSampler
from onthejob.models.scripted import ScriptedPolicy
from onthejob.record.store import Run
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig, Collection
from onthejob.rollout.episode import Episode
from onthejob.rollout.pool import TaskPool
from onthejob.testing import ToyWorkplace, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
from onthejob.train import Setup, TrainConfig
from onthejob.types import Completion, Group, Sampling, Trajectory, Turn

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "onthejob"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_LINES = 3_500
GROUPINGS = {"episodes": ("Whole episodes", 8), "branch": ("Branches", 10)}
"""Grouping -> beginning of the heading of its table, and the most functions on its way."""
SAMPLES = "types/samples.py"
DATA = (Completion, Turn, Trajectory, Group, Batch, Episode, Collection)


def listed(grouping: str) -> dict[str, str]:
    """Function -> its file, as the page's table of this grouping says."""
    heading, _ = GROUPINGS[grouping]
    (section,) = re.findall(rf"^## {heading}.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", section, re.MULTILINE))


def holds(value: object, depth: int = 3) -> bool:
    """Whether this is a turn's data, or a container of it."""
    if isinstance(value, DATA):
        return True
    if depth == 0 or isinstance(value, str | bytes):
        return False
    if isinstance(value, Mapping):
        return any(holds(one, depth - 1) for one in value.values())
    return isinstance(value, list | tuple | set | frozenset) and any(holds(one, depth - 1) for one in value)


def caller_of(frame: FrameType) -> str:
    """The file of the package from which a call came, through code of others where there is some in between."""
    back = frame.f_back
    while back is not None and not back.f_code.co_filename.startswith(str(PACKAGE)):
        back = back.f_back
    return "" if back is None else Path(back.f_code.co_filename).relative_to(PACKAGE).as_posix()


@dataclass
class Way:
    """Calls between the start of play and the first `backward`, by every thread of this process."""

    entered: set[tuple[str, str]] = field(default_factory=set)
    """(file, function) of every call in the package."""
    received: set[tuple[str, str]] = field(default_factory=set)
    """Those of them that were given a turn's data, in an argument."""
    handed: set[tuple[str, str]] = field(default_factory=set)
    """Those of the latter that were called from another file of the package."""
    stepped: bool = False
    """An environment was stepped."""
    ended: bool = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or self.ended:
            return
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        place = Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_qualname
        self.stepped |= code.co_qualname == "ToyWorkplace.step"
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[: count + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)]
        self.entered.add(place)
        if any(holds(frame.f_locals.get(name)) for name in names):
            self.received.add(place)
            if caller_of(frame) != place[0]:
                self.handed.add(place)


@pytest.fixture(scope="module")
def taught() -> Mapping[str, torch.Tensor]:
    tiny = tiny_model(seed=0)
    teach(tiny, toy_examples(96, expert_share=0.4), steps=40, batch=16)
    return tiny.model.state_dict()


@pytest.fixture(params=list(GROUPINGS))
def traced(
    request: pytest.FixtureRequest, taught: Mapping[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Way]:
    """One iteration of training, watched from the first task that it plays to its first gradient."""
    grouping, way, roles = str(request.param), Way(), ("maker", "seller")
    tiny = tiny_model(seed=0)
    tiny.model.load_state_dict(taught)
    model = attach(tiny.model, roles, LoraSpec(rank=2, alpha=4), seed=1)
    chat = ChatEncoder(tiny.tokenizer)
    options: dict[str, Any] = {"library_tasks": 2, "library_share": 0.5, "scale_states": 4} if grouping == "branch" else {}
    config = TrainConfig(
        iterations=1,
        grouping=grouping,  # type: ignore[arg-type]
        collect=CollectConfig(episodes=2, segment_turns=3) if grouping == "branch" else CollectConfig(episodes=2),
        branch=BranchConfig(group_size=4, turns=4, worlds=2) if grouping == "branch" else BranchConfig(group_size=4),
        sampling=Sampling(max_new_tokens=3),
        **options,
    )
    seat, backward = loop.Rollouts.seat, torch.Tensor.backward

    def watched_seat(rollouts: loop.Rollouts, state: Any, iteration: int) -> Any:
        play = seat(rollouts, state, iteration)
        sys.setprofile(way.note)
        return play

    def watched_backward(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        sys.setprofile(None)
        way.ended = True
        return backward(tensor, *arguments, **named)

    monkeypatch.setattr(loop.Rollouts, "seat", watched_seat)
    monkeypatch.setattr(torch.Tensor, "backward", watched_backward)
    with Run.create(tmp_path, config={}, name="traced") as run:
        setup = Setup(
            config=config,
            make_env=ToyWorkplace,
            pool=TaskPool(toy_tasks(4), seed=0),
            learner=LocalLearner(model, roles, config=LearnerConfig(lr=1e-3), seed=0),
            sampler=LocalSampler(model, chat),
            encoder=chat,
            run=run,
            partners=dict.fromkeys(roles, ScriptedPolicy(heuristic_reply, version="heuristic")),
            roles=roles,
        )
        try:
            loop.train(setup)
        finally:
            sys.setprofile(None)
    return grouping, way


def test_a_turn_passes_the_listed_functions_and_no_other_file(traced: tuple[str, Way]):
    grouping, way = traced
    functions = listed(grouping)
    assert way.ended
    assert way.stepped
    strangers = {place for place in way.received if place[0] not in {*functions.values(), SAMPLES}}
    assert not strangers, (
        f"receive a turn's completion, group or batch, in files that docs/architecture.md does not list: {strangers}"
    )
    # The page itself was entered before the watch began.
    missing = {(file, name) for name, file in functions.items()} - way.entered - {("loop.py", "train")}
    assert not missing, f"docs/architecture.md lists these, and the turn did not pass them: {missing}"
    # Between files a turn is handed to listed functions only; the others are helpers of theirs, in the same file.
    handed = {(file, name) for file, name in way.handed if file != SAMPLES}
    assert {"LiveEpisode.advance", "estimate", "collate", "LocalLearner.update", "policy_loss"} <= {name for _, name in handed}
    assert handed <= {(file, name) for name, file in functions.items()}


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_way_is_short(grouping: str):
    _, most = GROUPINGS[grouping]
    assert 0 < len(listed(grouping)) <= most


def test_what_a_newcomer_reads_is_short():
    files = {file for grouping in GROUPINGS for file in listed(grouping).values()} | {SAMPLES}
    lines = {file: len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in files}
    assert sum(lines.values()) <= MOST_LINES, lines


def test_the_watch_sees_a_function_that_is_not_listed(monkeypatch: pytest.MonkeyPatch):
    """A group that is given to a function of another file is noticed, also inside of a container."""
    from onthejob.rollout.summary import sampled_tokens

    way, group = Way(), Group(key="k", actor="a", trajectories=())
    sys.setprofile(way.note)
    try:
        sampled_tokens([group])
    finally:
        sys.setprofile(None)
    assert ("rollout/summary.py", "sampled_tokens") in way.received
    assert "rollout/summary.py" not in listed("branch").values()
