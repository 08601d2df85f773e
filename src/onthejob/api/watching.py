"""Routes of the company: found, play, look, branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from onthejob import __version__
from onthejob.api.moment import branched, prompt_view
from onthejob.api.one_file import single_file
from onthejob.api.players import Players
from onthejob.api.schema_moment import BranchAsk, Branches, MemoryView, PromptView, SuggestAsk, Suggestions
from onthejob.api.schema_office import (
    Config,
    Frames,
    PlayerInfo,
    Reconfigure,
    Reset,
    ScenarioInfo,
    SeatName,
    SeatsView,
    StepAsk,
    UndoAsk,
    WorldName,
)
from onthejob.api.schema_play import EnvView
from onthejob.api.tokens import Tokens
from onthejob.api.world import World
from onthejob.api.worlds import Worlds
from onthejob.envs.office import scenarios
from onthejob.envs.office.events import EVENTS
from onthejob.envs.office.reward_parts import MEANINGS, PARTS
from onthejob.envs.office.roles import ROLES
from onthejob.errors import ContractError

World_ = Annotated[WorldName, Query()]
Seq = Annotated[int, Query(ge=0, le=10_000)]


def routes(
    worlds: Worlds,
    players: Players,
    tokens: Callable[[], Tokens],
    *,
    runs: bool,
    open_run: str,
    collect: str,
    env: EnvView | None,
    pages: Path,
) -> APIRouter:
    """Everything about companies in play."""
    api = APIRouter(prefix="/api", tags=["world"])

    @api.get("/config")
    def config() -> Config:
        return describe(worlds.all(), runs=runs, open_run=open_run, collect=collect, env=env)

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
    def reset(asked: Reset) -> SeatsView:
        return worlds.reset(asked).status()

    @api.post("/step")
    def step(asked: StepAsk) -> SeatsView:
        world = worlds.get(asked.world)
        world.step(asked.text)
        if asked.text is not None:
            world.play_to_person()
        return world.status()

    @api.post("/undo")
    def undo(asked: UndoAsk) -> SeatsView:
        world = worlds.get(asked.world)
        if not world.undo():
            raise ContractError("there is no reply to take back.")
        return world.status()

    @api.post("/reconfigure")
    def reconfigure(asked: Reconfigure) -> SeatsView:
        world = worlds.get(asked.world)
        seats = worlds.changed(world, asked.seats, asked.modes)
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
        held = {"config": describe(worlds.all(), runs=runs, open_run=open_run), "part": worlds.get(world).frames(0)}
        text = single_file(held, pages)
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="{name}"'})

    @api.post("/branches")
    def branches(asked: BranchAsk) -> Branches:
        return branched(worlds.get(asked.world).at(asked.seq), asked)

    @api.post("/suggest")
    def suggest(asked: SuggestAsk) -> Suggestions:
        world = worlds.get(asked.world)
        pending = world.at(asked.seq).observe()
        if pending is None:
            raise ContractError(f"no role is asked at seq {asked.seq}: the episode is over there.")
        seat = players.seat(asked.player, pending.actor)
        role, replies = world.suggest(asked.seq, seat, asked.count, asked.temperature)
        return Suggestions(role=role, player=asked.player, replies=replies)

    return api


def describe(worlds: Sequence[World], *, runs: bool, open_run: str, collect: str = "", env: EnvView | None = None) -> Config:
    """What does not change while the server runs, and the worlds as they are now."""
    return Config(
        version=__version__,
        parts=list(PARTS),
        part_meanings=dict(MEANINGS),
        roles={str(role): spec.person for role, spec in ROLES.items()},
        actions={str(role): list(spec.actions) for role, spec in ROLES.items()},
        duties={str(role): spec.duty for role, spec in ROLES.items()},
        event_effects={kind: " ".join((effect.__doc__ or "").split()) for kind, effect in EVENTS.items()},
        worlds=[world.status() for world in worlds],
        runs=runs,
        open_run=open_run,
        collect=collect,
        env=env,
    )
