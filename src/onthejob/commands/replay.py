"""`onthejob runs replay`: execute recorded play again, of a game's replay file or of a run, and compare it with the record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from onthejob.commands.runs import existing_run
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from onthejob.commands.train import Train
    from onthejob.envs.env import Env
    from onthejob.evaluate.reexecute import Reexecuted
    from onthejob.record import Run
    from onthejob.record.from_rows import RecordedEpisode
    from onthejob.rollout.episode import Encoder
    from onthejob.rollout.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """Execute recorded play again and compare it with the record: a run's episodes, or a game's replay file.

    Every reply is stepped again, and the branches of every group are played again. Who was asked, the prompts, what each reply
    did and paid, values, metrics and hashes must be those of the record; the first turn that differs is named, and the exit code
    is 1. A shell command that asks for the time or for chance may differ without a fault.
    """

    path: tyro.conf.Positional[str]
    """A run's folder, its name in runs/, or the file that `onthejob play --policy human` wrote."""
    iteration: int | None = None
    """With a run: only the episodes of this iteration; None takes all."""
    limit: int = 0
    """With a run: only so many episodes, the first ones; 0 takes all."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play, then print hashes and what differs; 1 when something does."""
        if self.limit < 0:
            raise ConfigError(f"limit must be >= 0, got {self.limit}. Use 0 for all episodes.")
        if Path(self.path).is_file():
            if self.iteration is not None or self.limit:
                raise ConfigError("--iteration and --limit have no effect on a game. Leave them out, or name a run.")
            return _game(Path(self.path), terminal)
        folder = existing_run(Path(self.path))
        return self._run_again(folder, terminal)

    def _run_again(self, folder: Path, terminal: Terminal) -> int:
        from onthejob.commands.train import recorded_options
        from onthejob.record import Run

        with Run.open(folder, readonly=True) as run:
            options = recorded_options(run, without=("demo", "mode"))
            encoder = _encoder(options, terminal)
            if options.train.branch.continuation == "policy":
                terminal.warn("branches are not compared: the policies of that time continued them")
            found: list[Reexecuted] = []
            skipped: dict[str, str] = {}
            for episode, again in self._episodes(run, options, encoder):
                if isinstance(again, str):
                    skipped[f"{episode.iteration}/{episode.name}"] = again
                    continue
                found.append(again)
                terminal.progress(f"{episode.iteration}/{episode.name}: {'differs' if again.difference else 'as recorded'}")
            path = run.path
        reasons = "; ".join(sorted(set(skipped.values())))
        if not found:
            where = "" if self.iteration is None else f" of iteration {self.iteration}"
            raise RecordError(f"{path} holds no episode{where} that can be played again{': ' if reasons else ''}{reasons}.")
        differing = [(again, again.difference) for again in found if again.difference is not None]
        inexact = sum(again.hash != again.recorded_hash for again in found)
        turns, groups, prompts = (sum(counts) for counts in zip(*((a.turns, a.groups, a.prompts) for a in found), strict=True))
        data = {
            "run": path,
            "matches": not differing,
            "episodes": found,
            "turns": turns,
            "groups": groups,
            "prompts": prompts,
            "differing": len(differing),
            "hash": _hash(again.hash for again in found),
            "recorded_hash": _hash(again.recorded_hash for again in found),
            "other_hashes": inexact,
            "skipped": skipped,
        }
        rows = [(again.iteration, again.name, at.turn, at.actor or "-", at.what) for again, at in differing]
        terminal.result(
            data,
            f"{path}: {len(found) - len(differing)} of {len(found)} episodes are as recorded; equal are {turns} turns, {groups} "
            f"groups with all their branches, {prompts} prompts",
            f"hash {data['hash']}",
            *([f"{inexact} are equal, but not to the last bit: recorded {data['recorded_hash']}"] if inexact else []),
            *([f"{len(skipped)} cannot be played again: {reasons}"] if skipped else []),
            *([table(("iteration", "episode", "turn", "actor", "what differs first"), rows)] if rows else []),
            *(f"{again.name}, turn {at.turn}: recorded {_short(at.recorded)}, now {_short(at.found)}" for again, at in differing),
        )
        return 1 if differing else 0

    def _episodes(self, run: Run, options: Train, encoder: Encoder | None) -> Iterator[tuple[RecordedEpisode, Reexecuted | str]]:
        """Each recorded episode, and how it went again, or why it could not."""
        from onthejob.evaluate.recorded import recorded_scales
        from onthejob.evaluate.reexecute import Rules, play_again, sampled_in
        from onthejob.rollout.branch import BranchScorer
        from onthejob.train.collected import FACT as COLLECTED

        origin_of, done = origins(options.place().env), 0
        with options.place().opened() as make_env:
            config = options.train
            executed = config.grouping == "branch" and config.branch.continuation != "policy"
            scorer = BranchScorer(make_env) if executed else None
            rules = Rules(branch=options.train.branch, scales=recorded_scales(run), scorer=scorer, encoder=encoder)
            for iteration in run.iterations() if self.iteration is None else [self.iteration]:
                episodes = list(run.read_episodes(iteration))
                sampled = sampled_in(episodes, run.read_groups(iteration)) if episodes else []
                for episode, own in zip(episodes, sampled, strict=True):
                    if COLLECTED in episode.facts and not episode.trajectories:
                        continue  # what other seats' turns paid after the last collected one
                    if self.limit and done == self.limit:
                        return
                    origin = origin_of(episode)
                    if isinstance(origin, str):
                        yield episode, origin
                        continue
                    env = make_env()
                    try:
                        yield episode, play_again(env, episode, origin, own, rules)
                    finally:
                        env.close()
                    done += 1


