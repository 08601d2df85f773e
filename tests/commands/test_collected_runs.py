"""Seats in training mode: their turns are collected by `play` and by the viewer, and `train` and `sft` learn from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from onthejob.api.app import create_app
from onthejob.api.asking import Asking
from onthejob.api.collecting import Collecting
from onthejob.api.schema_office import Reset
from onthejob.commands.collected_runs import free_seed, load_collected, modes_of
from onthejob.commands.play_collect import Noted
from onthejob.commands.player_specs import ModelOptions
from onthejob.commands.sft_data import collected_demonstrations
from onthejob.commands.view import opened_for
from onthejob.commands.view_models import Loader
from onthejob.envs.office.env import SEATS, OfficeConfig
from onthejob.errors import ConfigError
from onthejob.models.adapter_policy import AdapterPolicy
from onthejob.models.chat import ChatEncoder
from onthejob.office import make_office
from onthejob.office_players import scripted_players
from onthejob.record import Run
from onthejob.rollout.origin import read_origin
from onthejob.rollout.reading import budget_of
from onthejob.testing import tiny_model
from onthejob.train.collected import library_of, read_collected
from onthejob.types import PromptBudget

TOKEN = "a-token-for-tests-0123"
TOKENS = ("--max-new-tokens", "40")
SMALL = (
    "--scale-states", "4", "--collect.episodes", "2", "--collect.segment-turns", "3", "--branch.group-size", "4",
    "--branch.turns", "14", "--branch.worlds", "1", "--sampling.max-new-tokens", "40", "--lora.rank", "2",
)  # fmt: skip


def model(path: Path) -> tuple[str, ...]:
    return ("--model.name", str(path), "--model.dtype", "float32")


def collected_in(folder: Path | str):
    with Run.open(folder, readonly=True) as run:
        return read_collected(run)


@pytest.fixture(scope="module")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model whose replies are noise: the fastest that can be asked."""
    folder = tmp_path_factory.mktemp("untaught")
    tiny = tiny_model(seed=4, words=["customers", "action_type", "target", "pipeline", "revenue", "Possible", "company"])
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def test_play_collects_the_turns_of_one_seat_or_of_all(call, untaught: Path):
    play = ("play", "office", "--env.days", "1", "--max-new-tokens", "3", *model(untaught))
    told = call(*play, "--seat", "sales=base", "dev=base", "--mode", "sales=training", "--collect", "one")
    assert told["task"] == "office-baseline-100000", "a training seed without being asked for"
    found = collected_in("runs/one")
    assert [turn.actor for turn in found.turns] == ["sales", "sales"]
    assert {turn.turn.temperature for turn in found.turns} == {1.0}, "as in training"
    assert all(len(turn.turn.completion.token_ids) == len(turn.turn.completion.logprobs) == 3 for turn in found.turns)
    assert {turn.policy.split(":")[0] for turn in found.turns} == {"lm"}
    assert found.over
    assert call(*play, "--team", "base", "--mode", "training", "--collect", "all")["task"] == "office-baseline-100000"
    again = call(*play, "--team", "base", "--mode", "training", "--collect", "all", "--temperature", "0.5", code=2)
    assert "train.sampling.temperature 1.0 (now 0.5)" in again, "a run has turns of one kind"
    told = call(*play, "--team", "base", "--mode", "training", "--collect", "all")
    assert told["task"] == "office-baseline-100001", "no company is met twice"
    found = collected_in("runs/all")
    assert {turn.actor for turn in found.turns} == set(SEATS)
    assert len(found.turns) == 24
    (listed,) = [run for run in call("runs", "ls") if run["name"] == "all"]
    assert (listed["turns"], listed["env"], listed["error"]) == (24, "office", None)
    assert call("runs", "check", "all")["damage"] == []
    replayed = call("runs", "replay", "all")
    assert (replayed["matches"], replayed["turns"]) == (True, 24), "each turn pays again what it paid"
    assert free_seed(Path("runs/all")) == 100_002


