"""The process in which a package of `verifiers` loads its tasks, plays episodes and scores them; `verifiers_process` starts it.

It runs in the interpreter in which verifiers is installed and imports nothing of onthejob. The environment's own `run` is played.
Its model is an address on this machine: every call of the model is handed to the other end as a list of messages, and the reply
that comes back is the completion. A plain conversation needs no program of its own, so the harness that makes the calls is the
class `Chat` below. One line of JSON is read per request, one is written per answer, and several episodes may be under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import runpy
import secrets
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

# The folder is not on the path: it holds modules of the names of packages.
LOADING: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("verifiers_loading.py")))
CHAT, MODEL, Refused = LOADING["CHAT"], LOADING["MODEL"], LOADING["Refused"]
KEY = "ONTHEJOB_VERIFIERS_KEY"
"""Variable with the key of the model's address, made anew in every process."""
WAIT_S = 3.0
"""Time to take down what runs when the other end is gone."""
MOST_BODY = 64 << 20


class Episode:
    """One that is under way."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[str]]] = asyncio.Queue()
        self.waiting: asyncio.Future[str] | None = None
        self.run: asyncio.Task[Any] | None = None

    async def following(self) -> dict[str, Any]:
        """The next call of the model, or the end."""
        assert self.run is not None
        called = asyncio.ensure_future(self.calls.get())
        await asyncio.wait({called, self.run}, return_when=asyncio.FIRST_COMPLETED)
        if called.done():
            body, self.waiting = called.result()
            return {"messages": body["messages"], "tools": bool(body.get("tools"))}
        called.cancel()
        return {"over": outcome(self.run.result())}


def outcome(episode: Any) -> dict[str, Any]:
    """Reward, metrics and the reason of the end.

    Raises:
        RuntimeError: the episode failed, or has no score.
    """
    traces = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in traces for error in trace.errors)]
        raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors[:2]) or "the episode failed")
    figures: dict[str, list[float]] = {}
    for trace in traces:
        if not trace.rewards:
            raise RuntimeError("the task gives no reward: it has no method with @vf.reward, and its environment records none")
        if missing := [name for name, reward in trace.rewards.items() if reward is None]:
            raise RuntimeError(f"the reward {missing[0]} has no value (the run ended by {trace.stop_condition})")
        named = {name: reward.score for name, reward in trace.rewards.items()}
        named |= {name: value for name, value in trace.metrics.items() if value is not None}
        for name, value in named.items():
            figures.setdefault(name, []).append(float(value))
    return {
        "reward": sum(trace.reward for trace in traces) / len(traces),
        "metrics": {name: sum(values) / len(values) for name, values in figures.items()},
        "runs": len(traces),
        "stop": traces[-1].stop_condition or "",
    }


class Source:
    """An environment with its tasks."""

    def __init__(self, env: Any, tasks: list[Any]) -> None:
        self.env, self.tasks = env, tasks
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._serving = asyncio.create_task(self._serve())

    async def ready(self) -> None:
        await asyncio.wait({self._ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()

    async def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(Exception):
            await self._serving

    async def _serve(self) -> None:
        async with self.env.serving():
            self._ready.set_result(None)
            await self._closing.wait()


class Child:
    """What answers requests."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.episodes: dict[int, Episode] = {}
        self.by_trace: dict[str, Episode] = {}
        self.url = ""

    async def describe(self, source: dict[str, Any]) -> dict[str, Any]:
        """The tasks of an environment, and what decides how episodes go."""
        found = await self.source(source)
        return {
            "tasks": [{"key": task.key, "content": LOADING["content"](task)} for task in found.tasks],
            "about": LOADING["about"](source["taskset"], source["env"]),
        }

    async def begin(self, source: dict[str, Any], number: int, index: int, key: str) -> dict[str, Any]:
        """Begin an episode."""
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

        found = await self.source(source)
        if index >= len(found.tasks) or found.tasks[index].key != key:
            raise RuntimeError(f"task {index} is not what it was: the taskset loads other tasks each time. Give it a fixed seed")
        made = self.episodes[number] = Episode()
        context = vf.ModelContext(model=MODEL, client=vf.EvalClientConfig(base_url=self.url, api_key_var=KEY))
        traces: list[str] = []

        def minted(trace: Any) -> None:
            traces.append(trace.id)
            self.by_trace[trace.id] = made

        made.run = asyncio.create_task(found.env.run_episode(found.tasks[index], context, on_trace=minted))
        made.run.add_done_callback(lambda _: [self.by_trace.pop(one, None) for one in traces])
        return await self.following(number)

    async def answer(self, number: int, reply: str) -> dict[str, Any]:
        """Give the reply to the pending call of an episode."""
        episode = self.episodes[number]
        assert episode.waiting is not None
        episode.waiting.set_result(reply)
        episode.waiting = None
        return await self.following(number)

    async def drop(self, number: int) -> None:
        """End an episode that is not played to its end."""
        episode = self.episodes.pop(number, None)
        if episode is not None and episode.run is not None and not episode.run.done():
            episode.run.cancel()
            await asyncio.wait({episode.run}, timeout=WAIT_S)

    async def following(self, number: int) -> dict[str, Any]:
        episode = self.episodes[number]
        try:
            found = await episode.following()
        except BaseException:
            self.episodes.pop(number, None)
            raise
        if "over" in found:
            self.episodes.pop(number, None)
        return found

    async def source(self, given: dict[str, Any]) -> Source:
        """The environment that is described, loaded once."""
        name = json.dumps(given, sort_keys=True)
        if name not in self.sources:
            self.sources[name] = Source(*LOADING["loaded"](**given))
        await self.sources[name].ready()
        return self.sources[name]

    async def serve_model(self) -> None:
        """Listen for calls of the model."""
        from aiohttp import web  # pyright: ignore[reportMissingImports]

        async def completion(request: web.Request) -> web.Response:
            if not secrets.compare_digest(request.headers.get("Authorization", ""), f"Bearer {os.environ[KEY]}"):
                return web.json_response({"error": {"message": "wrong key"}}, status=401)
            body = await request.json()
            episode = self.by_trace.get(request.headers.get("X-Session-ID", ""))
            if episode is None or body.get("stream") or body.get("n", 1) != 1:
                return web.json_response({"error": {"message": "only one plain completion of an open episode"}}, status=400)
            reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            await episode.calls.put((body, reply))
            message = {"role": "assistant", "content": await reply}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            made = {"id": secrets.token_hex(8), "object": "chat.completion", "created": int(time.time()), "model": MODEL}
            return web.json_response({**made, "choices": [choice]})

        app = web.Application(client_max_size=MOST_BODY)
        app.router.add_post("/v1/chat/completions", completion)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        """Take down what runs."""
        for number in list(self.episodes):
            await self.drop(number)
        for source in self.sources.values():
            await source.close()


