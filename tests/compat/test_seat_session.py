"""One session: seats, rewards, guards and injected states, without any server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onthejob.compat.seat_session import Code, Seat, SeatError, Seen, Start
from onthejob.compat.served import Served, served
from onthejob.compat.served_office import served_office
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.reward_parts import PARTS
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.office_players import team
from onthejob.rollout.play import play
from onthejob.testing import ToyShell, shell_tasks
from onthejob.types import Kind, Observation, Sampling, Split, StopReason, Task

KEY = "a trainer's key of this test"
EXPERT = as_reply(players()["expert"])


@pytest.fixture(scope="module")
def workplace() -> Served:
    return served(Office())


def shown(seen: Seen) -> str:
    """All that a client is shown, as text that can be compared."""
    request = seen.observation
    data = {
        "role": seen.role,
        "messages": [list(m) for m in request.messages] if request else [],
        "view": dict(request.view) if request else {},
        "reward": seen.reward,
        "rewards": dict(seen.rewards),
        "parts": seen.parts,
        "valid": seen.valid,
        "error": seen.error,
        "stop": seen.stop,
        "metrics": seen.metrics,
    }
    return json.dumps(data)


def finish(seat: Seat, seen: Seen) -> list[Seen]:
    """Play the expert to the end; the first element is `seen`."""
    table = seat.role == "*"
    all_seen = [seen]
    while seen.observation is not None:
        seen = seat.step(EXPERT(seen.observation, 7), seen.role if table else None)
        all_seen.append(seen)
    return all_seen


def refused(code: Code, call: Any, *words: str) -> None:
    with pytest.raises(SeatError) as caught:
        call()
    assert caught.value.code is code
    assert str(caught.value).startswith(f"{code}: ")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("role", ["ceo", "hr"])
def test_the_learner_is_paid_everything_its_role_earns_and_nothing_else(workplace: Served, role: str):
    seat = Seat(workplace)
    seen = finish(seat, seat.reset(Start(seed=1_003, role=role, options={"days": 4})))
    assert {s.role for s in seen[:-1]} == {role}
    assert seen[0].reward is None
    assert all(set(s.rewards) <= {role} and set(s.parts) <= {role} for s in seen)
    env = seat._env
    assert isinstance(env, OfficeEnvironment)
    assert sum(s.reward or 0.0 for s in seen) == pytest.approx(env.state()["metrics"][f"reward_{role}"])
    assert seat.episode_return == pytest.approx(sum(s.reward or 0.0 for s in seen))
    for s in seen[1:]:
        assert set(s.parts[role]) == set(PARTS)
        assert sum(s.parts[role].values()) == pytest.approx(s.reward)
    assert seen[-1].stop is StopReason.HORIZON
    assert seen[-1].metrics["company_value"] == env.state()["metrics"]["company_value"]
    assert seat.turns == env.state()["turn"] - 8  # the customer's two turns a day are the environment's own


def test_a_client_reflects_itself_and_prompts_fit_their_budget():
    """Once in 70 turns, without a turn of the company; scripted colleagues are asked too, and have nothing to say."""

    def played(budget: int | None) -> list[Observation]:
        config = OfficeConfig(profile="full", reflect=True, budget=budget)
        seat = Seat(replace(served(Office()), make=partial(OfficeEnvironment, config, count_tokens=words)))
        seen, requests = seat.reset(Start(seed=1_003, role="sales", options={"days": 6})), []
        while seen.observation is not None:
            requests.append(seen.observation)
            seen = seat.step("Two calls win it [0]" if requests[-1].kind is Kind.REFLECT else EXPERT(requests[-1], 7))
        assert seen.stop is StopReason.HORIZON
        return requests

    def words(text: str) -> int:
        return len(text.split())

    requests = played(None)
    assert [request.kind for request in requests].count(Kind.REFLECT) == 1
    assert "Two calls win it" in requests[-1].messages[1].content, "what it concluded is remembered"
    longest = max(words(request.messages[1].content) for request in requests if request.kind is Kind.ACT)
    pruned = played(longest - 10)
    assert max(words(request.messages[1].content) for request in pruned if request.kind is Kind.ACT) <= longest - 10


def test_the_table_is_the_environment_itself(workplace: Served):
    """Every turn is the client's, the rewards of all are shown, and the episode is the one that `play` plays."""
    seat = Seat(workplace)
    task = Task(id="t", env="office", split=Split.DEV, seed=1_001, payload={"scenario": "churn", "days": 3})
    (episode,) = play([OfficeEnvironment()], [task], team("heuristic"), Sampling(), seed=5, max_turns=100)
    seen = seat.reset(Start(seed=1_001, role="*", options={"scenario": "churn", "days": 3}))
    total = 0.0
    for record in episode.transcript:
        assert seen.role == record.actor
        seen = seat.step(record.text, record.actor)
        assert seen.rewards == pytest.approx(record.rewards)
        assert seen.reward == pytest.approx(sum(record.rewards[name] for name in SEATS))
        total += seen.reward or 0.0
    assert seen.observation is None
    assert seen.metrics == episode.metrics
    assert seat.episode_return == pytest.approx(total)
    assert seat.returns["customer"] == pytest.approx(episode.metrics["reward_customer"])


