"""Two agents."""

from collections.abc import Iterable

import verifiers.v1 as vf


class DuelConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class Duel(vf.Env[DuelConfig]):
    async def run(self, task, agents):
        await agents.first.run(task)
        await agents.second.run(task)


class Duels(vf.Taskset):
    def load(self) -> Iterable[vf.Task]:
        yield vf.Task(vf.TaskData(prompt="Who wins?"), self.config.task)


__all__ = ["Duel", "Duels"]
