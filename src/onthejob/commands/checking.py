"""The check of an environment of your own: what `onthejob env check` measures, and the quick part before training.

Promises (`onthejob.testing.env_check`) end the check at the first one that is broken. Everything else is measured and judged:
whether good play pays, whether groups of replies to one task differ, how long prompts are, how fast steps are.
"""

from __future__ import annotations

import io
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field

from onthejob.commands.found import Case, CheckReport, Groups, Player
from onthejob.commands.named_env import NamedEnv
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.envs.running import partner_of
from onthejob.errors import ConfigError, ContractError
from onthejob.processes import children
from onthejob.testing.env_check import (
    Played,
    alike,
    check_promises,
    forks_stated,
    is_users,
    malformed_reply,
    play_env,
    players_of,
    random_reply,
    sampled,
    usual_reply,
    why_not_forked,
)
from onthejob.types import Split, StopReason, Task

MODEL = "smollm2-135m"
WINDOW = 8192
"""Tokens of the embedded model's context."""
CHARACTERS_PER_TOKEN = 4
SLOW_S = 1.0
"""Seconds of a step above which it is worth a warning."""
LEISURELY_S = 0.05
"""Mean seconds of a step above which the check plays less."""
QUICK_S, QUICK_TURNS = 2.0, 50
EMPTY, RANDOM, MALFORMED = "empty replies", "random", "malformed replies"


def quick_check(place: NamedEnv) -> str:
    """Play some episodes for about two seconds, before a model is loaded; the environment is open.

    Returns:
        A warning, or nothing.

    Raises:
        ContractError: one sentence on what it does wrong, and in which method.
        OnTheJobError: what it raised for a reply of the check, which is named.
    """
    end, reply = time.monotonic() + QUICK_S, usual_reply(place.env)
    tasks = sampled(place.tasks(Split.TRAIN), 4)
    with _unreported():
        for task in tasks:
            for player in (reply, malformed_reply):
                play_env(place.env, task, player, most_turns=QUICK_TURNS)
                if time.monotonic() > end:
                    return ""
        return _same(place.env) if alike(place.env, tasks, most_turns=QUICK_TURNS) else ""


@contextmanager
def _unreported() -> Iterator[None]:
    """Replies of the check that an environment of the package notes as odd are no news."""
    log = logging.getLogger("onthejob.interop")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _same(env: Env) -> str:
    remedy = (
        "Draw what differs from the task: task.draw(name), self.rng(name)"
        if is_users(env)
        else "Read comparisons as repeats of one task, or choose settings in which seeds matter"
    )
    return (
        f"{type(env).__name__}: tasks of different seeds begin alike and pay alike for equal replies, so held-out tasks are "
        f"those of training, and intervals of comparisons are over copies of one task. {remedy}."
    )


def check(place: NamedEnv, *, tasks: int, size: int, limit_s: float, progress: Callable[[str], None]) -> CheckReport:
    """Play an environment in many ways.

    Args:
        place: the environment.
        tasks: how many training tasks are played.
        size: random episodes of each, one group.
        limit_s: seconds after which no further episode begins.
        progress: is called with what is being done.
    """
    report, before = CheckReport(), children()
    try:
        # What the environment prints must not stand among the results; where it does is noted.
        with redirect_stdout(io.StringIO()), _unreported():
            found = _tasks(place, report)
            place.env.open()
            try:
                _Check(place.env, sampled(found, tasks), size, time.monotonic() + limit_s, progress, report).run()
            finally:
                place.env.close()
    except (ContractError, ConfigError) as error:
        report.errors.append(str(error))
    if left := {pid: name for pid, name in children().items() if pid not in before}:
        named = ", ".join(f"{name} ({pid})" for pid, name in sorted(left.items()))
        report.warn(f"{place_name(place)} leaves child processes behind: {named}. End and await them in close().")
    return report


