"""Running a task's tests, and their verdict as a grade.

The agent's sandbox is dead. A second one has a copy of its tree (`onthejob.envs.harbor.final_tree`), the tests read-only at
/tests, and an empty /logs/verifier. `tests/test.sh` runs in the task's folder with variables of ours; when it has ended or its
time is up, everything in the sandbox is killed, and the verdict is read from the file that it left there, without following
links.

What `test.sh` installs in a container is here already, or the task was refused. So the commands by which public tasks do that are
stand-ins: `apt-get` and `pip` succeed, `curl` of uv's installer prints nothing, and `uvx ... pytest` is pytest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onthejob.envs.claw.copying import copied, roomy
from onthejob.envs.claw.grader import Grade, Verdict
from onthejob.envs.claw.sandbox.inside import RUN
from onthejob.envs.claw.sandbox.sandbox_interface import MIB, Content, Item, Kind, Layout, Limits, SandboxHost
from onthejob.envs.claw.workspace import Unreadable, Workspace
from onthejob.envs.harbor.final_tree import Named, for_tests, links
from onthejob.envs.harbor.folder import HarborTask
from onthejob.envs.harbor.image import AGENT_ONLY, Image, prefix

LAYOUT = Layout(root=True, beside="/tests")
LOGS = "logs/verifier"
VERDICT_BYTES = MIB
PACKAGES = f"{RUN}/python"
SIGNALS = 64
SHOWN = 600
"""Characters of the tests' output that are kept."""
PATH = "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STAND_INS = (
    "apt-get() { return 0; }; apt() { return 0; }; curl() { return 0; }; add-apt-repository() { return 0; }; "
    "pip() { return 0; }; pip3() { return 0; }; "
    "_pytest() { local a=(); while [ $# -gt 0 ]; do case $1 in --ctrf|--json-ctrf) shift 2;; --ctrf=*) shift;; "
    '*) a+=("$1"); shift;; esac; done; command pytest "${a[@]}"; }; '
    "_after_pytest() { while [ $# -gt 0 ]; do case $1 in -p|-w|--with|--python|--from|--index|--extra) shift 2;; "
    'pytest|*/pytest) shift; break;; *) shift;; esac; done; _pytest "$@"; }; '
    'uvx() { _after_pytest "$@"; }; '
    'uv() { case " $* " in *" pytest "*) _after_pytest "$@";; *) return 0;; esac; }; pytest() { _pytest "$@"; }; '
    "export -f apt-get apt curl add-apt-repository pip pip3 _pytest _after_pytest uvx uv pytest; "
)
"""Functions of bash in the place of programs that install; every bash below inherits them."""


def verify(task: HarborTask, image: Image, root: Path, *, host: SandboxHost, limits: Limits, marked: bool) -> Grade:
    """The grade that a task's tests give the tree of a dead sandbox; fails closed.

    Args:
        task: whose tests are run.
        image: from which the agent began, complete.
        root: folder of the tree.
        host: makes the second sandbox.
        limits: of the first sandbox; the second may use as much.
        marked: the tests may run the agent's code, and then get the image's variables for it.

    Raises:
        SandboxError: the second sandbox failed, which is our failure and no grade.
    """
    try:
        left = copied(root, links)
    except Unreadable as error:
        return failed(f"the tree {error}")
    named = Named(request=task.instruction, tests="\n".join(_texts(task.tests)))
    files: dict[str, Content] = {**for_tests(left, image.files, named=named, workdir=image.workdir)}
    files |= {LOGS: Item(kind=Kind.FOLDER, mode=0o755)}
    with host.open(files, roomy(limits), beside=executable(task.tests), layout=LAYOUT) as sandbox:
        start = prefix(image.workdir, test_variables(task, image, marked=marked))
        result = sandbox.run(f"{STAND_INS}{start}bash /tests/test.sh", timeout_s=task.verifier_s)
        if result.timed_out:
            return failed(f"the tests needed more than {task.verifier_s:g} s")
        if result.restarted or 128 < result.exit_code <= 128 + SIGNALS:
            return failed(f"the tests were killed (exit code {result.exit_code})")
        grade = read_verdict(sandbox.collect())
    said = (result.stdout + b"\n" + result.stderr).decode("utf-8", "replace").strip()[-SHOWN:]
    if grade.verdicts[0].passed:
        return replace(grade, said=said)
    first = grade.verdicts[0]
    reason = f"{first.reason}; test.sh ended with {result.exit_code}"
    return replace(grade, verdicts=(replace(first, reason=reason),), said=said)


