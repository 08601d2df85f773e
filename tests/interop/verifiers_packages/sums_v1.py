"""Sums of two numbers; the answer counts most, and a short reply a little."""

from collections.abc import Iterable

import verifiers.v1 as vf

print("a package may print when it is imported")


class Sum(vf.TaskData):
    answer: int


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        print("and when it scores")
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= 4)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    most: int = 9
    size: int = 60


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterable[SumTask]:
        for number in range(self.config.size):
            first, second = number % self.config.most, number // self.config.most
            data = Sum(prompt=f"{first} + {second} =", system_prompt="Reply with digits.", answer=first + second)
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
