"""Matched comparison of whole episodes on the toy workplace."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onthejob.errors import ConfigError
from onthejob.evaluate.behaviours import INVALID, action_counts, drift, shifts
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.comparison import OVERALL, Comparison, Key, compare
from onthejob.evaluate.teams import Team, one_seat, scripted_team
from onthejob.keys import keyed_seed
from onthejob.models.scripted import ScriptedPolicy
from onthejob.testing import ToyWorkplace, expert_reply, heuristic_reply, random_legal_reply, toy_tasks
from onthejob.types import Completion, Context, Sampling, Split, Task

ACTORS = ("maker", "seller")
EXPERT = scripted_team("expert", ScriptedPolicy(expert_reply, version="expert"), ACTORS)
HEURISTIC = scripted_team("heuristic", ScriptedPolicy(heuristic_reply, version="heuristic"), ACTORS)
RANDOM = scripted_team("random", ScriptedPolicy(random_legal_reply, version="random"), ACTORS)


def tasks(count: int = 6) -> list[Task]:
    return [
        replace(task, id=f"{task.id}-{scenario}", payload={**task.payload, "scenario": scenario})
        for scenario, days in (("short", 4), ("long", 12))
        for task in toy_tasks(count, split=Split.TEST, days=days, first_seed=900)
    ]


def run(teams: Sequence[Team], cache: EvaluationCache, *, of: Sequence[Task] | None = None, **changes) -> Comparison:
    changes = {"sampling": Sampling(), "seed": 3, "max_turns": 50, "batch": 5, "env_factory": ToyWorkplace, **changes}
    return compare(teams, tasks() if of is None else of, cache=cache, **changes)


def test_the_order_of_known_teams_is_found_overall_and_per_scenario() -> None:
    with EvaluationCache(None, env="toy") as cache:
        result = run([RANDOM, HEURISTIC, EXPERT], cache)
    assert result.strata_names() == (OVERALL, "short", "long")
    assert result.difference("expert", "random", "company_value").above_zero
    assert result.difference("expert", "random", "company_value", "long").above_zero
    assert result.difference("random", "expert", "company_value").below_zero
    values = result.values("expert", "company_value", "short")
    assert len(values) == 6
    estimate = result.estimate("expert", "company_value", "short")
    assert estimate.mean == pytest.approx(np.mean(list(values.values())))
    assert estimate.minimum == min(values.values())


def test_metrics_agree_with_an_episode_played_by_hand() -> None:
    task = tasks(1)[0]
    with EvaluationCache(None, env="toy") as cache:
        result = run([HEURISTIC], cache, of=[task])
    env = ToyWorkplace()
    observation, reward, turns = env.reset(task), 0.0, 0
    while observation is not None:
        step = env.step(heuristic_reply(observation, 0))
        reward, turns, observation = reward + sum(step.rewards.values()), turns + 1, step.observation
    metrics = result.results[Key("heuristic", task.id)].metrics
    assert metrics["company_value"] == env.state()["metrics"]["company_value"]
    assert metrics["episode_reward"] == pytest.approx(reward)
    assert metrics["turns"] == metrics["decisions"] == turns
    assert metrics["valid_rate"] == 1.0


class Measured(ToyWorkplace):
    """A toy whose replies are measured by their first letter."""

    def scores(self, reply: str) -> dict[str, float]:
        return {"letter": float(ord(reply[0]))}


def test_what_the_environment_measures_of_replies_is_a_mean_over_the_counted_actors() -> None:
    task = tasks(1)[0]
    seller = Team(
        name="seller",
        policies=dict.fromkeys(ACTORS, ScriptedPolicy(heuristic_reply, version="heuristic")),
        fingerprints=dict.fromkeys(ACTORS, "heuristic"),
        learned=frozenset({"seller"}),
    )
    with EvaluationCache(None, env="toy") as cache:
        result = run([HEURISTIC, seller], cache, of=[task], env_factory=Measured)
        bare = run([EXPERT], cache, of=[task])
    env = ToyWorkplace()
    observation, letters = env.reset(task), {actor: [] for actor in ACTORS}
    while observation is not None:
        reply = heuristic_reply(observation, 0)
        letters[observation.actor].append(ord(reply[0]))
        observation = env.step(reply).observation
    assert result.results[Key("seller", task.id)].metrics["letter"] == pytest.approx(np.mean(letters["seller"]))
    everyone = [*letters["maker"], *letters["seller"]]
    assert result.results[Key("heuristic", task.id)].metrics["letter"] == pytest.approx(np.mean(everyone))
    assert np.mean(letters["seller"]) != np.mean(everyone)
    # Next to rows that were not measured, such as those of an earlier version, the metric is omitted.
    both = replace(result, teams=(*result.teams, "expert"), results={**result.results, **bare.results})
    assert "letter" in result.metrics
    assert "letter" not in both.metrics
    assert both.as_dict()["episodes"]


def test_replies_that_were_cut_at_the_limit_are_a_share() -> None:
    class Cut(ScriptedPolicy):
        """Every reply of the seller is cut, as a model's would be."""

        def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
            made = super().act(contexts, sampling)
            cut = [replace(completion, finish_reason="length") for completion in made]
            return [c if context.observation.actor == "seller" else m for context, m, c in zip(contexts, made, cut, strict=True)]

    task = tasks(1)[0]
    name = "completions/clipped_ratio"
    with EvaluationCache(None, env="toy") as cache:
        result = run([HEURISTIC, scripted_team("cut", Cut(heuristic_reply, version="cut"), ACTORS)], cache, of=[task])
    assert result.results[Key("heuristic", task.id)].metrics[name] == 0.0
    env, sellers, turns = ToyWorkplace(), 0, 0
    observation = env.reset(task)
    while observation is not None:
        sellers, turns = sellers + (observation.actor == "seller"), turns + 1
        observation = env.step(heuristic_reply(observation, 0)).observation
    assert 0 < sellers < turns
    assert result.results[Key("cut", task.id)].metrics[name] == pytest.approx(sellers / turns)


