"""collect: groups of one prompt, continued without looking at the scores, deterministic, failures dropped."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest

from onthejob import progress
from onthejob.errors import ConfigError
from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.library import SnapshotLibrary, visit
from onthejob.testing import (
    ScriptedTokens,
    ToyShell,
    ToyWorkplace,
    heuristic_reply,
    random_legal_reply,
    shell_tasks,
    tiny_tokenizer,
    toy_tasks,
)
from onthejob.testing.toy_shell import WORDS
from onthejob.types import Branch, Observation, Sampling, Step, StopReason, Task

HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")
PARTNERS = {"maker": HEURISTIC, "seller": HEURISTIC}
BRANCH = BranchConfig(group_size=4, turns=4, worlds=2)


def collected(
    config: CollectConfig,
    *,
    make=ToyWorkplace,
    trained=("maker", "seller"),
    reply=random_legal_reply,
    library=None,
    partner_library=None,
    seed=5,
    scorer=BranchScorer,
    workers=0,
    branch=BRANCH,
    stand_ins=None,
) -> Collection:
    tokenizer = tiny_tokenizer()
    policies = {actor: ScriptedTokens(tokenizer, reply, version=f"{actor}@0001") for actor in trained}
    with scorer(make, workers=workers) as branches:
        collector = Collector(
            make, branches, config=config, branch=branch, scales={"maker": Scales(), "seller": Scales()},
            trained=trained, partners=PARTNERS, encoder=ChatEncoder(tokenizer),
        )  # fmt: skip
        return collector.collect(
            toy_tasks(config.episodes), policies, Sampling(), library=library or SnapshotLibrary(), seed=seed, prefix="it0001",
            partner_library=partner_library, stand_ins=stand_ins,
        )  # fmt: skip


def test_groups_share_a_prompt_and_play_goes_on_from_the_chosen_reply():
    collection = collected(CollectConfig(episodes=3, segment_turns=6, partner_share=0.0))
    assert len(collection.groups) == 18
    assert len({group.key for group in collection.groups}) == 18
    for group in collection.groups:
        assert len(group) == 4
        assert len({row.turns[0].prompt_ids for row in group.trajectories}) == 1
        assert all(row.stop is StopReason.BRANCH and row.turns[0].valid for row in group.trajectories)
        assert len(group.facts["worlds"]) == 2
        assert group.facts["origin"] == "fresh"
    first, second = collection.groups[0], collection.groups[1]
    chosen = first.trajectories[first.facts["chosen"]].turns[0].completion.text
    assert collection.episodes[0].transcript[0].text == chosen
    assert first.actor == "maker"
    assert second.actor == "seller"


def test_the_chosen_reply_does_not_look_at_the_scores():
    """Over many groups the best reply is chosen about as often as chance has it."""
    collection = collected(CollectConfig(episodes=40, segment_turns=6, partner_share=0.0))
    hits = expected = total = 0.0
    for group in collection.groups:
        returns = [row.ret for row in group.trajectories]
        best = [index for index, value in enumerate(returns) if value == max(returns)]
        if len(best) < len(group):
            total += 1
            hits += group.facts["chosen"] in best
            expected += len(best) / len(group)
    assert total > 100
    assert abs(hits - expected) < 3 * (total * 0.25) ** 0.5


def test_collecting_is_deterministic_and_keyed():
    config = CollectConfig(episodes=3, segment_turns=4)
    assert collected(config) == collected(config)
    assert collected(config).groups != collected(config, seed=6).groups


def test_progress_of_segments_is_logged(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(progress.log, "info", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    collected(CollectConfig(episodes=3, segment_turns=6))
    said = [line for line in said if not line.startswith("sampling: ")]
    # The first five have turns left, and say for how long at most.
    pattern = r"it0001: 3 of 3 episodes under way, at turn (\d) of 6(, at most about \d+ s left)?, \d+ tokens/s"
    found = [re.fullmatch(pattern, line) for line in said]
    assert [(one[1], one[2] is None) for one in found if one] == [(str(turn), turn == 5) for turn in range(6)]
    assert all(line.endswith(" tokens/s") for line in said)


def test_among_partners_one_actor_learns():
    collection = collected(CollectConfig(episodes=6, segment_turns=6, partner_share=1.0))
    assert collection.starts["partners"] == 6
    assert all(group.facts["partners"] for group in collection.groups)
    for index, episode in enumerate(collection.episodes):
        learned = {group.actor for group in collection.groups if group.key.startswith(f"it0001/s{index:02d}/")}
        assert len(learned) == 1
        others = [turn for turn in episode.transcript if turn.actor not in learned]
        assert others
        assert all(turn.policy == "heuristic" for turn in others)


def test_an_untrained_seat_is_played_by_its_partner():
    collection = collected(CollectConfig(episodes=2, segment_turns=4, partner_share=0.0), trained=("seller",))
    assert {group.actor for group in collection.groups} == {"seller"}
    assert {turn.policy for turn in collection.episodes[0].transcript if turn.actor == "maker"} == {"heuristic"}


def test_segments_start_from_the_library_and_feed_it():
    library = SnapshotLibrary(per_day=4)
    library.add(visit(ToyWorkplace, toy_tasks(6), PARTNERS, seed=0, share=0.5, max_turns=99))
    config = CollectConfig(episodes=12, segment_turns=2, fresh_share=0.25, partner_share=0.0, keep_share=1.0)
    collection = collected(config, library=library)
    assert collection.starts["fresh"] + collection.starts["library"] == 12
    assert collection.starts["library"] >= 5
    days = {group.facts["day"] for group in collection.groups if group.facts["origin"] == "library"}
    assert len(days) >= 3
    assert len(collection.visited) == sum(len(episode.transcript) for episode in collection.episodes)


def test_segments_among_partners_start_where_the_partners_got_and_leave_the_library_alone():
    ours, theirs = SnapshotLibrary(), SnapshotLibrary(per_day=None)
    ours.add(visit(ToyWorkplace, toy_tasks(3), PARTNERS, seed=0, share=1.0, max_turns=99))
    theirs.add(visit(ToyWorkplace, toy_tasks(9)[6:], PARTNERS, seed=0, share=1.0, max_turns=99))
    config = CollectConfig(episodes=16, segment_turns=2, fresh_share=0.0, partner_share=0.5, keep_share=1.0)
    collection = collected(config, library=ours, partner_library=theirs)
    reached = {
        among: {group.trajectories[0].task_id for group in collection.groups if group.facts["partners"] is among}
        for among in (True, False)
    }
    assert reached[True]
    assert reached[True] <= {task.id for task in toy_tasks(9)[6:]}
    assert reached[False]
    assert reached[False] <= {task.id for task in toy_tasks(3)}
    assert 0 < collection.starts["partners"] < 16
    assert collection.visited
    assert {entry.task.id for entry in collection.visited} <= {task.id for task in toy_tasks(3)}


def test_invalid_replies_are_scored_as_what_they_do():
    def sometimes(observation: Observation, seed: int) -> str:
        return "no idea" if seed % 2 else random_legal_reply(observation, seed)

    collection = collected(CollectConfig(episodes=2, segment_turns=4, partner_share=0.0), reply=sometimes)
    flags = [row.turns[0].valid for group in collection.groups for row in group.trajectories]
    assert 0 < flags.count(False) < len(flags)


class Exploding(ToyWorkplace):
    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        if self._live().day == 2:
            raise MemoryError("no room")
        return super().branch(reply, world=world, turns=turns)


def test_a_failure_while_branching_drops_the_group_and_play_goes_on():
    config = CollectConfig(episodes=3, segment_turns=6, partner_share=0.0)
    collection, unharmed = collected(config, make=Exploding), collected(config)
    assert collection.dropped == 6
    assert "MemoryError: no room" in collection.failure
    assert [episode.transcript for episode in collection.episodes] == [episode.transcript for episode in unharmed.episodes]
    assert collection.groups == tuple(group for group in unharmed.groups if group.facts["day"] != 2)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_segment_that_cannot_begin_costs_only_itself(broken: int):
    name = toy_tasks(3)[broken].id

    class Unwell(ToyWorkplace):
        def reset(self, task: Task) -> Observation:
            if task.id == name:
                raise MemoryError("no room")
            return super().reset(task)

    collection = collected(CollectConfig(episodes=3, segment_turns=4, partner_share=0.0, fresh_share=1.0), make=Unwell)
    assert [episode.stop is StopReason.ERROR for episode in collection.episodes] == [index == broken for index in range(3)]
    assert len(collection.groups) == 8

    class Forgetful(ToyWorkplace):
        def restore(self, snapshot: bytes) -> Observation:
            raise MemoryError("no room")

    library = SnapshotLibrary()
    library.add(visit(ToyWorkplace, toy_tasks(2), PARTNERS, seed=0, share=1.0, max_turns=6))
    collection = collected(CollectConfig(episodes=2, segment_turns=4, fresh_share=0.0), make=Forgetful, library=library)
    assert [episode.error for episode in collection.episodes] == ["MemoryError: no room"] * 2
    assert collection.groups == ()


def test_worker_processes_change_nothing():
    config = CollectConfig(episodes=2, segment_turns=4, partner_share=0.0)
    assert collected(config, workers=2) == collected(config)


def test_replies_are_sampled_before_the_scores_of_earlier_ones_are_known():
    happened: list[str] = []

    class Noting(BranchScorer):
        def submit(self, jobs):
            wait = super().submit(jobs)
            return lambda: (happened.append("scores"), wait())[1]

    def reply(observation: Observation, seed: int) -> str:
        happened.append("reply")
        return random_legal_reply(observation, seed)

    collected(CollectConfig(episodes=2, segment_turns=4, partner_share=0.0), reply=reply, scorer=Noting)
    assert happened.index("scores") > len(happened) - happened[::-1].index("reply") - 1


def test_retries_are_answered_and_not_branched():
    def stubborn(observation: Observation, seed: int) -> str:
        return "no idea"

    tokenizer = tiny_tokenizer()
    collector = Collector(
        ToyWorkplace, BranchScorer(ToyWorkplace), config=CollectConfig(episodes=1, segment_turns=4, partner_share=0.0),
        branch=BRANCH, scales={"maker": Scales(), "seller": Scales()}, trained=("maker",), partners=PARTNERS,
        encoder=ChatEncoder(tokenizer),
    )  # fmt: skip
    collection = collector.collect(
        toy_tasks(1, retries=1), {"maker": ScriptedTokens(tokenizer, stubborn)}, Sampling(),
        library=SnapshotLibrary(), seed=0, prefix="p",
    )  # fmt: skip
    kinds = [turn.kind for turn in collection.episodes[0].trajectories["maker"].turns]
    assert [str(kind) for kind in kinds] == ["act", "retry", "act"]
    assert len(collection.groups) == 2


def test_whole_episodes_group_where_nothing_can_be_forked():
    tokenizer = tiny_tokenizer()
    collection = collect_episodes(
        ToyShell, shell_tasks(3), {"agent": ScriptedTokens(tokenizer, random_legal_reply)}, Sampling(), group_size=4,
        trained=["agent"], encoder=ChatEncoder(tokenizer), max_turns=9, seed=0, prefix="it0002",
    )  # fmt: skip
    assert [len(group) for group in collection.groups] == [4, 4, 4]
    assert len(collection.episodes) == 12
    assert len({row.ret for row in collection.groups[0].trajectories}) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_episode_that_our_side_fails_is_played_once_more_else_its_group_is_dropped(workers: int):
    tokenizer, tasks = tiny_tokenizer(), shell_tasks(3)

    def collected(broken: dict[str, int]) -> Collection:
        """With an environment that breaks down at the second command in the first `broken[task]` episodes of a task."""
        left, one, opened = dict(broken), threading.Lock(), []

        class Fragile(ToyShell):
            def __init__(self) -> None:
                super().__init__()
                self.closed, self.failing = False, False
                opened.append(self)

            def reset(self, task: Task) -> Observation:
                assert not self.failing, "a broken environment is not used again"
                with one:
                    self.failing = left.get(task.id, 0) > 0
                    left[task.id] = left.get(task.id, 0) - 1
                return super().reset(task)

            def step(self, reply: str) -> Step:
                if self.failing and self._turns == 1:
                    raise OSError("no space left on device")
                return super().step(reply)

            def close(self) -> None:
                self.closed = True
                super().close()

        found = collect_episodes(
            Fragile, tasks, {"agent": ScriptedTokens(tokenizer, lambda _, seed: f"write {WORDS[seed % 2]}")}, Sampling(),
            group_size=4, trained=["agent"], encoder=ChatEncoder(tokenizer), max_turns=9, seed=0, prefix="p", workers=workers,
        )  # fmt: skip
        assert all(env.closed for env in opened)
        return found

    whole = collected({})
    assert (whole.dropped, whole.failure) == (0, "")
    # Again with the same seeds: nothing tells that an environment broke down.
    assert collected({tasks[1].id: 1}) == whole
    # Once more, and not forever: its second try and all others of the task would fail.
    lost = collected({tasks[1].id: 99})
    assert [group.key for group in lost.groups] == [group.key for group in whole.groups if tasks[1].id not in group.key]
    assert (lost.dropped, lost.failure) == (1, "OSError: no space left on device")
    assert sum(episode.stop is StopReason.ERROR for episode in lost.episodes) == 4
    # One of four is enough: the others would be compared without it.
    five = collected({tasks[1].id: 5})
    assert (len(five.groups), five.dropped, sum(e.stop is StopReason.ERROR for e in five.episodes)) == (2, 1, 1)


@pytest.mark.parametrize("fields", [{"episodes": 0}, {"partner_share": 1.5}, {"fresh_share": float("nan")}, {"keep_share": -0.1}])
def test_bad_options_are_refused(fields: dict[str, float]):
    with pytest.raises(ConfigError, match="must be"):
        CollectConfig(**fields)  # pyright: ignore[reportArgumentType]


def test_a_scripted_policy_cannot_be_trained():
    tokenizer = tiny_tokenizer()
    collector = Collector(
        ToyWorkplace, BranchScorer(ToyWorkplace), config=CollectConfig(partner_share=0.0), branch=BRANCH,
        scales={"maker": Scales()}, trained=("maker",), partners=PARTNERS, encoder=ChatEncoder(tokenizer),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be trained"):
        collector.collect(toy_tasks(4), {"maker": HEURISTIC}, Sampling(), library=SnapshotLibrary(), seed=0, prefix="p")


class Imitated(ToyWorkplace):
    """Stand-ins of `maker` scrap what they made; replies are distinguished by their first word."""

    def __init__(self) -> None:
        super().__init__()
        self.players: dict[str, dict[str, float]] = {}

    def habits(self, replies):
        return {word: (float(replies.count(word)), float(len(replies))) for word in sorted(set(replies))}

    def continue_with(self, stand_ins) -> None:
        self.players = dict(stand_ins)

    def stand_ins(self, rates):
        return {actor: lambda observation, _: observation.view["legal"][0] for actor in rates}

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        played = super().branch(reply, world=world, turns=turns)
        return replace(played, outcome=played.outcome - sum(rates["SCRAP"] for rates in self.players.values()))


def test_stand_ins_play_on_for_the_actors_that_learn():
    config = CollectConfig(episodes=2, segment_turns=4, partner_share=0.0)
    branch = replace(BRANCH, continuation="stand_ins")
    tables = {"maker": {"SCRAP": 0.5}, "seller": {"SCRAP": 0.25}}
    plain = collected(config, make=Imitated, branch=branch)
    both = collected(config, make=Imitated, branch=branch, stand_ins=tables)
    one = collected(config, make=Imitated, branch=branch, stand_ins=tables, trained=("maker",))

    def outcomes(collection: Collection) -> list[float]:
        return [row.metrics["outcome"] for group in collection.groups for row in group.trajectories]

    assert outcomes(both) == pytest.approx([value - 0.75 for value in outcomes(plain)])
    assert outcomes(one) == pytest.approx(
        [value - 0.5 for value in outcomes(collected(config, make=Imitated, trained=("maker",)))]
    )
    assert sorted(actor for actor, _ in both.habits) == sorted(group.actor for group in both.groups)
    assert all(sum(chosen for chosen, _ in habits.values()) == 4.0 for _, habits in both.habits)
    assert collected(config).habits == ()


def test_among_partners_they_play_on_and_no_habits_are_counted():
    config = CollectConfig(episodes=3, segment_turns=4, partner_share=1.0)
    tables = {"maker": {"SCRAP": 0.5}, "seller": {"SCRAP": 0.25}}
    imitating = collected(config, make=Imitated, branch=replace(BRANCH, continuation="stand_ins"), stand_ins=tables)
    alone = collected(config, make=Imitated)
    assert imitating.groups
    assert [group.facts["by_world"] for group in imitating.groups] == [group.facts["by_world"] for group in alone.groups]
    assert imitating.habits == ()


def test_partners_and_stand_ins_play_on_in_every_other_world():
    config = CollectConfig(episodes=2, segment_turns=4, partner_share=0.0)
    tables = {"maker": {"SCRAP": 0.5}, "seller": {"SCRAP": 0.25}}
    kinds = {}
    for continuation in ("partners", "stand_ins", "both"):
        branch = replace(BRANCH, worlds=4, continuation=continuation)
        kinds[continuation] = collected(config, make=Imitated, branch=branch, stand_ins=tables)
    compared = 0
    for groups in zip(*(kinds[name].groups for name in ("partners", "stand_ins", "both")), strict=True):
        partners, stand_ins, both = (group.facts["by_world"] for group in groups)
        for key, values in both.items():
            assert values == [(stand_ins if place % 2 == 0 else partners)[key][place] for place in range(4)]
            assert all(x != y for x, y in zip(stand_ins[key], partners[key], strict=True))
            compared += 1
    assert compared > 8
    assert kinds["both"].habits == kinds["stand_ins"].habits
    assert kinds["both"].stand_ins == tables
    assert not kinds["partners"].habits


def test_stand_ins_need_an_environment_that_offers_them():
    with pytest.raises(ConfigError, match=r"ToyWorkplace offers no stand-ins.*partners"):
        collected(CollectConfig(episodes=1), branch=replace(BRANCH, continuation="stand_ins"))
    with pytest.raises(ConfigError, match=r"ToyWorkplace offers no stand-ins.*partners"):
        collected(CollectConfig(episodes=1), branch=replace(BRANCH, worlds=2, continuation="both"))
