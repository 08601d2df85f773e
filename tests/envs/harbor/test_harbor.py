"""Harbor tasks in sandboxes: the examples are right, the rules of the format hold, and what agents try is worth nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.sandbox import SandboxHost, open_host
from onthejob.envs.harbor.folder import read
from onthejob.envs.harbor.harbor_work import Images, harbor_work
from onthejob.envs.harbor.proof import Finding, prove
from onthejob.envs.harbor.refusal import Reason
from onthejob.envs.harbor.support import support_of
from onthejob.envs.harbor.verify import graded
from onthejob.errors import ConfigError, NotCheckable
from onthejob.interop.harbor import HarborRules
from onthejob.types import StopReason

from .tasks import EXAMPLES, TEST, as_task, environment, make, played


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


@pytest.fixture(scope="module")
def images(host: SandboxHost) -> Images:
    return Images(host, HarborRules().sandbox)


def names() -> list[str]:
    return sorted(path.parent.name for path in EXAMPLES.glob("*/task.toml"))


@pytest.mark.parametrize("name", names())
def test_the_examples_are_right(images: Images, name: str):
    task = read(EXAMPLES / name)
    support = support_of(task)
    assert support.refusals == ()
    assert bool(support.mark) is (name == "write-greeter")
    proof = prove(task, support, images)
    assert (proof.finding, proof.noop, proof.solution) == (Finding.RIGHT, (0.0, 0.0), (1.0, 1.0)), proof.why


def test_an_agent_works_as_root_where_the_task_says(images: Images, tmp_path: Path):
    folder = make(tmp_path, dockerfile="FROM ubuntu:24.04\nENV TOPIC='two words'\nWORKDIR /srv/app\nRUN echo 1 > given.txt\n")
    env = environment(images)
    first = env.reset(as_task(folder))
    assert "It runs in /srv/app, and" in first.messages[0].content
    assert first.messages[1].content == "Write 42 to /app/answer.txt.\n\nFiles:\ngiven.txt (2 bytes)"
    shown = env.step(block('id -u; pwd; echo "$TOPIC $HOME"; mkdir /new && touch /etc/new; ls -A / | tr "\\n" " "')).facts[
        "observation"
    ]
    assert shown.startswith("exit code: 0\nstdout:\n0\n/srv/app\ntwo words /root\n")
    assert not {"tests", "logs", "solution", "work"} & set(shown.split())
    assert env.step(block("touch /usr/bin/x /bin/y")).facts["exit_code"] == 1
    changed = {row["path"] for row in env.step(block("echo x > /new/x; cd /tmp; echo y > y")).facts["files"]}
    assert changed == {"new/", "new/x", "tmp/", "tmp/y"}
    env.close()


def test_the_verdict_is_the_reward(images: Images, tmp_path: Path):
    folder = make(tmp_path)
    assert played(images, folder, "echo 42 > answer.txt") == 1.0
    assert played(images, folder, "echo 41 > answer.txt") == 0.0
    test = 'echo "{\\"reward\\": 0.25, \\"style\\": 3}" > /logs/verifier/reward.json\n'
    env = environment(images)
    env.reset(as_task(make(tmp_path, "part", test=test)))
    step = env.step(DONE)
    assert step.parts["agent"] == {"verdict": 0.25, "turns": 0.0}
    metrics = env.state()["metrics"]
    assert (metrics["passed"], metrics["verdict/style"], metrics["reward"]) == (0.0, 3.0, 0.25)


@pytest.mark.parametrize(
    ("data", "form", "rate", "passed"),
    [
        (b"1\n", "text", 1.0, True), (b" 0.5 ", "text", 0.5, False), (b"nan", "text", 0.0, False), (b"inf", "text", 0.0, False),
        (b"", "text", 0.0, False), (b"one", "text", 0.0, False), (b"\xff", "text", 0.0, False),
        (b'{"reward": 1}', "json", 1.0, True),
        (b'{"a": 1, "b": 0}', "json", 0.5, False), (b'{"reward": "x", "a": 1}', "json", 0.0, False), (b"[1]", "json", 0.0, False),
        (b'{"reward": Infinity}', "json", 0.0, False), (b"1", "json", 1.0, True), (b"{}", "json", 0.0, False),
    ],
)  # fmt: skip
def test_reward_files(data: bytes, form: str, rate: float, passed: bool):
    grade = graded(data, form=form)
    assert (grade.rate, grade.passed) == (rate, passed)


ATTACKS = {
    "planted reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
    "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "folder that is a link": "rm -rf /logs; ln -s /app /logs; mkdir /app/verifier; echo 1 > /app/verifier/reward.txt",
    "changed test": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "answer by link": "ln -s /tests/expected.txt /app/answer.txt",
    "answer by a linked folder": "ln -s /tests /app/t; ln -s t/expected.txt /app/answer.txt",
    "answer by /proc": "ln -s /proc/1/root/tests/expected.txt /app/answer.txt",
    "background process": "(while true; do cp /tests/expected.txt /app/answer.txt; echo 1 > /logs/verifier/reward.txt; done) "
    ">/dev/null 2>&1 & disown",
    "daemon": "setsid nohup bash -c 'while true; do cp /tests/expected.txt /app/answer.txt; done' >/dev/null 2>&1 &",
    "path": "mkdir -p ~/.local/bin; printf '#!/bin/sh\\necho 42\\n' | tee ~/.local/bin/cat /app/cat /app/pytest; "
    "chmod +x /app/* ~/.local/bin/cat",
    "start-up of bash": "echo 'echo 1 > /logs/verifier/reward.txt; exit 0' | "
    "tee ~/.bashrc ~/.profile ~/.bash_env /etc/profile /etc/bash.bashrc",
    "preloaded library": "echo /app/evil.so > /etc/ld.so.preload; echo x > /app/evil.so",
    "moved /etc": "mv /etc /etc2; mkdir /etc; echo /app/evil.so > /etc/ld.so.preload",
    "replaced /bin": "mv /bin /bin2; rm -rf /bin; ln -s /app /bin",
    "settings of pytest": "printf 'import os, atexit\\n{}' | tee /conftest.py /app/conftest.py >/dev/null; "
    "printf '[pytest]\\naddopts = --collect-only\\n' | tee /pytest.ini /tox.ini /app/pytest.ini",
    "site packages": "for p in ~/.local/lib/python3.11/site-packages /etc/python3.11 /app; do mkdir -p $p; "
    "echo \"open('/logs/verifier/reward.txt', 'w').write('1'); import os; os._exit(0)\" | "
    "tee $p/sitecustomize.py $p/usercustomize.py "
    "$p/pathlib.py $p/json.py $p/pytest.py; echo 'import sitecustomize' > $p/x.pth; done",
    "variables": "echo 'PYTHONPATH=/app' >> /etc/environment; export PYTHONPATH=/app PYTEST_ADDOPTS=--collect-only",
    "temporary verdict": "T=/tmp; echo '{\"reward\": 1}' > $T/score.json; echo 1 > $T/reward.txt",
}  # fmt: skip
TESTED = {
    "shell": 'if [ "$(cat /app/answer.txt)" = "$(cat /tests/expected.txt)" ]; '
    "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    "pytest": "cd /app\npython3 -m pytest -q /tests/test_outputs.py\n"
    "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    "Python": "cd /app\npython3 -c \"import json, pathlib; pathlib.Path('/logs/verifier/reward.txt').write_text('0')\"\n"
    "python3 /tests/check.py > /logs/verifier/reward.json; python3 /tests/check.py --text > /logs/verifier/reward.txt\n",
}
OUTPUTS = "from pathlib import Path\n\n\ndef test():\n    assert Path('/app/answer.txt').read_text().strip() == '42'\n"
CHECK = """import json, sys
from pathlib import Path
answer = Path('/app/answer.txt')
right = float(answer.is_file() and answer.read_text().strip() == '42')
print(right if '--text' in sys.argv else json.dumps({'reward': right}))
"""
MORE = {"tests/expected.txt": "42\n", "tests/test_outputs.py": OUTPUTS, "tests/check.py": CHECK}


UNDONE = ("folder that is a link", "answer by link", "answer by a linked folder", "answer by /proc", "replaced /bin")
"""Attacks after which the usual right work fails, as /app or the answer is something else."""


@pytest.mark.parametrize("tested", TESTED)
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_worth_nothing(images: Images, tmp_path: Path, attack: str, tested: str):
    folder = make(tmp_path, test=TESTED[tested], more=MORE)
    assert support_of(read(folder)).mark == ""
    assert played(images, folder, ATTACKS[attack]) == 0.0
    # The tests themselves are alive: after the same attack, right work is paid.
    if tested == "pytest" and attack not in UNDONE:
        assert played(images, folder, ATTACKS[attack], "rm -f /app/answer.txt; echo 42 > /app/answer.txt") == 1.0


def test_a_verdict_that_the_agent_could_have_written_is_marked_and_so_are_tests_that_run_its_code(tmp_path: Path):
    for number, test in enumerate(
        ("cp /app/score /logs/verifier/reward.txt\n", "bash /app/run.sh && echo 1 > /logs/verifier/reward.txt\n")
    ):
        folder = make(tmp_path, f"marked{number}", test=test)
        assert support_of(read(folder)).mark
        assert "tests_run_agent_code" in as_task(folder).payload


def test_tests_see_modes_times_links_and_empty_folders(images: Images, tmp_path: Path):
    test = (
        'if [ "$(stat -c %a:%Y /srv/x)" = 640:86400 ] && [ -d /srv/empty ] && [ "$(readlink /srv/l)" = x ] && '
        '[ "$(cat /made/y)" = y ]; '
        "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    work = "cd /srv; echo x > x; chmod 640 x; touch -d @86400 x; mkdir empty; ln -s x l; mkdir /made; echo y > /made/y"
    assert played(images, make(tmp_path, test=test), work) == 1.0
    assert played(images, make(tmp_path, test=test), work.replace("640", "644")) == 0.0


def test_the_tasks_own_time_limits(images: Images, tmp_path: Path):
    toml = "[verifier]\ntimeout_sec = 0.5\n[agent]\ntimeout_sec = 1.0\n"
    env = environment(images)
    env.reset(as_task(make(tmp_path, toml=toml, test=f"echo 1 > /logs/verifier/reward.txt; {TEST}sleep 20\n")))
    start = time.monotonic()
    step = env.step(block("echo 42 > answer.txt; sleep 20"))
    assert step.stop is StopReason.HORIZON
    assert step.rewards == {"agent": 0.0}
    assert "the tests needed more than 0.5 s" in step.facts["verdicts"][0]["reason"]
    assert "TIMED OUT after 1 s" in step.facts["observation"]
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    "test",
    [
        "true\n",
        "exit 0\n",
        "kill -9 $$\n",
        "mkfifo /logs/verifier/reward.txt\n",
        "ln -s /app/answer.txt /logs/verifier/reward.txt\n",
    ],
)
def test_without_a_verdict_nothing_is_paid(images: Images, tmp_path: Path, test: str):
    assert played(images, make(tmp_path, test=test), "echo 1 > /app/answer.txt") == 0.0


def test_a_run_line_that_fails_is_our_failure_and_no_score(images: Images, tmp_path: Path):
    folder = make(tmp_path, dockerfile="FROM ubuntu:24.04\nRUN cat /missing\n")
    with pytest.raises(NotCheckable, match=r"its image could not be made .*exit code 1"):
        harbor_work(as_task(folder), images=images)
    proof = prove(read(folder), support_of(read(folder)), images, runs=1)
    assert proof.finding is Finding.REFUSED


def test_run_lines_have_the_home_of_root(images: Images, tmp_path: Path):
    folder = make(tmp_path, dockerfile="FROM ubuntu:24.04\nENV A=b\nWORKDIR /app\nRUN echo $HOME $A > ~/given && pwd > where\n")
    image = images.of(read(folder))
    assert (image.files["root/given"].data, image.files["app/where"].data) == (b"/root b\n", b"/app\n")


def test_findings(images: Images, tmp_path: Path):
    def finding(name: str, **other: str) -> Finding:
        folder = make(tmp_path, name, **other)  # type: ignore[arg-type]
        return prove(read(folder), support_of(read(folder)), images).finding

    folder = make(tmp_path, "said", solution="echo 41 > /app/answer.txt\n", test="cat /app/answer.txt; " + TEST)
    assert prove(read(folder), support_of(read(folder)), images, runs=1).why == "is 0; test.sh ended with 0: 41"
    assert finding("noop", test="echo 1 > /logs/verifier/reward.txt\n") is Finding.NOOP
    assert finding("wrong", solution="echo 41 > /app/answer.txt\n") is Finding.SOLUTION
    assert finding("unproven", solution="") is Finding.UNPROVEN
    assert finding("luck", test="echo $(( $(date +%N) )) > /logs/verifier/reward.txt\n") is Finding.UNSTEADY
    assert finding("alpine", dockerfile="FROM alpine\n") is Finding.REFUSED


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"toml": "[environment]\ngpus = 1\n"}, Reason.HARDWARE),
        ({"toml": "[[steps]]\nname = 'a'\n"}, Reason.STEPS),
        ({"toml": "[verifier]\nenvironment_mode = 'separate'\n"}, Reason.VERIFIER),
        ({"toml": "[verifier.env]\nOPENAI_API_KEY = '${OPENAI_API_KEY}'\n"}, Reason.KEY),
        ({"toml": "[agent]\nuser = 'worker'\n"}, Reason.USER),
        ({"instruction": "Start the job with systemctl."}, Reason.SYSTEM),
        ({"test": "curl -f http://localhost:8080 && echo 1 > /logs/verifier/reward.txt\n"}, Reason.NETWORK),
        ({"test": "pip install no-such-module-anywhere\n"}, Reason.PACKAGES),
        ({"more": {"tests/test_outputs.py": "import requests\n"}}, Reason.SERVICES),
        ({"more": {"tests/test_outputs.py": "import no_such_module_anywhere\n"}}, Reason.PACKAGES),
    ],
)
def test_what_is_refused_before_anything_is_started(tmp_path: Path, other: dict[str, str], reason: Reason):
    found = support_of(read(make(tmp_path, **other)))  # type: ignore[arg-type]
    assert reason in {one.reason for one in found.refusals}


def test_a_changed_folder_is_not_played(images: Images, tmp_path: Path):
    folder = make(tmp_path)
    task = as_task(folder)
    (folder / "instruction.md").write_text("Another request.", encoding="utf-8")
    with pytest.raises(ConfigError, match="not what it was"):
        environment(images).reset(task)


def test_many_side_by_side(images: Images, tmp_path: Path):
    folder = make(tmp_path)
    rules = replace(HarborRules(), protocol=ProtocolConfig(max_turns=2, command_s=20.0))

    def one(number: int) -> float:
        env = environment(images, rules)
        env.reset(as_task(folder))
        env.step(block(f"echo {42 if number % 2 else 0} > answer.txt"))
        return env.step(DONE).rewards["agent"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(40))) == [0.0, 1.0] * 20


def test_what_is_recorded_of_an_episode_is_the_same_each_time(images: Images, tmp_path: Path):
    """Output of tests holds times and names of temporary files; a replay compares the rest."""
    folder = make(tmp_path, test=f"date +%N; cd /app; pytest /tests/test_outputs.py; {TEST}", more=MORE)

    def facts() -> dict[str, object]:
        env = environment(images)
        env.reset(as_task(folder))
        return dict(env.step(DONE).facts)

    assert facts() == facts()