def test_a_killed_comparison_goes_on_and_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(team: str, done: int, total: int) -> None:
        if team == "expert" and done >= 5:
            raise Killed

    path = tmp_path / "episodes.sqlite"
    with EvaluationCache(path, env="toy") as cache, pytest.raises(Killed):
        run([RANDOM, EXPERT], cache, on_progress=kill)
    with EvaluationCache(path, env="toy") as cache:
        resumed = run([RANDOM, EXPERT], cache)
    with EvaluationCache(None, env="toy") as cache:
        whole = run([RANDOM, EXPERT], cache)
    assert resumed.played == 12 - 5
    assert resumed.difference("expert", "random", "company_value") == whole.difference("expert", "random", "company_value")
    assert resumed.actions("expert") == whole.actions("expert")


def test_more_seeds_and_teams_cost_only_what_is_new(tmp_path: Path) -> None:
    with EvaluationCache(tmp_path / "episodes.sqlite", env="toy") as cache:
        assert run([RANDOM], cache, of=tasks(2)).played == 4
        assert run([RANDOM], cache, of=tasks(3)).played == 2
        assert run([RANDOM, EXPERT], cache, of=tasks(3)).played == 6
        assert run([RANDOM], cache, of=tasks(3), sampling=Sampling(temperature=0.0)).played == 6
        assert run([RANDOM], cache, of=tasks(3), seed=4).played == 6
        renamed = Team(name="other", policies=RANDOM.policies, fingerprints=RANDOM.fingerprints)
        assert run([renamed], cache, of=tasks(3)).played == 0  # a name is no behaviour


def test_batching_does_not_change_an_episode() -> None:
    with EvaluationCache(None, env="toy") as one, EvaluationCache(None, env="toy") as two:
        narrow, wide = run([RANDOM], one, batch=1), run([RANDOM], two, batch=12)
    for key, result in narrow.results.items():
        assert {**result.metrics, "wall_s": 0.0} == {**wide.results[key].metrics, "wall_s": 0.0}


class SeedsSeen:
    """A policy that writes down which seed it was given for which actor and day."""

    version = "seeds"
    reads = "view"

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        self.seeds += [context.seed for context in contexts]
        return [Completion(text="WAIT" if context.observation.actor == "maker" else "HOLD") for context in contexts]


def test_every_team_meets_the_same_seeds() -> None:
    first, second = SeedsSeen(), SeedsSeen()
    teams = [scripted_team(name, policy, ACTORS) for name, policy in (("first", first), ("second", second))]
    teams[1] = replace(teams[1], fingerprints=dict.fromkeys(ACTORS, "second"))
    with EvaluationCache(None, env="toy") as cache:
        run(teams, cache)
    assert first.seeds == second.seeds
    assert len(set(first.seeds)) == len(first.seeds)


def test_one_learned_seat_is_judged_among_partners() -> None:
    alone = one_seat(EXPERT, HEURISTIC, "maker")
    assert alone.name == "expert:maker"
    assert alone.counted == frozenset({"maker"})
    with EvaluationCache(None, env="toy") as cache:
        result = run([HEURISTIC, alone, EXPERT], cache)
    metrics = result.results[Key("expert:maker", tasks()[0].id)].metrics
    assert metrics["decisions"] == metrics["turns"] / 2
    assert set(result.actions("expert:maker")) == {"maker"}
    assert result.difference("expert:maker", "heuristic", "company_value").mean > 0.0
    with pytest.raises(ConfigError, match="no policy for"):
        one_seat(EXPERT, HEURISTIC, "ceo")


