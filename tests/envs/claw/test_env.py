"""The claw environment in real sandboxes: what runs, what is seen, how it ends, what it pays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from onthejob.claw import Claw
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.episode_reward import RewardConfig
from onthejob.envs.claw.policies import Gold, idle, noop
from onthejob.envs.claw.protocol import IGNORED, ProtocolConfig, observe, shown
from onthejob.envs.claw.replies import FEEDBACK, Problem, parse
from onthejob.envs.claw.sandbox import CommandResult, Limits, Sandbox, SandboxError, SandboxHost, open_host
from onthejob.envs.claw.sandbox.sandbox_interface import Entry, Layout
from onthejob.envs.claw.splits import claw_tasks
from onthejob.errors import ConfigError, ContractError
from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.play import play
from onthejob.testing import ScriptedTokens, check_environment, tiny_tokenizer
from onthejob.types import Message, Observation, Sampling, Split, Step, StopReason, Task

RECORD = {
    "task_id": "synth-technical-writer-07",
    "family": "rename-note",
    "persona": {"name": "technical-writer", "role": "Technical writer", "context": "Keeps the manual."},
    "intent": "Move draft.md to docs/final.md and count its lines into docs/lines.txt.",
    "workspace_seed": {
        "files": [
            {"path": "draft.md", "kind": "text", "content": "one\ntwo\n"},
            {"path": "logo.png", "kind": "binary-stub", "size_bytes": 64},
        ]
    },
    "skills_required": ["file.move"],
    "verifiable_assertions": [
        {"kind": "file_exists", "path": "docs/final.md"},
        {"kind": "file_not_exists", "path": "draft.md"},
        {"kind": "file_contents_match_regex", "path": "docs/lines.txt", "regex": "^2\\s*$"},
        {"kind": "file_unchanged", "path": "logo.png", "guard": True},
    ],
    "difficulty": "easy",
    "estimated_steps": 3,
    "gold": ["mkdir -p docs\nmv draft.md docs/final.md", "wc -l < docs/final.md > docs/lines.txt"],
}
TASK = Task(id="synth-technical-writer-07", env="claw", split=Split.TRAIN, seed=7, payload=RECORD)
SAMPLING = Sampling()


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as made:
        yield made


@pytest.fixture
def env(host: SandboxHost) -> Iterator[ClawEnvironment]:
    made = ClawEnvironment(host=host)
    yield made
    made.close()


def text_of(step: Step) -> str:
    assert step.observation is not None
    (message,) = step.observation.messages
    assert message.role == "user"
    return message.content


def test_the_request_is_the_intent_and_the_listing_and_no_more(env: ClawEnvironment):
    first = env.reset(TASK)
    system, user = first.messages
    assert (system.role, user.role, first.fresh, first.actor) == ("system", "user", True, ACTOR)
    assert user.content == f"{RECORD['intent']}\n\nFiles:\ndraft.md (8 bytes)\nlogo.png (64 bytes)"
    assert "12 turns" in system.content
    assert "10 seconds" in system.content
    shown_to_agent = json.dumps(dict(first.view)) + system.content + user.content
    assert "wc -l" not in shown_to_agent
    assert "file_exists" not in shown_to_agent


def test_gold_passes_and_is_paid_for_few_turns(env: ClawEnvironment):
    env.reset(TASK)
    first = env.step(block("mkdir -p docs\nmv draft.md docs/final.md"))
    assert text_of(first) == "exit code: 0\n(no output)"
    assert (first.rewards, first.observation.fresh if first.observation else None) == ({}, False)
    env.step(block("wc -l < docs/final.md > docs/lines.txt"))
    last = env.step("All is done.\nTASK_COMPLETE")
    assert (last.observation, last.stop) == (None, StopReason.DONE)
    assert last.parts == {ACTOR: {"assertions": 1.0, "turns": -0.05}}
    assert last.rewards[ACTOR] == pytest.approx(0.95)
    state = env.state()
    assert state["backend"] == last.facts["backend"] == "bwrap"
    assert "namespaces" in last.facts["layers"]
    assert state["metrics"]["passed"] == state["metrics"]["clean_stop"] == 1.0
    assert state["metrics"]["total/file_unchanged"] == state["metrics"]["passed/file_unchanged"] == 1.0
    with pytest.raises(ContractError, match="Call reset"):
        env.step("ls")


def test_doing_nothing_earns_the_guards_and_fails(env: ClawEnvironment):
    env.reset(TASK)
    step = env.step(DONE)
    assert step.rewards[ACTOR] == pytest.approx(1 / 4 - 0.2 / 12)
    assert env.state()["metrics"]["passed"] == 0.0
    reasons = [verdict["reason"] for verdict in step.facts["verdicts"]]
    assert reasons == ["there is nothing at the path", "there is file at the path", "is missing", ""]


def test_a_command_next_to_the_end_runs_first(env: ClawEnvironment):
    env.reset(TASK)
    step = env.step(block("mkdir docs\nmv draft.md docs/final.md\necho 2 > docs/lines.txt") + f"\n{DONE}")
    assert step.stop is StopReason.DONE
    assert env.state()["metrics"]["passed"] == 1.0
    assert step.facts["sentinel"] == "token"
    env.reset(TASK)
    step = env.step(block('mkdir docs\nmv draft.md docs/final.md\necho 2 > docs/lines.txt\necho "Task complete."'))
    assert (step.stop, step.facts["sentinel"]) == (StopReason.DONE, "echo")
    assert env.state()["metrics"]["passed"] == 1.0


def test_loops_heredocs_and_all_lines_run_and_files_persist(env: ClawEnvironment):
    env.reset(TASK)
    script = "for i in 1 2 3; do\n  echo line $i\ndone > out.txt\ncat > note.md <<'EOF'\nTASK_COMPLETE\n```\n$HOME\n```\nEOF\n"
    script += "X=1\ncd /"
    step = env.step(block(script))
    assert step.stop is None
    assert text_of(step).startswith("exit code: 0")
    assert text_of(env.step(block("cat out.txt note.md; echo [$X]; pwd | grep -c '^/$'"))) == (
        "exit code: 1\nstdout:\nline 1\nline 2\nline 3\nTASK_COMPLETE\n```\n$HOME\n```\n[]\n0"
    )


def test_failures_timeouts_and_floods_are_observations(host: SandboxHost):
    config = ClawConfig(protocol=ProtocolConfig(command_s=3.0, output_chars=200))
    env = ClawEnvironment(config, host=host)
    env.reset(TASK)
    failed = env.step(block("ls no-such-file"))
    assert failed.valid
    assert text_of(failed).startswith("exit code: 2\nstderr:\n")
    slow = env.step(block("echo begun; sleep 60"))
    assert text_of(slow) == "exit code: 124\nTIMED OUT after 3 s\nstdout:\nbegun"
    flood = text_of(env.step(block("head -c 300000 /dev/zero | tr '\\0' a; echo END")))
    assert "[... middle left out; 300004 bytes in all ...]" in flood
    assert flood.endswith("aEND")
    assert len(flood) < 400
    assert IGNORED in text_of(env.step(block("true") + "\n" + block("false")))
    metrics = env.state()["metrics"]
    assert (metrics["commands"], metrics["commands_failed"], metrics["timeouts"]) == (4.0, 2.0, 1.0)
    assert "passed" not in metrics
    env.close()


def test_an_unusable_reply_costs_a_turn_and_is_corrected(host: SandboxHost):
    env = ClawEnvironment(ClawConfig(protocol=ProtocolConfig(max_turns=3)), host=host)
    env.reset(TASK)
    step = env.step("I would list the files.")
    assert (step.valid, text_of(step)) == (False, FEEDBACK[Problem.NO_BLOCK])
    step = env.step("```python\nprint(1)\n```")
    assert text_of(step) == FEEDBACK[Problem.LANGUAGE]
    last = env.step("")
    assert (last.stop, last.valid) == (StopReason.MAX_TURNS, False)
    assert last.parts[ACTOR] == {"assertions": 0.25, "turns": -0.2}
    assert env.state()["metrics"]["parse_errors"] == 3.0
    env.close()


def test_a_conversation_that_grows_too_long_ends_and_is_graded(host: SandboxHost):
    config = ClawConfig(protocol=ProtocolConfig(conversation_chars=3_000), reward=RewardConfig(mode="binary"))
    env = ClawEnvironment(config, host=host)
    env.reset(TASK)
    step = env.step(block("seq 2000"))
    assert (step.stop, step.rewards) == (StopReason.CONTEXT, {ACTOR: 0.0})
    assert StopReason.CONTEXT.truncated
    assert env.state()["metrics"]["assertion_rate"] == 0.25
    env.close()


def test_a_conversation_that_outgrows_a_models_context_in_tokens_ends_and_is_graded(host: SandboxHost):
    """Characters do not bound tokens: digits are a token each."""
    tokenizer, sampling = tiny_tokenizer(), Sampling(max_new_tokens=64)
    agent = ScriptedTokens(tokenizer, lambda observation, seed: block("seq 1 900"))
    env = ClawEnvironment(host=host)
    chat = ChatEncoder(tokenizer, window=8192)
    (episode,) = play([env], [TASK], {ACTOR: agent}, sampling, seed=0, encoder=chat, max_turns=12)
    (row,) = episode.trajectories.values()
    assert (episode.stop, episode.error) == (StopReason.CONTEXT, None)
    assert max(len(turn.prompt_ids) for turn in row.turns) + 64 <= 8192
    assert 0 < len(row.turns) < 12
    # What was done until then is graded and paid for, in the last turn.
    assert episode.metrics["assertion_rate"] == 0.25
    assert row.ret == pytest.approx(0.25 - 0.2 * len(row.turns) / 12)
    assert row.rewards[-1] == row.ret
    last = episode.transcript[-1]
    assert sum(last.parts[ACTOR].values()) == pytest.approx(last.rewards[ACTOR]) == pytest.approx(row.ret)
    assert len(last.facts["verdicts"]) == 4
    assert last.facts["command"] == "seq 1 900"
    with pytest.raises(ContractError, match="no episode is running"):
        env.interrupt(StopReason.CONTEXT)


def test_the_table_of_sentinels_is_an_option(host: SandboxHost):
    env = ClawEnvironment(ClawConfig(protocol=ProtocolConfig(stops="literal")), host=host)
    env.reset(TASK)
    assert text_of(env.step(block('echo "Task complete."'))) == "exit code: 0\nstdout:\nTask complete."
    assert env.step(DONE).stop is StopReason.DONE
    env.close()


def test_the_grader_reads_what_the_agent_hid_and_follows_no_link(env: ClawEnvironment):
    env.reset(TASK)
    step = env.step(
        block("mkdir docs; ln -s /etc/passwd docs/final.md; rm draft.md; echo 2 > docs/lines.txt; chmod 000 docs .") + f"\n{DONE}"
    )
    passed = [verdict["passed"] for verdict in step.facts["verdicts"]]
    assert passed == [False, True, True, True]


def test_conformance(host: SandboxHost):
    """Everything that every environment promises, with the gold player and every reply that breaks careless parsers."""
    tasks = [TASK]
    report = check_environment(lambda: ClawEnvironment(host=host), tasks, choose=Gold(tasks))
    assert report.steps == 3
    assert report.adversarial > 15
    assert report.forks == 0


def test_gold_passes_and_noop_fails_on_synthesized_tasks(host: SandboxHost):
    tasks = claw_tasks(Split.TRAIN, count=48)[:12]
    by_player: dict[str, list[Mapping[str, float]]] = {}
    for name, player in (("gold", Gold(tasks)), ("noop", noop)):
        envs = [ClawEnvironment(host=host) for _ in tasks]
        policy = ScriptedPolicy(player, version=name)
        episodes = play(envs, tasks, {ACTOR: policy}, SAMPLING, seed=0, max_turns=20, workers=4)
        assert [episode.error for episode in episodes] == [None] * len(tasks)
        by_player[name] = [episode.metrics for episode in episodes]
    assert [metrics["passed"] for metrics in by_player["gold"]] == [1.0] * len(tasks)
    assert [metrics["passed"] for metrics in by_player["noop"]] == [0.0] * len(tasks)


def test_an_agent_that_never_stops_uses_all_turns(host: SandboxHost):
    (episode,) = play(
        [ClawEnvironment(host=host)], [TASK], {ACTOR: ScriptedPolicy(idle, version="idle")}, SAMPLING, seed=0, max_turns=99
    )
    assert (episode.stop, episode.turns) == (StopReason.MAX_TURNS, 12)
    assert episode.seconds > 0.0
    assert episode.trajectories[ACTOR].ret == pytest.approx(0.05)


def coin(observation: Observation, seed: int) -> str:
    """Works with one half of the seeds and gives up with the other."""
    return Gold([TASK])(observation, seed) if seed % 2 else DONE


def test_groups_of_episodes_keep_one_growing_context_and_do_not_depend_on_threads(host: SandboxHost):
    tokenizer = tiny_tokenizer()

    def collected(workers: int):
        return collect_episodes(
            lambda: ClawEnvironment(host=host), [TASK], {ACTOR: ScriptedTokens(tokenizer, coin)}, SAMPLING, group_size=6,
            trained=[ACTOR], encoder=ChatEncoder(tokenizer), max_turns=99, seed=3, prefix="it0001", workers=workers,
        )  # fmt: skip

    collection = collected(4)
    (group,) = collection.groups
    assert group == collected(1).groups[0]
    assert len(group) == 6
    assert group.facts["stops"] == ["done"] * 6
    assert set(group.facts["turns"]) <= {1, 2, 3}
    assert len({row.ret for row in group.trajectories}) > 1
    for row in group.trajectories:
        for before, after in pairwise(row.turns):
            kept = before.prompt_ids + before.completion.token_ids
            assert after.prompt_ids[: len(kept)] == kept


class Dying:
    """A real sandbox that fails at its first command."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.backend = sandbox.backend

    def run(self, command: str, *, timeout_s: float = 10.0, start: str = "", persistent: bool = False) -> CommandResult:
        raise SandboxError("the sandbox died")

    @property
    def beside(self) -> str:
        return self._sandbox.beside

    def survey(self) -> Mapping[str, Entry]:
        return self._sandbox.survey()

    def collect(self) -> Path:
        return self._sandbox.collect()

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> Dying:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Breaking:
    """A real host with such sandboxes."""

    def __init__(self, host: SandboxHost) -> None:
        self._host = host
        self.report = host.report

    def open(self, files: Mapping[str, bytes], limits: Limits | None = None, *, layout: Layout | None = None) -> Sandbox:
        return Dying(self._host.open(files, limits, layout=layout))

    def close(self) -> None: ...

    def __enter__(self) -> Breaking:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_failing_sandbox_is_our_failure_and_no_reward(host: SandboxHost):
    envs = [ClawEnvironment(host=Breaking(host)), ClawEnvironment(host=host)]
    policy = ScriptedPolicy(Gold([TASK]), version="gold")
    broken, whole = play(envs, [TASK, TASK], {ACTOR: policy}, SAMPLING, seed=0, max_turns=20)
    assert broken.stop is StopReason.ERROR
    assert broken.error == "SandboxError: the sandbox died"
    assert broken.trajectories == {}
    assert whole.metrics["passed"] == 1.0
    envs[0].close()