def test_the_table_of_a_seat_with_the_same_colleagues_is_the_same_company(workplace: Served):
    """The learner's view plays the same episode as the table does with the same players."""
    alone, all_of_them = Seat(workplace), Seat(workplace)
    one = finish(alone, alone.reset(Start(seed=1_000, role="sales", teammates="expert", options={"days": 3})))[-1]
    two = finish(all_of_them, all_of_them.reset(Start(seed=1_000, role="*", options={"days": 3})))[-1]
    assert one.metrics == two.metrics


def test_same_seed_and_replies_give_the_same_bytes(workplace: Served):
    start = Start(seed=100_007, role="dev", teammates="random", options={"scenario": "viral", "days": 3})
    first, second = Seat(workplace), Seat(workplace)
    one = [shown(s) for s in finish(first, first.reset(start))]
    finish(second, second.reset(replace(start, seed=100_008)))
    two = [shown(s) for s in finish(second, second.reset(start))]  # a second episode of the same session
    assert one == two
    assert one != [shown(s) for s in finish(first, first.reset(replace(start, seed=100_008)))]


def test_no_step_without_an_episode(workplace: Served):
    seat = Seat(workplace)
    refused(Code.RESET_REQUIRED, lambda: seat.step("{}"), "reset")
    seat.reset(Start(seed=1, options={"days": 1}))
    seat.step("{}")


def test_no_step_after_the_end_or_after_the_close(workplace: Served):
    seat = Seat(workplace)
    finish(seat, seat.reset(Start(seed=1, options={"days": 1})))
    refused(Code.EPISODE_OVER, lambda: seat.step("{}"), "horizon")
    seat.reset(Start(seed=1, options={"days": 1}))
    seat.close()
    refused(Code.SESSION_CLOSED, lambda: seat.step("{}"))
    refused(Code.SESSION_CLOSED, lambda: seat.reset(Start(seed=1)))


def test_an_unusable_reply_is_a_lost_turn(workplace: Served):
    seat = Seat(workplace)
    seat.reset(Start(seed=1, role="sales", options={"days": 1}))
    seen = seat.step("I would rather talk about the weather.")
    assert (seen.valid, seat.steps) == (False, 1)
    assert "no JSON object" in (seen.error or "")
    assert seen.parts["sales"]["penalty"] <= -1.0


def test_a_reply_of_another_role_changes_nothing(workplace: Served):
    seat = Seat(workplace)
    before = seat.reset(Start(seed=1, role="*", options={"days": 1}))
    refused(Code.WRONG_ROLE, lambda: seat.step("{}", "customer"), str(before.role))
    refused(Code.WRONG_ROLE, lambda: seat.step("{}"), str(before.role))
    assert (seat.steps, seat.turns) == (0, 0)
    learner = Seat(workplace)
    learner.reset(Start(seed=1, role="dev", options={"days": 1}))
    refused(Code.WRONG_ROLE, lambda: learner.step("{}", "ceo"), "dev")


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (Start(seed=-1), "-1"),
        (Start(seed=1.5), "1.5"),
        (Start(seed=True), "True"),
        (Start(seed=2**63), "2^63"),
        (Start(role="customer"), "ceo, dev"),
        (Start(role=["ceo"]), "ceo, dev"),
        (Start(teammates="nobody"), "heuristic"),
        (Start(teammates={"ceo": "expert"}, role="ceo"), "dev"),
        (Start(teammates={"dev": 3}), "heuristic"),
        (Start(teammates="expert", role="*"), "no effect"),
        (Start(split="exam"), "train"),
        (Start(split="dev", index=10**6), "0..249"),
        (Start(split="dev", seed=3), "either seed"),
        (Start(split="dev", options={"scenario": "viral"}), "days"),
        (Start(seed=1, options={"scenario": "../secret.toml"}), "baseline"),
        (Start(seed=1, options={"days": 91}), "1..90"),
        (Start(seed=1, options={"dayz": 3}), "dayz"),
        (Start(seed=1, max_steps=0), "max_steps"),
        (Start(seed=1, legal="yes"), "legal"),
        (Start(seed=1, episode_id=5), "episode_id"),
    ],
)
def test_a_refused_reset_says_what_is_allowed_and_leaves_the_episode_alone(workplace: Served, start: Start, word: str):
    seat = Seat(workplace)
    seat.reset(Start(seed=1, role="dev", options={"days": 2}))
    seat.step("{}")
    refused(Code.BAD_RESET, lambda: seat.reset(start), word)
    assert (seat.steps, seat.role) == (1, "dev")
    assert seat.step("{}").role == "dev"


