"""`onthejob collect` in the office: decisions of a stochastic teacher, one per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onthejob.commands.collect_demonstrations import CollectOptions
from onthejob.commands.named_env import NamedEnv, refuse_unused
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, account_rows
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Terminal, table
from onthejob.errors import ConfigError
from onthejob.office import Office, make_office
from onthejob.texts import encodable_in
from onthejob.types import Policy, Sampling, Split, Task

if TYPE_CHECKING:
    from onthejob.envs.office.actions import Action
    from onthejob.models.hosted import HostedUsage

UNUSED = (
    "partner",
    "crisis_bonus",
    "curriculum",
    "retries",
    "reader",
    "reflect",
)
"""Options of the office that demonstrations do not depend on."""
EXPLAINED = "expert-explained"
"""The player that writes reasoning, which only the full prompt asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOffice(CollectOptions):
    """Let a scripted player work and write what every role saw and replied: one JSONL file per role, which `sft` imitates.

    With --random-share the player is a stochastic teacher: some turns are a random legal action instead, so that a model that
    imitates it still varies. A random action that was punished is kept and marked `negative`; `sft` does not imitate it. With
    --alternatives every decision is written several times, weighted about as the teacher chooses: the player's reply and so many
    random legal ones; what was executed is among them or comes on top, with an alternative's weight, and keeps its mark. They
    share one prompt, so imitating them costs little more than imitating one, and the model sees which replies are possible.

    `--env.profile full --policy expert-explained` writes long prompts and replies with reasoning: the expert's decisions, each
    with a sentence on the rule that fired, and messages about them. Random replies have no reasoning: set --random-share 0, or
    `sft --marks expert`.
    """

    policy: str = "expert"
    """A scripted player (see `play`), or a hosted model (`openai:URL`, `anthropic:MODEL`, `bedrock:MODEL`), whose replies are
    written in canonical form."""
    random_share: float = 0.3
    """Share of turns that are a random legal action, in [0, 1]."""
    alternatives: int = 0
    """Random legal replies written in addition to the player's for every decision; 0 writes only what was executed."""
    variants: bool = False
    """With --alternatives, also write the player's action with its other legal parameters (a proposal with the other contract
    tiers), weighted as its own: what imitates them has no preference, and GRPO finds out which one pays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Bounds of the hosted model, when one plays."""

    def collect(self, terminal: Terminal, place: NamedEnv) -> int:
        counts, accounts = self.write(terminal)
        rows = [(role, *marks.values(), str(self.out / f"{role}.jsonl")) for role, marks in counts.items()]
        tables = [table(("role", "expert", "random", "negative", "file"), rows)]
        if accounts:
            tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        terminal.result({"out": self.out, "counts": counts, "hosted": accounts}, *tables)
        return 0

    def write(self, terminal: Terminal) -> tuple[dict[str, dict[str, int]], Mapping[str, HostedUsage]]:
        """The office's demonstrations without a table: role -> mark -> how many were written, and what hosted models cost."""
        from onthejob.envs.office.env import SEATS
        from onthejob.models.catalogue import is_hosted
        from onthejob.office_players import scripted, training_team

        place = self.place
        refuse_unused(place.env, Office.starting_options("Collect"), UNUSED, "collect")
        place.check()
        office = place.env
        assert isinstance(office, Office)
        if self.policy == EXPLAINED and office.profile != "full":
            raise ConfigError(
                f"--policy {EXPLAINED} writes reasoning, for which the compact prompt does not ask. Set --env.profile full, or "
                "take --policy expert, which decides the same."
            )
        if office.prompt_budget is not None and not office.tokenizer:
            raise ConfigError(
                "--env.prompt-budget needs --env.tokenizer here, the model that will imitate, e.g. --env.tokenizer smollm2-135m."
            )
        if not 0.0 <= self.random_share <= 1.0:
            raise ConfigError(f"random_share must be in [0, 1], got {self.random_share}. Set --random-share 0.3.")
        if self.alternatives < 0 or (self.alternatives and self.random_share in (0.0, 1.0)):
            got = f"{self.alternatives} and {self.random_share}"
            raise ConfigError(f"alternatives must be >= 0 and need a random share between 0 and 1, got {got}.")
        if self.variants and not self.alternatives:
            raise ConfigError("--variants need --alternatives of 1 or more, got 0. Set --alternatives 1.")
        if not is_hosted(self.policy):
            training_team(self.policy)
        seats = HostedSeats(self.hosted, fit=Fit(env=office, reply=Office.max_new_tokens))
        player = seats.policy(self.policy) if is_hosted(self.policy) else scripted(self.policy)
        tasks = place.tasks(Split.TRAIN)
        self.out.mkdir(parents=True, exist_ok=True)
        counts: dict[str, dict[str, int]] = {role: {"expert": 0, "random": 0, "negative": 0} for role in SEATS}
        # Not `published_file`: what a hosted player was paid for stays when this is interrupted.
        partial = {role: self.out / f".{role}.jsonl.partial" for role in counts}
        files = {role: path.open("w", encoding="utf-8") for role, path in partial.items()}
        try:
            for number, task in enumerate(tasks, start=1):
                for row in demonstrations(
                    task, player, self.random_share, self.alternatives, variants=self.variants, office=office
                ):
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


