"""Tasks in the Harbor format, made for one test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawConfig, ClawEnvironment
from onthejob.envs.harbor.folder import read
from onthejob.envs.harbor.harbor_work import Images, harbor_work, payload_of
from onthejob.envs.harbor.packages import HERE, System
from onthejob.envs.harbor.support import support_of
from onthejob.interop.harbor import HarborRules
from onthejob.types import Split, Task

EXAMPLES = Path(__file__).parents[3] / "examples" / "harbor"
TOML = '[metadata]\ncategory = "files"\n[verifier]\ntimeout_sec = 20.0\n[agent]\ntimeout_sec = 20.0\n'
TEST = 'if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


def make(
    folder: Path,
    name: str = "answer",
    *,
    instruction: str = "Write 42 to /app/answer.txt.",
    dockerfile: str = "FROM ubuntu:24.04\nWORKDIR /app\n",
    test: str = TEST,
    toml: str = TOML,
    solution: str = "echo 42 > /app/answer.txt\n",
    more: Mapping[str, str] | None = None,
) -> Path:
    """A task folder; `more` are further files, by path in it."""
    texts = {"task.toml": toml, "instruction.md": instruction, "environment/Dockerfile": dockerfile, "tests/test.sh": test}
    texts |= {"solution/solve.sh": solution} if solution else {}
    for path, text in {**texts, **(more or {})}.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / name


def as_task(folder: Path, system: System = HERE) -> Task:
    """A task of the loop."""
    found = read(folder)
    payload = payload_of(found, support_of(found, system=system).mark)
    return Task(id=found.name, env="harbor", split=Split.TRAIN, seed=1, payload=payload)


def environment(images: Images, rules: HarborRules | None = None) -> ClawEnvironment:
    """The environment in which tasks are played."""
    rules = rules or HarborRules()
    config = ClawConfig(protocol=rules.protocol, reward=rules.reward, sandbox=rules.sandbox)
    return ClawEnvironment(config, host=images.host, work=lambda task: harbor_work(task, images=images))


def played(images: Images, folder: Path, *scripts: str) -> float:
    """The reward of an agent that runs these blocks and declares that it is done."""
    env = environment(images)
    env.reset(as_task(folder))
    for script in scripts:
        env.step(block(script))
    step = env.step(DONE)
    return step.rewards["agent"]