def test_modes_that_do_not_fit_are_refused(call, untaught: Path, chat):
    play = ("play", "office", "--env.days", "1", *model(untaught))
    collects = ("--mode", "training", "--collect", "live")
    for words, said in (
        ((*play, "--team", "base", "--mode", "training"), "--mode training and --collect RUN go together"),
        ((*play, "--team", "base", "--collect", "live"), "--mode training and --collect RUN go together"),
        ((*play, *collects), "no seat has a model of this machine"),
        ((*play, "--mode", "sales=training", "--collect", "live"), "heuristic sits as sales, whose mode is scripted"),
        ((*play, "--seat", f"sales={chat.name}", "--mode", "sales=training", "--collect", "live"), "whose mode is llm"),
        ((*play, "--team", "base", "--mode", "sales=llm"), "base sits as sales, whose mode is inference"),
        ((*play, "--team", "base", "--mode", "learning"), "--mode takes a mode (llm, training, inference, scripted)"),
        ((*play, "--team", "base", "--mode", "boss=training"), "ROLE=MODE with a role of ceo"),
        ((*play, "--team", "base", *collects, "--seed", "1003"), "seed 1003 is of split dev"),
        ((*play, "--team", "base", *collects, "--env.scenarios", "outage"), "training refuses held-out scenarios"),
        ((*play, "--team", "base", "--seat", "customer=base", *collects), "collected where the script plays the customer"),
        ((*play, "--team", "base", *collects, "--env.retries", "2"), "--env.retries must be 0 with a seat in training mode"),
        ((*play, "--role", "sales", "--policy", "human", *collects), "--mode and --collect have no effect on a game by hand"),
        ((*play, "--team", "base", "--mode", "training", "--collect", "../.x"), "--collect: a run's name must be"),
        (("view", "--mode", "training", "--no-open"), "needs --collect RUN"),
        (("view", "--collect", "live", "--mode", "training", "--no-open"), "no seat has a model of this machine"),
    ):
        assert said in " ".join(call(*words, code=2).split()), words
    assert not chat.seen
    assert not Path("runs").exists(), "nothing is left behind"
    Run.create("runs", config={}, name="trained").close()
    assert "is no run of collected turns" in call(*play, "--team", "base", "--mode", "training", "--collect", "trained", code=2)


def test_modes_by_name():
    seats = dict.fromkeys(SEATS, "heuristic") | {"sales": "base", "dev": "runs/mine", "ceo": "openai:gpt-x"}
    usual = {
        "ceo": "llm",
        "dev": "inference",
        "marketing": "scripted",
        "sales": "inference",
        "content": "scripted",
        "hr": "scripted",
    }
    shipped = scripted_players()
    assert modes_of((), seats, shipped) == usual
    assert modes_of(("training",), seats, shipped) == usual | {"sales": "training", "dev": "training"}
    assert modes_of(("training", "dev=inference"), seats, shipped) == usual | {"sales": "training"}
    assert modes_of(("ceo=llm", "hr=scripted"), seats, shipped) == usual


def test_a_recipe_with_a_library_of_its_own_is_told_what_to_add(call, repository: Path):
    train = ("train", "--config", repository / "recipes/office.toml", "--collected", "nowhere")
    said = " ".join(call(*train, code=2).split())
    told = said.partition("where --config sets it, add ")[2].rstrip(".").split()
    assert "--library-refresh" in told
    assert "there is no run nowhere" in call(*train, *told, code=2), "with these all options fit"


