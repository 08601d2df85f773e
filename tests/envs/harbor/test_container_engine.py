"""`--env.engine`: images that podman or docker makes, whose tasks run in our sandboxes; and what an engine's failures lead to."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.harbor import hosts
from onthejob.envs.harbor.container_engine import BuildError, Engine, key_of
from onthejob.envs.harbor.folder import read
from onthejob.envs.harbor.harbor_work import Images, open_images
from onthejob.envs.harbor.hosts import RootHosts
from onthejob.envs.harbor.proof import Finding, prove
from onthejob.envs.harbor.refusal import RefusalReason
from onthejob.envs.harbor.support import support_of
from onthejob.errors import ConfigError, ContractError
from onthejob.interop.harbor import HarborRules
from onthejob.plugins import resolve
from onthejob.types import Split

from .rootfs import make_rootfs
from .tasks import as_task, environment, make

BASE = f"localhost/onthejob-test-base:{os.getpid()}"
SMALL = f"FROM {BASE}\n"


def engine_of(name: str, root: Path) -> str:
    """Why an engine cannot be used here, after it was given a base image made of `root`; empty when it can."""
    if shutil.which(name) is None:
        return f"{name} is not installed"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(root, arcname=".")
    # An engine may import and not build: some need more of the machine's control groups than a container allows.
    for words, given in (
        (["import", "-", BASE], packed.getvalue()),
        (["build", "--network", "none", "--tag", f"{BASE}-tried", "-"], f"{SMALL}RUN true\n".encode()),
        (["image", "rm", f"{BASE}-tried"], b""),
    ):
        try:
            done = subprocess.run([name, *words], input=given, capture_output=True, timeout=120)
        except subprocess.TimeoutExpired:
            return f"{name} does not answer"
        if done.returncode:
            return f"{name} does not work here: {done.stderr.decode()[-200:]}"
    return ""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rootfs(tmp_path_factory.mktemp("roots") / "small")


@pytest.fixture(scope="module", params=["podman", "docker"])
def name(request: pytest.FixtureRequest, root: Path) -> Iterator[str]:
    """An engine that has the base image."""
    if problem := engine_of(request.param, root):
        pytest.skip(problem)
    yield request.param
    subprocess.run([request.param, "image", "rm", BASE], capture_output=True, timeout=60, check=True)


@pytest.fixture(scope="module")
def images(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    engine = Engine(name, tmp_path_factory.mktemp("images"))
    with open_images(HarborRules().sandbox, engine=engine) as opened:
        yield opened


def left_of(name: str, key: str) -> list[str]:
    """Images and containers that an engine still has of a build."""
    found: list[str] = []
    for words in (["images", "--format", "{{.Tag}}"], ["ps", "--all", "--format", "{{.Image}}"]):
        found += subprocess.run([name, *words], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    return [one for one in found if key[:16] in one]


TOOL = """RUN printf '#!/bin/sh\\necho made by the tool\\n' > /usr/local/bin/tool && chmod 755 /usr/local/bin/tool
ENV TOPIC="two words" PATH="/srv/tools:$PATH"
COPY given.txt /var/log/given.txt
RUN mkdir -p /srv/tools && cp /usr/local/bin/tool /srv/tools/other && chmod 700 /srv
WORKDIR /app
COPY given.txt .
RUN mkdir private && chmod 2751 private
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """A task that cannot run without an engine: its Dockerfile has another base and makes a program in a folder of the system."""
    return make(
        tmp_path,
        "tool",
        dockerfile=SMALL + "RUN mkdir -p /usr/local/bin\n" + TOOL,
        test='if [ "$(cat /app/answer.txt)" = "$(tool)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n',
        solution="tool > /app/answer.txt\n",
        more={"environment/given.txt": "given\n"},
    )


def test_a_task_of_another_image_runs_in_the_sandbox(images: Images, name: str, tool: Path):
    assert [one.reason for one in support_of(read(tool)).refusals] == [RefusalReason.IMAGE]
    support = support_of(read(tool), engine=name)
    assert (support.refusals, support.notes) == ((), (f"made by {name}",))
    proof = prove(read(tool), support, images)
    assert (proof.finding, proof.noop, proof.solution) == (Finding.RIGHT, (0.0, 0.0), (1.0, 1.0)), proof.why
    assert left_of(name, key_of(read(tool).environment)) == [], "the engine keeps what was exported"


