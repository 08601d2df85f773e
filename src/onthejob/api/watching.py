"""Routes of the company: found, play, look, branch, and the live feed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

import numpy as np
from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from onthejob import __version__
from onthejob.api.players import Players
from onthejob.api.schema import (
    BranchAsk,
    Branches,
    BranchView,
    Config,
    Frames,
    Legal,
    MemoryView,
    PlayerInfo,
    PromptView,
    Reconfigure,
    Reset,
    RoleName,
    ScenarioInfo,
    SeatName,
    Seats,
    SectionView,
    StepAsk,
    SuggestAsk,
    Suggestions,
    UndoAsk,
    WorldName,
)
from onthejob.api.tokens import Tokens
from onthejob.api.world import Seat, World
from onthejob.compat.workplace import office
from onthejob.envs.office import prompt, scenarios
from onthejob.envs.office.actions import Action
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.reward import PARTS
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.sections import Section, prune
from onthejob.errors import ConfigError, ContractError, RecordError
from onthejob.rollout.branch import group_worlds
from onthejob.rollout.replay import Replay

DEFAULT_PLAYER = "heuristic"
POLL_S = 0.05
SEND_LIMIT_S = 20.0
"""A client that takes longer to receive one message is cut off."""
MOST_WATCHERS = 64
SINGLE_FILE = "replay.html"
PLACE = '<script type="application/json" id="onthejob-episode">'
CHUNK = 60
"""Frames per message, so that a late viewer sees something at once."""

World_ = Annotated[WorldName, Query()]
Seq = Annotated[int, Query(ge=0, le=10_000)]


class Worlds:
    """The companies of this server."""

    def __init__(self, players: Players, default: Reset, replay: Replay | None = None) -> None:
        """default: the company to found first. replay: a recorded game to show instead, up to where it ended."""
        self._players = players
        self._lock = threading.Lock()
        self._worlds: dict[str, World] = {}
        if replay is None:
            self.reset(default)
        else:
            seats = {role: players.seat(DEFAULT_PLAYER, role) for role in SEATS} | self.seats(default.seats)
            task = dataclasses.replace(replay.task, payload={"scenario": "baseline", "days": 30} | dict(replay.task.payload))
            world = World("live", task, seats, pace_s=default.pace_s)
            world.recall(replay.replies)
            self._worlds["live"] = world

    def get(self, name: str) -> World:
        """The world of this name.

        Raises:
            ConfigError: it was never founded.
        """
        world = self._worlds.get(name)
        if world is None:
            raise ConfigError(f"there is no world {name!r} yet: found it with POST /api/reset.")
        return world

    def all(self) -> list[World]:
        """Every world, in the order of founding."""
        return list(self._worlds.values())

    def reset(self, asked: Reset) -> World:
        """Found a world anew; seats that are not named are kept."""
        task = office().task_of(asked.seed, {"scenario": asked.scenario, "days": asked.days})
        before = self._worlds.get(asked.world)
        seats: dict[str, Seat] = dict(before.seats) if before is not None else {}
        seats |= self.seats(asked.seats)
        seats |= {role: self._players.seat(DEFAULT_PLAYER, role) for role in SEATS if role not in seats}
        with self._lock:
            before = self._worlds.get(asked.world)
            world = World(asked.world, task, seats, human=asked.human, pace_s=asked.pace_s)
            world.epoch = before.epoch + 1 if before is not None else 0
            if before is not None:
                before.close()
            self._worlds[asked.world] = world
        world.configure(playing=asked.playing)
        return world

    def seats(self, asked: Mapping[SeatName, str]) -> dict[str, Seat]:
        """The named players for these seats."""
        return {role: self._players.seat(name, role) for role, name in asked.items()}

    def close(self) -> None:
        """Stop all of them."""
        for world in self.all():
            world.close()


def routes(
    worlds: Worlds, players: Players, tokens: Callable[[], Tokens], *, runs: bool, open_run: str, pages: Path
) -> APIRouter:
    """Everything about companies in play."""
    api = APIRouter(prefix="/api", tags=["world"])

    @api.get("/config")
    def config() -> Config:
        return Config(
            version=__version__,
            parts=list(PARTS),
            roles={str(role): spec.person for role, spec in ROLES.items()},
            actions={str(role): list(spec.actions) for role, spec in ROLES.items()},
            duties={str(role): spec.duty for role, spec in ROLES.items()},
            worlds=[world.status() for world in worlds.all()],
            runs=runs,
            open_run=open_run,
        )

    @api.get("/scenarios")
    def list_scenarios() -> list[ScenarioInfo]:
        loaded = [scenarios.load(name) for name in scenarios.SHIPPED]
        return [
            ScenarioInfo(name=s.name, title=s.title, pressure=s.pressure, cash=s.cash, events=len(s.schedule)) for s in loaded
        ]

    @api.get("/models")
    def models() -> list[PlayerInfo]:
        return players.list()

    @api.get("/state")
    def state(world: World_ = "live", start: Seq = 0, stop: Annotated[int | None, Query(ge=0, le=10_001)] = None) -> Frames:
        return worlds.get(world).frames(start, stop)

    @api.post("/reset")
    def reset(asked: Reset) -> Seats:
        return worlds.reset(asked).status()

    @api.post("/step")
    def step(asked: StepAsk) -> Seats:
        world = worlds.get(asked.world)
        world.step(asked.text)
        if asked.text is not None:
            world.play_to_person()
        return world.status()

    @api.post("/undo")
    def undo(asked: UndoAsk) -> Seats:
        world = worlds.get(asked.world)
        if not world.undo():
            raise ContractError("there is no reply to take back.")
        return world.status()

    @api.post("/reconfigure")
    def reconfigure(asked: Reconfigure) -> Seats:
        world = worlds.get(asked.world)
        seats = worlds.seats(asked.seats)
        world.configure(seats=seats, human=asked.human, playing=asked.playing, pace_s=asked.pace_s)
        return world.status()

    @api.get("/prompt")
    def read_prompt(
        role: SeatName,
        world: World_ = "live",
        seq: Seq = 0,
        profile: Literal["compact", "full"] = "full",
        budget: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    ) -> PromptView:
        # A reply may have been taken back since the client looked: what is newest is shown, and the answer says so.
        seq = min(seq, worlds.get(world).length - 1)
        return prompt_view(worlds.get(world).at(seq), world, seq, role, profile=profile, budget=budget, tokens=tokens())

    @api.get("/memory")
    def memory(role: SeatName, world: World_ = "live", seq: Seq = 0) -> list[MemoryView]:
        held = worlds.get(world).at(min(seq, worlds.get(world).length - 1)).memories(role)
        return [MemoryView(id=m.id, kind=str(m.kind), text=m.text, turn=m.turn, importance=m.importance) for m in held]

    @api.get("/export", response_class=HTMLResponse)
    def export(world: World_ = "live") -> HTMLResponse:
        name = f"onthejob-{world}-{worlds.get(world).status().scenario}.html"
        text = single_file(pages / SINGLE_FILE, config(), worlds.get(world).frames(0))
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

    @api.post("/branches")
    def branches(asked: BranchAsk) -> Branches:
        return branched(worlds.get(asked.world).at(asked.seq), asked)

    @api.post("/suggest")
    def suggest(asked: SuggestAsk) -> Suggestions:
        world = worlds.get(asked.world)
        pending = world.at(asked.seq).observe()
        if pending is None:
            raise ContractError(f"nobody is asked at seq {asked.seq}: the episode is over there.")
        seat = players.seat(asked.player, pending.actor)
        role, replies = world.suggest(asked.seq, seat, asked.count, asked.temperature)
        return Suggestions(role=role, player=asked.player, replies=replies)

    return api


def prompt_view(
    env: OfficeEnvironment,
    world: WorldName,
    seq: int,
    role: RoleName,
    *,
    profile: Literal["compact", "full"],
    budget: int | None,
    tokens: Tokens,
) -> PromptView:
    """What `role` sees at this point, as sections with their priority, size and fate."""
    pending = env.observe()
    if pending is None:
        raise ContractError(f"nobody is asked at seq {seq}: the episode is over there.")
    seen = env.look(role).view
    blocks = env.sections(role) if profile == "full" else prompt.sections(seen)
    system = prompt.system_text(role, profile)
    kept: dict[str, Section] = {block.key: block for block in blocks if block.text}
    total = tokens.count("\n".join(block.text for block in blocks if block.text))
    if budget is not None:
        if total is None:
            raise ConfigError("a budget needs the model's tokenizer, which is not on this machine. Run `onthejob model fetch`.")
        pruned = prune(blocks, budget, lambda text: cast(int, tokens.count(text)))
        kept, total = {block.key: block for block in pruned.kept}, pruned.tokens
    sections = [
        SectionView(
            key=block.key,
            priority=block.priority,
            pinned=block.pinned,
            text=kept[block.key].text if block.key in kept else block.text,
            tokens=tokens.count(block.text),
            kept=block.key in kept,
            cut=block.key in kept and kept[block.key].text != block.text,
        )
        for block in blocks
        if block.text
    ]
    legal = [_legal(action) for action in env.legal_actions(role)]
    return PromptView(
        world=world,
        seq=seq,
        role=role,
        asked=pending.actor == role,
        system=system,
        system_tokens=tokens.count(system),
        sections=sections,
        budget=budget,
        tokens=total,
        view=dict(seen),
        legal=legal,
    )


def single_file(page: Path, config: Config, part: Frames) -> str:
    """The viewer as one file that holds this episode.

    Raises:
        RecordError: the pages are not built.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(
            "the viewer's pages are not built, so there is nothing to put the episode into. Run `make viewer`."
        ) from error
    # In a script element only `<` could end it; JSON may write it as an escape.
    data = f'{{"config":{config.model_dump_json()},"part":{part.model_dump_json()}}}'.replace("<", "\\u003c")
    before, _, rest = text.partition(PLACE)
    _, closing, after = rest.partition("</script>")
    if not closing:
        raise RecordError(f"{page.name} has no place for an episode. Build the viewer again: `make viewer`.")
    return f"{before}{PLACE}{data}{closing}{after}"


