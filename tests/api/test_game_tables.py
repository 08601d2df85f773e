"""Tables: a person plays an environment of the user's own through the API, and learns only what the person's seats may know."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob import Env, Next, Split, Task
from onthejob.api import game_tables as module
from onthejob.api.app import create_app
from onthejob.api.game_tables import Tables
from onthejob.api.hands import Hands
from onthejob.claw import Claw
from onthejob.commands.named_env import Workplace
from onthejob.commands.view import tables_of
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawConfig
from onthejob.envs.claw.episode_reward import RewardConfig
from onthejob.errors import ContractError
from onthejob.plugins import resolve

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TOKEN = "a-token-for-tests-0123"
Ask = Callable[..., Any]


class Odd(Env):
    """Fails in the ways that its first reply names."""

    roles = ("first", "second")
    max_turns = 40

    def open(self) -> None:
        self.thread = threading.get_ident()

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=3)

    def reset(self, task: Task) -> Next:
        if task.id.endswith("2"):
            raise KeyError("nothing here")
        return self.ask("first", "Whatever.")

    def step(self, reply: str) -> Next:
        assert self.thread == threading.get_ident(), "stepped by the thread that opened it"
        match reply:
            case "raise":
                raise ValueError("the reply was 'raise'")
            case "exit":
                raise SystemExit(3)
            case "nothing":
                return None  # type: ignore[return-value]
            case "other":
                return self.ask("second", "SECRET of the second", rewards={"first": 0.5, "second": 7.0})
            case "back":
                return self.ask("first", "Again.", rewards={"first": 0.25, "second": 5.0})
        return self.end(rewards={"first": 1.0, "second": 2.0})

    def players(self):
        return {
            "back": lambda seen, seed: "back",
            "broken": lambda seen, seed: seen.view["absent"],
            "none": lambda seen, seed: None,
        }


@contextmanager
def asking(env: Env, ref: str, tmp_path: Path) -> Iterator[Ask]:
    """A function that asks the API: (path, body or None, expected status) -> the answer."""
    own = Workplace(ref=ref, env=env)
    with Tables(tables_of(own), threads=own.env.threads, name=own.name) as tables:
        app = create_app(token=TOKEN, hosts=("testserver",), tables=tables, pages=tmp_path / "no pages")
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:

            def ask(path: str, body: Any = None, status: int = 200) -> Any:
                answer = client.get(f"/api/{path}") if body is None else client.post(f"/api/{path}", json=body)
                assert answer.status_code == status, answer.text
                return answer.json() if status == 200 else answer.json()["detail"]

            yield ask


def example(name: str, tmp_path: Path) -> AbstractContextManager[Ask]:
    ref = str(EXAMPLES / f"{name}.py")
    return asking(resolve(ref)(), ref, tmp_path)


@pytest.fixture
def guess(tmp_path: Path) -> Iterator[Ask]:
    with example("guess", tmp_path) as ask:
        yield ask


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Ask]:
    with asking(Odd(), "odd", tmp_path) as ask:
        yield ask


def test_an_episode_from_its_beginning_to_its_end(guess: Ask):
    env = guess("config")["env"]
    assert (env["name"], env["roles"], env["players"], env["partner"]) == ("guess", ["guesser"], ["halving", "random"], "halving")
    assert env["tasks"] == {"train": 200, "dev": 200, "test": 200}
    assert guess("tasks?split=dev&start=7&count=2")["rows"][0] == {
        "index": 7, "id": "guess-dev-00007", "family": "all", "seed": 1007,
    }  # fmt: skip
    table = guess("tables", {"split": "dev", "index": 7, "seats": {"guesser": "human"}})
    assert table["asked"]["legal"] == list("123456789")
    assert table["asked"]["messages"] == [{"role": "user", "content": "Guess my number: 1 to 9. Digits only."}]
    where = f"tables/{table['id']}"
    table = guess(f"{where}/reply", {"text": "ten", "replies": 0})
    assert not table["turns"][0]["valid"]
    assert table["turns"][0]["rewards"] == {"guesser": -0.2}
    assert table["asked"]["messages"][0]["content"] == "Not a number from 1 to 9."
    assert "not 0" in guess(f"{where}/reply", {"text": "5", "replies": 0}, 409), "a reply that was sent twice counts once"
    while table["asked"]:
        table = guess(f"{where}/reply", {"text": table["asked"]["legal"][0], "replies": table["replies"]})
    assert table["stop"] in ("done", "max_turns")
    assert table["metrics"]["invalid"] == 1.0
    assert table["paid"]["guesser"] == pytest.approx(table["metrics"]["reward"])
    assert table["revealed"], "the one seat is the person's"
    assert guess(where) == table
    assert "over" in guess(f"{where}/reply", {"text": "5", "replies": table["replies"]}, 409)


def test_a_person_works_in_the_sandbox_of_the_claw(tmp_path: Path):
    env = Claw(count=64, rules=ClawConfig(reward=RewardConfig(mode="binary")))
    with asking(env, "claw", tmp_path) as ask:
        shown = ask("config")["env"]
        assert (shown["name"], shown["roles"], shown["options"]["count"]) == ("claw", ["agent"], 64)
        assert {name: value for name, value in shown["options"].items() if "." in name} == {"reward.mode": "binary"}
        table = ask("tables", {"split": "dev", "index": 1, "seats": {"agent": "human"}})
        gold = env.tasks(Split.DEV)[1].payload["gold"]
        assert not [command for command in gold if json.dumps(command)[1:-1] in json.dumps(table)]
        for text in (*(block(command) for command in gold), DONE):
            table = ask(f"tables/{table['id']}/reply", {"text": text, "replies": table["replies"]})
        assert (table["stop"], table["metrics"]["passed"]) == ("done", 1.0)


def test_what_other_seats_read_stays_on_the_server(tmp_path: Path):
    with example("negotiation", tmp_path) as ask:
        for index in range(12):
            table = ask("tables", {"index": index, "seats": {"buyer": "human"}})
            assert table["seats"] == {"buyer": "human", "seller": "easy"}
            where = f"tables/{table['id']}"
            seen = [table]
            for offer in range(1, 5):
                if table["asked"] is None:
                    break
                assert "Finish it first" in ask(f"{where}/everything", status=409)
                table = ask(f"{where}/reply", {"text": f"offer {offer}", "replies": table["replies"]})
                seen.append(table)
            assert "Sell above" not in json.dumps(seen)
            assert {turn["role"] for turn in table["turns"]} == {"buyer"}
            assert {turn["index"] for turn in table["turns"]} == {-1}
            assert set(table["paid"]) == {"buyer"}
            if table["asked"] is None:
                everything = ask(f"{where}/everything")
                assert "Sell above" in json.dumps(everything)
                assert set(everything["paid"]) == {"buyer", "seller"}
                assert [turn["index"] for turn in everything["turns"]] == list(range(len(everything["turns"])))
                assert not ask(where)["revealed"], "looking once does not open the table"


def test_a_person_may_take_every_seat(tmp_path: Path):
    with example("negotiation", tmp_path) as ask:
        table = ask("tables", {"seats": {"buyer": "human", "seller": "human"}})
        where = f"tables/{table['id']}"
        roles = []
        for text in ("offer 9", "accept"):
            roles.append(table["asked"]["role"])
            table = ask(f"{where}/reply", {"text": text, "replies": table["replies"]})
        assert sorted(roles) == ["buyer", "seller"]
        assert table["revealed"]
        assert table["turns"][1]["rewards"] == table["paid"]
        assert table["metrics"]["deal"] == 1.0


def test_rewards_of_hidden_turns_are_added_to_the_turn_before(odd: Ask):
    table = odd("tables", {"seats": {"first": "human", "second": "back"}})
    table = odd(f"tables/{table['id']}/reply", {"text": "other", "replies": 0})
    assert [turn["rewards"] for turn in table["turns"]] == [{"first": 0.75}]
    assert "SECRET" not in json.dumps(table)
    table = odd(f"tables/{table['id']}/reply", {"text": "end", "replies": 1})
    assert table["paid"] == {"first": 1.75}
    everything = odd(f"tables/{table['id']}/everything")
    assert [turn["rewards"]["second"] for turn in everything["turns"]] == [7.0, 5.0, 2.0]

    table = odd("tables", {"seats": {"second": "human", "first": "back"}})
    assert table["asked"] is None, "back asks the first again until no turns are left"
    assert table["turns"] == []
    assert table["before"] == table["paid"] == {"second": 200.0}
    assert table["stop"] == "max_turns"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("raise", "step raised ValueError: the reply was 'raise'"),
        ("exit", "step raised SystemExit: 3"),
        ("nothing", "returned NoneType"),
    ],
)
def test_an_environment_that_fails_ends_its_episode_and_nothing_else(odd: Ask, reply: str, said: str):
    table = odd("tables", {"seats": {"first": "human", "second": "back"}})
    failed = odd(f"tables/{table['id']}/reply", {"text": reply, "replies": 0})
    assert (failed["asked"], failed["stop"]) == (None, "error")
    assert said in failed["error"]
    assert odd("tables", {"seats": {"first": "human", "second": "back"}})["asked"]["role"] == "first"


@pytest.mark.parametrize(("player", "said"), [("broken", "the player broken raised KeyError"), ("none", "replies are texts")])
def test_a_player_that_fails_is_named(odd: Ask, player: str, said: str):
    table = odd("tables", {"seats": {"first": "human", "second": player}})
    table = odd(f"tables/{table['id']}/reply", {"text": "other", "replies": 0})
    assert said in table["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"index": 3, "seats": {"first": "human"}}, 400, "task 4 must be in 1..3"),
        ({"seats": {"third": "human"}}, 400, "role must be one of first, second, got 'third'"),
        ({"seats": {"first": "nobody"}}, 400, "player must be one of human, back, broken, none, got 'nobody'"),
        ({"seats": {"first": "back"}}, 400, "take at least one seat"),
        ({"index": 2, "seats": {"first": "human"}}, 409, "reset of task odd-train-00002 raised KeyError"),
        ({"split": "validation"}, 422, "train"),
        ({"index": -1}, 422, "greater than or equal to 0"),
        ({"days": 3}, 422, "Extra inputs"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(odd: Ask, body: dict[str, Any], status: int, said: str):
    assert said in json.dumps(odd("tables", body, status))


def test_replies_and_tables_are_bounded(odd: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_TABLES", 3)
    seats = {"seats": {"first": "human"}}
    first, *rest = [odd("tables", seats)["id"] for _ in range(3)]
    odd(f"tables/{first}")
    fourth = odd("tables", seats)["id"]
    for kept in (first, rest[1], fourth):
        odd(f"tables/{kept}")
    assert "Begin another one" in odd(f"tables/{rest[0]}", status=404), "the one that was left alone for longest"
    odd(f"tables/{first}/reply", {"text": "x" * 16_385, "replies": 0}, 422)
    assert odd(f"tables/{first}/reply", {"text": "x" * 16_384, "replies": 0})["stop"] == "done"


def test_playing_needs_the_token_and_an_environment(tmp_path: Path, client: TestClient):
    assert "onthejob view --env REF" in client.post("/api/tables", json={}).json()["detail"]
    assert client.get("/api/config").json()["env"] is None
    with example("guess", tmp_path) as ask:
        table = ask("tables", {"seats": {"guesser": "human"}})
    assert client.post(f"/api/tables/{table['id']}/reply", json={}, headers={"x-onthejob-token": "wrong"}).status_code == 401


def test_an_environment_that_does_not_return_keeps_no_page_waiting():
    done = threading.Event()
    hands = Hands(1, name="slow", patience_s=0.05)
    try:
        with pytest.raises(ContractError, match="slow has not returned"):
            hands.do(done.wait)
        done.set()
        patient = Hands(1, name="quick", patience_s=30)
        assert patient.do(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            patient.do(lambda: 1 // 0)
        with pytest.raises(TimeoutError, match="its own"):
            patient.do(lambda: (_ for _ in ()).throw(TimeoutError("its own")))
        assert patient.do(lambda: 4) == 4, "its thread lives on"
        patient.close()
    finally:
        done.set()
        hands.close()