def test_the_image_is_what_its_dockerfile_says(images: Images, tool: Path):
    env = environment(images)
    first = env.reset(as_task(tool))
    assert "It runs in /app, and" in first.messages[0].content
    assert first.messages[1].content.endswith("Files:\ngiven.txt (6 bytes)")
    look = 'tool; other; echo "$TOPIC"; cat /var/log/given.txt; ls -ld /srv private'
    said = env.step(block(look)).facts["observation"]
    assert said.startswith("exit code: 0\nstdout:\nmade by the tool\nmade by the tool\ntwo words\ngiven\ndrwx------"), said
    assert "\ndrwxr-x--x" in said
    assert env.step(block("echo x > /usr/local/bin/tool")).facts["exit_code"] == 1
    assert env.step(block("tool > answer.txt")).facts["exit_code"] == 0
    assert env.step(DONE).rewards == {"agent": 1.0}


def test_attacks_earn_nothing(images: Images, tool: Path):
    for attack in (
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        "mkdir -p /srv/tools; printf '#!/bin/sh\\n' > /srv/tools/tool; chmod 755 /srv/tools/tool; touch /app/answer.txt",
        "mv /usr/local /local; ln -s /app /usr/local",
        "printf 'tool() { :; }; export -f tool\\n' > /etc/profile; cp /etc/profile ~/.bashrc; touch /app/answer.txt",
    ):
        env = environment(images)
        env.reset(as_task(tool))
        env.step(block(attack))
        assert env.step(DONE).rewards == {"agent": 0.0}, attack


def test_an_image_is_made_once_for_all_tasks_that_have_it(name: str, tmp_path: Path):
    first, second = make(tmp_path, "a", dockerfile=SMALL), make(tmp_path, "b", dockerfile=SMALL, instruction="Something else.")
    engine = Engine(name, tmp_path / "images")
    tasks = [read(folder) for folder in (first, second)] * 2
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda one: engine.built(one.folder / "environment", one.environment, timeout_s=100.0), tasks))
    assert len({one.root for one in made}) == 1
    (folder,) = [path for path in (tmp_path / "images").iterdir() if path.is_dir()]
    assert sorted(path.name for path in folder.iterdir()) == ["image.json", "root"]
    changed = time.time_ns()
    again = Engine(name, tmp_path / "images").built(first / "environment", tasks[0].environment, timeout_s=100.0)
    assert again == made[0]
    assert (folder / "image.json").stat().st_mtime_ns < changed