@pytest.mark.slow
def test_what_was_collected_is_trained_on_and_imitated(call, office_model: Path):
    play = ("play", "office", "--env.days", "3", *TOKENS, *model(office_model))
    call(*play, "--seat", "hr=base", "dev=base", "--mode", "training", "--collect", "shift", "--seed", "100007")
    states = {turn.snapshot: turn for turn in collected_in("runs/shift").turns}
    assert {turn.actor for turn in states.values()} == {"hr", "dev"}
    train = ("train", *SMALL, *model(office_model))
    told = call(*train, "--collected", "shift", "--iterations", "2", "--name", "after")
    assert set(told["adapters"]) == {"hr", "dev"}, "the roles that there are turns of"
    with Run.open("runs/after", readonly=True) as run:
        assert run.config["collected"] == str(Path("runs/shift").absolute())
        for iteration in (1, 2):
            episodes, groups = list(run.read_episodes(iteration)), list(run.read_groups(iteration))
            assert {group.facts["origin"] for group in groups} == {"library"}
            starts = [read_origin(episode.facts, "") for episode in episodes]
            assert all(origin is not None and origin.start in states for origin in starts)
            for group in groups:
                assert group.actor in ("hr", "dev")
                assert len(group.trajectories) == 4
        assert run.read_metrics("pool/baseline", iteration=2), "counted under their scenario"
    one = call(*train, "--collected", "shift", "--roles", "hr", "--iterations", "1", "--name", "hr")
    assert set(one["adapters"]) == {"hr"}
    call(*train, "--collected", "shift", "--iterations", "1", "--name", "resumed")
    Path("runs/shift").rename("moved")
    call("train", "--resume", "resumed", "--extend", "2")
    with Run.open("runs/resumed", readonly=True) as run, Run.open("runs/after", readonly=True) as whole:
        assert list(run.read_groups(2)) == list(whole.read_groups(2)), "the states are in the checkpoint"
    # A run that was killed before its first commit has no checkpoint yet.
    settings = call(*train, "--collected", "moved", "--iterations", "1", "--print-config")
    Run.create("runs", config=settings, name="early").close()
    call("train", "--resume", "early")
    with Run.open("runs/early", readonly=True) as run:
        assert sum(run.read_events(kind="collected")[0].payload["turns"].values()) == len(states)
    looked = call(*train, "--collected", "moved", "--smoke")
    assert looked["groups"]

    sft = ("sft", "--collected", "moved", "--lora.rank", "2", *model(office_model))
    (made,) = call(*sft, "--roles", "hr", "--keep-share", "0.5", "--out", "better")
    shown = collected_demonstrations("moved", ("hr",), keep_share=0.5, window=14, limit=0)["hr"]
    assert made["demonstrations"] == len(shown) <= 3
    known = [turn.turn for turn in states.values()]
    assert all(one.sampled[0] in known and one.sampled[0].valid for one in shown)
    for words, said in (
        ((*train, "--collected", "nowhere"), "there is no run nowhere"),
        ((*train, "--collected", "after"), "is no run of collected turns"),
        ((*train, "--collected", "moved", "--roles", "sales"), "has no turn of sales; it has those of"),
        ((*train, "--collected", "moved", "--env.profile", "full"), "--env.profile compact (now full). Train with the same"),
        (
            (*train, "--collected", "moved", "--collect.fresh-share", "0.5"),
            "--collect.fresh-share has no effect with --collected",
        ),
        ((*train, "--collected", "moved", "--library-tasks", "2"), "--library-tasks has no effect with --collected"),
        (("train", "--env", "claw", "--collected", "moved"), "--collected starts segments in states"),
        ((*train, "--collected", "moved", "--from-groups", "after:1"), "where nothing is played"),
        (("train", "--resume", "after", "--collected", "moved"), "Omit --collected"),
        ((*sft, "--marks", "expert"), "--marks has no effect with --collected"),
        (("sft", "elsewhere", "--collected", "moved"), "both say what is imitated"),
        ((*sft, "--keep-share", "0"), "keep_share must be in (0, 1]"),
        (("sft", "--keep-share", "0.5"), "--keep-share and --return-turns have no effect without --collected"),
        ((*sft, "--roles", "sales"), "has no turn of sales"),
        ((*sft, "--return-turns", "400", "--roles", "dev"), "no usable turn of dev"),
    ):
        assert said in " ".join(call(*words, code=2).split()), words
    assert sorted(path.name for path in Path("runs").iterdir()) == ["after", "early", "hr", "resumed"], "no empty run is left"


