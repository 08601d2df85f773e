"""The office under OpenEnv: a real server on a loopback port, real WebSocket clients, and OpenEnv's own validation."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("openenv", reason="needs the extra openenv")

import typer
import uvicorn
from openenv.cli._cli_utils import validate_env_structure
from openenv.cli.commands.validate import validate
from openenv.core import GenericEnvClient
from openenv.validation import Level, Verdict, run_validation
from openenv.validation.types import CheckStatus
from typer.testing import CliRunner
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from onthejob.compat.openenv import SeatAction, SeatEnvironment, make_app, server_options
from onthejob.compat.openenv_client import SeatClient
from onthejob.compat.served import served
from onthejob.compat.websocket_guard import MAX_BODY
from onthejob.envs.office.env import SEATS
from onthejob.errors import ConfigError
from onthejob.office import Office

KEY = "a trainer's key of this test"
PATIENT: dict[str, Any] = {"connect_timeout_s": 120.0, "message_timeout_s": 120.0, "websocket_ping_timeout_s": 600.0}
"""A busy machine is not a failure of the server."""
PLAY = {"role": "sales", "seed": 1_002, "scenario": "churn", "days": 2, "legal": True}


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """`app` on a free loopback port, in a thread of this process; yields host:port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **server_options()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait(lambda: server.started, "the server did not start")
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server did not stop"


