"""`onthejob office behaviours`: how often teams do what is said to emerge, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.seats import ModelOptions, teams
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.envs.office.behaviours import Deed
    from onthejob.evaluate.statistics import Estimate
    from onthejob.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviours:
    """Measure the behaviours that are said to emerge: who does them how often, per episode, with 95 % intervals.

    Launches timed to ships, asking Dev before promising or publishing, specialisation early and late, use of memories, the shift
    to retention in a crisis. docs/office.md says what each number means.
    """

    teams: tuple[str, ...] = ("random", "heuristic", "expert")
    """Teams, as for `compare`: scripted players, `base`, a run, a folder of adapters, or `NAME=` one of these."""
    replays: tuple[Path, ...] = ()
    """Games that were written by `play --policy human`; they are a team called `replays`."""
    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    seeds: int = 4
    """Test episodes per scenario."""
    days: int = 30
    """Length of an episode in days."""
    memory: Literal["on", "off"] = "on"
    """`on` plays with the full prompt, whose memories a model may use; `off` with the compact one, which has none."""
    crisis_bonus: bool = True
    """Pay the crisis bonus. What fixed teams do hangs on it only through how they were trained; it is in the reward."""
    temperature: float = 1.0
    """Of a model's replies."""
    max_new_tokens: int = 48
    """Limit of a model's reply."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play, measure, print one row per behaviour and one column per team."""
        from onthejob.commands.office import scenarios_named
        from onthejob.envs.office.tasks import office_tasks
        from onthejob.types import Split

        if not self.teams and not self.replays:
            raise ConfigError("behaviours needs somebody to measure. Name --teams or --replays.")
        if not 0.0 <= self.temperature < math.inf or self.max_new_tokens < 1:
            got = f"{self.temperature} and {self.max_new_tokens}"
            raise ConfigError(f"temperature must be finite and >= 0 and max_new_tokens >= 1, got {got}.")
        tasks = office_tasks(Split.TEST, seeds=self.seeds, scenarios=scenarios_named(self.scenarios), days=self.days)
        found: dict[str, Mapping[str, Estimate]] = {}
        for name, episodes in self._episodes(tasks, terminal):
            found[name] = measured(episodes)
        rows = [
            (behaviour, *(shown(estimates[behaviour]) for estimates in found.values()))
            for behaviour in next(iter(found.values()))
        ]
        data: dict[str, Any] = {
            "memory": self.memory,
            "crisis_bonus": self.crisis_bonus,
            "behaviours": {name: {k: e.as_dict() for k, e in estimates.items()} for name, estimates in found.items()},
        }
        terminal.result(data, table(("behaviour", *found), rows))
        return 0

    def _episodes(self, tasks: Sequence[Task], terminal: Terminal) -> list[tuple[str, list[list[Deed]]]]:
        """Team -> the deeds of its episodes."""
        from onthejob.commands.office import Office
        from onthejob.envs.office.behaviours import deeds
        from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
        from onthejob.rollout.play import play
        from onthejob.rollout.replay import Replay
        from onthejob.types import Sampling

        config = OfficeConfig(
            profile="full" if self.memory == "on" else "compact", days=self.days, crisis_bonus=self.crisis_bonus
        )
        sampling = Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens)
        shipped = Office().players(())
        made, stack = teams(self.teams, self.model, terminal.progress, seats=SEATS, shipped=shipped) if self.teams else ([], None)
        found: list[tuple[str, list[list[Deed]]]] = []
        for team in made:
            episodes = []
            for task in tasks:
                env = OfficeEnvironment(config)
                (episode,) = play(
                    [env],
                    [task],
                    team.policies,
                    sampling,
                    seed=task.seed,
                    encoder=stack.chat if stack else None,
                    max_turns=14 * self.days,
                )
                if episode.error:
                    raise ConfigError(f"{team.name} failed on {task.id}: {episode.error}.")
                episodes.append(deeds(OfficeEnvironment(config), task, [turn.text for turn in episode.transcript]))
                terminal.progress(f"{team.name}: {len(episodes)}/{len(tasks)} {task.id}")
            found.append((team.name, episodes))
        if self.replays:
            games = [Replay.read(path) for path in self.replays]
            found.append(
                ("replays", [deeds(OfficeEnvironment(config), g.task, [said.text for said in g.replies]) for g in games])
            )
        return found


def measured(episodes: Sequence[Sequence[Deed]]) -> dict[str, Estimate]:
    """Behaviour -> its mean over the episodes that gave occasion, with an interval."""
    from onthejob.envs.office.behaviours import METRICS
    from onthejob.evaluate.statistics import mean_interval

    values = {name: [metric(deeds) for deeds in episodes] for name, metric in METRICS.items()}
    return {name: mean_interval([x for x in found if not math.isnan(x)], seed=0) for name, found in values.items()}


def shown(estimate: Estimate) -> str:
    """`0.42 (0.31 to 0.55)`, or `-` where no episode gave occasion."""
    if estimate.n == 0:
        return "-"
    if math.isinf(estimate.low):
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