def test_tasks_have_their_own_seeds_and_splits(workplace: Served):
    seat = Seat(workplace)
    for split in (Split.TRAIN, Split.DEV, Split.TEST):
        seat.reset(Start(split=str(split), index=7, options={"days": 1}))
        assert seat.task is not None
        assert seat.task.split is split
        assert seat.task.payload["scenario"] == "series_a"
    tasks = [workplace.task_at(split, i, {}) for split in workplace.counts for i in range(workplace.counts[split])]
    assert len({task.seed for task in tasks}) == len({task.id for task in tasks}) == sum(workplace.counts.values())


def test_a_reset_without_a_seed_draws_a_training_seed_and_says_which(workplace: Served):
    seats = [Seat(workplace) for _ in range(3)]
    drawn = []
    for seat in seats:
        seat.reset(Start(options={"days": 1}))
        assert seat.task is not None
        assert seat.task.split is Split.TRAIN
        drawn.append(seat.task.seed)
    assert len(set(drawn)) == 3


def test_a_limit_of_steps_truncates(workplace: Served):
    seat = Seat(workplace)
    seat.reset(Start(seed=1, role="hr", max_steps=2))
    assert seat.step("{}").stop is None
    seen = seat.step("{}")
    assert seen.stop is StopReason.MAX_TURNS
    assert seen.stop.truncated
    refused(Code.EPISODE_OVER, lambda: seat.step("{}"))


def test_legal_replies_are_listed_when_asked_for(workplace: Served):
    seat = Seat(workplace)
    assert seat.reset(Start(seed=1, role="sales", options={"days": 1})).legal == []
    seen = seat.reset(Start(seed=1, role="sales", legal=True, options={"days": 1}))
    assert len(seen.legal) > 1
    for reply in seen.legal:
        seat.reset(Start(seed=1, role="sales", options={"days": 1}))
        assert seat.step(reply).valid


def test_only_a_trainer_injects_states(workplace: Served):
    plain, trainer = Seat(workplace), Seat(workplace, trainer_key=KEY)
    options: Mapping[str, Any] = {"days": 2}
    plain.reset(Start(seed=3, role="ceo", options=options))
    assert plain.snapshot() is None
    refused(Code.TRAINER_ONLY, lambda: plain.reset(Start(trainer_key=KEY)))
    refused(Code.TRAINER_ONLY, lambda: trainer.reset(Start(trainer_key="wrong")))
    trainer.reset(Start(seed=3, role="ceo", options=options))
    assert trainer.snapshot() is None
    seen = trainer.reset(Start(seed=3, role="ceo", trainer_key=KEY, options=options))
    for _ in range(2):
        seen = trainer.step(EXPERT(seen.observation, 1))
    state = trainer.snapshot()
    assert state is not None
    refused(Code.TRAINER_ONLY, lambda: plain.reset(Start(injected_state=state)))
    bad = Start(injected_state="no state", trainer_key=KEY)
    refused(Code.BAD_RESET, lambda: trainer.reset(bad), "base64")
    refused(Code.BAD_RESET, lambda: trainer.reset(replace(bad, injected_state="AAAA")), "snapshot")
    refused(Code.BAD_RESET, lambda: trainer.reset(replace(bad, injected_state=state, options=options)), "options")

    other = Seat(workplace, trainer_key=KEY)
    again = other.reset(Start(injected_state=state, role="ceo", trainer_key=KEY))
    request: Observation | None = again.observation
    assert request is not None
    assert list(request.messages) == list(seen.observation.messages)
    # Candidates at one state are compared under the same luck: the same reply twice is worth the same.
    reply = EXPERT(request, 1)
    first = other.step(reply)
    other.reset(Start(injected_state=state, role="ceo", trainer_key=KEY))
    assert shown(other.step(reply)) == shown(first)