def wait(done: Callable[[], bool], complaint: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, complaint
        time.sleep(0.02)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(make_app(served(Office()), max_sessions=16, trainer_key=KEY)) as found:
        yield found


@contextmanager
def session(address: str) -> Iterator[Connection]:
    with connect(f"ws://{address}/ws", proxy=None, open_timeout=120, close_timeout=30, ping_timeout=600) as socket_:
        yield socket_


def ask(client: Connection, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    client.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
    return json.loads(client.recv(timeout=120))


def play(client: Connection, options: dict[str, Any], disturb: Callable[[], None] = lambda: None) -> list[str]:
    """Raw frames of one episode in which always the third legal reply is chosen."""
    client.send(json.dumps({"type": "reset", "data": options}))
    frames = [str(client.recv(timeout=120))]
    while True:
        data = json.loads(frames[-1])["data"]
        if data["done"]:
            return frames
        disturb()
        legal = data["observation"]["legal_actions"]
        action = {"reply": legal[min(2, len(legal) - 1)]}
        if options["role"] == "*":
            action["role"] = data["observation"]["current_role"]
        client.send(json.dumps({"type": "step", "data": action}))
        frames.append(str(client.recv(timeout=120)))


def refusal(response: dict[str, Any], code: str, *words: str) -> None:
    assert response["type"] == "error", response
    for word in words:
        assert word in response["data"]["message"], response
    assert response["data"]["code"] == code, response


@pytest.mark.server
def test_same_seed_and_actions_give_the_same_bytes_in_any_connection(address: str):
    with session(address) as alone:
        expected = play(alone, PLAY)
        other = play(alone, {**PLAY, "seed": 1_003})
        again = play(alone, PLAY)
    with session(address) as first, session(address) as second:
        ask(second, "reset", {**PLAY, "seed": 1_003, "role": "dev"})
        mixed = play(first, PLAY, disturb=lambda: ask(second, "step", {"reply": "{}"}) and None)
    assert expected == again == mixed
    assert expected != other
    assert len(expected) == 5


@pytest.mark.server
def test_clients_receive_the_feedback_on_an_unusable_reply():
    """As `serve env --env.retries 1` serves it: a message to append, then the same decision."""
    app = make_app(served(Office(retries=1)), max_sessions=2)
    with serving(app) as found, SeatClient(base_url=f"http://{found}", **PATIENT).sync() as client:
        first = client.reset(role="dev", seed=1_002, days=2, legal=True)
        again = client.step(SeatAction(reply="I will fix a bug."))
        seen = again.observation
        assert (seen.kind, seen.fresh, seen.valid, seen.current_role, again.done) == ("retry", False, False, "dev", False)
        assert seen.error == "The reply holds no JSON object."
        (told,) = seen.messages
        assert (told.role, told.content) == ("user", f"Your reply was not usable: {seen.error}")
        assert seen.legal_actions == first.observation.legal_actions
        after = client.step(SeatAction(reply=seen.legal_actions[0])).observation
        assert (after.kind, after.fresh, after.valid) == ("act", True, True)
        assert client.step(SeatAction(reply="no")).observation.kind == "retry"
        last = client.step(SeatAction(reply="no")).observation
        assert (last.kind, last.valid, last.reward_parts["dev"]["penalty"]) == ("act", False, -1.0)


@pytest.mark.server
def test_the_pages_client_plays_what_the_page_says(address: str, repository: Path, capsys: pytest.CaptureFixture[str]):
    page = (repository / "docs/openenv.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert "127.0.0.1:8000" in example
    exec(compile(example.replace("127.0.0.1:8000", address), "docs/openenv.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    first, last = re.findall(r"prints ten turns of Sales, from `(.*?)` to `(.*?)`", page)[0]
    assert (len(lines), lines[0], lines[-1]) == (11, first, last)


def next_step(client: Connection, frame: str, options: dict[str, Any]) -> str:
    """Choose the second legal reply of who is asked in `frame`; the raw frame that answers."""
    seen = json.loads(frame)["data"]["observation"]
    legal = seen["legal_actions"]
    action = {"reply": legal[min(1, len(legal) - 1)]}
    if options["role"] == "*":
        action["role"] = seen["current_role"]
    client.send(json.dumps({"type": "step", "data": action}))
    return str(client.recv(timeout=120))


def lock_step(clients: list[Connection], options: list[dict[str, Any]]) -> list[list[str]]:
    """Raw frames of one episode per connection, played in turns, and of the state at its end."""
    for client, chosen in zip(clients, options, strict=True):
        client.send(json.dumps({"type": "reset", "data": chosen}))
    played = [[str(client.recv(timeout=120))] for client in clients]
    while any(not json.loads(frames[-1])["data"]["done"] for frames in played):
        for client, frames, chosen in zip(clients, played, options, strict=True):
            if not json.loads(frames[-1])["data"]["done"]:
                frames.append(next_step(client, frames[-1], chosen))
    for client, frames in zip(clients, played, strict=True):
        client.send(json.dumps({"type": "state"}))
        frames.append(str(client.recv(timeout=120)))
    return played


@pytest.fixture(scope="module")
def full_address() -> Iterator[str]:
    """A server whose prompts hold memories."""
    with serving(make_app(served(Office(profile="full")), max_sessions=16)) as found:
        yield found


@pytest.mark.server
@pytest.mark.parametrize("prompts", ["address", "full_address"])
@pytest.mark.parametrize("role", ["*", "sales"])
def test_the_table_and_a_seat_are_the_same_bytes_in_any_connection(role: str, prompts: str, request: pytest.FixtureRequest):
    address = request.getfixturevalue(prompts)
    options = {**PLAY, "role": role, "days": 3}
    with session(address) as alone:
        (expected,) = lock_step([alone], [options])
        # A used connection, after a whole episode: another seed, then the same episode once more.
        (other,) = lock_step([alone], [{**options, "seed": 1_003}])
        (again,) = lock_step([alone], [options])
    with session(address) as first, session(address) as second, session(address) as third:
        # Used connections, after episodes that were left in the middle, one of them in another seat.
        for client, before in ((first, {**options, "seed": 1_009}), (second, {**PLAY, "role": "dev"})):
            client.send(json.dumps({"type": "reset", "data": before}))
            frame = str(client.recv(timeout=120))
            for _ in range(2):
                frame = next_step(client, frame, before)
        table = {**PLAY, "role": "*" if role != "*" else "hr", "seed": 1_003, "days": 4, "scenario": "viral"}
        mixed = lock_step([first, third, second], [options, table, options])
        # And once more where both sessions are between two episodes of a third one.
        (last,) = lock_step([third], [options])
    assert expected == again == mixed[0] == mixed[2] == last
    assert expected != other
    frames = [json.loads(frame)["data"] for frame in expected]
    decisions = 3 * 12 if role == "*" else 3 * 2
    assert len(frames) == decisions + 2
    if role == "*":
        asked = [frame["observation"]["current_role"] for frame in frames[:-2]]
        assert sorted(set(asked)) == sorted(SEATS)
        assert all(set(frame["observation"]["rewards"]) >= set(SEATS) for frame in frames[1:-1])


@pytest.mark.server
def test_an_episode_ends_with_typed_fields(address: str):
    with session(address) as client:
        frames = [json.loads(frame)["data"] for frame in play(client, PLAY)]
        state = ask(client, "state")["data"]
        refusal(ask(client, "step", {"reply": "{}"}), "EXECUTION_ERROR", "EPISODE_OVER")
    last = frames[-1]["observation"]
    rewards = [frame["reward"] for frame in frames[1:]]
    assert frames[0]["reward"] is None
    assert all(isinstance(reward, float) for reward in rewards)
    assert sum(rewards) == pytest.approx(last["episode_return"])
    assert (last["end_reason"], last["truncated"], last["current_role"]) == ("horizon", False, None)
    for frame in frames[1:]:
        parts = frame["observation"]["reward_parts"]
        assert set(parts) == {"sales"}
        assert sum(parts["sales"].values()) == pytest.approx(frame["reward"])
    assert last["metrics"]["reward_sales"] == pytest.approx(last["episode_return"])
    assert (state["step_count"], state["done"], state["end_reason"], state["split"]) == (4, True, "horizon", "dev")
    assert state["snapshot"] is None


@pytest.mark.server
def test_the_table_shows_who_is_asked_and_everybodys_rewards(address: str):
    with session(address) as client:
        frames = [json.loads(frame)["data"] for frame in play(client, {**PLAY, "role": "*", "days": 1})]
        asked = [frame["observation"]["current_role"] for frame in frames]
        assert set(asked[:-1]) == set(SEATS)
        assert all(set(frame["observation"]["rewards"]) == {*SEATS, "customer"} for frame in frames[1:])
        assert sum(frame["reward"] for frame in frames[1:]) == pytest.approx(frames[-1]["observation"]["metrics"]["team_reward"])
        ask(client, "reset", {"role": "*", "seed": 1})
        refusal(ask(client, "step", {"reply": "{}", "role": "customer"}), "EXECUTION_ERROR", "WRONG_ROLE", "ceo")
        assert ask(client, "state")["data"]["step_count"] == 0


@pytest.mark.server
def test_no_step_after_a_lost_socket_lands_in_a_fresh_episode(address: str):
    with session(address) as client:
        ask(client, "reset", PLAY)
        ask(client, "step", {"reply": "{}"})
        client.socket.shutdown(socket.SHUT_RDWR)
    with session(address) as client:
        refusal(ask(client, "step", {"reply": "{}"}), "EXECUTION_ERROR", "RESET_REQUIRED")
        assert ask(client, "state")["data"]["episode_id"] is None
        assert ask(client, "reset", PLAY)["type"] == "observation"


@pytest.mark.server
def test_openenvs_own_client_cannot_step_into_a_fresh_episode(address: str):
    """OpenEnv's client reconnects silently after a timeout; the step after it must fail loudly."""

    async def run() -> None:
        async with GenericEnvClient(base_url=f"http://{address}", **PATIENT) as env:
            await env.reset(**PLAY)
            await env.step({"reply": "{}"})
            await env._ws.close()  # what a timeout does
            with pytest.raises(RuntimeError, match="RESET_REQUIRED"):
                await env.step({"reply": "{}"})

    asyncio.run(run())


MALFORMED: tuple[str | bytes, ...] = (
    "",
    "hello",
    "[1]",
    "null",
    "{",
    b"\x00\xff",
    "[" * 50_000,
    '{"type":' * 80 + "1" + "}" * 80,
    '{"type":"step","data":' + "9" * 6_000 + "}",
    '{"type":"step","data":{"reply":"' + "x" * (2 << 20) + '"}}',
    '{"type":"\\ud800"}',
    '{"type":"nonsense"}',
    '{"type":["step"]}',
    '{"type":"step"}',
    '{"type":"step","data":{}}',
    '{"type":"step","data":[]}',
    '{"type":"step","data":{"reply":3}}',
    '{"type":"step","data":{"reply":NaN}}',
    '{"type":"step","data":{"reply":1e999}}',
    '{"type":"step","data":{"reply":' + "8" * 4_000 + "}}",
    '{"type":"step","data":{"reply":"{}","role":7}}',
    '{"type":"step","data":{"reply":"{}","role":"\\udfff"}}',
    '{"type":"step","data":{"reply":"{}","colour":"red"}}',
    '{"type":"step","data":{"reply":"{}"},"timeout_s":3}',
    '{"type":"reset","data":{"seed":-1}}',
    '{"type":"reset","data":{"seed":"x"}}',
    '{"type":"reset","data":{"self":1}}',
    '{"type":"reset","data":{"kwargs":1}}',
    '{"type":"reset","data":{"options":{}}}',
    '{"type":"reset","data":{"scenario":"../../x.toml"}}',
    '{"type":"reset","data":{"injected_state":"AAAA"}}',
    '{"type":"reset","data":{"trainer_key":"guess"}}',
    '{"type":"state","data":{}}',
    '{"type":"mcp","data":{"method":"tools/call"}}',
)


@pytest.mark.server
def test_malformed_frames_never_lose_an_episode(address: str):
    with session(address) as client:
        expected = play(client, PLAY)

    with session(address) as client:

        def disturb() -> None:
            for frame in MALFORMED:
                client.send(frame)
                answer = json.loads(client.recv(timeout=120))
                assert answer["type"] in ("error", "mcp"), (str(frame)[:80], answer)

        assert play(client, PLAY, disturb) == expected


@pytest.mark.server
def test_one_connection_above_the_cap_is_refused_and_recovers():
    with serving(make_app(served(Office()), max_sessions=2)) as address, session(address) as first, session(address) as second:
        assert ask(first, "reset", PLAY)["type"] == ask(second, "reset", PLAY)["type"] == "observation"
        with session(address) as third:
            refusal(json.loads(third.recv(timeout=120)), "CAPACITY_REACHED")
        assert ask(first, "step", {"reply": "{}"})["type"] == "observation"
        second.socket.shutdown(socket.SHUT_RDWR)

        def room() -> bool:
            with session(address) as fourth:
                fourth.send(json.dumps({"type": "reset", "data": PLAY}))
                return json.loads(fourth.recv(timeout=120))["type"] == "observation"

        wait(room, "the place of a lost connection was never given away")
        assert ask(first, "step", {"reply": "{}"})["type"] == "observation"


@pytest.mark.server
@pytest.mark.slow
def test_a_session_that_was_idle_too_long_is_closed_and_says_so():
    """OpenEnv looks for idle sessions every five seconds, closes their environments and leaves the sockets open."""
    with serving(make_app(served(Office()), max_sessions=1, session_timeout_s=0.5)) as address, session(address) as client:
        ask(client, "reset", {**PLAY, "days": 30})
        answers: list[dict[str, Any]] = []

        def closed() -> bool:
            time.sleep(6.0)
            answers.append(ask(client, "step", {"reply": "{}"}))
            return answers[-1]["type"] == "error"

        wait(closed, "an idle session was never closed")
        refusal(answers[-1], "EXECUTION_ERROR", "SESSION_CLOSED")
        refusal(ask(client, "reset", PLAY), "EXECUTION_ERROR", "SESSION_CLOSED")
        with session(address) as other:
            assert ask(other, "reset", PLAY)["type"] == "observation"


@pytest.mark.server
def test_a_models_own_json_is_an_action(address: str):
    with session(address) as client:
        ask(client, "reset", PLAY)
        answer = ask(client, "step", {"action_type": "UPDATE_PIPELINE", "target": "", "metadata": {}})
        assert answer["data"]["observation"]["valid"] is True
        answer = ask(client, "step", {"action_type": "BUILD_FEATURE"})
        assert "belongs to dev" in answer["data"]["observation"]["error"]


@pytest.mark.server
def test_trainers_compare_replies_to_one_state(address: str):
    with session(address) as client:
        refusal(ask(client, "reset", {**PLAY, "trainer_key": "not the key of this server"}), "EXECUTION_ERROR", "TRAINER_ONLY")
        legal = ask(client, "reset", {**PLAY, "trainer_key": KEY})["data"]["observation"]["legal_actions"]
        state = ask(client, "state")["data"]["snapshot"]
    with session(address) as client:
        refusal(ask(client, "reset", {"injected_state": state}), "EXECUTION_ERROR", "TRAINER_ONLY")
        found = []
        for reply in (legal[0], legal[0], "nothing"):
            ask(client, "reset", {"injected_state": state, "role": "sales", "trainer_key": KEY})
            found.append(ask(client, "step", {"reply": reply})["data"])
    assert found[0] == found[1]
    assert found[0]["reward"] != found[2]["reward"]


@pytest.mark.server
def test_the_typed_client(address: str):
    async def run() -> None:
        async with SeatClient(base_url=f"http://{address}", **PATIENT) as env:
            result = await env.reset(**PLAY)
            assert result.observation.messages[0].role == "system"
            result = await env.step(SeatAction(reply="{}"))
            assert result.observation.reward == result.reward
            assert result.reward is not None
            state = await env.state()
            assert (state.step_count, state.role, state.teammates["ceo"]) == (1, "sales", "heuristic")

    asyncio.run(run())


def http(address: str, path: str, data: dict[str, Any] | None = None) -> tuple[int, Any]:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.server
def test_tasks_are_listed_by_split(address: str, repository: Path):
    import yaml

    declared = yaml.safe_load((repository / "spaces/office/openenv.yaml").read_text(encoding="utf-8"))
    counts = declared["validation"]["capabilities"]["declared_task_count"]
    status, splits = http(address, "/office/splits")
    assert (status, [split["name"] for split in splits]) == (200, list(counts))
    for name, count in counts.items():
        assert http(address, "/office/num_tasks", {"split": name}) == (200, {"num_tasks": count})
        status, last = http(address, "/office/task", {"split": name, "index": count - 1})
        assert (status, last["task"]["split"]) == (200, name)
        assert http(address, "/office/task", {"split": name, "index": count})[0] == 400
    status, listed = http(address, "/office/task_range", {"split": "dev", "start": 5, "stop": 8})
    assert [task["index"] for task in listed["tasks"]] == [5, 6, 7]
    assert len(http(address, "/office/tasks", {"split": "train"})[1]["tasks"]) == 100
    assert http(address, "/office/num_tasks", {"split": "exam"})[0] == 422
    with session(address) as client:
        chosen = {"split": "test", "index": 3}
        ask(client, "reset", chosen)
        assert ask(client, "state")["data"]["task_id"] == http(address, "/office/task", chosen)[1]["task"]["id"]


@pytest.mark.server
def test_http_steps_have_no_episode(address: str):
    status, answer = http(address, "/step", {"action": {"reply": "{}"}})
    assert status == 409
    assert "RESET_REQUIRED" in answer["detail"]
    assert http(address, "/reset", {"seed": 1_000, "role": "dev"})[1]["observation"]["current_role"] == "dev"
    assert http(address, "/reset", {"role": "customer"})[0] == 409
    assert http(address, "/metadata")[1]["name"] == "office"
    schema = http(address, "/schema")[1]
    assert schema["action"]["required"] == ["reply"]
    typed = {"end_reason", "truncated", "episode_return", "reward_parts", "current_role"}
    assert typed <= set(schema["observation"]["properties"])
    assert "snapshot" in schema["state"]["properties"]


def test_a_closed_environment_refuses(repository: Path):
    """The server closes sessions that are idle too long, and continues to hand them frames."""
    env = SeatEnvironment(served(Office()))
    env.reset(seed=1)
    env.close()
    with pytest.raises(Exception, match="SESSION_CLOSED"):
        env.step(SeatAction(reply="{}"))
    with pytest.raises(Exception, match="SESSION_CLOSED"):
        env.reset(seed=1)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"max_sessions": 0}, "max_sessions"), ({"session_timeout_s": 0.0}, "session_timeout_s"), ({"trainer_key": "short"}, "16")],
)
def test_wrong_settings_are_refused(options: dict[str, Any], word: str):
    with pytest.raises(ConfigError, match=word):
        make_app(served(Office()), **options)


def test_the_packages_former_name_beside_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed = tmp_path / "openenv_core-0.3.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: openenv-core\nVersion: 0.3.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"openenv-core 0\.3\.0 .* pip uninstall"):
        make_app(served(Office()))


# The package folder and OpenEnv's validation.


def openenv_validate(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(validate)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "spaces/office"


def test_the_package_passes_static_validation(folder: Path, tmp_path: Path):
    code, output = openenv_validate(str(folder), "--level", "static")
    assert code == 0, output
    assert "PASS  static.manifest" in output
    # The check can fail: a copy without the validation block does.
    shutil.copytree(folder, tmp_path / "broken", ignore=shutil.ignore_patterns("package"))
    manifest = tmp_path / "broken/openenv.yaml"
    manifest.write_text(manifest.read_text(encoding="utf-8").split("validation:")[0], encoding="utf-8")
    assert openenv_validate(str(tmp_path / "broken"), "--level", "static")[0] == 1


@pytest.mark.slow
def test_the_package_can_be_built_and_pushed(folder: Path, tmp_path: Path):
    # Raises when a file is missing; recommends a folder that nothing here would write to.
    assert [text for text in validate_env_structure(folder) if "outputs/" not in text] == []
    target = tmp_path / "office"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("package"))
    subprocess.run(["make", "space", f"SPACE={target}"], cwd=folder.parent.parent, check=True, capture_output=True, timeout=120)
    lines = (target / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY")}
    for name in copied - {"."}:
        assert (target / name).exists(), name
    # The application starts from what the image holds: the copied source, and none of what training needs.
    code = (
        "import sys, server.app as s, onthejob; "
        "assert not {'torch', 'transformers', 'peft', 'tyro'} & set(sys.modules), sorted(sys.modules); "
        "print(onthejob.__file__, s.app.title)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{target}/package/src", "MAX_CONCURRENT_ENVS": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=target, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{target}/package/src" in done.stdout


class Running:
    """The package's server on loopback, in place of a container of it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "server.app", "--port", str(port)]
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait(self._healthy, "the package's server did not start", seconds=600.0)
        except BaseException:
            self.stop()
            raise

    def _healthy(self) -> bool:
        assert self._process.poll() is None, "the package's server ended"
        try:
            return http(self.base_url.removeprefix("http://"), "/health")[0] == 200
        except OSError:
            return False

    def inspect(self) -> dict[str, Any]:
        return {}

    def logs(self, max_bytes: int = 65_536) -> str:
        return ""

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


class Loopback:
    """A validation provider without containers: it can start the package and enforce nothing, so the network is not graded."""

    name = "loopback"
    supported_network_modes = frozenset({"no-network"})

    def __init__(self, capabilities: frozenset[Any]) -> None:
        self.capabilities = capabilities
        self._root = Path()

    def build(self, root: Path, execution: Any) -> str:
        self._root = root
        return "sha256:" + "0" * 64

    def start(self, spec: Any) -> Running:
        return Running(self._root)


@pytest.mark.filterwarnings("default::DeprecationWarning")  # OpenEnv's own client uses websockets' former interface
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_the_package_passes_runtime_and_semantic_validation(folder: Path):
    from openenv.validation.types import ProviderCapability

    report = run_validation(folder, max_level=Level.SEMANTIC, provider=Loopback(frozenset({ProviderCapability.IMAGE_BUILD})))
    found = {result.check_id: result for result in report.results}
    graded = ("startup", "reward_well_formed", "observation_schema", "state_contract")
    for check in ("static.manifest", *(f"runtime.{name}" for name in graded)):
        assert found[check].status is CheckStatus.PASS, (check, found[check].evidence)
    # What is skipped has no grader in this release, or needs a container.
    assert report.verdict in (Verdict.PASS, Verdict.WARN)
    assert not [result for result in report.results if result.status in (CheckStatus.FAIL, CheckStatus.ERROR)]
    assert openenv_validate(str(folder), "--level", "semantic", "--skip-build")[0] == 0


@pytest.mark.server
def test_a_running_server_passes_validation(address: str):
    code, output = openenv_validate("--url", f"http://{address}", "--timeout", "100")
    assert code == 0, output
    assert "Verdict: PASS" in output


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_serve_env_on_the_command_line(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = tmp_path / "key"
    key.write_text(KEY + "\n", encoding="utf-8")
    words = ["serve", "env", "office", "--port", str(port), "--trainer-key-file", str(key)]
    command = [sys.executable, "-m", "onthejob.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:

        def healthy() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return http(f"127.0.0.1:{port}", "/health")[0] == 200
            except OSError:
                return False

        wait(healthy, "the server did not start", seconds=600.0)
        with session(f"127.0.0.1:{port}") as client:
            ask(client, "reset", {**PLAY, "trainer_key": KEY})
            assert ask(client, "state")["data"]["snapshot"]
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 130), (out, err)
    assert "Traceback" not in err


def test_a_body_without_end_is_refused() -> None:
    """With and without a length: more than the limit is not held."""
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += MAX_BODY // 8
            yield b" " * (MAX_BODY // 8)

    with serving(make_app(served(Office()), max_sessions=1)) as address:
        url, kind = f"http://{address}/reset", {"content-type": "application/json"}
        answer = httpx.post(url, content=chunks(), headers=kind, timeout=60)
        assert answer.status_code == 413
        assert str(MAX_BODY) in answer.json()["detail"]
        assert 0 < sent < 40 * (MAX_BODY // 8)
        # A client that says how long the body will be is refused before any of it has come.
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(f"POST /reset HTTP/1.1\r\nHost: {address}\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode())
            assert client.recv(1_000).startswith(b"HTTP/1.1 413")
        assert httpx.post(url, json={"seed": 1}, timeout=60).status_code == 200
