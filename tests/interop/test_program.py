"""`program:COMMAND`: real programs, each unchanged, call for replies and say what their episode is worth."""

from __future__ import annotations

import gc
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.envs.running import Running, running
from onthejob.errors import ConfigError, ProgramError
from onthejob.interop.program import Program
from onthejob.interop.program_line import read_reward
from onthejob.plugins import anchored, resolve
from onthejob.rollout.play import play
from onthejob.testing import check_environment
from onthejob.types import Sampling, Split, StopReason

ASK = """
import json, os, sys, threading, time, urllib.request

def request(path, body, token=None, base=None):
    head = {"authorization": "Bearer " + (token or os.environ["OPENAI_API_KEY"]), "content-type": "application/json"}
    url = (base or os.environ["OPENAI_BASE_URL"]) + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)

def ask(*messages, model="agent", **options):
    body = {"model": model, "messages": list(messages), **options}
    return request("/chat/completions", body)["choices"][0]["message"]["content"]

def reward(what):
    return request("", what, base=os.environ["ONTHEJOB_REWARD_URL"])

def user(text):
    return {"role": "user", "content": text}

def said(text):
    return {"role": "assistant", "content": text}
"""
"""The beginning of programs that need no more than the standard library."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Makes an open environment of a program's text, or of a command."""
    made: list[Program] = []

    def make(text: str = "", *, command: str = "", plain: bool = True, **options: Any) -> Program:
        if text:
            file = tmp_path / f"program{len(made)}.py"
            file.write_text((ASK if plain else "") + text, encoding="utf-8")
            command = shlex.join([sys.executable, str(file)])
        env = resolve(f"program:{command}")(**options)
        assert isinstance(env, Program)
        env.open()
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def begun(env: Program, number: int = 0) -> Running:
    run = running(env)
    run.reset(env.tasks(Split.TRAIN)[number])
    return run


def seen(run: Running) -> list[tuple[str, str]]:
    assert run._pending is not None
    return [(message.role, message.content) for message in run._pending.messages]


def pid_of(run: Running) -> int:
    env = run.env
    assert isinstance(env, Program)
    return env._live.process.pid


def is_alive(pid: int) -> bool:
    """A process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


TALK = """
task = json.loads(os.environ["ONTHEJOB_TASK"])
assert task == json.load(open(os.environ["ONTHEJOB_TASK_FILE"]))
talk = [{"role": "developer", "content": "Be brief."}, user(f"task {task['number']}")]
for number in range(3):
    reply = ask(*talk)
    talk += [said(reply), user([{"type": "text", "text": "and"}, {"type": "text", "text": " then?"}])]
    if number == 1:
        talk += [user("now")]
print("not the last line")
print(json.dumps({"reward": len(reply), "metrics": {"calls": number + 1}}))
"""


def test_a_conversation_that_goes_on_is_continued_and_its_end_pays(opened):
    run = begun(opened(TALK), 5)
    assert seen(run) == [("system", "Be brief."), ("user", "task 5")]
    step = run.step("one")
    assert step.observation is not None
    assert not step.observation.fresh
    assert seen(run) == [("user", "and then?")]
    run.step("two \ud800 halves")
    assert seen(run) == [("user", "and then?"), ("user", "now")]
    assert step.facts == {"call": 0, "cut": False, "actor": "agent", "turn": 1}
    last = run.step("three")
    assert (last.rewards, last.stop) == ({"agent": 5.0}, StopReason.DONE)
    assert run.state()["metrics"]["calls"] == 3.0


def test_it_keeps_the_promises_of_every_environment(opened):
    env = opened(TALK)
    found = check_environment(lambda: running(env), env.tasks(Split.TRAIN)[:1], choose=lambda observation, seed: str(seed % 97))
    assert found.adversarial > 10


ELSEWHERE = """
first = ask(user("one"))
other = ask(user("another conversation"))
ask(user("one"), said(first + " "), user("changed by a space"))
ask(user("one"), said(first), user("long ago"))
print(1)
"""


def test_any_other_call_begins_a_new_context(opened):
    run = begun(opened(ELSEWHERE))
    fresh = []
    for reply in ("a", "b", "c"):
        step = run.step(reply)
        assert step.observation is not None
        fresh.append((step.observation.fresh, len(step.observation.messages)))
    assert fresh == [(True, 1), (True, 3), (True, 3)]


OPENAI = """
import json, os
from openai import BadRequestError, OpenAI

