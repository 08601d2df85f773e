"""Small records of real play for the viewer's tests: no model, but every reply stepped, branched, scored and recorded."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawConfig, ClawEnvironment
from onthejob.envs.claw.policies import Gold, noop
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.splits import claw_tasks
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.evaluate.cache import EvaluationCache
from onthejob.evaluate.comparison import compare
from onthejob.evaluate.pass_fail import document, keep
from onthejob.evaluate.teams import scripted_team
from onthejob.interop.harbor import Harbor, HarborRules
from onthejob.keys import keyed_choice, keyed_uniform
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.models.chat import ChatEncoder
from onthejob.office import make_office
from onthejob.office_players import scripted, team
from onthejob.plugins import resolve
from onthejob.record import Run
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.library import SnapshotLibrary, visit
from onthejob.rollout.stand_ins import StandIns
from onthejob.rollout.summary import summarise
from onthejob.testing import ScriptedTokens, tiny_tokenizer
from onthejob.train.recording import record_episodes
from onthejob.train.reports import RoleReport, role_metrics
from onthejob.types import Observation, Sampling, Split

ROLES = ("sales", "dev")
BRANCH = BranchConfig(group_size=6, turns=70, worlds=3)
SCALES = Scales(outcome=60.0, ret=0.4)
RULE: Mapping[str, Any] = {
    "estimator": "group",
    "scale": "std",
    "eps": 0.02,
    "shrink": True,
    "bound": 1.5,
    "invalid_gap": 0.5,
    "invalid_ceiling": -1.5,
}


def some_reply(observation: Observation, seed: int) -> str:
    """A random legal reply; one in ten is unusable."""
    legal = observation.view["legal"]
    return "Let us sell more." if keyed_uniform(seed, "bad") < 0.1 else keyed_choice(legal, seed, "reply")


def office_run(
    root: Path,
    name: str = "office",
    *,
    iterations: int = 2,
    tokenizer: Any = None,
    model: str = "",
    rules: Mapping[str, Any] | None = None,
    branch: BranchConfig = BRANCH,
) -> Path:
    """A run of the office: segments from the founding and from the library, groups scored by branches.

    Args:
        root: of all runs.
        name: of this one.
        iterations: how many.
        tokenizer: makes the tokens; a tiny one by default.
        model: whose name the configuration tells; a folder with a tokenizer makes the viewer show tokens as text.
        rules: options of the office other than its defaults.
        branch: how replies are scored.
    """
    tokenizer, make_env = tokenizer or tiny_tokenizer(), make_office(OfficeConfig(**(rules or {})))
    encoder, config = ChatEncoder(tokenizer), CollectConfig(episodes=3, segment_turns=14, fresh_share=0.34, partner_share=0.34)
    partners = team("heuristic")
    policies = {role: ScriptedTokens(tokenizer, some_reply, version=f"{role}@0000") for role in ROLES}
    tasks = office_tasks(Split.TRAIN, seeds=1)
    library, stand_ins = SnapshotLibrary(), StandIns()
    library.add(visit(make_env, tasks[:2], partners, seed=1, share=0.2, max_turns=200))
    settings = {
        "env": "office",
        "model": {"name": model},
        "train": {"branch": asdict(branch), "advantage": dict(RULE)},
        **(rules or {}),
    }
    with BranchScorer(make_env) as scorer, Run.create(root, config=settings, name=name) as run:
        collector = Collector(
            make_env, scorer, config=config, branch=branch, scales=dict.fromkeys(ROLES, SCALES), trained=ROLES,
            partners=partners, encoder=encoder,
        )  # fmt: skip
        with run.iteration(0) as record:
            for role in ROLES:
                record.metrics(f"scales/{role}", {"outcome": SCALES.outcome, "return": SCALES.ret})
        for iteration in range(1, iterations + 1):
            found = collector.collect(
                [tasks[(iteration + index) % len(tasks)] for index in range(config.episodes)], policies,
                Sampling(max_new_tokens=200), library=library, seed=iteration, prefix=f"it{iteration:04d}",
                stand_ins=stand_ins.rates(),
            )  # fmt: skip
            stand_ins.add(found.habits)
            given = [advantages(group, AdvantageConfig(**RULE)) for group in found.groups]
            with run.iteration(iteration) as record:
                record.groups(found.groups, given)
                record_episodes(record, found, branched=True)
                for role in ROLES:
                    own = [(group, values) for group, values in zip(found.groups, given, strict=True) if group.actor == role]
                    summary = summarise([group for group, _ in own], alive=sum(values is not None for _, values in own))
                    report = RoleReport(role=role, summary=summary, update={}, adapter=f"{role}@0000", published=False)
                    record.metrics(f"train/{role}", role_metrics(report))
        return run.path


def claw_run(
    root: Path,
    name: str = "claw",
    *,
    tokenizer: Any = None,
    model: str = "",
    isolated: bool = False,
    commands: Sequence[str] = (),
) -> Path:
    """A run of the claw: one task, played by its gold commands, and by an agent that only says that it is done.

    Other arguments as in `office_run`.

    Args:
        isolated: record in a sandbox that isolates; without, what runs are our own commands.
        commands: play these in every episode instead.
    """
    tokenizer = tokenizer or tiny_tokenizer()
    (task,) = [one for one in claw_tasks(Split.TRAIN, count=40) if len(one.payload["gold"]) >= 2][:1]
    solve = Gold([task])

    def reply(observation: Observation, seed: int) -> str:
        if commands:
            return [*map(block, commands), DONE][int(observation.view["turn"])]
        return solve(observation, seed) if keyed_uniform(seed, "solves") < 0.6 else noop(observation, seed)

    agent = ScriptedTokens(tokenizer, reply, version="agent@0000")
    settings = {"env": "claw", "model": {"name": model}, "train": {"grouping": "episodes"}}
    settings["claw"] = {"count": 40, "unsafe": not isolated}
    with open_host(unsafe=not isolated) as host, Run.create(root, config=settings, name=name) as run:
        found = collect_episodes(
            partial(ClawEnvironment, ClawConfig(), host=host), [task], {"agent": agent}, Sampling(max_new_tokens=2_000),
            group_size=4, trained=("agent",), encoder=ChatEncoder(tokenizer), max_turns=8, seed=5, prefix="it0001",
        )  # fmt: skip
        with run.iteration(0) as record:
            record.metrics("loop", {"pool_tasks": 1.0})
        with run.iteration(1) as record:
            record.groups(found.groups, [advantages(group, AdvantageConfig()) for group in found.groups])
            record_episodes(record, found, branched=False)
        return run.path


def harbor_run(root: Path, folder: Path, name: str = "harbor", *, tokenizer: Any = None, model: str = "") -> Path:
    """A run on the one task below `folder`, with a persistent shell: four episodes, some of which write 42 to its answer.txt.

    Other arguments as in `office_run`.
    """
    tokenizer = tokenizer or tiny_tokenizer()
    rules = HarborRules(protocol=ProtocolConfig(max_turns=4, persistent_shell=True))
    kind: Any = resolve(f"harbor:{folder}")
    env: Harbor = kind(rules=rules)
    tasks = env.tasks(Split.TRAIN)

    def reply(observation: Observation, seed: int) -> str:
        if keyed_uniform(seed, "solves") < 0.5:
            return DONE
        return [block("answer=42; cd /app"), block("echo $answer > answer.txt"), DONE][int(observation.view["turn"])]

    agent = ScriptedTokens(tokenizer, reply, version="agent@0000")
    settings = {
        "env": {"ref": f"harbor:{folder}", "rules": {"protocol": asdict(rules.protocol)}},
        "model": {"name": model},
        "train": {"grouping": "episodes"},
    }
    env.open()
    try:
        with Run.create(root, config=settings, name=name) as run:
            found = collect_episodes(
                env.make_environment, tasks, {"agent": agent}, Sampling(max_new_tokens=2_000), group_size=4,
                trained=("agent",), encoder=ChatEncoder(tokenizer), max_turns=4, seed=5, prefix="it0001",
            )  # fmt: skip
            with run.iteration(1) as record:
                record.groups(found.groups, [advantages(group, AdvantageConfig()) for group in found.groups])
                record_episodes(record, found, branched=False)
            return run.path
    finally:
        env.close()


def comparison(root: Path, name: str = "matched", *, days: int = 2) -> Path:
    """A comparison of three scripted teams on two held-out companies."""
    tasks = office_tasks(Split.DEV, seeds=1, scenarios=["baseline", "churn"], days=days)
    teams = [scripted_team(one, scripted(one), SEATS) for one in ("random", "heuristic", "expert")]
    with EvaluationCache(root / "cache.sqlite", env="test") as cache:
        found = compare(
            teams,
            tasks,
            env_factory=OfficeEnvironment,
            cache=cache,
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_turns=14 * days,
        )
    return keep(root, name, json.loads(json.dumps(document(found), default=float)))


def kept_comparison(root: Path, run: str, name: str = "kept", *, others: Mapping[str, str] | None = None) -> Path:
    """A real comparison of six teams, as one of `run`: its outcome is known. `others`: more teams that are runs."""
    held = json.loads((Path(__file__).parents[1] / "evaluate/comparison.json").read_text(encoding="utf-8"))
    return keep(root, name, {**held, "runs": {"grpo": run, **(others or {})}, "featured": "grpo", "start": "start"})


@contextmanager
def without_checksums(run: Path) -> Iterator[sqlite3.Connection]:
    """Change a record behind the store: it becomes one of schema version 1, whose changes are not noticed."""
    with closing(sqlite3.connect(run / "run.sqlite")) as database, database:
        yield database
        database.execute("PRAGMA user_version = 1")


def long_run(root: Path, name: str = "long", *, iterations: int = 100_000) -> Path:
    """A run of very many iterations with two metrics of two roles, written past the store: one by one would take an hour."""
    with Run.create(root, config={}, name=name) as run:
        with run.iteration(0) as record:
            record.metrics("train/dev", {"reward": 0.0, "kl": 0.0})
            record.metrics("train/sales", {"reward": 0.0, "kl": 0.0})
        path = run.path
    numbers = range(1, iterations)
    with without_checksums(path) as database:
        database.executemany(
            "INSERT INTO iterations (n, committed_at) VALUES (?, '2026-01-01T00:00:00')", ((n,) for n in numbers)
        )
        database.executemany(
            "INSERT INTO metrics (iteration, scope, name, value, is_nan, is_clock) VALUES (?, ?, ?, ?, 0, 0)",
            (
                (n, scope, metric, math.sin(n / 3_000 + phase) + 0.2 * math.sin(n * 1.7))
                for n in numbers
                for scope, phase in (("train/dev", 0.0), ("train/sales", 1.0))
                for metric in ("reward", "kl")
            ),
        )
    return path