def test_operator_mistakes_are_said(host: SandboxHost):
    env = ClawEnvironment(host=host)
    with pytest.raises(ConfigError, match="payload of task 'x' is not a claw task"):
        env.reset(Task(id="x", env="claw", split=Split.TRAIN, seed=0, payload={"intent": "?"}))
    with pytest.raises(ContractError, match="Call reset"):
        env.step("ls")
    escape = {**RECORD, "workspace_seed": {"files": [{"path": "../evil.txt", "kind": "text", "content": "x"}]}}
    with pytest.raises(ConfigError, match=r"evil"):
        env.reset(Task(id="x", env="claw", split=Split.TRAIN, seed=0, payload=escape))
    for options in ({"max_turns": 0}, {"command_s": 0.0}, {"output_chars": 5}, {"conversation_chars": 9}, {"stops": "none"}):
        with pytest.raises(ConfigError, match=r"must be|unknown stop table"):
            ProtocolConfig(**options)  # pyright: ignore[reportArgumentType]


def test_blocks_and_the_parser_agree():
    for command in ("ls", "cat <<E\n```\nE", "````\nx", "a\n\nb"):
        assert parse(block(command)).command == command


def result(out: bytes = b"", err: bytes = b"", *, size: int | None = None, code: int = 0) -> CommandResult:
    size = len(out) if size is None else size
    return CommandResult(
        exit_code=code, stdout=out, stderr=err, stdout_size=size, stderr_size=len(err), timed_out=False, wall_s=0.0
    )