client = OpenAI()
assert [model.id for model in client.models.list()] == ["agent"]
talk = [{"role": "user", "content": "first"}]
whole = client.chat.completions.create(model="gpt-x", messages=talk, temperature=0.2, max_tokens=5)
assert whole.model == "gpt-x" and whole.choices[0].finish_reason == "stop"
talk += [{"role": "assistant", "content": whole.choices[0].message.content}, {"role": "user", "content": "second"}]
text = ""
for chunk in client.chat.completions.create(model="gpt-x", messages=talk, stream=True, stream_options={"include_usage": True}):
    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
first = client.responses.create(model="gpt-x", instructions="Be brief.", input="third")
then = client.responses.create(model="gpt-x", instructions="Be brief.", input="fourth", previous_response_id=first.id)
listed = [{"role": "user", "content": "fifth"}]
with client.responses.stream(model="gpt-x", input=listed) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response().output_text
assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and "response.output_text.delta" in kinds
refused = []
image = {"type": "image_url", "image_url": {"url": "data:,x"}}
tool = {"type": "web_search"}
for options in (
    {"n": 2}, {"tools": [tool]}, {"messages": [{"role": "user", "content": [image]}]},
    {"messages": [*talk, {"role": "assistant", "content": "begun"}]},
):
    try:
        client.chat.completions.create(**{"model": "x", "messages": talk, **options})
    except BadRequestError as error:
        refused.append(error.message)
print(json.dumps({"reward": len(refused), "metrics": {"said": len(whole.choices[0].message.content + text + final)}}))
"""


@pytest.mark.slow
def test_the_client_of_openai_whole_streamed_and_with_responses(opened, caplog: pytest.LogCaptureFixture):
    pytest.importorskip("openai")
    run = begun(opened(OPENAI, plain=False))
    assert seen(run) == [("user", "first")]
    run.step("1")
    assert seen(run) == [("user", "second")]
    run.step("22")
    assert seen(run) == [("system", "Be brief."), ("user", "third")]
    step = run.step("333")
    assert step.observation is not None
    assert (step.observation.fresh, seen(run)) == (False, [("user", "fourth")])
    run.step("4444")
    assert seen(run) == [("user", "fifth")]
    last = run.step("55555")
    assert last.rewards == {"agent": 4.0}
    assert run.state()["metrics"]["said"] == 8.0
    assert [record.getMessage() for record in caplog.records if "temperature" in record.getMessage()] == [
        "calls of the program set max_tokens, temperature without effect: the run's own sampling settings apply"
    ]


AGENTS = """
from agents import Agent, Runner, SQLiteSession

writer = Agent(name="Writer", instructions="Write one word.", model="writer")
session = SQLiteSession("one")
word = Runner.run_sync(writer, "begin", session=session).final_output
again = Runner.run_sync(writer, "another", session=session).final_output
judge = Agent(name="Judge", instructions="Reply with a number.", model="judge")
print(Runner.run_sync(judge, f"{word} {again}").final_output)
"""


@pytest.mark.slow
def test_the_agents_sdk_with_two_agents_as_roles(opened):
    pytest.importorskip("agents", reason="openai-agents is not installed")
    run = begun(opened(AGENTS, plain=False, roles=("writer", "judge")))
    assert seen(run) == [("system", "Write one word."), ("user", "begin")]
    step = run.step("hello")
    assert step.observation is not None
    assert (step.observation.actor, step.observation.fresh, seen(run)) == ("writer", False, [("user", "another")])
    step = run.step("world")
    assert step.observation is not None
    assert step.observation.actor == "judge"
    assert seen(run) == [("system", "Reply with a number."), ("user", "hello world")]
    assert run.step("0.5").rewards == {"writer": 0.5, "judge": 0.5}


SHELL = """
key="authorization: Bearer $OPENAI_API_KEY"
body='{"model": "any", "messages": [{"role": "user", "content": "Reply with x."}]}'
reply=$(curl -sS "$OPENAI_BASE_URL/chat/completions" -H "$key" -H "content-type: application/json" -d "$body")
curl -sS "$ONTHEJOB_REWARD_URL" -H "$key" -d '{"reward": 0.25}' >&2
case "$reply" in *'"content": "x"'*) echo right;; *) echo wrong;; esac
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_shell_script_with_curl(opened, tmp_path: Path):
    (tmp_path / "agent.sh").write_text(SHELL, encoding="utf-8")
    run = begun(opened(command=f"sh {tmp_path}/agent.sh"))
    assert run.step("x").rewards == {"agent": 0.25}
    scored = opened(command=f"sh {tmp_path}/agent.sh", reward=f"{tmp_path}/score.py:score")
    (tmp_path / "score.py").write_text("def score(reply, row):\n    return len(reply) + row['number']\n", encoding="utf-8")
    assert begun(scored, 3).step("x").rewards == {"agent": 8.0}, "the post was refused, and the last line scored"