def demonstrations(
    task: Task,
    policy: str | Policy,
    random_share: float,
    alternatives: int = 0,
    *,
    variants: bool = False,
    office: Office | None = None,
) -> Iterator[dict[str, Any]]:
    """Every decision of one episode: what the role saw, what was replied, and what that was worth to it.

    With `alternatives`, also what the teacher might have replied, each with its share of the teacher's probability as `weight`. A
    random draw that was executed and is not among them is written too, so the weights of such a decision exceed 1; one
    that fell on the player's own reply is marked by how it was drawn, not as the player's. `office` says which prompts are shown.
    """
    from onthejob.envs.office.env import INVALID_KEY
    from onthejob.keys import keyed_seed, keyed_uniform
    from onthejob.office_players import scripted
    from onthejob.rollout.reading import messages_for
    from onthejob.types import Context

    player, random = scripted(policy) if isinstance(policy, str) else policy, scripted("random")
    env = make_office()() if office is None else make_office(office.config, model=office.tokenizer)()
    observation, turn = env.reset(task), 0
    while observation is not None:
        drawn = keyed_uniform(task.seed, "collect", task.id, turn) < random_share
        prompt = tuple(messages_for(player, observation)) if player.reads == "messages" else ()
        context = Context(observation=observation, messages=prompt, seed=keyed_seed(task.seed, "reply", task.id, turn))
        (completion,) = (random if drawn else player).act([context], Sampling())
        if prompt and not drawn and (key := env.canonical(completion.text)) != INVALID_KEY:
            text = key if env.config.profile == "compact" else with_reasoning(key, completion.text, observation.actor)
            completion = replace(completion, text=text)
        messages = [message._asdict() for message in observation.messages]
        role, weights = observation.actor, {}
        if alternatives:
            (best,) = player.act([context], Sampling())
            weights[best.text] = 1.0 - random_share
            if variants:
                weights |= dict.fromkeys(other_parameters(best.text, role, env.legal_actions()), 1.0 - random_share)
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


def other_parameters(reply: str, actor: str, legal: Sequence[Action]) -> list[str]:
    """`reply` with each of the other parameters that its action may have; its message stays."""
    from onthejob.envs.office.actions import Action, parse, render
    from onthejob.envs.office.roles import Role

    own = parse(reply, Role(actor))
    if not isinstance(own, Action):
        return []
    same = [action for action in legal if (action.action_type, action.target) == (own.action_type, own.target)]
    return [render(replace(own, parameters=action.parameters)) for action in same if action.parameters != own.parameters]


def with_reasoning(key: str, reply: str, role: str) -> str:
    """The canonical reply `key` with the reasoning of the one that was written; the full prompt asks for it."""
    from onthejob.envs.office.actions import Action, parse, render
    from onthejob.envs.office.roles import Role

    written, canonical = parse(reply, Role(role)), parse(key, Role(role))
    assert isinstance(written, Action)
    assert isinstance(canonical, Action)
    return render(replace(canonical, reasoning=written.reasoning))
