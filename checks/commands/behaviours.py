"""`onthejob office behaviours`: rates of emergent behaviours per team, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.player_specs import ModelOptions, local_sources, names_and_sources, teams
from onthejob.commands.prompt_lengths import local_window
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from checks.office.behaviours import Deed, Tally
    from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
    from onthejob.evaluate.statistics import Estimate
    from onthejob.rollout.episode import Encoder
    from onthejob.types import Policy, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviours:
    """Measure emergent behaviours: their rates for each team, per episode, with 95 % intervals.

    Launches timed to ships, asking Dev before promising or publishing, specialisation early and late, use of memories, the shift
    to retention in a crisis. docs/office.md says what each number means. In brackets behind a number: the episodes that gave
    occasion, where not all did.
    """

    teams: tuple[str, ...] = ("random", "heuristic", "expert")
    """Teams, as for `compare`: scripted players, `base`, a run, a folder of adapters, or `NAME=` one of these."""
    replays: tuple[Path, ...] = ()
    """Games that were written by `play --policy human`; they are a team called `replays`."""
    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    split: Literal["dev", "test"] = "dev"
    """Split of the episodes. Look at things on dev; test is for the final table."""
    seeds: int = 4
    """Episodes per scenario."""
    first: int = 0
    """Skip this many seeds."""
    days: int = 30
    """Length of an episode in days."""
    memory: Literal["on", "off"] = "on"
    """`on` plays with the full prompt, whose memories a model may use; `off` with the compact one, which has none."""
    probes: int = 12
    """With memory: requests of each episode that a model is asked again, with the memories of another turn and with its own in
    another order."""
    no_crisis_bonus: bool = False
    """Omit the extra reward for churn prevention while satisfaction is below 0.4. Rewards change what training teaches,
    and the gains that the insights in a full prompt speak of; for the rest, a team plays as before."""
    prompt_budget: int | None = None
    """Tokens of a prompt's user message at most, by the tokenizer of --model.name; what matters least is omitted. None takes what
    the context of that model leaves, when it plays."""
    reflect: bool = False
    """With memory: models reflect themselves every 70 turns (raise --max-new-tokens); else a template does."""
    temperature: float = 1.0
    """Sampling temperature of a model's replies."""
    max_new_tokens: int = 48
    """Limit of a model's reply."""
    batch: int = 8
    """Episodes played side by side: a model answers for all of them at once."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play, measure, print one row per behaviour and one column per team."""
        from onthejob.envs.office.tasks import office_tasks
        from onthejob.office import check_prompts, scenarios_named
        from onthejob.office_players import scripted_players
        from onthejob.types import Split

        if not self.teams and not self.replays:
            raise ConfigError("behaviours has nothing to measure. Name --teams or --replays.")
        if self.probes < 0 or self.batch < 1:
            raise ConfigError(f"probes must be >= 0 and batch >= 1, got {self.probes} and {self.batch}. Use 12 and 8.")
        if not 0.0 <= self.temperature < math.inf or self.max_new_tokens < 1:
            got = f"{self.temperature} and {self.max_new_tokens}"
            raise ConfigError(f"temperature must be finite and >= 0 and max_new_tokens >= 1, got {got}.")
        local = local_sources(names_and_sources(self.teams), scripted_players())
        check_prompts(self.prompt_budget, self.reflect, models=bool(local), prefix="--")
        if self.reflect and self.replays:
            raise ConfigError("--reflect does not fit --replays: no role reflected in a game by hand. Leave one of them out.")
        _ = self._config  # it says what is wrong with it
        every = scenarios_named(self.scenarios)
        tasks = office_tasks(Split(self.split), seeds=self.seeds, scenarios=every, days=self.days, first=self.first)
        found: dict[str, Mapping[str, Estimate]] = {}
        counts: dict[str, int] = {}
        for name, episodes in self._episodes(tasks, terminal):
            found[name] = estimates([played.tallies for played in episodes], [played.scenario for played in episodes])
            counts[name] = len(episodes)
        rows = [
            (behaviour, *(shown(of[behaviour], counts[name]) for name, of in found.items()))
            for behaviour in next(iter(found.values()))
        ]
        data: dict[str, Any] = {
            "split": self.split,
            "memory": self.memory,
            "crisis_bonus": not self.no_crisis_bonus,
            "episodes": counts,
            "behaviours": {name: {k: e.as_dict() for k, e in of.items()} for name, of in found.items()},
        }
        terminal.result(data, table(("behaviour", *found), rows))
        return 0

    @property
    def _config(self) -> OfficeConfig:
        from onthejob.envs.office.env import OfficeConfig

        return OfficeConfig(
            profile="full" if self.memory == "on" else "compact",
            days=self.days,
            crisis_bonus=not self.no_crisis_bonus,
            budget=self.prompt_budget,
            reflect=self.reflect,
        )

    def _fitted(self, shipped: Collection[str], terminal: Terminal) -> OfficeConfig:
        """The office, whose prompts fit the context of the model if one plays: what they showed is measured, too."""
        from onthejob.envs.office.fitting import fitting_tokens

        config = self._config
        if config.budget is not None or not local_sources(names_and_sources(self.teams), shipped):
            return config
        window = local_window(self.model, reply=self.max_new_tokens, progress=terminal.progress)
        tokens = None if window is None else fitting_tokens(window, profile=config.profile, reflect=config.reflect)
        return replace(config, budget=tokens)

    def _episodes(self, tasks: Sequence[Task], terminal: Terminal) -> list[tuple[str, list[Played]]]:
        """Team -> its episodes."""
        from onthejob.envs.office.env import SEATS
        from onthejob.office import make_office, most_turns
        from onthejob.office_players import scripted_players
        from onthejob.rollout.game_file import Replay
        from onthejob.rollout.play import play
        from onthejob.types import Sampling

        shipped = scripted_players()
        make_env = make_office(self._fitted(shipped, terminal), model=self.model.name)
        sampling = Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens)
        made, stack = teams(self.teams, self.model, terminal.progress, seats=SEATS, shipped=shipped) if self.teams else ([], None)
        found: list[tuple[str, list[Played]]] = []
        for team in made:
            episodes = []
            for start in range(0, len(tasks), self.batch):
                part = tasks[start : start + self.batch]
                for episode in play(
                    [make_env() for _ in part],
                    part,
                    team.policies,
                    sampling,
                    seed=0,
                    encoder=stack.chat if stack else None,
                    max_turns=most_turns(self.days, retries=0, reflect=self.reflect),
                    what=team.name,
                ):
                    if episode.error:
                        raise ConfigError(f"{team.name} failed on {episode.task.id}: {episode.error}.")
                    played = _played(make_env, episode.task, [turn.text for turn in episode.transcript])
                    if stack is not None and self.memory == "on":
                        played.tallies.update(self._probe(played, team.policies, stack.chat))
                    episodes.append(played)
                    terminal.progress(f"{team.name}: {len(episodes)}/{len(tasks)} {episode.task.id}")
            found.append((team.name, episodes))
        if self.replays:
            games = [Replay.read(path) for path in self.replays]
            found.append(("replays", [_played(make_env, g.task, [said.text for said in g.replies]) for g in games]))
        return found

    def _probe(self, played: Played, policies: Mapping[str, Policy], encoder: Encoder) -> dict[str, Tally]:
        """Ask some of the episode's requests again, greedily."""
        from checks.office.recall import RECALLED, moved, recalls
        from onthejob.types import Context, Sampling

        sampling = Sampling(temperature=0.0, max_new_tokens=self.max_new_tokens)
        replies, roles = [], []
        for recall in recalls(played.make_env(), played.task, played.replies, count=self.probes):
            policy = policies[recall.own.actor]
            if policy.reads != "tokens":  # scripted: it reads the view, which is the same
                continue
            contexts = [Context(observation=x, prompt_ids=tuple(encoder.encode(x.messages)), seed=0) for x in recall]
            own, reordered, other = policy.act(contexts, sampling)
            replies.append((own.text, reordered.text, other.text))
            roles.append(recall.own.actor)
        return dict(zip(RECALLED, moved(replies, roles), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode, and how often each behaviour was seen in it."""

    make_env: Callable[[], OfficeEnvironment]
    """As it was played in."""
    task: Task
    replies: Sequence[str]
    tallies: dict[str, Tally]

    @property
    def scenario(self) -> str:
        """Its name or file."""
        return str(self.task.payload.get("scenario", "baseline"))


def _played(make_env: Callable[[], OfficeEnvironment], task: Task, replies: Sequence[str]) -> Played:
    from checks.office.behaviours import deeds

    return Played(make_env=make_env, task=task, replies=replies, tallies=tallied(deeds(make_env(), task, replies)))


def tallied(done: Sequence[Deed]) -> dict[str, Tally]:
    """Behaviour -> what one episode shows of it; what takes asking again is empty."""
    from checks.office.behaviours import METRICS, Tally
    from checks.office.recall import RECALLED

    return {name: metric(done) for name, metric in METRICS.items()} | dict.fromkeys(RECALLED, Tally(0.0, 0.0))


def estimates(episodes: Sequence[Mapping[str, Tally]], scenarios: Sequence[str] = ()) -> dict[str, Estimate]:
    """Behaviour -> hits per occasion over the episodes that gave any, with an interval over episodes.

    Args:
        episodes: the tallies of each.
        scenarios: of each, which are then a fixed set and no sample.
    """
    from onthejob.evaluate.statistics import ratio_interval

    found: dict[str, Estimate] = {}
    for name in episodes[0] if episodes else ():
        use = [i for i, tallies in enumerate(episodes) if tallies[name].occasions > 0.0]
        found[name] = ratio_interval(
            [episodes[i][name].hits for i in use],
            [episodes[i][name].occasions for i in use],
            strata=[scenarios[i] for i in use] if scenarios else None,
            seed=0,
        )
    return found


def shown(estimate: Estimate, episodes: int) -> str:
    """`0.42 (0.31 to 0.55)`, with `[7]` behind it where only 7 of the episodes gave occasion, or `-` where none did."""
    if estimate.n == 0:
        return "-"
    number = f"{estimate.mean:z.2f}"
    if not math.isinf(estimate.low):
        number += f" ({estimate.low:z.2f} to {estimate.high:z.2f})"
    return number if estimate.n == episodes else f"{number} [{estimate.n}]"