PARALLEL = """
found = {}
threads = []
for number in range(4):
    threads.append(threading.Thread(target=lambda n=number: found.update({n: ask(user(f"call {n}"))})))
    threads[-1].start()
    time.sleep(0.3)
for thread in threads:
    thread.join()
print(json.dumps({"reward": sum(found[n] == f"reply to call {n}" for n in range(4))}))
"""


def test_parallel_calls_are_answered_in_the_order_of_their_arrival(opened):
    run = begun(opened(PARALLEL))
    time.sleep(1.5)  # so that all four wait
    for number in range(4):
        assert seen(run) == [("user", f"call {number}")]
        step = run.step(f"reply to call {number}")
        assert step.facts["call"] == number
    assert step.rewards == {"agent": 4.0}


TWO = """
for number in range(2):
    price = ask(user(f"buy {number}"), model="buyer")
    ask(user(f"sell for {price}"), model="seller")
    reward({"rewards": {"buyer": number, "seller": 2 * number}, "metrics": {"rounds": number + 1}})
"""


def test_roles_have_rewards_of_their_own_which_are_paid_when_they_are_posted(opened):
    run = begun(opened(TWO, roles=("buyer", "seller")))
    assert run._pending is not None
    assert run._pending.actor == "buyer"
    steps = [run.step(reply) for reply in ("3", "yes", "4", "no")]
    assert [step.rewards for step in steps] == [{}, {}, {}, {"buyer": 1.0, "seller": 2.0}]
    assert run.state()["metrics"] | {"reward/buyer": 1.0, "reward/seller": 2.0, "rounds": 2.0} == run.state()["metrics"]
    assert steps[0].observation is not None
    assert (steps[0].observation.actor, seen_of(steps[0])) == ("seller", [("user", "sell for 3")])
    stranger = begun(opened("ask(user('a'), model='agent')\nprint(1)", roles=("agent",)))
    assert stranger.step("x").rewards == {"agent": 1.0}
    with pytest.raises(ProgramError, match=r"(?s)A request of it was refused: model 'clerk' is no role; .* HTTP Error 404"):
        begun(opened("ask(user('a'), model='clerk')", roles=("buyer", "seller")))


def seen_of(step: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in step.observation.messages]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("ask(user('a'))\nsys.exit(3)", {}, r"after 1 replies\) ended with exit code 3\. Make it survive every reply, or score"),
        ("ask(user('a'))\nraise ValueError('odd reply')", {}, r"exit code 1.*Its stderr ends with: .*ValueError: odd reply$"),
        ("ask(user('a'))\nos.kill(os.getpid(), 11)", {}, "was killed by signal 11"),
        ("ask(user('a'))\nprint('done')", {}, r"gave no reward: its last printed line is 'done' \(.*Print a number or"),
        ("ask(user('a'))", {}, "gave no reward: its last printed line is ''"),
        ("ask(user('a'))\nprint('NaN')", {}, "the reward must be a finite number, got nan"),
        ("ask(user('a'))\nprint('{\"rewards\": {\"b\": 1}}')", {}, "'b' is no role; the roles are agent"),
        ("ask(user('a'))\nreward({'reward': 'much'})", {}, "refused: the reward of agent must be .* HTTP Error 400"),
        ("ask(user('a'))\ntime.sleep(60)", {"limit_s": 4.0}, r"neither called nor ended within --env\.limit-s 4\. Raise it"),
    ],
)  # fmt: skip
def test_failures_are_errors_of_the_episode(opened, text: str, options: dict[str, Any], said: str):
    run = begun(opened(text, **options))
    pid = pid_of(run)
    with pytest.raises(ProgramError, match=f"(?s){said}"):
        run.step("x")
    assert gone(pid)


def test_programs_that_do_not_begin(opened):
    for text, options, said in (
        ("time.sleep(60)", {"start_s": 1.0}, r"neither called nor ended within --env\.start-s 1\."),
        ("print(1)", {}, "ended before its first call. Have it call the API at OPENAI_BASE_URL"),
        ("request('/chat/completions', {}, token='guessed')", {}, "exit code 1.*HTTP Error 401"),
    ):
        with pytest.raises(ProgramError, match=f"(?s){said}"):
            begun(opened(text, **options))