def _legal(action: Action) -> Legal:
    from onthejob.envs.office.actions import render

    return Legal(text=render(dataclasses.replace(action, reasoning="")), action=action.action_type, target=action.target)


def branched(env: OfficeEnvironment, asked: BranchAsk) -> Branches:
    """Every distinct reply stepped in forks that meet the same luck, and continued by the heuristic."""
    pending = env.observe()
    if pending is None:
        raise ContractError(f"nobody is asked at seq {asked.seq}: the episode is over there.")
    shared = group_worlds(env.company.seed, "viewer", env.company.turn, count=asked.worlds)
    keys = [env.canonical(reply) for reply in asked.replies]
    first = {key: keys.index(key) for key in keys}
    found = {
        key: [env.branch(asked.replies[index], world=world, turns=asked.turns) for world in shared]
        for key, index in first.items()
    }
    means = [float(np.mean([branch.outcome for branch in found[key]])) for key in keys]
    legal = [mean for mean, key in zip(means, keys, strict=True) if found[key][0].valid]
    spread = float(np.std(legal, ddof=1)) if len(legal) > 1 else 0.0
    replies = []
    for index, key in enumerate(keys):
        results = found[key]
        roles = sorted({role for branch in results for role in branch.returns})
        replies.append(
            BranchView(
                text=asked.replies[index],
                valid=results[0].valid,
                same_as=first[key],
                outcomes=[branch.outcome for branch in results],
                mean=means[index],
                advantage=(means[index] - float(np.mean(legal))) / spread if spread > 0 and results[0].valid else None,
                returns={role: float(np.mean([branch.returns.get(role, 0.0) for branch in results])) for role in roles},
            )
        )
    turns = max(branch.turns for branches in found.values() for branch in branches)
    return Branches(seq=asked.seq, role=pending.actor, worlds=list(shared), turns=turns, replies=replies)


