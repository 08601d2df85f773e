"""`openenv:URL`: our own server played as it is played directly, and servers that are written with OpenEnv alone."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="needs the extra openenv")

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from onthejob.compat.openenv import make_app, server_options
from onthejob.compat.served import served
from onthejob.envs.running import running
from onthejob.errors import ConfigError, ServeError
from onthejob.interop.from_openenv import OpenEnv
from onthejob.interop.openenv_action import form_of
from onthejob.interop.openenv_session import Access, Session, normal_url
from onthejob.keys import keyed_choice
from onthejob.plugins import anchored, resolve
from onthejob.testing import play_env
from onthejob.types import Split, StopReason

GUESS = Path(__file__).parents[2] / "examples" / "guess.py"
pytestmark = pytest.mark.server


class CountAction(Action):
    """How far to go."""

    by: int = Field(ge=1, le=3, description="Steps")


class CountObservation(Observation):
    """Where one is."""

    at: int = 0
    legal_actions: list[int] = Field(default_factory=list)


class Count(Environment[CountAction, CountObservation, State]):
    """Reach ten exactly. Going by 2 from 0 takes long, and going by 3 from 0 raises."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.seed = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> CountObservation:
        self.seed, self.at = seed or 0, 0
        return CountObservation(at=self.at, legal_actions=[1, 2, 3])

    def step(self, action: CountAction, timeout_s: float | None = None, **options: Any) -> CountObservation:
        if self.at == 0 and action.by == 2:
            time.sleep(3.0)
        if self.at == 0 and action.by == 3:
            raise ValueError("too fast")
        self.at += action.by
        done = self.at >= 10
        return CountObservation(at=self.at, legal_actions=[1, 2, 3], reward=float(self.at == 10), done=done)

    @property
    def state(self) -> State:
        return State(step_count=self.at)


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """`app` on a loopback port, a free one by default, in a thread of this process."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **server_options()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        end = time.monotonic() + 60
        try:
            while not server.started:
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server did not stop"


def counting(sessions: int = 8) -> Any:
    return create_fastapi_app(Count, CountAction, CountObservation, max_concurrent_envs=sessions)


@pytest.fixture(scope="module")
def count() -> Iterator[str]:
    with serving(counting()) as url:
        yield url


def of(url: str, **options: Any) -> OpenEnv:
    return resolve(f"openenv:{url}")(**options)  # type: ignore[return-value]


def test_our_server_pays_what_direct_play_pays():
    env: Any = resolve(str(GUESS))()
    training = env.tasks(Split.TRAIN)
    with serving(make_app(served(env))) as url:
        client = of(url, reset_options='{"legal": true}', max_turns=20)
        assert client.tasks(Split.TRAIN)
        there, here = running(client), running(env)
        for number in range(5):
            # A training seed of the server is the number of a task.
            task = client.tasks(Split.TRAIN)[number]
            mine = training[task.seed % len(training)]
            seen, expected = there.reset(task), here.reset(mine)
            for turn in range(20):
                assert seen.messages == expected.messages
                reply = keyed_choice(["what?", *expected.view["legal"]], task.seed, turn)
                got, due = there.step(reply), here.step(reply)
                assert got.rewards.get("agent", 0.0) == due.rewards.get("guesser", 0.0)
                assert (got.valid, got.stop is None) == (due.valid, due.stop is None)
                if due.observation is None or got.observation is None:
                    break
                seen, expected = got.observation, due.observation
            assert there.state()["metrics"]["reward"] == here.state()["metrics"]["reward"]


def test_a_schema_with_one_field_takes_the_reply(count: str):
    env = of(count)
    run = running(env)
    seen = run.reset(env.tasks(Split.TRAIN)[0])
    assert seen.messages[0].content == 'Reply with one of: 1, 2, 3.\n{"at": 0}\nPossible now: 1, 2, 3.'
    assert seen.view["legal"] == ["1", "2", "3"]
    for wrong in ("far", "", "2.5", "[" * 5_000):
        refused = run.step(wrong)
        assert (refused.valid, refused.rewards) == (False, {"agent": -1.0})
    outside = run.step("9")
    assert not outside.valid
    for move in ("1", "3", "3"):
        assert run.step(move).stop is None
    last = run.step("3")
    assert (last.stop, last.rewards) == (StopReason.DONE, {"agent": 1.0})


def test_the_check_says_which_reply_it_sent(count: str):
    env = of(count)
    with pytest.raises(ServeError, match=r"too fast.*invalid\. The check of the environment sent the reply '3', as a model may"):
        play_env(env, env.tasks(Split.TRAIN)[0], lambda *_: "3")


def test_functions_show_and_act(count: str, tmp_path: Path):
    file = tmp_path / "count_text.py"
    file.write_text(
        "def shown(observation):\n    return f\"You are at {observation['at']}.\"\n\n"
        'def act(reply):\n    if reply.count("+") not in (1, 2, 3):\n        raise ValueError("Write +, ++ or +++.")\n'
        '    return {"by": reply.count("+")}\n',
        encoding="utf-8",
    )
    env = of(count, render=f"{file}:shown", action=f"{file}:act", instructions="Reach 10.")
    run = running(env)
    assert run.reset(env.tasks(Split.DEV)[0]).messages[0].content == "Reach 10.\nYou are at 0."
    assert run.step("1").observation.messages[0].content == "Write +, ++ or +++."  # type: ignore[union-attr]
    assert run.step("+").observation.messages[0].content == "You are at 1."  # type: ignore[union-attr]
    assert env.anchored()["render"] == f"{file}:shown"


def test_a_server_that_raises_hangs_or_is_lost_ends_the_episode_as_an_error(count: str):
    env = of(count, timeout_s=1.0)
    task = env.tasks(Split.TRAIN)[0]
    run = running(env)
    run.reset(task)
    with pytest.raises(ServeError, match=rf"{count} failed at step: too fast.*--env.rejected invalid"):
        run.step("3")
    lenient = running(of(count, rejected="invalid"))
    lenient.reset(task)
    refused = lenient.step("3")
    assert (refused.valid, refused.rewards) == (False, {"agent": -1.0})
    run.reset(task)
    started = time.monotonic()
    with pytest.raises(ServeError, match=rf"{count} did not answer step within 1 s"):
        run.step("2")
    assert time.monotonic() - started < 2.9


def test_a_lost_connection_is_not_followed_by_a_foreign_episode():
    with serving(counting()) as url:
        session = Session(Access(url=url))
        session.reset(seed=1)
        assert session.step({"by": 1}).observation["at"] == 1
    # OpenEnv's own client would connect to the new server and step its fresh episode.
    lost = pytest.raises(ServeError, match=f"{url} failed at step: the connection was lost")
    with serving(counting(), port=int(url.rsplit(":", 1)[1])), lost:
        session.step({"by": 1})


def test_one_session_at_a_time_is_said_at_once(caplog: pytest.LogCaptureFixture):
    with serving(counting(1)) as url:
        env = of(url)
        with caplog.at_level(logging.WARNING):
            tasks = env.tasks(Split.TRAIN)
        assert "has one session at a time" in caplog.text
        run = running(env)
        run.reset(tasks[0])
        with pytest.raises(ServeError, match="no session left"):
            running(env).reset(tasks[1])
        # An episode that is given up leaves its session.
        assert run.reset(tasks[1]).messages


def test_what_cannot_be_reached_is_refused_at_once(count: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"http://127.0.0.1:{port} cannot be reached"):
        resolve(f"openenv:http://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=r"is no OpenEnv 0\.10 server"):
        resolve(f"openenv:{count}/elsewhere")
    for wrong in ("ftp://here", "http://", "http://me:secret@here", "http://here:99999"):
        with pytest.raises(ConfigError, match="must name a server"):
            normal_url(wrong)
    assert anchored("openenv:ws://localhost:8000/ws") == "openenv:http://localhost:8000"
    for options, said in (
        ({"token_variable": "ONTHEJOB_NO_SUCH_TOKEN"}, "is not set"),
        ({"timeout_s": 0.0}, "--env.timeout-s must be"),
        ({"reset_options": "[]"}, "--env.reset-options must be a JSON object"),
        ({"reset_options": '{"seed": 1}'}, "must not hold a seed"),
        ({"render": "nothing"}, "--env.render must be"),
    ):
        with pytest.raises(ConfigError, match=said):
            of(count, **options).tasks(Split.TRAIN)


def test_a_token_is_sent_and_only_named_when_it_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNT_TOKEN", "correct-horse")
    seen: list[str] = []
    inner = counting()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            seen.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        await inner(scope, receive, send)

    with serving(guarded) as url:
        env = of(url, token_variable="COUNT_TOKEN")
        seen.clear()
        running(env).reset(env.tasks(Split.TRAIN)[0])
        assert set(seen) == {"Bearer correct-horse"}
    assert not Access(url="https://there", token_variable="COUNT_TOKEN").exposed
    assert not Access(url="http://127.0.0.1:1", token_variable="COUNT_TOKEN").exposed
    assert Access(url="http://there", token_variable="COUNT_TOKEN").exposed


def test_forms_of_actions():
    text = {"properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}, "required": ["message"]}
    assert form_of(text, "here", given=False).action(" hi ", ()) == {"message": " hi "}
    moves = {
        "$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}},
        "properties": {"move": {"$ref": "#/$defs/Move"}},
        "required": ["move"],
    }
    form = form_of(moves, "here", given=False)
    assert (form.listed(None), form.action("up", ())) == (["UP", "DOWN"], {"move": "UP"})
    with pytest.raises(ValueError, match="Reply with one of: UP, DOWN"):
        form.action("left", ())
    free = form_of({"properties": {"to": {"type": "integer"}}, "required": ["to"]}, "here", given=False)
    assert (free.action("3", ("3", "5")), free.action("-1", ())) == ({"to": 3}, {"to": -1})
    with pytest.raises(ValueError, match=r"^-1 is not possible now\. Reply with one of: 3, 5\.$"):
        free.action("-1", ("3", "5"))
    real = form_of({"properties": {"to": {"type": "number"}}, "required": ["to"]}, "here", given=False)
    assert real.action("1", ("1.0", "2.5")) == {"to": 1}
    several = {
        "properties": {
            "tool": {"type": "string"},
            "times": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["tool", "times"],
    }
    form = form_of(several, "here", given=False)
    assert form.described() == 'Reply with a JSON object: {"tool": string, "times": integer, "note": string (optional)}.'
    assert form.action('{"tool": "saw", "times": 2}', ()) == {"tool": "saw", "times": 2}
    for reply, said in (("saw", "no JSON object"), ('{"tool": "saw"}', "'times' is missing"), ('{"x": 1}', "'x' is unknown")):
        with pytest.raises(ValueError, match=said):
            form.action(reply, ())
    with pytest.raises(ConfigError, match=r"Give --env\.action"):
        form_of(None, "here", given=False)


def test_the_command_serves_what_this_plays():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "onthejob", "serve", "env", str(GUESS), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                env = of(f"http://127.0.0.1:{port}")
                break
            except ConfigError:
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.5)
        run = running(env)
        assert "Guess my number" in run.reset(env.tasks(Split.TRAIN)[0]).messages[0].content
        assert json.loads(json.dumps(run.step("nonsense").rewards)) == {"agent": -0.2}
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
