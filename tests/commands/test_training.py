"""The commands that train and evaluate, one after another on the real office with a tiny real model."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from transformers import MambaConfig

from checks.commands.behaviours import Behaviours
from onthejob.cli import main
from onthejob.commands.player_specs import ModelOptions
from onthejob.commands.terminal import Output, Terminal
from onthejob.envs.office import scenarios
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.evaluate.states import load_states
from onthejob.learn.adapter_files import read_spec
from onthejob.models.adapter_weights import read_logit_scale
from onthejob.models.chat import ChatEncoder
from onthejob.office import Office
from onthejob.record import Run
from onthejob.rollout.origin import read_origin
from onthejob.testing import tiny_model
from onthejob.types import Kind, Split

UNSHAPED = (
    "--library-tasks", "5", "--scale-states", "12", "--env.scenarios", "baseline", "--env.days", "3",
    "--collect.episodes", "4", "--collect.segment-turns", "7", "--collect.partner-share", "0",
    "--branch.group-size", "6", "--branch.turns", "14", "--branch.worlds", "1",
    "--sampling.max-new-tokens", "40", "--sampling.temperature", "0.7",
)  # fmt: skip
SMALL = (*UNSHAPED, "--lora.rank", "2")


@pytest.fixture(scope="module")
def tiny_path(office_model: Path) -> Path:
    """A folder with a tiny model whose tokenizer knows the words of the office's prompts."""
    return office_model


def model(path: Path) -> tuple[str, ...]:
    return ("--model.name", str(path), "--model.dtype", "float32")


def test_demonstrations_are_marked_and_become_adapters(call, tiny_path: Path):
    collected = call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2", "--random-share", "0.5")
    for role in SEATS:
        lines = Path(f"demonstrations/{role}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert len(rows) == sum(collected["counts"][role].values()) > 0
        assert {row["role"] for row in rows} == {role}
        assert all(row["messages"][0]["role"] == "system" and row["task"].startswith("office-baseline-1") for row in rows)
        assert all(row["reward"] < 0 for row in rows if row["marked"] == "negative")
    again = call(
        "collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2", "--random-share", "0.5", "--out", "b"
    )
    assert again["counts"] == collected["counts"]
    assert Path("b/sales.jsonl").read_bytes() == Path("demonstrations/sales.jsonl").read_bytes()

    (trained,) = call("sft", "--roles", "sales", "--epochs", "3", "--lr", "0.01", "--lora.rank", "2", *model(tiny_path))
    assert trained["last loss"] < trained["first loss"]
    (expert,) = call("sft", "--roles", "sales", "--lora.rank", "2", "--marks", "expert", "--out", "c", *model(tiny_path))
    assert expert["demonstrations"] == collected["counts"]["sales"]["expert"] < trained["demonstrations"]
    kept = Path(trained["path"], "adapter_model.safetensors").read_bytes()
    assert "holds adapters of sales already" in call("sft", "--roles", "sales", *model(tiny_path), code=2)
    assert Path(trained["path"], "adapter_model.safetensors").read_bytes() == kept
    new = ("--out", "new", *model(tiny_path))
    assert "marked near-miss" in call("sft", "--roles", "sales", "--marks", "near-miss", *new, code=2)
    assert "processes must be in 1..1" in call("sft", "--roles", "sales", "--processes", "2", *new, code=2)
    assert "boss" in call("sft", "--roles", "boss", *new, code=2)
    Path("demonstrations/sales.jsonl").write_text('{"messages": []}\n', encoding="utf-8")
    assert "line 1" in call("sft", "--roles", "sales", *new, code=2)


def test_what_cannot_be_written_or_named_is_refused_before_a_model_is_loaded(call, tiny_path: Path, tmp_path: Path):
    """The model does not exist: a command that looked at it first would say so."""
    Path("file").write_text("")
    nothing = ("--model.name", "./no-model")
    start = ("train", "--iterations", "1", *nothing)
    assert "a run's name must be" in call(*start, "--name", "a/b", code=2)
    Path("runs").write_text("")
    assert "runs is no folder" in call(*start, code=2)
    Path("runs").unlink()
    Run.create("runs", config={}, name="taken").close()
    assert "a run named 'taken' exists in runs" in call(*start, "--name", "taken", code=2)
    call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "1")
    for words in (
        ("sft", "--out", "file/x", *nothing),
        ("sft", "--out", "/proc/x", *nothing),
        ("collect", "--out", "file"),
        ("tasks", "synth", "--count", "12", "--out", "/proc/x"),
        ("model", "merge", "sales", "/proc/x/y", "--model", "./no-model"),
        ("runs", "export", "taken", "--out", "file"),
        ("compare", "heuristic", "--report", "/proc/x/report.html"),
        ("play", "office", "--env.days", "1", "--transcript", "/proc/x/t.jsonl"),
    ):
        said = call(*words, code=2)
        assert re.search(r"cannot be (written to|a folder at)", said), said
    assert sorted(path.name for path in Path("runs").iterdir()) == ["taken"]
    assert not Path("adapters").exists()