def test_variables(task: HarborTask, image: Image, *, marked: bool) -> dict[str, str]:
    """The variables of the tests: those of the image but for the ones that name code, and the task's own."""
    env = {name: value for name, value in image.env.items() if name != "PATH" and (marked or name not in AGENT_ONLY)}
    own = task.section("verifier").get("env", {})
    env |= {str(name): str(value) for name, value in own.items()} if isinstance(own, Mapping) else {}
    env |= usual_variables(image) | {
        "TEST_DIR": "/tests",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    if marked:
        return env
    # No module of the working folder or of a home, whatever starts Python; the first also hides those next to a script.
    return env | {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": f"{PACKAGES}:/tests"}


def usual_variables(image: Image) -> dict[str, str]:
    """Variables that every command has, whatever the image says."""
    path = ":".join(part for part in (image.env.get("PYTHONPATH", ""), PACKAGES) if part)
    return {"HOME": "/root", "USER": "root", "PATH": path_of(image), "PYTHONPATH": path}


def path_of(image: Image) -> str:
    """The search path: folders of the system first, whatever else the image adds behind them."""
    more = [folder for folder in image.env.get("PATH", "").split(":") if folder.startswith("/") and folder not in PATH.split(":")]
    return ":".join([PATH, *more])


def executable(files: Mapping[str, Content]) -> dict[str, Content]:
    """The files of tests or of a solution, whose scripts can be executed."""
    made: dict[str, Content] = {}
    for path, content in files.items():
        script = isinstance(content, bytes) and (path.endswith(".sh") or content.startswith(b"#!"))
        made[path] = Item(data=content, mode=0o755) if script and isinstance(content, bytes) else content
    return made


def read_verdict(root: Path) -> Grade:
    """The verdict that tests left below `root`: reward.txt, or reward.json where there is none."""
    with Workspace(root) as workspace:
        try:
            return graded(workspace.read(f"{LOGS}/reward.txt", limit=VERDICT_BYTES), form="text")
        except Unreadable:
            pass
        try:
            return graded(workspace.read(f"{LOGS}/reward.json", limit=VERDICT_BYTES), form="json")
        except Unreadable:
            return failed("the tests wrote no reward")


def graded(data: bytes, *, form: str) -> Grade:
    """The grade in a reward file: a number, or a JSON object of numbers with `reward`, or else their mean."""
    try:
        found = float(data.decode()) if form == "text" else json.loads(data)
    except (ValueError, RecursionError):
        return failed(f"the reward is no number: {data[:60]!r}")
    rewards = found if isinstance(found, dict) else {"reward": found}
    numbers = {
        str(name): float(value)
        for name, value in rewards.items()
        if isinstance(value, int | float) and (isinstance(value, bool) or math.isfinite(value))
    }
    if not numbers or (isinstance(found, dict) and "reward" in found and "reward" not in numbers):
        return failed(f"the reward is no number: {data[:60]!r}")
    reward = numbers["reward"] if "reward" in numbers else sum(numbers.values()) / len(numbers)
    verdicts = (Verdict(kind="tests", path="reward", passed=reward >= 1.0, reason="" if reward >= 1.0 else f"is {reward:g}"),)
    parts = {f"verdict/{name}": value for name, value in numbers.items() if name != "reward"}
    return Grade(verdicts=verdicts, score=reward, metrics=parts)


def failed(reason: str) -> Grade:
    """The grade of what cannot be verified."""
    return Grade(verdicts=(Verdict(kind="tests", path="reward", passed=False, reason=reason),), score=0.0)


def _texts(tests: Mapping[str, Content]) -> list[str]:
    """The tests' files as texts."""
    return [(content.data if isinstance(content, Item) else content).decode("utf-8", "replace") for content in tests.values()]