REFUSED = {
    "a command that fails": ("RUN echo before; exit 7\n", RefusalReason.BUILD, "build ended with"),
    "no such base": ("", RefusalReason.BUILD, "build ended with"),
    "no bash": ("RUN rm /bin/bash\n", RefusalReason.BUILD, "the image has no /bin/bash"),
    "libraries that are missing": (
        "RUN rm -rf /lib*/*/libc.so.6 /usr/lib*/*/libc.so.6\n",
        RefusalReason.BUILD,
        "may be made for another",
    ),
    "another user": ("USER 1000:1000\n", RefusalReason.USER, "USER 1000"),
    "work in the system": ("WORKDIR /usr/src/app\n", RefusalReason.PLACE, "WORKDIR /usr/src/app"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_image_in_which_a_task_cannot_run_is_refused(images: Images, tmp_path: Path, case: str):
    more, reason, detail = REFUSED[case]
    base = "FROM localhost/none-of-this-name:1\n" if case == "no such base" else SMALL
    folder = make(tmp_path, dockerfile=base + more)
    image = images.of(read(folder))
    assert [one.reason for one in image.refusals] == [reason]
    assert detail in image.refusals[0].detail
    assert prove(read(folder), support_of(read(folder), engine="podman"), images).finding is Finding.REFUSED


def test_what_tests_need_is_looked_for_in_the_image(images: Images, tmp_path: Path):
    python = "uvx pytest /tests/test_outputs.py\n"
    folder = make(tmp_path, dockerfile=SMALL, test=python, solution="")
    assert support_of(read(folder), engine="podman").refusals == ()
    assert [one.detail for one in images.of(read(folder)).refusals] == ["python3"]
    fetching = make(tmp_path, "fetching", dockerfile=SMALL, test="curl https://example.org/x\n")
    assert [one.reason for one in support_of(read(fetching), engine="podman").refusals] == [RefusalReason.NETWORK]


def test_the_option_reaches_tasks_and_commands(
    name: str, tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tasks/test").mkdir(parents=True)
    tool.rename(tmp_path / "tasks/test/tool")
    make(tmp_path / "tasks/test", "usual")
    kind: Any = resolve(f"harbor:{tmp_path / 'tasks'}")
    assert [one.id for one in kind().tasks(Split.TEST)] == ["test-usual"]
    assert [one.id for one in kind(engine=name).tasks(Split.TEST)] == ["test-tool", "test-usual"]
    words = ["--env", f"harbor:{tmp_path / 'tasks'}", "--engine", name, "--runs", "1", "--report", str(tmp_path / "report.json")]
    assert main(["tasks", "validate", *words]) == 0
    out = capsys.readouterr().out
    assert "right" in out
    # What needs no engine is not built.
    assert len(list((tmp_path / "cache/images").glob("*/root"))) == 1
    words = ["compare", "gold", "noop", "--env", f"harbor:{tmp_path / 'tasks'}", "--split", "test", "--json"]
    assert main([*words, "--env.engine", name, "--env.validated", str(tmp_path / "report.json")]) == 0


def program(folder: Path, name: str, text: str) -> None:
    """A program that stands for an engine which fails."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def runs(pid: int) -> bool:
    """A process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_an_engine_that_fails_or_hangs_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    task = read(make(tmp_path, dockerfile=SMALL))
    engine_folder = tmp_path / "images"
    program(tmp_path / "bin", "podman", "echo cannot do that >&2; exit 125")
    with pytest.raises(BuildError, match="podman build ended with 125: cannot do that"):
        Engine("podman", engine_folder).built(task.folder / "environment", task.environment, timeout_s=50.0)
    program(tmp_path / "bin", "podman", f"[ $1 = build ] || exit 0; sleep 1000 & echo $$ $! > {tmp_path}/pids; sleep 1000")
    with pytest.raises(BuildError, match=r"podman build needed more than 0\.5 s"):
        Engine("podman", engine_folder).built(task.folder / "environment", task.environment, timeout_s=0.5)
    started = list(map(int, (tmp_path / "pids").read_text().split()))
    assert len(started) == 2
    assert not any(map(runs, started))
    # An export that breaks off is no image either.
    said = '[{"Config": {"Env": ["A=b=c"], "WorkingDir": "", "User": "root"}}]'
    text = f"case $1 in image) [ $2 = rm ] || echo '{said}';; create) echo 1;; export) echo broken; exit 1;; esac"
    program(tmp_path / "bin", "podman", text)
    with pytest.raises(BuildError, match=r"(tar|podman export) ended with"):
        Engine("podman", engine_folder).built(task.folder / "environment", task.environment, timeout_s=50.0)
    assert [path.name for path in engine_folder.iterdir()] == [f"{key_of(task.environment)}.lock"]


def test_an_engine_that_is_not_there_or_has_nothing_to_do_is_refused(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    make(tmp_path / "train", "own-image", dockerfile=SMALL)
    kind: Any = resolve(f"harbor:{tmp_path}")
    with pytest.raises(ConfigError, match=r"--env\.rootfs stands for all images.*Leave one of them out"):
        kind(rootfs=root, engine="podman").check_options()
    both = ["--env", f"harbor:{tmp_path}", "--rootfs", str(root), "--engine", "docker", "--static"]
    assert main(["tasks", "validate", *both]) == 2
    assert "--rootfs stands for all images, so --engine has none to make" in capsys.readouterr().err
    assert main(["tasks", "validate", "--engine", "docker"]) == 2
    assert "--engine has no effect without --env" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"docker is not on the search path, and --env\.engine docker needs it"):
        kind(engine="docker").check_options()


def test_the_key_of_an_image_is_that_of_its_files(tmp_path: Path):
    first = read(make(tmp_path, "a", dockerfile=SMALL, more={"environment/run.sh": "true\n"}))
    keys = {key_of(first.environment)}
    assert key_of(read(make(tmp_path, "b", dockerfile=SMALL, more={"environment/run.sh": "true\n"})).environment) in keys
    (first.folder / "environment/run.sh").chmod(0o755)
    keys.add(key_of(read(first.folder).environment))
    (first.folder / "environment/run.sh").rename(first.folder / "environment/run2.sh")
    keys.add(key_of(read(first.folder).environment))
    keys.add(key_of(read(make(tmp_path, "c", dockerfile=SMALL + "ENV A=b\n")).environment))
    assert len(keys) == 4


def test_hosts_of_roots_that_are_not_used_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts, "OPEN", 1)
    roots = [make_rootfs(tmp_path / str(number)) for number in range(3)]
    with RootHosts() as opened:
        kept = opened.of(roots[0]).open({"a": b"1"})
        brokers = []
        for folder in roots:
            with opened.leased(folder) as host:
                brokers.append(host)
            with opened.of(folder).open({}) as sandbox:
                assert sandbox.run("ls /usr/bin/cat").exit_code == 0
        assert kept.run("cat a").stdout == b"1"
        with pytest.raises(ContractError, match="closed"):
            brokers[1].open({})
        kept.close()
    with pytest.raises(ContractError, match="closed"):
        brokers[0].open({})
    with pytest.raises(ContractError, match="closed"):
        opened.of(roots[0]).open({})
