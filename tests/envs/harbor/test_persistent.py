"""`--env.protocol.persistent-shell` on Harbor tasks: what an agent sees, and that the same replies give the same again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.protocol import ENDED, ProtocolConfig
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.harbor.harbor_work import Images
from onthejob.interop.harbor import HarborRules
from onthejob.types import Step

from .tasks import as_task, environment, make

DOCKERFILE = "FROM ubuntu:24.04\nENV TOPIC='two words'\nWORKDIR /srv/app\n"
RULES = HarborRules(protocol=ProtocolConfig(max_turns=20, command_s=30.0, persistent_shell=True))


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with open_host() as host:
        yield Images(host, HarborRules().sandbox)


def text(step: Step) -> str:
    assert step.observation is not None
    return step.observation.messages[0].content


def begun(images: Images, folder: Path) -> ClawEnvironment:
    env = environment(images, RULES)
    first = env.reset(as_task(folder))
    assert "All blocks run in one shell, which begins in /srv/app, and" in first.messages[0].content
    assert "variables do not" not in first.messages[0].content
    return env


def test_a_block_finds_what_the_last_one_left(images: Images, tmp_path: Path):
    env = begun(images, make(tmp_path, dockerfile=DOCKERFILE))
    assert text(env.step(block('pwd; echo "$TOPIC"; mkdir -p /app; cd /app; answer=4; add() { answer=$answer$1; }'))) == (
        "exit code: 0\nstdout:\n/srv/app\ntwo words"
    )
    env.step(block("TOPIC=other; add 2; (sleep 0.1; echo done > /app/job) & wait"))
    step = env.step(block('pwd; cat job; echo "$TOPIC"; echo $answer > answer.txt'))
    assert text(step) == "exit code: 0\nstdout:\n/app\ndone\nother"
    assert step.facts["shell_ended"] is False
    assert [row["path"] for row in step.facts["files"]] == ["app/answer.txt"]
    assert env.step(DONE).rewards["agent"] == 1.0


def test_the_agent_is_told_when_its_shell_ended(images: Images, tmp_path: Path):
    env = begun(images, make(tmp_path, dockerfile=DOCKERFILE))
    env.step(block("cd /tmp; x=1"))
    step = env.step(block("exit 3"))
    assert text(step) == f"exit code: 3\n(no output)\n{ENDED}"
    assert step.facts["shell_ended"] is True
    assert text(env.step(block('pwd; echo "[$x] $TOPIC"'))) == "exit code: 0\nstdout:\n/srv/app\n[] two words"
    env.close()


def test_a_timeout_ends_it(images: Images, tmp_path: Path):
    rules = HarborRules(protocol=ProtocolConfig(max_turns=20, command_s=1.5, persistent_shell=True))
    env = environment(images, rules)
    env.reset(as_task(make(tmp_path, dockerfile=DOCKERFILE)))
    assert text(env.step(block("echo begun; sleep 60"))) == (f"exit code: 124\nTIMED OUT after 1.5 s\nstdout:\nbegun\n{ENDED}")
    assert text(env.step(block("pwd"))) == "exit code: 0\nstdout:\n/srv/app"
    env.close()


def test_the_same_replies_give_the_same_again(images: Images, tmp_path: Path):
    """What a replay does: it runs the recorded replies in order, in a new sandbox."""
    folder = make(tmp_path, dockerfile=DOCKERFILE)
    replies = ["mkdir /app; cd /app; x=42; sleep 100 &", "set -e; cat nothing; echo no", "pwd; jobs", "echo 42 > /app/answer.txt"]

    def facts() -> list[dict[str, object]]:
        env = begun(images, folder)
        return [dict(env.step(reply).facts) for reply in [*map(block, replies), DONE]]

    first = facts()
    assert [row.get("shell_ended") for row in first] == [False, True, False, False, None]
    assert facts() == first


def test_without_the_option_nothing_lasts_and_nothing_is_recorded_of_it(images: Images, tmp_path: Path):
    env = environment(images)
    assert "Files persist; cd and variables do not." in env.reset(as_task(make(tmp_path))).messages[0].content
    env.step(block("cd /tmp; x=1"))
    step = env.step(block("pwd; echo [$x]; exit 3"))
    assert text(step) == "exit code: 3\nstdout:\n/app\n[]"
    assert "shell_ended" not in step.facts
    env.close()