def breaks_sometimes(observation, seed: int) -> str:
    if keyed_seed(seed, "break") % 40 == 0:
        raise RuntimeError("lost the connection")
    return heuristic_reply(observation, seed)


def test_a_broken_episode_is_left_out_with_its_pair_and_tried_again(tmp_path: Path) -> None:
    broken = scripted_team("broken", ScriptedPolicy(breaks_sometimes, version="broken"), ACTORS)
    with EvaluationCache(tmp_path / "episodes.sqlite", env="toy") as cache:
        result = run([broken, HEURISTIC], cache)
        assert 0 < len(result.failed) < 12
        assert "lost the connection" in next(iter(result.failed.values()))
        difference = result.difference("broken", "heuristic", "company_value")
        assert difference.n == 12 - len(result.failed)
        assert difference.mean == 0.0  # where it did not break it is the heuristic
        for metric in ("company_value", "valid_rate"):
            means = [result.estimate(team, metric) for team in ("broken", "heuristic")]
            assert means[0] == means[1], "both over the same tasks"
        assert result.actions("broken") == result.actions("heuristic")
        assert run([broken], cache).played == len(result.failed)
        assert result.as_dict()["failed"]


def test_invalid_replies_are_counted() -> None:
    babble = ScriptedPolicy(
        lambda observation, seed: "WAIT" if seed % 2 and observation.actor == "maker" else "?", version="babble"
    )
    team = scripted_team("babble", babble, ACTORS)
    with EvaluationCache(None, env="toy") as cache:
        result = run([team], cache)
    assert 0.0 < result.estimate("babble", "valid_rate").mean < 0.5
    counts = result.actions("babble")
    assert set(counts["seller"]) == {INVALID}
    assert set(counts["maker"]) == {INVALID, "WAIT"}


@pytest.mark.parametrize(
    ("teams", "of", "words"),
    [
        ([], None, "teams and tasks"),
        ([EXPERT, EXPERT], None, "team names"),
        ([EXPERT], [*tasks(1), *tasks(1)], "task ids"),
        ([EXPERT], toy_tasks(1, split=Split.TRAIN), "dev or test"),
    ],
)
def test_bad_comparisons_are_refused(teams: list[Team], of: list[Task] | None, words: str) -> None:
    with EvaluationCache(None, env="toy") as cache, pytest.raises(ConfigError, match=words):
        run(teams, cache, of=of)


def test_unknown_names_are_refused() -> None:
    with EvaluationCache(None, env="toy") as cache:
        result = run([EXPERT], cache)
    with pytest.raises(ConfigError, match="no team"):
        result.estimate("grpo", "company_value")
    with pytest.raises(ConfigError, match="no metric"):
        result.estimate("expert", "happiness")


def test_drift_by_hand() -> None:
    assert drift({"a": 5, "b": 5}, {"a": 50, "b": 50}) == 0.0
    assert drift({"a": 5}, {"b": 7}) == 1.0
    # p = (1, 0), q = (1/2, 1/2): m = (3/4, 1/4); JS = (log2(4/3) + (log2(2/3) + log2(2)) / 2) / 2 = 0.3113
    assert drift({"a": 4}, {"a": 2, "b": 2}) == pytest.approx(0.311278)
    assert np.isnan(drift({}, {"a": 1}))


def test_drift_of_one_policy_with_itself_is_its_noise() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        before, after = ({"abcdef"[i]: int(n) for i, n in enumerate(rng.multinomial(60, [1 / 6] * 6))} for _ in range(2))
        (shift,) = shifts({"sales": before}, {"sales": after}, seed=1, draws=50)
        found.append((shift.drift, shift.noise))
    drifts, noises = np.array(found).T
    assert drifts.mean() == pytest.approx(noises.mean(), rel=0.1)
    (moved,) = shifts({"sales": {"a": 60}}, {"sales": {"a": 20, "b": 40}}, seed=1)
    assert moved.drift > 5 * moved.noise
    assert moved.shares()[0] == ("a", 1.0, 20 / 60)


def test_action_counts_leave_other_actors_out() -> None:
    with EvaluationCache(None, env="toy") as cache:
        result = run([EXPERT], cache, of=tasks(1))
    assert sum(result.actions("expert")["maker"].values()) == 4 + 12
    assert action_counts([], {"maker"}) == {}