def place_name(place: NamedEnv) -> str:
    """The name of the environment's class."""
    return type(place.env).__name__


def _tasks(place: NamedEnv, report: CheckReport) -> list[Task]:
    """The training tasks; what is odd about the splits is noted."""
    name, ids, contents = place_name(place), {}, {}
    place.check()
    for split in place.env.task_splits():
        try:
            found = place.tasks(split)
        except ConfigError as error:
            if split is Split.TRAIN:
                raise
            report.warn(f"{error} Comparisons need it.")
            continue
        if [task.row() for task in found] != [task.row() for task in place.tasks(split)]:
            raise ContractError(f"{name}.tasks({split!s}) is not the same twice. Return the same tasks in every call.")
        for what, seen, keys in (
            ("ids", ids, [task.id for task in found]),
            ("seeds and payloads", contents, [f"{task.seed} {sorted(task.payload.items())!r}" for task in found]),
        ):
            shared = [key for key in keys if seen.setdefault(key, split) is not split]
            if shared:
                report.warn(
                    f"{name}.tasks: {len(shared)} tasks of {split!s} have {what} that tasks of {seen[shared[0]]!s} have too, "
                    f"e.g. {shared[0]:.60}. Give every split its own, e.g. self.seeded(split)."
                )
        report.facts[f"tasks of {split!s}"] = len(found)
    return place.tasks(Split.TRAIN)


