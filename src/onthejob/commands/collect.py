"""`onthejob collect`: demonstrations, one JSONL file per role: decisions of the office, conversations of the claw.

Conversations in an environment of the user's own are written by `collect_own`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.claw import Claw
from onthejob.commands.office import Office
from onthejob.commands.outputs import check_folder
from onthejob.commands.own import Own
from onthejob.commands.seats import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, account_rows
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.commands.workplace import refuse_foreign, refuse_unused
from onthejob.commands.workplaces import OWN_PLACE, EnvOptions, is_own, starting
from onthejob.envs.claw.demonstrations import Demonstration, DemonstrationConfig
from onthejob.envs.claw.env import ACTOR
from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.texts import encodable_in
from onthejob.types import Policy, Split, Task

if TYPE_CHECKING:
    from onthejob.models.hosted import Account

OWN = {
    "office": ("policy", "random_share", "alternatives", "hosted"),
    "claw": ("gold",),
    OWN_PLACE: ("policy", "count", "hosted"),
}
"""Options that not every workplace has."""
UNUSED = (
    "partner",
    "crisis_bonus",
    "curriculum",
    "retries",
    "profile",
    "reader",
    "prompt_budget",
    "tokenizer",
    "reflect",
)
"""Options of the office that demonstrations, which have the usual prompts, do not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Let a scripted player work and write what every role saw and replied: one JSONL file per role, which `sft` imitates.

    Claw (--env claw): gold commands in sandboxes, one whole conversation per line, at most 400; --gold says how many of them end
    with TASK_COMPLETE and how many are near misses.

    Office: with --random-share the player is a stochastic teacher: some turns are a random legal action instead, so that a model
    that imitates it still varies. A random action that was punished is kept and marked `negative`; `sft` does not imitate
    it. With --alternatives every decision is written several times, weighted about as the teacher chooses: the player's reply
    and so many random legal ones; what was executed is among them or comes on top, with an alternative's weight, and keeps its
    mark. They share one prompt, so imitating them costs little more than imitating one, and the model sees which replies are
    possible.

    Your own environment (--env path/to/file.py): --count whole episodes of training tasks, in which --policy plays all roles. A
    line is one conversation of one role, as a model would have it in its context; a fresh request begins another one. A
    conversation with an unusable reply is marked `negative`.
    """

    env: str = "office"
    """Which workplace: `office`, `claw`, or an environment of your own, as for `train`. Its training tasks are played."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    policy: str = "expert"
    """Office and your own environment: a scripted player (see `play`), or a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), whose replies in the office are written in canonical form. Empty for your own environment's usual player."""
    count: int = 300
    """Your own environment: number of episodes, spread over the training tasks; with fewer tasks, each is played several
    times, which makes a difference for a player whose replies depend on its seed."""
    random_share: float = 0.3
    """Office: share of turns that are a random legal action, in [0, 1]."""
    alternatives: int = 0
    """Office: random legal replies written beside the player's for every decision; 0 writes only what was executed."""
    out: Path = Path("demonstrations")
    """Folder of the files."""
    gold: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    """Claw: how many demonstrations of which kind."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Bounds of the hosted model, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Collect:
        """The defaults in workplace `env`."""
        return cls(env=env, policy="") if is_own(env) else cls(env=env)

    def run(self, terminal: Terminal) -> int:
        """Play; the files appear when all are complete."""
        place = self._options
        refuse_foreign(self, OWN_PLACE if is_own(self.env) else self.env, OWN)
        check_folder(self.out, "--out")
        if isinstance(place, Office):
            return self._office(terminal)
        if isinstance(place, Claw):
            return self._claw(terminal, place)
        from onthejob.commands.collect_own import collect_own

        found = Own(ref=self.env, env=place)
        return collect_own(terminal, found, who=self.policy, count=self.count, out=self.out, hosted=self.hosted)

    @property
    def _options(self) -> Any:
        return starting(self.env, "Collect") if self.own is None else self.own

    def _claw(self, terminal: Terminal, place: Claw) -> int:
        from onthejob.envs.claw.demonstrations import demonstrations as play_gold

        place.check()
        tasks = place.tasks(Split.TRAIN)
        terminal.progress(f"playing {self.gold.count} demonstrations in sandboxes")
        with place.opened() as make_env:
            made = play_gold(tasks, make_env, self.gold, max_turns=place.max_turns, workers=place.threads)
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "agent.jsonl"
        with published_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(encodable_in(_conversation(shown)), ensure_ascii=False) + "\n" for shown in made)
        counts = {
            "demonstrations": len(made),
            "clean stops": sum(shown.stops for shown in made),
            "near misses": sum(shown.near_miss for shown in made),
            "passed": sum(shown.passed for shown in made),
            "replies": sum(message.role == "assistant" for shown in made for message in shown.messages),
        }
        terminal.result({"out": self.out, "counts": counts}, table((*counts, "file"), [(*counts.values(), str(path))]))
        return 0

    def _office(self, terminal: Terminal) -> int:
        counts, accounts = self.write(terminal)
        rows = [(role, *marks.values(), str(self.out / f"{role}.jsonl")) for role, marks in counts.items()]
        tables = [table(("role", "expert", "random", "negative", "file"), rows)]
        if accounts:
            tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        terminal.result({"out": self.out, "counts": counts, "hosted": accounts}, *tables)
        return 0

    def write(self, terminal: Terminal) -> tuple[dict[str, dict[str, int]], Mapping[str, Account]]:
        """The office's demonstrations without a table: role -> mark -> how many were written, and what hosted models cost.

        Raises:
            ConfigError: options that cannot work.
        """
        from onthejob.envs.office.env import SEATS
        from onthejob.models.catalogue import is_hosted
        from onthejob.players import scripted, training_team

        place = self._options
        refuse_unused(place, Office.starting("Collect"), UNUSED, "collect")
        place.check()
        if not 0.0 <= self.random_share <= 1.0:
            raise ConfigError(f"random_share must be in [0, 1], got {self.random_share}. Set --random-share 0.3.")
        if self.alternatives < 0 or (self.alternatives and self.random_share in (0.0, 1.0)):
            got = f"{self.alternatives} and {self.random_share}"
            raise ConfigError(f"alternatives must be >= 0 and need a random share between 0 and 1, got {got}.")
        if not is_hosted(self.policy):
            training_team(self.policy)
        seats = HostedSeats(self.hosted)
        player = seats.policy(self.policy) if is_hosted(self.policy) else scripted(self.policy)
        tasks = place.tasks(Split.TRAIN)
        self.out.mkdir(parents=True, exist_ok=True)
        counts: dict[str, dict[str, int]] = {role: {"expert": 0, "random": 0, "negative": 0} for role in SEATS}
        # Not `published_file`: what a hosted player was paid for stays when this is interrupted.
        partial = {role: self.out / f".{role}.jsonl.partial" for role in counts}
        files = {role: path.open("w", encoding="utf-8") for role, path in partial.items()}
        try:
            for number, task in enumerate(tasks, start=1):
                for row in demonstrations(task, player, self.random_share, self.alternatives):
                    counts[row["role"]][row["marked"]] += 1
                    files[row["role"]].write(json.dumps(encodable_in(row), ensure_ascii=False) + "\n")
                terminal.progress(f"{number}/{len(tasks)} {task.id}")
        finally:
            for file in files.values():
                file.close()
            accounts = seats.accounts
            seats.close()
        for role, path in partial.items():
            path.replace(self.out / f"{role}.jsonl")
        return counts, accounts


def _conversation(shown: Demonstration) -> dict[str, Any]:
    """One line of the file."""
    return {
        "role": ACTOR,
        "task": shown.task,
        "family": shown.family,
        "messages": [message._asdict() for message in shown.messages],
        "marked": "near-miss" if shown.near_miss else "expert",
        "stops": shown.stops,
        "rate": shown.rate,
    }


def demonstrations(task: Task, policy: str | Policy, random_share: float, alternatives: int = 0) -> Iterator[dict[str, Any]]:
    """Every decision of one episode: what the role saw, what was replied, and what that was worth to it.

    With `alternatives`, also what the teacher might have replied, each with its share of the teacher's probability as `weight`. A
    random draw that was executed and is not among them is written beside them, so the weights of such a decision exceed 1; one
    that fell on the player's own reply is marked by how it was drawn, not as the player's.
    """
    from onthejob.commands.office import make_office
    from onthejob.envs.office.env import INVALID_KEY
    from onthejob.keys import keyed_seed, keyed_uniform
    from onthejob.players import scripted
    from onthejob.types import Context, Sampling

    player, random = scripted(policy) if isinstance(policy, str) else policy, scripted("random")
    env = make_office()()
    observation, turn = env.reset(task), 0
    while observation is not None:
        drawn = keyed_uniform(task.seed, "collect", task.id, turn) < random_share
        prompt = tuple(observation.messages) if player.reads == "messages" else ()
        context = Context(observation=observation, messages=prompt, seed=keyed_seed(task.seed, "reply", task.id, turn))
        (completion,) = (random if drawn else player).act([context], Sampling())
        if prompt and not drawn and (key := env.canonical(completion.text)) != INVALID_KEY:
            completion = replace(completion, text=key)
        messages = [message._asdict() for message in observation.messages]
        role, weights = observation.actor, {}
        if alternatives:
            (best,) = player.act([context], Sampling())
            weights[best.text] = 1.0 - random_share
            for number in range(alternatives):
                draw = Context(observation=observation, seed=keyed_seed(task.seed, "alternative", task.id, turn, number))
                (other,) = random.act([draw], Sampling())
                weights[other.text] = weights.get(other.text, 0.0) + random_share / alternatives
        step = env.step(completion.text)
        reward = step.rewards.get(observation.actor, 0.0)
        marked = ("negative" if reward < 0 else "random") if drawn else "expert"
        common = {"role": role, "messages": messages, "task": task.id, "turn": turn}
        executed = {"reply": completion.text, "marked": marked if step.valid else "negative", "reward": reward}
        if not alternatives:
            yield {**common, **executed}
        else:
            best_text = next(iter(weights))
            for text, weight in weights.items():
                row = {"reply": text, "marked": "expert" if text == best_text else "random", "weight": weight}
                yield {**common, **row, **(executed | {"weight": weight} if text == completion.text else {})}
            if completion.text not in weights:
                yield {**common, **executed, "weight": random_share / alternatives}
        observation, turn = step.observation, turn + 1