def test_a_base_that_cannot_be_sampled_leaves_no_empty_run(call, tiny_path: Path):
    """Mamba's cache holds states, no keys and values."""
    shutil.copytree(tiny_path, "recurrent")
    vocabulary = json.loads(Path("recurrent/config.json").read_text(encoding="utf-8"))["vocab_size"]
    MambaConfig(vocab_size=vocabulary, hidden_size=16, state_size=4, num_hidden_layers=1).save_pretrained("recurrent")
    options = ("--roles", "hr", "--lora.targets", "in_proj", "x_proj", *SMALL, *model(Path("recurrent")))
    said = call("train", "--iterations", "1", "--name", "r", *options, code=1)
    assert "needs a plain key-value cache, 'mamba' uses" in said, said
    assert not Path("runs/r").exists()


def test_a_run_started_with_a_relative_model_resumes_from_anywhere(
    call, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(tiny_path, "taught")
    call("train", "--iterations", "1", "--name", "a", "--roles", "hr", *SMALL, *model(Path("taught")))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert call("train", "--resume", tmp_path / "runs" / "a", "--extend", "2")["iterations"] == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"messages": [{"role": "user", "content": "5?"}], "reply": "5"}\n'.encode("utf-16"), "cannot be read: 'utf-8' codec"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}], "reply": "5"}\n', "line 1 .*half of a surrogate pair"),
        (b'{"messages": [{"role": "user", "content": "5?"}], "reply": "\\udc00"}\n', "line 1 .*half of a surrogate pair"),
        (b"[" * 100_000 + b"\n", "line 1 .* is not a demonstration"),
    ],
    ids=["utf-16", "prompt", "reply", "depth"],
)
def test_demonstrations_that_are_no_text_are_refused(call, content: bytes, said: str):
    Path("demonstrations").mkdir()
    Path("demonstrations/hr.jsonl").write_bytes(content)
    # Before the model is loaded, which does not exist.
    ended = call("sft", "--roles", "hr", "--model.name", "./no-model", code=2)
    assert re.search(said, ended), ended


def test_a_full_or_read_only_disk_ends_in_a_clear_error_and_the_run_goes_on(call, tiny_path: Path, tmp_path: Path, small_disk):
    runs = tmp_path / "runs"
    runs.mkdir()
    start = ("--roles", "hr", *SMALL, *model(tiny_path))
    with small_disk(runs, megabytes=8):
        call("train", "--iterations", "1", "--name", "a", *start)
        ballast = runs / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(runs).free - 20_000))
        said = call("train", "--resume", "a", "--extend", "3", code=1)
        assert re.search(r"RecordError: cannot .*(full|space)", said), said
        assert "Traceback" not in said
        call("runs", "show", "a")  # the record can still be read
        said = call("train", "--iterations", "1", "--name", "b", *start, code=1)
        assert re.search(r"RecordError: cannot .*(full|space)", said), said
        ballast.unlink()
        resumed = call("train", "--resume", "a", "--extend", "3")
        subprocess.run(["mount", "-o", "remount,ro", str(runs)], check=True)
        for code, words in ((1, ("--resume", "a", "--extend", "4")), (2, ("--iterations", "1", "--name", "c", *start))):
            said = call("train", *words, code=code)
            assert "Read-only file system" in said or "readonly" in said, said
            assert "Traceback" not in said
        with Run.open(runs / "a", readonly=True) as run:
            assert run.last_iteration() == 3
    straight = call("train", "--iterations", "3", "--name", "quiet", *start)
    assert resumed["adapters"]["hr"]["digest"] == straight["adapters"]["hr"]["digest"]