def test_what_is_shown_of_an_output():
    assert observe(result(b"a\n", b"b\n", code=3), ProtocolConfig()) == "exit code: 3\nstdout:\na\nstderr:\nb"
    assert shown(b"x" * 4_000, 4_000, limit=4_000) == "x" * 4_000
    long = shown(b"a" * 3_000 + b"b" * 3_000, 6_000, limit=4_000)
    assert long == "a" * 2_000 + "\n[... middle left out; 6000 bytes in all ...]\n" + "b" * 2_000
    assert shown(b"ab", 99, limit=4_000) == "a\n[... middle left out; 99 bytes in all ...]\nb"
    assert shown(b"\xff\x1b[2J\x00ok\r\n", 9, limit=100) == "\ufffd\\x1b[2J\\x00ok"
    assert shown("caf\u00e9".encode(), 5, limit=100) == "caf\u00e9"
    assert shown(b"\0" * 7, 7, limit=100) == "\\x00" * 7
    assert shown(b"PK" + b"\0" * 318 + b"\x01", 321, limit=100) == "PK[\\x00 318 times]\\x01"


def test_messages_are_plain(env: ClawEnvironment):
    assert all(isinstance(message, Message) for message in env.reset(TASK).messages)


def test_a_persistent_shell_is_an_option(host: SandboxHost):
    protocol = ProtocolConfig(persistent_shell=True)
    env = ClawEnvironment(ClawConfig(protocol=protocol), host=host)
    first = env.reset(TASK)
    assert "All blocks run in one shell, which begins in the workspace folder, and" in first.messages[0].content
    env.step(block("mkdir -p docs; mv draft.md docs/final.md; cd docs; count() { wc -l < final.md; }"))
    step = env.step(block("count > lines.txt") + f"\n{DONE}")
    assert step.parts[ACTOR]["assertions"] == 1.0
    with pytest.raises(ConfigError, match=r"persistent-shell needs a sandbox\. Leave it or --env\.unsafe out"):
        Claw(unsafe=True, rules=ClawConfig(protocol=protocol)).check_options()
