"""Decision quality on the toy workplace, whose right decisions are known."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.cache import BranchKey, BranchValue, EvaluationCache, ReplyKey, source_fingerprint
from onthejob.evaluate.held_out import collect_states
from onthejob.evaluate.quality import cross_fitted_best, decision_quality
from onthejob.evaluate.scores import Cell, QualityConfig
from onthejob.evaluate.states import HeldOutState
from onthejob.evaluate.teams import Team, adapter_fingerprint, scripted_team
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import Scales
from onthejob.testing import ToyWorkplace, expert_reply, heuristic_reply, random_legal_reply, toy_tasks
from onthejob.types import Branch, Completion, Context, Observation, Sampling, Split, TextObservation

ACTORS = ("maker", "seller")
RANDOM = ScriptedPolicy(random_legal_reply, version="random")
EXPERT = scripted_team("expert", ScriptedPolicy(expert_reply, version="expert"), ACTORS)
HEURISTIC = scripted_team("heuristic", ScriptedPolicy(heuristic_reply, version="heuristic"), ACTORS)
RANDOM_TEAM = scripted_team("random", RANDOM, ACTORS)
BABBLE = scripted_team("babble", ScriptedPolicy(lambda observation, seed: "buy the moon", version="babble"), ACTORS)
CONFIG = QualityConfig(turns=6, candidates=8, samples=3, seed=4)
SCALES = {actor: Scales(outcome=100.0, ret=1.0) for actor in ACTORS}


def fingerprint() -> str:
    return source_fingerprint(ToyWorkplace)


def states(per_role: int = 24, episodes: int = 8) -> list[HeldOutState]:
    tasks = toy_tasks(episodes, split=Split.DEV, days=6, first_seed=500)
    return collect_states(
        tasks, [EXPERT, HEURISTIC], actors=ACTORS, per_role=per_role, env_factory=ToyWorkplace, sampling=Sampling(), seed=1,
        max_turns=100, batch=3,
    )  # fmt: skip


def judge(held_out: Sequence[HeldOutState], teams: Sequence[Team], cache: EvaluationCache, **changes):
    changes = {"scales": SCALES, "config": CONFIG, "env_factory": ToyWorkplace, **changes}
    return decision_quality(held_out, teams, random=RANDOM, cache=cache, **changes)


def greedy(team: str, actor: str) -> Cell:
    return Cell(team, actor, "t0_n32")


def test_the_order_of_known_policies_is_found() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache:
        result = judge(states(), [EXPERT, RANDOM_TEAM, BABBLE], cache)
    expert, babble = result.score(greedy("expert", "maker")), result.score(greedy("babble", "maker"))
    assert expert.mean > 0.7
    assert expert.low > 0.0
    assert babble.mean < expert.mean
    assert result.difference(greedy("expert", "maker"), greedy("babble", "maker")).above_zero
    assert result.valid_rate(greedy("expert", "maker")) == 1.0
    assert result.valid_rate(greedy("babble", "maker")) == 0.0
    sampled = result.score(Cell("random", "seller", "t1_n32"))
    assert sampled.low <= 0.0 <= sampled.high  # a random player is worth what random candidates are worth
    assert result.actors == ACTORS
    assert expert.clusters == 8


def test_a_difference_is_the_difference_of_the_scores() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache:
        result = judge(states(), [EXPERT, HEURISTIC], cache)
    for actor in ACTORS:
        first, second = greedy("expert", actor), greedy("heuristic", actor)
        difference = result.difference(first, second)
        assert difference.mean == pytest.approx(result.score(first).mean - result.score(second).mean)
    with pytest.raises(ConfigError, match="one role"):
        result.difference(greedy("expert", "maker"), greedy("expert", "seller"))


def test_values_are_those_of_the_environment() -> None:
    held_out = states(per_role=2, episodes=2)
    with EvaluationCache(None, env=fingerprint()) as cache:
        result = judge(held_out, [EXPERT], cache)
    env = ToyWorkplace()
    state = held_out[0]
    observation = env.restore(state.snapshot)
    assert observation is not None
    reply = expert_reply(observation, 0)
    branches = [env.branch(reply, world=world, turns=6) for world in CONFIG.worlds]
    turns = max(branch.turns for branch in branches)
    by_hand = np.mean([branch.outcome / 100.0 + 0.25 * branch.returns[state.actor] for branch in branches]) / turns
    assert result.cells[greedy("expert", state.actor)].value[0] == pytest.approx(by_hand)


def test_a_second_evaluation_plays_only_what_is_new(tmp_path: Path) -> None:
    held_out = states()
    path = tmp_path / "evaluation.sqlite"
    with EvaluationCache(path, env=fingerprint()) as cache:
        first = judge(held_out[:-6], [EXPERT], cache)
        assert first.branches_played > 0
    with EvaluationCache(path, env=fingerprint()) as cache:
        again = judge(held_out[:-6], [EXPERT], cache)
        assert (again.branches_played, again.replies_sampled) == (0, 0)
        more_states = judge(held_out, [EXPERT], cache)
        assert 0 < more_states.branches_played < first.branches_played
        more_teams = judge(held_out, [EXPERT, BABBLE], cache)
        # One more canonical reply (invalid) per state at most, never the candidates again.
        assert more_teams.branches_played <= len(held_out) * len(CONFIG.worlds)
        assert more_teams.score(greedy("expert", "maker")) == more_states.score(greedy("expert", "maker"))
    with EvaluationCache(path, env="another version of the economy") as cache:
        assert judge(held_out[:-6], [EXPERT], cache).branches_played == first.branches_played


def test_worker_processes_change_nothing(tmp_path: Path) -> None:
    held_out = states(per_role=4, episodes=2)
    with EvaluationCache(None, env=fingerprint()) as one, EvaluationCache(None, env=fingerprint()) as two:
        inline = judge(held_out, [EXPERT], one)
        pooled = judge(held_out, [EXPERT], two, config=replace(CONFIG, workers=2))
    assert inline.branches_played == pooled.branches_played
    cell = greedy("expert", "seller")
    np.testing.assert_array_equal(inline.cells[cell].value, pooled.cells[cell].value)


class CountsCalls:
    """Reads messages, and remembers how many contexts each call had."""

    version = "counts"
    reads = "messages"

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.temperatures: set[float] = set()

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        assert all(context.messages for context in contexts)
        self.calls.append(len(contexts))
        self.temperatures.add(sampling.temperature)
        return [Completion(text="WAIT" if context.observation.actor == "maker" else "HOLD") for context in contexts]


def test_policies_are_asked_in_batches_with_their_decoding() -> None:
    policy = CountsCalls()
    team = scripted_team("counts", policy, ["maker"])
    held_out = states(per_role=8, episodes=4)
    with EvaluationCache(None, env=fingerprint()) as cache:
        result = judge(held_out, [team], cache, config=replace(CONFIG, batch=5))
    assert sum(policy.calls) == 8 * (1 + CONFIG.samples)  # only the maker's states, greedy once and sampled thrice
    assert max(policy.calls) == 5
    assert policy.temperatures == {0.0, 1.0}
    assert result.score(greedy("counts", "maker")).n == 8
    with pytest.raises(ConfigError, match="no result"):
        result.score(greedy("counts", "seller"))


def test_measured_scales_make_roles_comparable_and_keep_the_order() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache:
        result = judge(states(), [EXPERT, BABBLE], cache, scales=None)
    assert all(scale.outcome > 1.0 for scale in result.scales.values())
    assert result.score(greedy("expert", "maker")).mean > result.score(greedy("babble", "maker")).mean


def test_cross_fitting_removes_the_winners_curse() -> None:
    rng = np.random.default_rng(0)
    naive, fitted = [], []
    for _ in range(2000):
        noise = rng.normal(size=(16, 8))  # 16 replies that are all worth 0
        naive.append(noise.mean(axis=1).max())
        fitted.append(cross_fitted_best(noise))
    assert np.mean(naive) > 0.5
    assert abs(np.mean(fitted)) < 0.03
    clear = np.zeros((3, 4))
    clear[1] = [5.0, 6.0, 7.0, 8.0]
    assert cross_fitted_best(clear) == 6.5


def test_states_come_half_from_each_source_and_from_every_episode() -> None:
    held_out = states(per_role=24, episodes=8)
    for actor in ACTORS:
        own = [state for state in held_out if state.actor == actor]
        assert len(own) == 24
        assert {state.source for state in own} == {"expert", "heuristic"}
        assert sum(state.source == "expert" for state in own) == 12
        assert len({state.episode for state in own}) == 8
    assert len({state.key for state in held_out}) > 40
    assert [state.key for state in held_out] == [state.key for state in states(per_role=24, episodes=8)]


def test_too_few_episodes_and_training_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gave \d+ states"):
        states(per_role=1000, episodes=2)
    with pytest.raises(ConfigError, match="dev or test"):
        collect_states(
            toy_tasks(2, split=Split.TRAIN), [EXPERT], actors=ACTORS, per_role=2, env_factory=ToyWorkplace, sampling=Sampling(),
            seed=0, max_turns=10,
        )  # fmt: skip


def test_a_state_that_asks_another_actor_is_refused() -> None:
    wrong = replace(states(per_role=2, episodes=2)[0], actor="seller")
    with EvaluationCache(None, env=fingerprint()) as cache, pytest.raises(ContractError, match="should ask"):
        judge([wrong], [EXPERT], cache)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"worlds": (10_000,)}, "number even and at least 2, got 1"),
        ({"worlds": (1, 2)}, ">= 10000"),
        ({"candidates": 0}, "candidates"),
        ({"decodings": (Sampling(), Sampling())}, "differ"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        QualityConfig(**changes)  # type: ignore[arg-type]


class Fragile(ToyWorkplace):
    """Cannot branch in one of the worlds."""

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        if world == 10_003:
            raise RuntimeError("a bug in the economy")
        return super().branch(reply, world=world, turns=turns)


def test_a_branch_that_cannot_be_played_is_an_error_and_no_zero() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache, pytest.raises(ContractError, match="a bug in the economy"):
        judge(states(per_role=2, episodes=2), [EXPERT], cache, env_factory=Fragile)


class StaleView(Mapping[str, Any]):
    """A view that can be read only while its request is pending, like one that lists legal replies lazily."""

    def __init__(self, values: Mapping[str, Any], current: Callable[[], "StaleView | None"]) -> None:
        self._values, self._current = values, current

    def __getitem__(self, name: str) -> Any:
        assert self._current() is self, "read after another state was restored"
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Lazy(ToyWorkplace):
    """The toy with views that go stale."""

    latest: StaleView | None = None

    def observe(self) -> Observation | None:
        observation = super().observe()
        if observation is None:
            return None
        self.latest = StaleView(observation.view, lambda: self.latest)
        return TextObservation(actor=observation.actor, messages=observation.messages, view=self.latest)


def test_views_are_read_while_they_are_valid() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache, EvaluationCache(None, env=fingerprint()) as other:
        lazy = judge(states(), [EXPERT], cache, env_factory=Lazy)
        plain = judge(states(), [EXPERT], other)
    assert lazy.score(greedy("expert", "maker")) == plain.score(greedy("expert", "maker"))


def test_the_fingerprint_names_code_and_settings() -> None:
    assert source_fingerprint(ToyWorkplace) == source_fingerprint(ToyWorkplace)
    assert source_fingerprint(ToyWorkplace) != source_fingerprint(ToyWorkplace, settings="days=9")
    assert source_fingerprint(ToyWorkplace) != source_fingerprint(Lazy)
    held = {adapter_fingerprint("d", None, numerics=numerics) for numerics in ("float32-cpu", "bfloat16-cpu", "")}
    assert len(held) == 3


def test_other_code_of_models_plays_anew_and_values_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    branch, reply = BranchKey("s", 6, "HOLD", 10_000), ReplyKey("lm:base", "s", "t1_n32", 0)
    with EvaluationCache(tmp_path / "c.sqlite", env="e") as cache:
        cache.add_branches({branch: BranchValue(1.0, 2.0, 6, True)})
        cache.add_replies({reply: "HOLD"})
        cache.add_episodes("team", "settings", {"task": {"company_value": 1.0}})
        assert cache.reply(reply) == "HOLD"
        assert cache.episode("team", "task", "settings") == {"company_value": 1.0}
    monkeypatch.setattr("onthejob.evaluate.cache.playing_fingerprint", lambda: "another sampler")
    with EvaluationCache(tmp_path / "c.sqlite", env="e") as cache:
        assert cache.reply(reply) is None
        assert cache.episode("team", "task", "settings") is None
        assert cache.branches("s", 6) == {branch: BranchValue(1.0, 2.0, 6, True)}


def test_the_fingerprint_is_of_a_folder_and_what_is_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "somebody" / "workplaces" / "shop"
    (folder / "data").mkdir(parents=True)
    (folder / "env.py").write_text("class Shop: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    shop = importlib.import_module("somebody.workplaces.shop.env").Shop
    before = source_fingerprint(shop)
    (folder / "data" / "prices.csv").write_text("1\n", encoding="utf-8")
    assert source_fingerprint(shop) == before, "neither code nor rules"
    (folder / "data" / "prices.toml").write_text("sync = 1\n", encoding="utf-8")
    priced = source_fingerprint(shop)
    (folder / "market.py").write_text("PRICE = 1\n", encoding="utf-8")
    assert len({before, priced, source_fingerprint(shop)}) == 3


def test_missing_scales_are_refused() -> None:
    with EvaluationCache(None, env=fingerprint()) as cache, pytest.raises(ConfigError, match="no scales"):
        judge(states(per_role=2, episodes=2), [EXPERT], cache, scales={"maker": Scales()})
