"""Tasks that are or do what they should not."""

import os
import sys
from collections.abc import Iterable

import verifiers.v1 as vf


class OddData(vf.TaskData):
    case: str


class OddTask(vf.Task[OddData]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.case == "setup":
            raise OSError("no room")

    @vf.reward
    async def paid(self, trace: vf.Trace) -> dict[str, float]:
        if self.data.case == "scoring":
            return {"ratio": 1 / 0}
        if self.data.case == "leaves":
            print("goodbye", file=sys.stderr, flush=True)
            os._exit(7)
        while self.data.case == "endless":
            pass
        return {} if self.data.case == "unpaid" else {"paid": 1.0}


class OddConfig(vf.TasksetConfig):
    case: str = "fine"


class Odd(vf.Taskset[OddTask, OddConfig]):
    def load(self) -> Iterable[OddTask]:
        case, more = self.config.case, {"prompt": "Say yes."}
        if case == "raises":
            raise ValueError("no data today")
        if case == "hub":
            raise ConnectionError("the host cannot be reached")
        if case == "container":
            more |= {"image": "python:3.11"}
        if case == "image":
            part = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:image/png;base64,AAAA"))
            more |= {"prompt": [vf.UserMessage(content=[part])]}
        if case == "assistant":
            more |= {"prompt": [vf.UserMessage(content="Say yes."), vf.AssistantMessage(content="No.")]}
        if case == "prompt":
            more |= {"prompt": None}
        for _ in range(0 if case == "empty" else 3):
            yield OddTask(OddData(case=case, **more), self.config.task)


__all__ = ["Odd"]