@dataclass(slots=True)
class _Check:
    """One check; the environment is open."""

    env: Env
    tasks: list[Task]
    size: int
    end: float
    progress: Callable[[str], None]
    report: CheckReport
    played: list[Played] = field(default_factory=list)
    refused: str | None = None
    """Why episodes cannot be forked."""

    @property
    def name(self) -> str:
        return type(self.env).__name__

    def run(self) -> None:
        players = players_of(self.env)
        partner = partner_of(self.env) if self.env.partner or players else random_reply
        self.progress("measuring prompts")
        self._prompts()
        self.progress(f"playing {len(self.tasks)} tasks, {self.size} random episodes of each")
        self._groups()
        legal = self.played[0].legal
        for player, reply in {**players, EMPTY: lambda seen, seed: "", MALFORMED: malformed_reply}.items():
            self.progress(f"playing {player}")
            for role in self.env.roles:
                others = dict.fromkeys(self.env.roles, partner)
                self._row(player, role, list(self._episodes({**others, role: reply})))
        if not legal and not players:
            remedy = (
                "Pass legal=[...] to self.ask, or write players()"
                if is_users(self.env)
                else "Demonstrations come from a hosted model (collect --policy) or from a file of yours for sft"
            )
            self.report.warn(
                f"{self.name} lists no legal replies and has no players, so nothing plays it well and roles without a model "
                f"have no partner. {remedy}."
            )
        if alike(self.env, self.tasks[:4]):
            self.report.warn(_same(self.env))
        best = self._pays([RANDOM, *players], stated=bool(players))
        self._malformed(best)
        self._notes()
        self._promises()
        self._groupings()

    def _prompts(self) -> None:
        size, unit = sizer()
        found = [play_env(self.env, task, usual_reply(self.env), size=size) for task in self.tasks[:3]]
        self.played += found
        lengths = [length for one in found for _, length, _ in one.prompts]
        context = max(context for one in found for _, _, context in one.prompts)
        self.report.facts |= {
            f"first prompt, {unit}": found[0].prompts[0][1],
            f"mean prompt, {unit}": statistics.fmean(lengths),
            f"longest prompt, {unit}": max(lengths),
            f"longest context, {unit}": context,
        }
        if context > (window := WINDOW * (1 if unit == "tokens" else CHARACTERS_PER_TOKEN)):
            role, longest, _ = max((prompt for one in found for prompt in one.prompts), key=lambda prompt: prompt[1])
            self.report.warn(
                f"{self.name} asks {role} with a prompt of {longest:,} {unit} in a context of {context:,}, and {MODEL} reads "
                f"about {window:,}. Shorten the texts, or begin a new context: self.ask(..., fresh=True)."
            )

    def _groups(self) -> None:
        groups: list[list[Played]] = []
        for task in self.tasks:
            group = []
            for seed in range(self.size):
                if groups and time.monotonic() > self.end:
                    break
                group.append(play_env(self.env, task, random_reply, seed=seed))
            if len(group) > 1:
                groups.append(group)
        everyone = [one for group in groups for one in group]
        self.played += everyone
        if len(groups) < len(self.tasks):
            self.report.warn(f"{self.name} is slow: only {len(groups)} of {len(self.tasks)} tasks were played. Raise --limit-s.")
        for role in self.env.roles:
            self._row(RANDOM, role, everyone)
            returns = [[one.rewards[role] for one in group] for group in groups]
            spreads = [statistics.stdev(group) for group in returns]
            differing = sum(max(group) > min(group) for group in returns)
            spread = statistics.fmean(spreads)
            self.report.groups.append(Groups(role=role, groups=len(groups), size=self.size, differing=differing, spread=spread))
            if not differing:
                remedy = (
                    "Pay for partial success, or make replies matter"
                    if is_users(self.env)
                    else "Random texts may not show what it pays for; a model must earn something at times, so begin with "
                    "demonstrations (sft, train --init) where it does not"
                )
                self.report.warn(
                    f"{self.name} pays {role} the same in all {self.size} random episodes of every task, so groups teach it "
                    f"nothing. {remedy}."
                )

    def _episodes(self, reply: Mapping[str, Reply]) -> Iterator[Played]:
        for number, task in enumerate(self.tasks):
            if number and time.monotonic() > self.end:
                return
            played = play_env(self.env, task, reply, seed=self.size + number)
            self.played.append(played)
            yield played

    def _row(self, player: str, role: str, episodes: Sequence[Played]) -> None:
        rewards, turns = [one.rewards[role] for one in episodes], sum(one.turns for one in episodes)
        self.report.players.append(
            Player(
                player=player,
                role=role,
                episodes=len(episodes),
                mean=statistics.fmean(rewards),
                low=min(rewards),
                high=max(rewards),
                turns=turns / len(episodes),
                invalid=sum(one.invalid for one in episodes) / turns,
            )
        )

    def _mean(self, player: str, role: str) -> float:
        return next(row.mean for row in self.report.players if (row.player, row.role) == (player, role))

    def _pays(self, usable: Sequence[str], *, stated: bool) -> dict[str, tuple[str, float]]:
        """Role -> its best player and what that earns, which should be more than empty replies do."""
        best: dict[str, tuple[str, float]] = {}
        asked = {role for one in self.played for role, _, _ in one.prompts}
        for role in (role for role in self.env.roles if role in asked):
            player = max(usable, key=lambda one, role=role: self._mean(one, role))
            mean, zero = self._mean(player, role), self._mean(EMPTY, role)
            best[role] = (player, mean)
            ok = True if mean > zero else False if stated else None
            found = f"{player} {mean:.4g}, {EMPTY} {zero:.4g}"
            self.report.cases.append(Case(case=f"{role}: the best play earns more than {EMPTY}", ok=ok, found=found))
            if ok:
                continue
            said = f"{self.name} pays {role} {zero:.4g} for {EMPTY} and {mean:.4g} for the best play ({player})"
            if ok is False:
                self.report.errors.append(f"{said}. Pay good play more.")
            elif is_users(self.env):
                self.report.warn(f"{said}. Pay good play more, or write players() with one that succeeds.")
        return best

    def _malformed(self, best: Mapping[str, tuple[str, float]]) -> None:
        """A malformed reply is not rewarded more than a good one."""
        for role, (player, mean) in best.items():
            bad = self._mean(MALFORMED, role)
            found = f"{MALFORMED} {bad:.4g}, {player} {mean:.4g}"
            ok = bad <= mean
            self.report.cases.append(Case(case=f"{role}: {MALFORMED} earn no more than the best play", ok=ok, found=found))
            if not ok:
                self.report.errors.append(
                    f"{self.name} pays {role} {bad:.4g} for {MALFORMED} and {mean:.4g} for the best play ({player}). "
                    "Return self.invalid(feedback, reward=...) with a lower reward."
                )

    def _notes(self) -> None:
        """What the episodes that were played let see."""
        report, name, everyone = self.report, self.name, self.played
        calls = [call for one in everyone for call in one.calls]
        for method in ("reset", "step"):
            mine = [call for call in calls if call.method == method]
            if printed := next((call.printed for call in mine if call.printed), ""):
                report.warn(
                    f"{name}.{method} prints to stdout, e.g. {printed.strip()[:60]!r}, where commands write their results. "
                    "Remove it, or use logging."
                )
            if (slow := max((call.seconds for call in mine), default=0.0)) > SLOW_S:
                report.warn(
                    f"{name}.{method} takes up to {slow:.1f} s. Make it faster, or set threads = 8 on the class if it waits, or "
                    "processes = 4 if it computes."
                )
        if any(one.changed for one in everyone):
            report.warn(
                f"{name} changes the payload of its task during an episode. Copy what changes, e.g. "
                "self.left = list(task.payload[...])."
            )
        if all(one.stop in (StopReason.MAX_TURNS, None) for one in everyone):
            report.warn(
                f"{name}.step never ended an episode: max_turns = {self.env.max_turns} did, in all {len(everyone)}. "
                "Return self.end(reward=...) where the task is over."
            )
        asked = {role for one in everyone for role, _, _ in one.prompts}
        if silent := [role for role in self.env.roles if role not in asked]:
            report.warn(f"{name} never asked {', '.join(silent)}. Ask each of roles, or leave it out of them.")
        steps = [call.seconds for call in calls if call.method == "step"]
        turns = [one.turns for one in everyone]
        report.facts |= {
            "turns of an episode, mean": statistics.fmean(turns),
            "turns of an episode, most": max(turns),
            "step, mean s": statistics.fmean(steps),
            "step, longest s": max(steps),
        }

    def _promises(self) -> None:
        self.progress("checking promises: equal episodes, broken replies, forks")
        self.refused = why_not_forked(self.env, self.tasks[0])
        slow = self.report.facts["step, mean s"] > LEISURELY_S
        done = check_promises(self.env, self.tasks[: 1 if slow else 3], branch_turns=0 if slow else 6)
        self.report.cases.append(
            Case(case="equal seeds give equal episodes", ok=True, found=f"{done.tasks} tasks, {done.steps} steps")
        )
        ok = True if done.forks else None
        found = f"{done.forks} forks, {done.branches} branches" if done.forks else self.refused or "no fork was compared"
        self.report.cases.append(Case(case="forks are exact", ok=ok, found=found))
        if slow and self.env.forks != "no":
            self.report.warn(f"{self.name}: forks were not compared, as its steps are slow.")

    def _groupings(self) -> None:
        facts, refused = self.report.facts, self.refused
        teaches = any(group.differing for group in self.report.groups)
        facts["grouping episodes"] = "yes" if teaches else "yes, and all random groups are equal"
        facts["grouping branch"] = "yes" if refused is None else f"no: {refused}"
        if refused is not None and is_users(self.env) and not forks_stated(type(self.env)):
            self.report.warn(refused)


def sizer() -> tuple[Callable[[str], int], str]:
    """How prompts are measured: in tokens of the embedded model where it is on this machine, else in characters."""
    from onthejob.commands.doctor import present
    from onthejob.files import cache_dir

    folder = present(MODEL, cache_dir())
    if folder is None or not (folder / "tokenizer.json").is_file():
        return len, "characters"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids), "tokens"