def test_a_failed_episode_is_recorded_and_not_trained_on(opened):
    env = opened("print(1 / len(ask(user('a'))))")
    policy = Fixed(["", "ab"])
    (failed, done) = play(
        [running(env), running(env)], env.tasks(Split.TRAIN)[:2], {"agent": policy}, Sampling(), seed=0, max_turns=5
    )
    assert failed.stop is StopReason.ERROR
    assert failed.error is not None
    assert "ZeroDivisionError" in failed.error
    assert done.trajectories["agent"].rewards == (0.5,)


class Fixed:
    """Gives its replies in order."""

    version, reads = "fixed", "view"

    def __init__(self, replies: list[str]) -> None:
        self._replies = replies

    def act(self, contexts: Any, sampling: Sampling) -> list[Any]:
        from onthejob.types import Completion

        return [Completion(text=self._replies.pop(0)) for _ in contexts]


STARTS = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
threading.Thread(target=time.sleep, args=(600,)).start()
ask(user(f"{child.pid}"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_whole_group_ends_with_its_episode_however_that_ends(opened):
    env = opened(STARTS)
    for end in ("abandoned", "reset", "closed"):
        run = begun(env)
        pids = [pid_of(run), int(seen(run)[0][1])]
        folder = run.env._live._folder  # type: ignore[attr-defined]
        assert all(map(is_alive, pids))
        assert folder.is_dir()
        if end == "abandoned":
            del run
            gc.collect()
        elif end == "reset":
            run.reset(env.tasks(Split.TRAIN)[1])
        else:
            env.close()
            assert all(map(gone, pids))
            env.open()
            continue
        assert all(map(gone, pids)), end
        assert not folder.exists()


OWNER = """
import sys, time
from onthejob.envs.running import running
from onthejob.plugins import resolve
from onthejob.types import Split
env = resolve("program:" + sys.argv[1])()
env.open()
run = running(env)
print(run.env is None, run.reset(env.tasks(Split.TRAIN)[0]).messages[0].content, run.env._live.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does it on Linux")
def test_the_group_ends_when_this_process_is_killed(tmp_path: Path):
    file = tmp_path / "starts.py"
    file.write_text(ASK + STARTS, encoding="utf-8")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, shlex.join([sys.executable, str(file)])], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()[1:]]
    assert all(map(is_alive, pids))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert all(map(gone, pids))


def test_a_wrong_token_a_wrong_path_and_a_wrong_body(opened):
    run = begun(opened("ask(user('a'))\nprint(1)"))
    env = run.env
    assert isinstance(env, Program)
    key = env._line.token

    def status(path: str, token: str, body: bytes | None = b"{}") -> tuple[int, str]:
        head = {"authorization": f"Bearer {token}"}
        try:
            urllib.request.urlopen(urllib.request.Request(env.server.origin + path, body, head), timeout=10)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["error"]["message"]
        return 200, ""

    assert status("/v1/chat/completions", "wrong") == (
        401, "the API key is not that of a running episode. Pass the variable OPENAI_API_KEY.",
    )  # fmt: skip
    assert status("/v1/embeddings", key)[0] == 404
    assert status("/v1/models/agent", key, None) == (200, "")
    assert status("/v1/models/other", key, None)[0] == 404
    assert status("/v1/chat/completions", key, b"{")[0] == 400
    assert status("/v1/chat/completions", key, b"[]") == (400, "the body must be an object, got list.")
    assert status("/v1/chat/completions", key, b"[" * 100_000)[0] == 400
    assert status("/reward", key, b'{"reward": true}') == (400, "the reward of agent must be a finite number, got True.")
    assert env.server.origin.startswith("http://127.0.0.1:")
    assert run.step("x").rewards == {"agent": 1.0}
    assert status("/v1/chat/completions", key)[0] == 401, "the episode is over"


MANY = """
reward({"reward": 3.0}) if len(sys.argv) > 1 else None
for number in range(9):
    ask(user(str(number)))
print(9)
"""


def test_an_episode_that_is_cut_is_paid_what_was_posted(opened, tmp_path: Path):
    env = opened(MANY, max_turns=2, unfinished_reward=-1.0)
    run = begun(env)
    steps = [run.step("x") for _ in range(2)]
    assert (steps[1].stop, steps[1].rewards) == (StopReason.MAX_TURNS, {"agent": -1.0})
    assert gone(pid_of(run))
    posts = opened(command=f"{shlex.join(env.command)} posts", max_turns=2, unfinished_reward=-1.0)
    run = begun(posts)
    assert [run.step("x").rewards for _ in range(2)] == [{"agent": 3.0}, {}], "a later post would replace it"


STOPS = """
thought = ask(user("think"), stop=["\\nObservation:", "END"])
ask(user("think"), said(thought), user("Observation: it is " + thought))
print(1)
"""


def test_a_reply_is_cut_where_the_program_wants_it_and_is_not_continued(opened):
    run = begun(opened(STOPS))
    step = run.step("look\nObservation: invented END")
    assert step.facts["cut"] is True
    assert step.observation is not None
    assert step.observation.fresh
    assert seen(run) == [("user", "think"), ("assistant", "look"), ("user", "Observation: it is look")]


def test_the_variables_of_a_program(opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OPENAI_ORG_ID", "mine")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ONES_OWN", "kept")
    shows = "ask(user(json.dumps([dict(os.environ), os.getcwd()])))\nprint(1)"
    own, folder = json.loads(seen(begun(opened(shows)))[0][1])
    assert own["ONES_OWN"] == "kept"
    assert "OPENAI_ORG_ID" not in own
    assert own["OPENAI_API_KEY"] != "sk-mine"
    assert own["ONTHEJOB_SEED"] == "100000"
    assert not Path(folder).exists(), "an abandoned episode's folder is removed"
    assert json.loads(seen(begun(opened(shows, cwd=str(tmp_path))))[0][1])[1] == str(tmp_path)


def test_tasks_of_a_file_and_a_matcher(opened, tmp_path: Path):
    rows = [{"question": f"{n} + 1", "answer": str(n + 1), "split": "train"} for n in range(4)]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = "task = json.loads(os.environ['ONTHEJOB_TASK'])\nprint('It is', ask(user(task['question'])))"
    run = begun(opened(text, data=str(file), reward="number"), 2)
    assert seen(run) == [("user", "2 + 1")]
    assert run.step("3").rewards == {"agent": 1.0}
    assert run.state()["metrics"]["correct"] == 1.0
    run = begun(opened(text, data=str(file), reward="number"))
    assert run.step("3").rewards == {"agent": 0.0}


def test_what_is_wrong_is_said_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.sh").write_text("true", encoding="utf-8")
    for command, said in (
        ("", "names no command"),
        ("python 'a", "is no command: No closing quotation"),
        ("no-such-program --fast", "there is no program 'no-such-program'"),
        ("./plain.sh", r"plain\.sh is not executable\. Run `chmod"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve(f"program:{command}")
    kind = resolve("program:sh plain.sh")
    for options, said in (
        ({"reward": "number"}, "compares with an answer of the task. Name a file of tasks: --env.data"),
        ({"reward": "best"}, "--env.reward must be one of exact"),
        ({"data": "gone.csv"}, "--env.data gone.csv: there is no such file"),
        ({"data": "plain.sh"}, "must end with one of .jsonl"),
        ({"cwd": "gone"}, "--env.cwd gone is no folder"),
        ({"limit_s": 0.0}, "--env.limit-s must be above 0 seconds, got 0.0"),
        ({"answer": "x"}, "--env.answer has no effect without"),
        ({"count": 0}, "needs count in 1..40000"),
    ):
        with pytest.raises(ConfigError, match=said):
            kind(**options).tasks(Split.TRAIN)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"roles must match \[a-z\]\[a-z0-9_\]\*, as adapters carry the names; got GPT-4"):
        kind(roles=("GPT-4",))  # type: ignore[call-arg]
    assert anchored("program:sh plain.sh 'two words'") == f"program:sh {tmp_path}/plain.sh 'two words'"
    before = kind().fingerprint()
    (tmp_path / "plain.sh").write_text("false", encoding="utf-8")
    assert kind().fingerprint() != before
    resolve(f"program:sh -c {shlex.quote('true; ' * 2_000)}")


def test_rewards_are_read_strictly():
    assert read_reward(1, ("a", "b")).rewards == {"a": 1.0, "b": 1.0}
    assert read_reward({"rewards": {"a": 1}}, ("a", "b")).rewards == {"a": 1.0}
    for given, said in (
        ("1", "must be a finite number"), ({}, "either reward or rewards"), ({"reward": 1, "rewards": {}}, "either"),
        ({"reward": 1, "metric": {}}, "'metric' is not one of"), ({"reward": 1, "metrics": {"x": None}}, "metric x must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            read_reward(given, ("a", "b"))