class Broken(OfficeEnvironment):
    """Fails in its third turn: our mistake, not the client's."""

    def step(self, reply: str):
        if (self.state()["turn"]) >= 3:
            raise RuntimeError("a secret path")
        return super().step(reply)


def test_our_failure_ends_the_episode_without_telling_secrets(workplace: Served, caplog: pytest.LogCaptureFixture):
    seat = Seat(replace(workplace, make=Broken))
    seen = seat.reset(Start(seed=1, role="*"))
    for _ in range(3):
        seen = seat.step("{}", seen.role)
    with pytest.raises(SeatError) as caught:
        seat.step("{}", seen.role)
    assert caught.value.code is Code.INTERNAL_ERROR
    assert "secret" not in str(caught.value)
    assert "a secret path" in caplog.text
    assert seat.stop is StopReason.ERROR
    refused(Code.EPISODE_OVER, lambda: seat.step("{}", seen.role))


def test_another_environment_is_served_by_the_same_code():
    """A shell: one seat, no colleagues, steps of another kind."""
    tasks = shell_tasks(3)
    shell = Served(
        name="shell",
        description="a toy shell",
        make=ToyShell,
        seats=("agent",),
        counts={Split.TRAIN: len(tasks)},
        task_at=lambda split, index, options: tasks[index],
        task_of=lambda seed, options: tasks[seed % len(tasks)],
        seeds=range(3),
    )
    seat = Seat(shell)
    seen = seat.reset(Start(split="train", index=2))
    assert seen.role == "agent"
    seen = seat.step("done")
    assert seat.steps == 1
    with pytest.raises(ConfigError, match="no seats"):
        replace(shell, seats=())


def test_the_light_form_of_the_office_is_what_the_commands_serve():
    light, full = served_office(), served(Office())
    assert (light.name, light.seats, light.counts, light.seeds, light.inline) == (
        full.name, full.seats, full.counts, full.seeds, full.inline,
    )  # fmt: skip
    assert (list(light.players), light.default_player) == (list(full.players), full.default_player)
    task = light.task_at(Split.DEV, 7, {})
    assert task == full.task_at(Split.DEV, 7, {})
    assert light.public(task) == full.public(task)
    assert light.task_of(1_003, {"days": 2}) == full.task_of(1_003, {"days": 2})


@pytest.mark.parametrize("role", ["sales", "*"])
def test_a_client_is_shown_the_feedback_and_asked_again(role: str):
    """Under `serve env --env.retries`: a correction is a message to append, and only the last mistake costs."""
    patient, plain = Seat(served(Office(retries=2))), Seat(served(Office()))
    start = Start(seed=1_003, role=role, options={"days": 2}, legal=True)
    first = patient.reset(start)
    plain.reset(start)
    asked = first.role if role == "*" else None
    one = patient.step("no", asked)
    two = patient.step("still no", asked)
    for seen in (one, two):
        assert seen.observation is not None
        assert (seen.observation.kind, seen.observation.fresh, seen.role) == (Kind.RETRY, False, first.role)
        assert (seen.valid, seen.error, seen.legal) == (False, "The reply holds no JSON object.", first.legal)
    assert two.reward == 0.0
    (told,) = two.observation.messages
    (before,) = one.observation.messages
    assert told.content.startswith(before.content.splitlines()[0])
    assert len(told.content.splitlines()) > len(before.content.splitlines())
    good = first.legal[0]
    after, alone = patient.step(good, asked), plain.step(good, asked)
    assert after.observation is not None
    assert alone.observation is not None
    assert list(after.observation.messages) == list(alone.observation.messages)
    # What colleagues had earned the role before its first turn came with its first step.
    assert (one.reward or 0.0) + (after.reward or 0.0) == pytest.approx(alone.reward)
    assert patient.episode_return == pytest.approx(plain.episode_return)

    for seat, mistakes in ((patient, 3), (plain, 1)):
        seat.reset(start)
        for _ in range(mistakes):
            last = seat.step("no", asked)
        assert last.observation is not None
        assert last.observation.kind is Kind.ACT
        assert last.parts[str(first.role)]["penalty"] == pytest.approx(-1.0)
    assert patient.returns == pytest.approx(plain.returns)
