"""A task with a tool."""

from collections.abc import Iterable

import verifiers.v1 as vf


class Clock(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "clock"

    @vf.tool
    async def now(self) -> str:
        """The time."""
        return "noon"


class ToolTask(vf.Task):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Clock(vf.ToolsetConfig())]


class Tools(vf.Taskset[ToolTask]):
    def load(self) -> Iterable[ToolTask]:
        yield ToolTask(vf.TaskData(prompt="What time is it?"), self.config.task)


__all__ = ["Tools"]