@pytest.mark.slow  # two processes that import torch
def test_roles_that_learn_side_by_side_learn_the_same(call, tiny_path: Path):
    call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2")
    small = ("--roles", "sales", "hr", "--lora.rank", "2", "--limit", "4", *model(tiny_path))
    alone, beside = call("sft", *small, "--out", "alone"), call("sft", *small, "--out", "beside", "--processes", "2")
    assert [row["last loss"] for row in alone] == pytest.approx([row["last loss"] for row in beside])
    assert [row["adapter"] for row in alone] == [row["adapter"] for row in beside] == ["hr@0000", "sales@0000"]


def test_train_resume_replay_and_play(call, tiny_path: Path, capsys: pytest.CaptureFixture[str]):
    first = call("train", "--roles", "hr", "--iterations", "2", "--name", "a", *SMALL, *model(tiny_path))
    assert first["stop"] == "iterations"
    with Run.open(Path("runs/a"), readonly=True) as run:
        assert run.last_iteration() == 2
        assert run.config["lora"]["rank"] == 2
        texts = [turn["text"] for episode in run.read_episodes(1) for turn in episode.timeline if turn["actor"] == "hr"]
        scores = [turn["scores"]["rule_score"] for e in run.read_episodes(1) for turn in e.timeline if turn["actor"] == "hr"]
        (recorded,) = run.read_metrics("train/hr", iteration=1, name="rule_score")
        assert texts
        assert recorded.value == pytest.approx(sum(scores) / len(scores)), "nobody else sits in the seat"
        assert run.config["train"]["branch"]["group_size"] >= 2, "the viewer looks for it here"
        assert "output" not in run.config

    straight = call("train", "--roles", "hr", "--iterations", "3", "--name", "b", *SMALL, *model(tiny_path))
    resumed = call("train", "--resume", "a", "--extend", "3")
    assert resumed["adapters"]["hr"]["digest"] == straight["adapters"]["hr"]["digest"], "resumed = uninterrupted"
    assert "--extend must be >= 2" in call("train", "--resume", "runs/a", "--extend", "1", code=2)
    assert "Omit --env.seeds" in call("train", "--resume", "runs/a", "--env.seeds", "1", code=2)
    told = call("train", "--resume", "runs/a", "--iterations", "9", "--collect.episodes", "3", code=2)
    assert "Omit --iterations, --collect.episodes, or" in told
    assert "For more iterations give --extend." in told
    assert "exists" in call("train", "--roles", "hr", "--name", "a", *SMALL, *model(tiny_path), code=2)

    with Run.open(Path("runs/b"), readonly=True) as run:
        recorded = {m.iteration: m.value for m in run.read_metrics("train/hr", name="delta_l2")}
    assert recorded, "no update was made: the test would show nothing"
    assert min(recorded.values()) > 0
    options = ("--roles", "hr", "--lora.rank", "2", *model(tiny_path))
    # Kept are the last two checkpoints and every tenth: 0, 2 and 3. An update is repeated from the one before it.
    for iteration in (1, 3):
        replayed = call("train", "--from-groups", f"runs/b:{iteration}", *options)
        assert replayed["hr"]["delta_l2"] == pytest.approx(recorded[iteration], rel=1e-6)
    assert "checkpoint" in call("train", "--from-groups", "runs/b:2", *options, code=1)

    # As if a server had sampled it, whose numbers are not the trainer's.
    shutil.copytree("runs/b", "runs/served")
    with closing(sqlite3.connect("runs/served/run.sqlite")) as database, database:
        database.execute("""UPDATE meta SET value = replace(value, '"in-process"', '"vllm"') WHERE key = 'config'""")
        database.execute("PRAGMA user_version = 1")  # whose records have no checksums
    capsys.readouterr()
    assert main(["train", "--from-groups", "served:3", *options]) == 0
    assert "vLLM samples: --learner.loss.correction token_truncate" in capsys.readouterr().err
    assert main(["train", "--from-groups", "b:3", *options]) == 0
    assert "correction" not in capsys.readouterr().err

    assert call("runs", "show", "b") == call("runs", "show", "runs/b")
    assert "there is no run c: neither that folder nor runs/c" in call("runs", "show", "c", code=2)
    again = call("runs", "replay", "b", "--limit", "4")
    assert again["matches"]
    assert (len(again["episodes"]), again["skipped"]) == (4, {})
    assert min(again["turns"], again["groups"]) >= again["prompts"] > 0

    played = call(
        "play", "--team", "a", "--seat", "sales=expert", "--env.days", "1", "--transcript", "t.jsonl", *model(tiny_path)
    )
    assert played["error"] is None
    rows = [json.loads(line) for line in Path("t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == played["turns"]
    assert {row["policy"] for row in rows if row["actor"] == "sales"} == {"expert"}
    newest = f"hr@{resumed['adapters']['hr']['version']:04d}"
    assert {row["policy"] for row in rows if row["actor"] == "hr"} == {newest}


def test_training_goes_on_in_the_shape_of_the_first_adapters(call, tiny_path: Path):
    call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2")
    of = ("--limit", "4", *model(tiny_path))
    call("sft", "--roles", "hr", "--lora.rank", "2", "--lora.alpha", "8", "--out", "first", *of)
    refused = call("play", "--seat", "sales=first", "--env.days", "1", *model(tiny_path), code=2)
    assert "first holds adapters of hr; needed here is one of sales." in refused
    # Sales has no first adapter: it gets the same shape.
    longer = call("sft", "--roles", "hr", "sales", "--init", "first", "--out", "longer", *of)
    assert [spec_of(row["path"]) for row in longer] == [(2, 8), (2, 8)]
    assert "--lora.alpha 4 does not fit" in call("sft", "--init", "first", "--lora.alpha", "4", *of, code=2)

    small = ("--roles", "hr", "sales", "--iterations", "1", *UNSHAPED)
    call("train", "--init", "first", "--name", "goes-on", *small, *model(tiny_path))
    with Run.open(Path("runs/goes-on"), readonly=True) as run:
        assert (run.config["lora"]["rank"], run.config["lora"]["alpha"]) == (2, 8), "a resume attaches what is recorded"
        assert " ".join(run.config["lora"]["targets"]) == "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj"
        assert {spec_of(adapter.path) for adapter in run.adapters()} == {(2, 8)}
    call("train", "--resume", "runs/goes-on", "--extend", "2")
    call("train", "--from-groups", "runs/goes-on:2", "--roles", "hr", *model(tiny_path))

    # Whether roles learn a logit scale is part of the shape; it begins at 1, and a resumed run continues with its value.
    call("train", "--init", "first", "--name", "surer", "--lora.logit-scale", "--learner.lr", "0", *small, *model(tiny_path))
    call("train", "--resume", "surer", "--extend", "2")
    with Run.open(Path("runs/surer"), readonly=True) as run:
        adapters = [read_logit_scale(adapter.path) for adapter in run.adapters("hr")]
        recorded = [metric.value for metric in run.read_metrics("train/hr", name="logit_scale")]
    assert adapters[0] == 1.0
    assert recorded == pytest.approx(adapters[1:]), "every update that was published moved it"
    assert len(set(adapters)) == len(adapters) == 3

    # Refused before a model is loaded: there is none of this name.
    nowhere = (*small, "--model.name", "no/model")
    for words in (("--init", "first"), ("--smoke",)):
        assert "has no effect on adapters without" in call("train", *words, "--learner.logit-scale-lr", "0.1", *nowhere, code=2)
    refused = call("train", "--init", "first", "--lora.rank", "4", *nowhere, code=2)
    assert "--lora.rank 4 does not fit the adapters of first, which have 2. Leave --lora.rank out" in refused
    assert "--lora.rank 4 does not fit" in call("train", "--smoke", "--init", "first", "--lora.rank", "4", *nowhere, code=2)
    call("sft", "--roles", "sales", "--lora.rank", "4", "--lora.alpha", "8", "--out", "first", *of)
    assert "differ in shape: hr has rank 2" in call("train", "--init", "first", *nowhere, code=2)


def spec_of(path: Path | str) -> tuple[int, float]:
    spec = read_spec(Path(path))
    return spec.rank, spec.alpha


def test_lr_zero_and_dry_run_change_no_weight(call, tiny_path: Path):
    still = ("--roles", "hr", "--iterations", "1", *SMALL, *model(tiny_path))
    call("train", "--learner.lr", "0", "--name", "zero", *still)
    call("train", "--dry-run", "--name", "dry", *still)
    with Run.open(Path("runs/zero"), readonly=True) as run:
        deltas = [metric.value for metric in run.read_metrics("train/hr", name="delta_l2")]
    assert deltas, "no update was made: the test would show nothing"
    assert set(deltas) == {0.0}
    with Run.open(Path("runs/dry"), readonly=True) as run:
        assert [adapter.version for adapter in run.adapters("hr")] == [0]
        assert list(run.read_groups(1)), "a dry run collects and scores"


@pytest.mark.slow  # 84 turns with long prompts
def test_prompts_have_a_budget_and_the_model_in_training_reflects(call, tiny_path: Path):
    """By the model's own tokenizer; a record of it can be played again, prompts and reflections included."""
    from transformers import AutoTokenizer

    encoder, budget = ChatEncoder(AutoTokenizer.from_pretrained(tiny_path)), 330
    small = ("--env.scenarios", "baseline", "--env.days", "7", "--scale-states", "6", "--library-tasks", "1", "--lora.rank", "2")
    small += ("--collect.episodes", "1", "--collect.segment-turns", "84", "--collect.fresh-share", "1")
    small += ("--collect.partner-share", "0", "--branch.group-size", "2", "--branch.turns", "7", "--branch.worlds", "1")
    small += ("--sampling.max-new-tokens", "30", "--env.profile", "full", "--roles", "hr", "--iterations", "1", *model(tiny_path))
    call("train", "--name", "a", "--env.prompt-budget", str(budget), "--env.reflect", *small)
    with Run.open(Path("runs/a"), readonly=True) as run:
        assert (run.config["env"]["prompt_budget"], run.config["env"]["reflect"]) == (budget, True)
        prompts = [encoder.decode(group.trajectories[0].turns[0].prompt_ids) for group in run.read_groups(1)]
        (episode,) = run.read_episodes(1)
    told = [re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)[-1] for prompt in prompts]
    sizes = [encoder.count(text) for text in told]
    assert len(sizes) >= 10
    assert 0.7 * budget < max(sizes) <= budget
    reflections = [turn for turn in episode.timeline if turn["kind"] == "reflect" and turn["actor"] == "hr"]
    assert len(reflections) == 1
    assert reflections[0]["policy"] == "hr@0000"
    assert reflections[0]["facts"]["reflection"] == reflections[0]["text"][:240] != ""
    found = call("runs", "replay", "runs/a")
    assert found["matches"]
    assert found["prompts"] == found["groups"] == len(prompts)

    env = OfficeEnvironment(OfficeConfig(profile="full"))
    origin = read_origin(episode.facts, "the episode")
    assert origin is not None
    observation, whole = env.reset(origin.task), []
    for turn in episode.timeline:
        if turn["kind"] == "act" and observation is not None:
            whole += [encoder.count(observation.messages[1].content)] if turn["actor"] == "hr" else []
            observation = env.step(turn["text"]).observation
    assert max(whole) > budget, "without the budget they are longer"


@pytest.mark.slow  # 84 turns with long prompts
def test_behaviours_are_measured_with_pruned_prompts_and_reflecting_models(tiny_path: Path):
    """An episode is measured in the office in which it was played, where requests for reflection are no decisions."""
    from transformers import AutoTokenizer

    encoder, budget = ChatEncoder(AutoTokenizer.from_pretrained(tiny_path)), 330
    asked = Behaviours(
        teams=("base",), days=6, probes=1, prompt_budget=budget, reflect=True, max_new_tokens=8,
        model=ModelOptions(name=str(tiny_path), dtype="float32"),
    )  # fmt: skip
    tasks = office_tasks(Split.TEST, seeds=1, scenarios=["baseline"], days=6)
    ((_, (played,)),) = asked._episodes(tasks, Terminal(Output(quiet=True)))
    env, sizes, kinds = played.make_env(), [], []
    observation = env.reset(played.task)
    for reply in played.replies:
        assert observation is not None
        kinds.append(observation.kind)
        sizes += [encoder.count(observation.messages[1].content)] if observation.kind is Kind.ACT else []
        observation = env.step(reply).observation
    assert observation is None, "the whole episode was played"
    assert kinds.count(Kind.REFLECT) == len(SEATS)
    assert 0.7 * budget < max(sizes) <= budget
    assert played.tallies["usable replies"].occasions == kinds.count(Kind.ACT)


@pytest.mark.usefixtures("pages")
def test_eval_and_compare(call, tiny_path: Path):
    small = ("--per-role", "2", "--env.seeds", "1", "--env.days", "1", "--worlds", "2", "--turns", "4", "--candidates", "4")
    judged = call("eval", "base", "expert", *small, "--max-new-tokens", "4", *model(tiny_path))
    assert {cell["team"] for cell in judged["cells"]} == {"base", "expert"}
    assert set(judged["states"]) == set(SEATS)
    assert call("eval", "base", "expert", *small, "--max-new-tokens", "4", *model(tiny_path)) == judged, "from the cache"
    later = call("eval", "heuristic", "expert", *small, "--env.first", "3", "--states", "later.bin", "--roles", "hr")
    assert later["states"]["hr"] == judged["states"]["hr"]
    seeds = [{state.task.seed for state in load_states(Path(file))} for file in ("runs/states-dev.bin", "later.bin")]
    assert seeds[0].isdisjoint(seeds[1]), "other seeds"
    assert min(seeds[1]) - min(seeds[0]) == 3 * len(scenarios.SHIPPED)
    cooler = call("eval", "base", *small, "--temperature", "0.5", "--roles", "hr", "--max-new-tokens", "4", *model(tiny_path))
    assert {cell["decoding"] for cell in cooler["cells"]} == {"t0_n4", "t0.5_n4"}
    refused = call("eval", "expert", "--split", "test", "--states", "runs/states-dev.bin", code=2)
    assert "holds states of split dev" in " ".join(refused.split())
    refused = call("eval", "expert", "--env.first", "1", "--states", "later.bin", code=2)
    assert "later.bin was collected with --env.first 3, got --env.first 1." in " ".join(refused.split())
    again = call("eval", "heuristic", "expert", "--states", "later.bin", "--roles", "hr", "--worlds", "2", "--turns", "4")
    assert again["states"]["hr"] == later["states"]["hr"], "what is not asked for is as the file has it"

    tiny = ("--env.seeds", "1", "--env.scenarios", "baseline", "churn", "--env.days", "1", "--max-new-tokens", "4")
    compared = call("compare", "model=base", "heuristic", *tiny, "--alone", "sales", "--report", "r.html", *model(tiny_path))
    values = {row["team"]: row for row in compared["means"] if row["metric"] == "valid_rate" and row["stratum"] == "all"}
    assert set(values) == {"model", "heuristic", "model:sales"}
    assert not compared["failed"]
    assert "<html" in Path("r.html").read_text(encoding="utf-8")
    assert "boss" in call("compare", "heuristic", "--alone", "boss", code=2)
    assert "nobody" in call("compare", "nobody", code=2)


def test_an_edited_scenario_is_another_workplace(call):
    source = (Path(scenarios.__file__).parent / "churn.toml").read_text(encoding="utf-8")
    own = Path("own.toml")
    own.write_text(source, encoding="utf-8")
    before, shipped = Office(scenarios=("own.toml", "viral")).full_fingerprint(), Office(scenarios=("viral",)).full_fingerprint()
    assert Office(scenarios=("viral", "own.toml")).full_fingerprint() == before != shipped == Office().full_fingerprint()
    own.write_text(re.sub(r"(?m)^cash = .*$", "cash = 123_456", source), encoding="utf-8")
    assert Office(scenarios=("own.toml", "viral")).full_fingerprint() not in (before, shipped)


@pytest.mark.usefixtures("pages")
def test_what_a_comparison_cannot_show_is_refused_before_it_is_played(call):
    small = ("--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "1")
    earlier = call("compare", "heuristic", *small, "--cache", "earlier.sqlite")
    Path("earlier.json").write_text(json.dumps(earlier), encoding="utf-8")
    Path("file").write_text("", encoding="utf-8")
    Path("folder").mkdir()
    beside = ("--beside", "earlier.json")
    for words, said in (
        (("--featured", "nobody"), "--featured must be one of expert, base, got 'nobody'"),
        ((*beside, "--featured", "nobody"), "--featured must be one of heuristic, expert, base, got 'nobody'"),
        ((*beside, "--env.seeds", "2"), "different tasks"),
        ((*beside, "--seed", "3"), "seed 0 there, 3 here"),
        ((*beside, "--max-new-tokens", "9"), "max_new_tokens 48 there, 9 here"),
        ((*beside, "--env.profile", "full"), "env"),
        (("--beside", "file"), "holds no comparison"),
        (("--report", "folder"), "it is a folder"),
        (("--report", "file/below/r.html"), "--report cannot be written"),
        (("--quality", "earlier.json"), "holds no decision quality"),
        (("--before", "nobody"), "--before must be one of"),
        (("--before", "base"), "--before must be one of the other teams"),
        ((*beside, "--featured", "heuristic", "--before", "base"), "--before has no effect"),
    ):
        # The model is not there: loading one would be refused with another message.
        words = (*small, *words) if "--env.seeds" not in words else (*small[2:], *words)
        refused = call("compare", "expert", "base", *words, "--model.name", "no-such-model", code=1 if "holds no" in said else 2)
        assert said in " ".join(refused.replace("\u2502", " ").split()), words
        assert not Path("runs/evaluation.sqlite").exists(), "nothing was played"
    assert "heuristic is in earlier.json too" in call("compare", "heuristic", *small, *beside, code=2)
    both = call("compare", "expert", *small, *beside, "--featured", "heuristic", "--report", "r.html")
    assert {row["team"] for row in both["means"]} == {"heuristic", "expert"}
    for words in (("--states", "file/states.bin"), ("--states", "s.bin", "--cache", "file/cache.sqlite")):
        assert "file" in call("eval", "heuristic", "--env.days", "1", *words, code=2 if "s.bin" not in words else 1)
        assert not Path("s.bin").exists(), "no states were collected"


@pytest.mark.usefixtures("pages")
def test_the_report_of_a_run_is_complete(call, tiny_path: Path):
    """Curves, settings, turns and the shift from where it started, of the featured team's run; decision quality from a file."""
    call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2")
    call("sft", "--roles", "hr", "--epochs", "1", "--lora.rank", "2", "--out", "warm", *model(tiny_path))
    call("train", "--roles", "hr", "--iterations", "2", "--name", "a", "--init", "warm", *SMALL, *model(tiny_path))
    judging = ("--roles", "hr", "--per-role", "2", "--env.seeds", "1", "--env.days", "1", "--worlds", "2", "--turns", "4")
    judged = call("eval", "start=warm", "a", *judging, "--candidates", "4", "--max-new-tokens", "40", *model(tiny_path))
    Path("quality.json").write_text(json.dumps(judged), encoding="utf-8")

    small = ("--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "1", "--max-new-tokens", "40", *model(tiny_path))
    call("compare", "heuristic", "base", "start=a:0", "a", *small, "--report", "r.html", "--quality", "quality.json")
    page = Path("r.html").read_text(encoding="utf-8")
    assert '"open_run":"a"' in page
    assert "Actions of hr, start and a" in page, "not base, which is also a model"
    with Run.open(Path("runs/a"), readonly=True) as run:
        keys = [group.key for group in run.read_groups()]
        assert run.config["init"] == "warm"
    assert keys
    assert all(f'"{key}":{{"key"' in page for key in keys)
    assert f"(set {judged['states_digest']})" in page

    call("compare", "base", "warm", "a", "heuristic", *small, "--report", "r.html", "--alone", "hr")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Actions of hr, warm and a:hr" in page
    assert '"open_run":"a"' in page, "the featured team has one role of it"
    shown = call("compare", "a", *small, "--alone", "hr")
    worth = {row["team"]: row["mean"] for row in shown["means"] if (row["metric"], row["stratum"]) == ("company_value", "all")}
    assert worth["a"] == worth["a:hr"], "the seats that it has no adapter of are the heuristic's"
    for command, option in (("eval", "--roles"), ("compare", "--alone")):
        refused = " ".join(call(command, "a", option, "hr", "sales", *model(tiny_path), code=2).split())
        assert f"a has no adapter of sales. Name only roles that it has: {option} hr." in refused
    call("compare", "base", "warm", "a", *small, "--report", "r.html", "--before", "base")
    assert "Actions of hr, base and a" in Path("r.html").read_text(encoding="utf-8")
    call("compare", "heuristic", "expert", *small, "--report", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Actions of sales, heuristic and expert" in page
    assert '"run":null' in page, "no team is a run"


@pytest.mark.slow
def test_a_demo_that_trained_nothing_does_not_claim_success(call, tmp_path: Path):
    """An untaught model makes no usable reply, so every group is dead; tables of that would show equal rows as a result."""
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "untaught")
    tiny.tokenizer.save_pretrained(tmp_path / "untaught")
    said = call("demo", "--iterations", "1", "--states", "40", *model(tmp_path / "untaught"), code=1)
    assert "GRPO made no update" in said
    assert not Path("report.html").exists()


def test_other_rewards_are_another_environment() -> None:
    """Turns that were collected, and episodes that `compare` keeps, differ by what was paid for them."""
    assert Office(crisis_bonus=False).full_fingerprint() != Office().full_fingerprint()