@dataclass
class Viewer:
    """A browser on the pages of a viewer that collects."""

    client: TestClient
    runs: Path

    def post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(f"/api/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str, **body: Any) -> str:
        answer = self.client.post(f"/api/{path}", json=body)
        assert answer.status_code in (400, 409, 422), answer.text
        return str(answer.json()["detail"])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.post("step")


@contextmanager
def viewing(
    base: Path, runs: Path, *, collect: str = "shift", tokens: int = 3, profile: Any = "compact", **first: Any
) -> Iterator[Viewer]:
    """A viewer as `onthejob view --collect` assembles it."""
    options = ModelOptions(name=str(base), dtype="float32")
    load = Loader(options, Asking(profile=profile, max_new_tokens=tokens), lambda line: None)
    with closing(Collecting(collect, partial(opened_for, runs / collect))) as collecting:
        app = create_app(
            token=TOKEN,
            hosts=("testserver",),
            runs=runs,
            load=load,
            default=Reset.model_validate({"seed": 100_000, "days": 3, **first}),
            collecting=collecting if collect else None,
            pages=runs / "no pages",
        )
        with TestClient(app, headers={"x-onthejob-token": TOKEN}) as client:
            yield Viewer(client, runs)


@pytest.mark.parametrize("profile", ["compact", "full"])
def test_a_seat_changes_its_mode_while_the_company_runs(untaught: Path, tmp_path: Path, profile: str):
    with viewing(untaught, tmp_path, profile=profile) as viewer:
        assert viewer.client.get("/api/config").json()["collect"] == "shift"
        seats = viewer.post("reconfigure", seats={"dev": "base", "sales": "base"})
        assert (seats["modes"]["dev"], seats["modes"]["ceo"]) == ("inference", "scripted")
        viewer.steps(3)
        assert not (tmp_path / "shift").exists(), "nothing is kept before a seat is in training mode"
        seats = viewer.post("reconfigure", modes={"sales": "training"})
        assert (seats["modes"]["sales"], seats["modes"]["dev"]) == ("training", "inference")
        viewer.steps(12)
        viewer.post("reconfigure", modes={"dev": "training", "sales": "inference"})
        viewer.steps(12)
        assert viewer.post("reconfigure", seats={"dev": "base"})["modes"]["dev"] == "inference", "given away, it begins anew"
        viewer.steps(2)
        # Everything is on disk while the viewer runs.
        found = collected_in(tmp_path / "shift")
        frames = viewer.client.get("/api/state").json()["frames"]
    asked = {frame["step"]: frame["actor"] for frame in reversed(frames)}
    # Sales from the fourth reply on, Dev from the sixteenth to the twenty-seventh.
    expected = [asked[step] for step in range(4, 16) if asked[step] == "sales"]
    expected += [asked[step] for step in range(16, 28) if asked[step] == "dev"]
    assert [turn.actor for turn in found.turns] == expected
    assert {turn.turn.temperature for turn in found.turns} == {1.0}
    make_env, chat = make_office(OfficeConfig(profile=profile)), ChatEncoder(AutoTokenizer.from_pretrained(untaught))
    assert len(library_of(found.turns, make_env)) == len(expected)
    env = make_env()
    for turn in found.turns:
        request = env.restore(turn.snapshot)
        assert request is not None
        assert chat.encode(request.messages) == turn.turn.prompt_ids, "the moment before the turn, in the profile of the seat"
        step = env.step(turn.turn.completion.text)
        (reward,) = [rewards for at, rewards in found.paid[turn.company] if at == turn.at]
        assert step.rewards == pytest.approx(reward)
    assert load_collected(str(tmp_path / "shift"), ("dev",)).turns == tuple(t for t in found.turns if t.actor == "dev")


def test_the_viewer_refuses_what_cannot_be_trained_on(untaught: Path, tmp_path: Path):
    with viewing(untaught, tmp_path) as viewer:
        assert "'ceo' cannot be trained while heuristic sits there" in viewer.refused("reconfigure", modes={"ceo": "training"})
        assert "not llm" in viewer.refused("reconfigure", modes={"ceo": "llm"})
        assert "training" in viewer.refused("reconfigure", modes={"ceo": "learning"})
        viewer.post("reconfigure", seats={"dev": "base"}, modes={"dev": "training"})
        refused = viewer.refused("reset", seed=1_003)
        assert "seed 1003 is of split dev" in refused, "its seats would be kept in training mode"
        assert viewer.post("reset", seed=100_005, days=1)["modes"]["dev"] == "training"
        viewer.post("reset", seed=1_003, modes={"dev": "inference"})
        assert "seed 1003 is of split dev" in viewer.refused("reconfigure", modes={"dev": "training"})
        viewer.steps(3)
    with Run.open(tmp_path / "shift", readonly=True) as run:
        assert not list(run.read_episodes()), "and nothing of it is kept"
    with viewing(untaught, tmp_path, collect="", seats={"dev": "base"}) as viewer:
        assert viewer.client.get("/api/config").json()["collect"] == ""
        assert "Start it with --collect RUN" in viewer.refused("reconfigure", modes={"dev": "training"})


def test_no_turn_is_collected_where_a_model_plays_the_customer(untaught: Path, tmp_path: Path):
    with viewing(untaught, tmp_path, seats={"dev": "base"}, modes={"dev": "training"}) as viewer:
        refused = viewer.refused("reset", seed=100_005, seats={"customer": "base"})
        assert "the script plays the customer" in refused, "its seats would be kept in training mode"
        viewer.post("reset", seed=100_005, seats={"customer": "base"}, modes={"dev": "inference"})
        assert "the script plays the customer" in viewer.refused("reconfigure", modes={"dev": "training"})
        viewer.post("reset", seed=100_006, seats={"customer": "script"})
        assert viewer.post("reconfigure", modes={"dev": "training"})["modes"]["dev"] == "training"


def test_a_refused_request_makes_no_run(untaught: Path, tmp_path: Path):
    with viewing(untaught, tmp_path, seats={"dev": "base"}) as viewer:
        assert "cannot be trained" in viewer.refused("reconfigure", modes={"dev": "training", "ceo": "training"})
    assert not (tmp_path / "shift").exists()


def test_play_and_the_viewer_add_to_one_run(call, untaught: Path, tmp_path: Path):
    with viewing(untaught, Path("runs"), tokens=40, seats={"dev": "base"}, modes={"dev": "training"}) as viewer:
        viewer.steps(4)
    before = collected_in(Path("runs/shift"))
    play = ("play", "office", "--env.days", "1", "--team", "base", *model(untaught), *TOKENS)
    call(*play, "--mode", "dev=training", "--collect", "shift")
    found = collected_in(Path("runs/shift"))
    assert len(found.turns) == len(before.turns) + 2
    assert len({turn.task.seed for turn in found.turns}) == 2


def test_a_move_that_is_taken_back_ends_a_company_in_the_record(untaught: Path, tmp_path: Path):
    with viewing(untaught, tmp_path, seats={"dev": "base"}, modes={"dev": "training"}, human="ceo") as viewer:
        legal = viewer.client.get("/api/prompt", params={"role": "ceo", "seq": 0}).json()["legal"]
        viewer.post("step", text=legal[0]["text"])
        viewer.post("undo")
        viewer.post("step", text=legal[1]["text"])
        viewer.post("reset", seed=100_001, days=1, human="")
        viewer.steps(12)
    found = collected_in(tmp_path / "shift")
    assert [turn.at for turn in found.turns][:2] == [1, 1], "dev's first turn, before and after the undo"
    first, second, third = found.paid
    assert found.over == {third}, "the last company was played to its end"
    assert [at for at, _ in found.paid[first]] == [at for at, _ in found.paid[second]], "up to the next request of the person"
    assert found.paid[first][0][0] == 1
    assert {turn.task.seed for turn in found.turns if turn.company == third} == {100_001}


@pytest.mark.slow
def test_two_seats_collect_a_run_trains_on_it_and_its_adapter_is_seated_without_a_restart(
    call, office_model: Path, tmp_path: Path
):
    runs = tmp_path / "runs"
    with viewing(office_model, runs, tokens=40) as viewer:
        both = {"hr": "base", "dev": "base"}
        seats = viewer.post("reconfigure", seats=both, modes=dict.fromkeys(both, "training"))
        assert {seats["modes"][role] for role in both} == {"training"}
        viewer.steps(36)
        assert viewer.client.get("/api/config").json()["worlds"][0]["done"]
        turns = collected_in(runs / "shift").turns
        assert sorted(turn.actor for turn in turns) == ["dev"] * 6 + ["hr"] * 6, "two turns a day each, on one base"
        assert len({turn.policy for turn in turns}) == 1
        players = [player["name"] for player in viewer.client.get("/api/models").json()]
        assert "shift" not in players, "it has no adapters"
        told = call("train", *SMALL, "--learner.lr", "1e-3", *model(office_model), "--collected", "shift",
                    "--iterations", "1", "--name", "after")  # fmt: skip
        assert "after" in [player["name"] for player in viewer.client.get("/api/models").json()]
        viewer.post("reset", seed=100_001, days=1)
        seats = viewer.post("reconfigure", seats={"hr": "after", "dev": "after"}, modes={"hr": "training"})
        assert (seats["seats"]["hr"], seats["modes"]["hr"], seats["modes"]["dev"]) == ("after", "training", "inference")
        viewer.steps(12)
        frames = viewer.client.get("/api/state").json()["frames"]
        played = {frame["policy"] for frame in frames if frame["actor"] == "hr"}
        adapter = Path(told["adapters"]["hr"]["path"]).name
        assert (played, adapter) == ({adapter}, "hr@0001")
        more = collected_in(runs / "shift").turns[len(turns) :]
        assert {(turn.actor, turn.turn.policy_version) for turn in more} == {("hr", adapter)}
        assert {turn.policy for turn in more}.isdisjoint({turn.policy for turn in turns}), "another adapter, by its digest"


def test_seats_that_are_asked_otherwise_collect_in_another_run(untaught: Path, tmp_path: Path):
    made: list[Asking] = []

    def open_run(asking: Asking) -> Run:
        made.append(asking)
        return opened_for(tmp_path / "shift", asking)

    with closing(Collecting("shift", open_run)) as collecting:
        first = collecting.recorder(Asking(base=str(untaught), tokenizer="counts nothing without a budget"))
        assert collecting.recorder(Asking(base=str(untaught))) is first
        with pytest.raises(ConfigError, match=r"profile compact \(here full\)"):
            collecting.recorder(Asking(base=str(untaught), profile="full"))
    assert len(made) == 1
    with pytest.raises(ConfigError, match=r"env.profile compact \(now full\).*name another one with --collect"):
        opened_for(tmp_path / "shift", Asking(base=str(untaught), profile="full"))


def test_a_seat_in_training_mode_reads_prompts_that_fit_its_model() -> None:
    budget = PromptBudget(tokens=900, count=len)
    policy = AdapterPolicy(cast(Any, None), cast(Any, None), adapter=None, prompt_budget=budget)
    assert budget_of(Noted(policy, lambda context, completion: None)) is budget
