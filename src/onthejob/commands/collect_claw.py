"""`onthejob collect --env claw`: gold commands in sandboxes, one whole conversation per line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from onthejob.commands.collect_demonstrations import Collect
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.terminal import Terminal, table
from onthejob.envs.claw.demonstrations import Demonstration, DemonstrationConfig
from onthejob.envs.claw.env import ACTOR
from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.texts import encodable_in
from onthejob.types import Split

PLAYERS = ("count", "passed", "temperature", "max_new_tokens", "seed", "model", "hosted")
"""Options that say how a player plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectClaw(Collect):
    """Work on training tasks in sandboxes and write one whole conversation per line, for `sft`.

    Without --policy their gold commands are played, at most 400 of them; --gold says how many end with TASK_COMPLETE and how
    many are near misses. With --policy a player works on --count of them, and --passed writes what it solved.
    """

    policy: str = ""
    """Player instead of the gold commands: `base`, a run (`RUN:best`), a folder of adapters, or a hosted model (`openai:URL`,
    `anthropic:MODEL`, `bedrock:MODEL`)."""
    gold: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    """How many demonstrations of which kind."""

    def collect(self, terminal: Terminal, place: NamedEnv) -> int:
        from onthejob.envs.claw.demonstrations import demonstrations as play_gold

        if self.policy:
            if self.gold != DemonstrationConfig():
                raise ConfigError("--gold says which gold commands are played, and --policy plays none. Leave one of them out.")
            # Not `super()`: a dataclass with slots is a class made anew, which it would not find.
            return Collect.collect(self, terminal, place)
        usual = CollectClaw()
        if changed := [name for name in PLAYERS if getattr(self, name) != getattr(usual, name)]:
            names = ", ".join("--" + name.replace("_", "-") for name in changed)
            raise ConfigError(f"{names} without --policy: gold commands are played, of which --gold.count says how many.")

        place.check()
        tasks = place.tasks(Split.TRAIN)
        terminal.progress(f"playing {self.gold.count} demonstrations in sandboxes")
        with place.opened() as make_env:
            made = play_gold(tasks, make_env, self.gold, max_turns=place.env.max_turns, workers=place.workers)
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
