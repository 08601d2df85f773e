"""Find a number from 1 to 9; the environment answers each guess."""

from collections.abc import Iterable

import verifiers.v1 as vf


class Secret(vf.TaskData):
    number: int


class GuessTask(vf.Task[Secret]):
    @vf.metric
    async def turns_taken(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    tries: int = 4


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment, paid = await talk.turn(), 0.0
            for left in reversed(range(self.config.tries)):
                if segment.terminated:
                    break
                said = segment.last_reply
                if said == str(task.data.number):
                    paid = 1.0
                    break
                if not left:
                    break
                hint = (
                    "That is no number."
                    if not (said.isdecimal() and len(said) < 9)
                    else "Higher."
                    if int(said) < task.data.number
                    else "Lower."
                )
                segment = await talk.turn(hint)
        talk.trace.record_reward("found", paid, 1.0)


class Guesses(vf.Taskset[GuessTask]):
    INFINITE = True

    def load(self) -> Iterable[GuessTask]:
        number = 0
        while True:
            yield GuessTask(Secret(prompt="Guess my number: 1 to 9. Digits only.", number=1 + number * 7 % 9), self.config.task)
            number += 1


__all__ = ["GuessEnv", "Guesses"]