def origins(env: Env) -> Callable[[RecordedEpisode], Origin | str]:
    """Where a recorded episode of `env` began, or why that cannot be said."""
    from onthejob.rollout.origin import Origin, read_origin

    find = env.task_finder()

    def origin_of(episode: RecordedEpisode) -> Origin | str:
        if episode.facts.get("error") is not None:
            return "they failed when they were recorded"
        origin = read_origin(episode.facts, f"episode {episode.name!r} of iteration {episode.iteration}")
        if origin is not None:
            return origin
        task = find(str(episode.facts.get("task")))
        return "the record does not say where they began" if task is None else Origin(task=task)

    return origin_of


def _encoder(options: Train, terminal: Terminal) -> Encoder | None:
    """What turned the run's prompts into tokens, when it is on this machine."""
    from onthejob.api.tokens import tokenizer_file

    file = tokenizer_file(options.model.name)
    if file is None:
        terminal.warn(f"prompts are not compared: the tokenizer of {options.model.name!r} is not on this machine")
        return None
    from transformers import AutoTokenizer

    from onthejob.models.chat import ChatEncoder
    from onthejob.models.template import read_arguments

    arguments = read_arguments(options.model.template_arguments)
    return ChatEncoder(AutoTokenizer.from_pretrained(file.parent, local_files_only=True), arguments=arguments)


def _hash(hashes: Iterable[str]) -> str:
    """Of all episodes; one that differs adds nothing."""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _game(path: Path, terminal: Terminal) -> int:
    """Play a game again, then print hash and figures; 1 when the hash is another one."""
    from onthejob.office import make_office
    from onthejob.rollout.game_file import Replay, execute

    replay = Replay.read(path)
    if replay.task.env != "office":
        raise RecordError(f"{path} is a game of {replay.task.env!r}, and only games of the office can be replayed.")
    env = make_office()()
    found = execute(env, replay.task, replay.replies)
    same = found == replay.hash
    metrics = env.state()["metrics"]
    data = {"task": replay.task.id, "replies": len(replay.replies), "hash": found, "matches": same, "metrics": metrics}
    verdict = "the same game" if same else f"another game: the file says {replay.hash}"
    terminal.result(
        data,
        f"{replay.task.id}, {len(replay.replies)} replies: {verdict}",
        f"hash {found}",
        table(("metric", "value"), list(metrics.items())),
    )
    return 0 if same else 1