def chat_module() -> types.ModuleType:
    """A harness that makes one call of the model per turn of the user, within this process."""
    import httpx  # pyright: ignore[reportMissingImports]
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]

    class Chat(vf.Harness[vf.HarnessConfig]):
        """The conversation as it is, with one reply per turn."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any, **_: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            talk = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
            if system is not None:
                talk.insert(0, vf.SystemMessage(content=system))
            body = {"model": ctx.model, "messages": [message_to_wire(message) for message in talk]}
            async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
                found = await client.post(
                    f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
                )
            failed = found.status_code != 200
            return vf.ProgramResult(exit_code=int(failed), stdout="", stderr=found.text if failed else "")

    made = types.ModuleType(CHAT)
    Chat.__module__ = CHAT
    made.__dict__.update(Chat=Chat, __all__=["Chat"])
    return made


async def answer_all(requests: Any, answers: Any) -> None:
    """Answer requests until the other end is closed."""
    child, loop = Child(), asyncio.get_running_loop()
    await child.serve_model()
    calls = {"describe": child.describe, "begin": child.begin, "answer": child.answer, "drop": child.drop}
    over = asyncio.Event()
    running: set[asyncio.Task[None]] = set()

    async def answered(line: str) -> None:
        request = json.loads(line)
        try:
            row: dict[str, Any] = {"value": await calls[request["call"]](**request["with"])}
        except Refused as error:
            row = {"refused": str(error)}
        except Exception as error:
            row = {"failed": LOADING["said"](error)}
        answers.write(json.dumps({"id": request["id"], **row}) + "\n")
        answers.flush()

    def take(line: str) -> None:
        task = loop.create_task(answered(line))
        running.add(task)
        task.add_done_callback(running.discard)

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError):
            for line in requests:
                loop.call_soon_threadsafe(take, line)
            loop.call_soon_threadsafe(over.set)
        # Whatever still computes or hangs then.
        time.sleep(2 * WAIT_S)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.close(), WAIT_S)


def main() -> None:
    """Set the protocol's pipes aside, and answer."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open("rb") as nowhere:
        os.dup2(nowhere.fileno(), 0)
    # What the package prints goes where its errors go.
    os.dup2(2, 1)
    os.environ[KEY] = secrets.token_urlsafe(24)
    sys.modules[CHAT] = chat_module()
    asyncio.run(answer_all(requests, answers))


if __name__ == "__main__":
    main()