class Live:
    """`/ws/live`: sends a world's frames from where the client is. The feed is the world's own list, so nothing queues up."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self._watchers = 0

    async def __call__(self, socket: WebSocket) -> None:
        """One client. It may send `{"from_seq": n}` at any time to have frames again; what else it sends is ignored."""
        asked = socket.query_params
        name, start = asked.get("world", "live"), asked.get("from_seq", "0")
        if self._watchers >= MOST_WATCHERS or not start.isdecimal() or len(start) > 6:
            await socket.close(1013 if self._watchers >= MOST_WATCHERS else 1008)
            return
        await socket.accept()
        self._watchers += 1
        cursor = _Cursor(int(start))
        listening = asyncio.create_task(_listen(socket, cursor))
        try:
            await self._send(socket, name, cursor, listening)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            pass
        finally:
            self._watchers -= 1
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _send(self, socket: WebSocket, name: str, cursor: _Cursor, listening: asyncio.Task[None]) -> None:
        told: Seats | None = None
        while not listening.done():
            try:
                world = self._worlds.get(name)
            except ConfigError:
                await asyncio.sleep(10 * POLL_S)
                continue
            status = world.status()
            if told is not None and status.epoch != told.epoch:
                cursor.seq = min(cursor.seq, world.kept) if status.epoch == told.epoch + 1 else 0
            cursor.seq = min(cursor.seq, status.length)
            if status.length > cursor.seq or status != told:
                part = await run_in_threadpool(world.frames, cursor.seq, cursor.seq + CHUNK)
                async with asyncio.timeout(SEND_LIMIT_S):
                    await socket.send_text(part.model_dump_json())
                told = part.seats
                if part.seats.epoch == status.epoch:
                    cursor.seq += len(part.frames)
                continue
            await asyncio.sleep(POLL_S)


class _Cursor:
    """Where a client is in the feed."""

    def __init__(self, seq: int) -> None:
        self.seq = seq


async def _listen(socket: WebSocket, cursor: _Cursor) -> None:
    """Read what the client sends until it leaves."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            asked = json.loads(message.get("text") or "null")
        except (ValueError, RecursionError):
            continue
        seq = asked.get("from_seq") if isinstance(asked, dict) else None
        if type(seq) is int and 0 <= seq <= cursor.seq:
            cursor.seq = seq
