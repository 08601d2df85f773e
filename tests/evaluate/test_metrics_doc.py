"""docs/metrics.md names every metric that training and evaluation emit, and no metric twice within a table."""

import ast
import re
from dataclasses import fields
from pathlib import Path

from onthejob.evaluate.behaviours import Shift
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.comparison import compare
from onthejob.evaluate.statistics import Estimate
from onthejob.evaluate.teams import scripted_team
from onthejob.learn.advantage import count_signals
from onthejob.models.scripted import ScriptedPolicy
from onthejob.testing import ToyWorkplace, expert_reply, toy_tasks
from onthejob.types import Sampling, Split, Task


def documented(repository: Path, heading: str | None = None) -> set[str]:
    text = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    if heading is not None:
        text = re.split(r"^#+ ", text.split(f"# {heading}", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_metric_of_an_episode_is_documented(repository: Path) -> None:
    team = scripted_team("expert", ScriptedPolicy(expert_reply, version="expert"), ["maker", "seller"])
    with EvaluationCache(None, env="toy") as cache:
        result = compare(
            [team],
            toy_tasks(1, split=Split.DEV),
            env_factory=ToyWorkplace,
            cache=cache,
            sampling=Sampling(),
            seed=0,
            max_turns=20,
        )
    toy = {"company_value", "sales", "invalid"}
    assert set(result.metrics) - toy == documented(repository, "Episodes")


def test_every_metric_of_the_office_is_documented(repository: Path) -> None:
    from onthejob.envs.office.env import OfficeEnvironment

    env = OfficeEnvironment()
    env.reset(Task(id="doc", env="office", split=Split.DEV, seed=1))
    measured = set(env.scores("not an action"))
    env.step("not an action")  # rewards have names once there are some
    assert measured == {"rule_score"} <= documented(repository, "Training, per role (scope `train/ROLE`)")
    assert set(env.state()["metrics"]) | measured == documented(repository, "Office")


def test_every_metric_of_claw_is_documented(repository: Path) -> None:
    from onthejob.envs.claw.env import ClawEnvironment
    from onthejob.envs.claw.sandbox import open_host
    from onthejob.envs.claw.splits import claw_tasks

    with open_host() as host:
        env = ClawEnvironment(host=host)
        env.reset(claw_tasks(Split.DEV, count=40)[0])
        env.step("TASK_COMPLETE")
        names = {re.sub(r"/.*", "/KIND", name) for name in env.state()["metrics"]}
    assert names == documented(repository, "Claw")


def test_every_metric_of_an_update_is_documented(repository: Path) -> None:
    tree = ast.parse((repository / "src/onthejob/learn/learner.py").read_text(encoding="utf-8"))
    (metrics,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "UpdateMetrics")
    own = {node.target.id for node in metrics.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert {"loss", "kl"} <= own
    assert own - {"role", "values"} | count_signals([]).keys() <= documented(repository)
    loss = (repository / "src/onthejob/learn/loss.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:clip_ratio|sampling)/[a-z_/]+|cispo_clip_ratio|ratio_max)"', loss))
    assert named
    assert named <= documented(repository)


def test_every_metric_of_the_loop_is_documented(repository: Path) -> None:
    tree = ast.parse((repository / "src/onthejob/train/reports.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names: set[str] = set()
    for name in ("role_metrics", "loop_metrics"):
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Dict):
                names |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    assert {"reward", "library"} <= names
    assert names <= documented(repository)


def test_what_shifts_and_estimates_hold_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert {"drift", "noise"} <= {field.name for field in fields(Shift)} & documented(repository)
    for field in fields(Estimate):
        assert f"`{field.name}`" in text, field.name
