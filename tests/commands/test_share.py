"""`adapters push`, `adapters pull` and `runs push` against a Hub on loopback that stores what huggingface_hub really sends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from checks.servers.hub_server import Fault, Hub
from onthejob.cli import main
from onthejob.learn.adapter_files import CONFIG, META, WEIGHTS
from onthejob.stack import find_adapters
from onthejob.testing import teach, tiny_model
from onthejob.types import Message

# huggingface_hub 2.4 sends the contents of files in a way that its HTTP client calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TOKEN = "hf_never-to-be-seen-0123456789"
LETTERS = '''
from onthejob import Env, Next, Split, Task


class Letters(Env):
    """Two pick letters; `a` pays."""

    roles = ("first", "second")
    max_turns, max_new_tokens = 2, 3

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=12)

    def reset(self, task: Task) -> Next:
        return self.ask("first", "pick a letter", legal=list("abcdefgh"))

    def step(self, reply: str) -> Next:
        paid = {self.role: float(reply.strip() == "a")}
        if self.role == "second":
            return self.end(rewards=paid)
        return Next(request=self.ask("second", "pick a letter", legal=list("abcdefgh")).request, rewards=paid)
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run of two roles, `runs/a`, and a comparison of it, `runs/comparisons/kept.json`."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "letters.py").write_text(LETTERS, encoding="utf-8")
    tiny = tiny_model(words=["pick", "letter", *"abcdefgh"])
    teach(tiny, [((Message("user", "pick a letter"),), letter) for letter in "abcdefgh"], steps=60, batch=8)
    tiny.model.save_pretrained(folder / "tiny")
    tiny.tokenizer.save_pretrained(folder / "tiny")
    env = ("--env", "letters.py:Letters", "--model.name", str(folder / "tiny"), "--model.dtype", "float32", "--quiet")
    small = ("--collect.episodes", "2", "--branch.group-size", "4", "--lora.rank", "2", "--sampling.temperature", "1")
    judged = ("--eval-every", "1", "--eval-tasks", "4")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["train", *env, *small, *judged, "--iterations", "2", "--name", "a"]) == 0
        assert main(["compare", "a", "base", "random", *env, "--limit", "6", "--name", "kept"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hub, which this process uses with the token of `me`."""
    from huggingface_hub import constants

    made = Hub()
    made.users = {TOKEN: ("me", "lab"), "hf_somebody-else-9876543210": ("them",)}
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Read when the package was imported, which another test may have done.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield made
    made.close()


@pytest.fixture
def run(call: Any, place: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Any:
    """Run a command where the run is, as `call`."""
    monkeypatch.chdir(place)

    def called(*words: str | Path, code: int = 0) -> Any:
        got = call(*words, code=code)
        assert TOKEN not in str(got)
        return got

    return called


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def metadata(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_team_is_pushed_pulled_and_equal(run: Any, hub: Hub, place: Path, tmp_path: Path):
    pushed = run("adapters", "push", "a", "me/team", "--license", "apache-2.0", "--private")
    names = {f"{role}/{name}" for role in ("first", "second") for name in (WEIGHTS, CONFIG, META)}
    assert set(pushed["files"]) == names | {"README.md"}
    assert set(hub.files("me/team")) == names | {"README.md", ".gitattributes"}
    repository = hub.repositories["models", "me/team"]
    assert repository.private
    assert repository.at("main").id == pushed["commit"]
    assert len(repository.commits) == 2, "the first commit, and one with all files"
    assert repository.at("main").files[f"first/{WEIGHTS}"].large

    out = tmp_path / "pulled"
    pulled = run("adapters", "pull", "me/team", "--out", out)
    assert pulled["commit"] == pushed["commit"]
    sent = {path: content for path, content in hub.files("me/team").items() if path != ".gitattributes"}
    assert files_below(out) == sent
    for role, made in find_adapters(place / "runs/a").items():
        assert find_adapters(out)[role].digest == made.digest
        for name in (WEIGHTS, CONFIG, META):
            assert (out / role / name).read_bytes() == (made.path / name).read_bytes()

    compared = run(
        "compare", out, "a", "--env", "letters.py", "--limit", "4", "--model.name", place / "tiny", "--model.dtype", "float32"
    )
    rewards = {team: [r["episode_reward"] for r in compared["episodes"] if r["team"] == team] for team in ("pulled", "a")}
    assert rewards["pulled"] == rewards["a"]


# PEFT asks transformers by a name that is about to change.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_peft_loads_a_pushed_team_by_its_subfolders(
    run: Any, hub: Hub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import torch
    from huggingface_hub import snapshot_download
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run("adapters", "push", "a", "me/team")
    folder = snapshot_download("me/team", endpoint=hub.url, cache_dir=tmp_path / "hub")
    ids = torch.arange(8)[None]
    logits = []
    for source, subfolder in ((folder, "first"), (folder, "second"), (str(find_adapters(place / "runs/a")["first"].path), None)):
        base = AutoModelForCausalLM.from_pretrained(place / "tiny")
        loaded = PeftModel.from_pretrained(base, source, **({"subfolder": subfolder} if subfolder else {}))
        with torch.no_grad():
            logits.append(loaded(input_ids=ids).logits)
    assert torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], logits[1])


def test_one_role_stands_at_the_top_and_another_base_is_refused(run: Any, hub: Hub, place: Path, tmp_path: Path):
    run("adapters", "push", "a:best:second", "me/second")
    assert set(hub.files("me/second")) == {WEIGHTS, CONFIG, META, "README.md", ".gitattributes"}
    out = tmp_path / "second"
    assert list(run("adapters", "pull", "me/second", "--out", out)["adapters"]) == ["second"]

    other = tiny_model(words=["pick", "letter", *"abcdefgh"], seed=7)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    model = ("--model.name", tmp_path / "other", "--model.dtype", "float32")
    said = run("compare", out, "--env", "letters.py", "--limit", "2", *model, code=1)
    assert "it was trained on the base" in said


def test_the_card_states_base_recipe_evaluation_and_how_to_load(run: Any, place: Path, tmp_path: Path):
    out = tmp_path / "card"
    data = run(
        "adapters", "push", "a", "me/team", "--dry-run", "--out", out, "--comparison", "runs/comparisons/kept.json",
        "--base", "lab/tiny", "--license", "mit",
    )  # fmt: skip
    assert data["folder"] == str(out)
    assert data["url"] is None
    card = (out / "README.md").read_text(encoding="utf-8")
    meta = json.loads((out / "first" / META).read_bytes())
    stated = metadata(card)
    assert (stated["base_model"], stated["library_name"], stated["license"]) == ("lab/tiny", "peft", "mit")
    assert {"onthejob", "lora", "grpo"} <= set(stated["tags"])
    assert stated["onthejob"]["base_digest"] == meta["base_digest"]
    assert stated["onthejob"]["adapters"]["first"] == {"folder": "first", "digest": meta["digest"]}

    kept = json.loads((place / "runs/comparisons/kept.json").read_text(encoding="utf-8"))
    (row,) = [
        r for r in kept["means"] if (r["team"], r["metric"], r["stratum"]) == ("a", "episode_reward", "all")
    ]  # fmt: skip
    results = {m["type"]: m for r in stated["model-index"][0]["results"] for m in r["metrics"]}
    assert results["episode_reward"]["value"] == row["mean"]
    assert results["episode_reward"]["args"]["low"] == row["low"]
    assert results["episode_reward"]["args"]["high"] == row["high"]
    assert "wall_s" not in results
    assert "| a - base | episode_reward |" in card
    config = kept["settings"]["env"]
    for text in (
        "`letters.py:Letters`", config, 'PeftModel.from_pretrained(base, "me/team", subfolder="first")',
        "vllm serve lab/tiny --enable-lora --lora-modules first=team/first second=team/second",
        "onthejob adapters pull me/team --out adapters/team", "`onthejob train --config recipe.toml`",
        'ref = "letters.py:Letters"', "group_size = 4", "best_score",
    ):  # fmt: skip
        assert text in card, text
    assert str(place) not in card, "no folder of this machine"


def test_the_recipe_of_the_card_is_a_configuration_of_train(run: Any, place: Path, tmp_path: Path):
    run("adapters", "push", "a", "me/team", "--dry-run", "--out", tmp_path / "card")
    card = (tmp_path / "card/README.md").read_text(encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(card.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    shutil.copy(place / "letters.py", tmp_path / "letters.py")
    again = run("train", "--config", tmp_path / "recipe.toml", "--model.name", place / "tiny", "--name", "again")
    first = {role: made.digest for role, made in find_adapters(place / "runs/a").items()}
    assert {role: made["digest"] for role, made in again["adapters"].items()} == first


def test_a_run_becomes_a_data_set(run: Any, hub: Hub):
    pushed = run("runs", "push", "a", "lab/record", "--license", "cc-by-4.0")
    held = hub.files("lab/record", kind="datasets")
    tables = {f"{name}.jsonl" for name in ("groups", "turns", "metrics", "episodes", "adapters", "events")}
    assert set(held) == tables | {"README.md", ".gitattributes"}
    assert len(held["turns.jsonl"].splitlines()) == pushed["rows"]["turns.jsonl"] > 0
    assert {"prompt_ids", "logprobs", "advantage"} <= json.loads(held["turns.jsonl"].splitlines()[0]).keys()
    card = held["README.md"].decode()
    assert {"config_name": "turns", "data_files": "turns.jsonl", "default": True} in metadata(card)["configs"]
    assert "| train/first | delta_l2 |" in card
    assert 'load_dataset("lab/record", "turns")' in card

    assert "--update" in run("runs", "push", "a", "lab/record", code=2)
    pytest.importorskip("pyarrow")
    run("runs", "push", "a", "lab/record", "--format", "parquet", "--update")
    held = hub.files("lab/record", kind="datasets")
    assert {name for name in held if "turns" in name} == {"turns.parquet"}, "what was pushed before is replaced"


def test_a_branch_and_an_older_commit_are_pulled(run: Any, hub: Hub, tmp_path: Path):
    first = run("adapters", "push", "a:0:first", "me/team")
    run("adapters", "push", "a", "me/team", "--update", "--revision", "both")
    second = run("adapters", "push", "a:second", "me/team", "--update")
    assert set(hub.files("me/team")) == {WEIGHTS, CONFIG, META, "README.md", ".gitattributes"}
    for revision, roles in (("both", ["first", "second"]), (first["commit"], ["first"]), (second["commit"], ["second"])):
        out = tmp_path / revision
        assert list(run("adapters", "pull", "me/team", "--revision", revision, "--out", out)["adapters"]) == roles
    assert "no such revision" in run("adapters", "pull", "me/team", "--revision", "none", "--out", tmp_path / "x", code=1)
    assert run("adapters", "push", "a:second", "me/team", "--update")["commit"] == second["commit"], "nothing changed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "team"), "OWNER/NAME"),
        (("a", "me/te--am"), "OWNER/NAME"),
        (("a", "me/team", "--revision", "../x"), "no revision"),
        (("a", "me/team", "--license", "do what you want"), "no id of a license"),
        (("a", "me/team", "--out", "x"), "--out has no effect without --dry-run"),
        (("a", "me/team", "--team", "a"), "--team names a team of --comparison"),
        (("a", "me/team", "--dry-run", "--out", "tiny"), "exists, and nothing is overwritten"),
        (("a:third", "me/team"), "its roles are first, second"),
        (("nothing", "me/team"), "there is neither a folder nothing"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_a_request(run: Any, hub: Hub, words: tuple[str, ...], said: str):
    assert said in run("adapters", "push", *words, code=2)
    assert hub.seen == []


def test_a_comparison_without_these_adapters_is_refused(run: Any, tmp_path: Path):
    dry = ("me/team", "--dry-run", "--out", tmp_path / "x", "--comparison")
    assert "its teams are a, base, random" in run("adapters", "push", "a:best", *dry, "runs/comparisons/kept.json", code=1)
    assert "holds no comparison" in run("adapters", "push", "a", *dry, "letters.py", code=1)
    named = run("adapters", "push", "a:best", *dry, "runs/comparisons/kept.json", "--team", "a")
    assert Path(named["folder"]).is_dir()


def test_keys_are_never_sent(run: Any, hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "letters.py:Letters")
    said = run("adapters", "push", "a", "me/team", code=2)
    assert "README.md holds a key of this machine's environment" in said
    assert hub.seen == []


def test_answers_that_refuse_are_explained(run: Any, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "may not write to them/team (403)" in run("adapters", "push", "a", "them/team", code=1)
    assert "there is no repository me/none" in run("adapters", "pull", "me/none", "--out", tmp_path / "x", code=1)
    run("adapters", "push", "a", "me/team")
    assert "Add --update" in run("adapters", "push", "a", "me/team", code=2)
    assert "is public, and --private was given" in run("adapters", "push", "a", "me/team", "--update", "--private", code=2)
    monkeypatch.setenv("HF_TOKEN", "hf_nobody-has-this-one-00000")
    assert "the token is not valid (401)" in run("adapters", "push", "a", "me/more", code=1)
    monkeypatch.setenv("HF_TOKEN", "hf_somebody-else-9876543210")
    assert "may not write to me/team (403)" in run("adapters", "push", "a", "me/team", "--update", code=1)
    assert set(hub.repositories) == {("models", "me/team")}
    assert not (tmp_path / "x").exists()


def test_a_hub_that_fails_for_a_moment_is_asked_again(run: Any, hub: Hub, tmp_path: Path):
    hub.faults = [
        Fault(method="POST", path="*/preupload/*", status=503),
        Fault(method="PUT", path="/lfs/*", status=500),
    ]
    run("adapters", "push", "a:first", "me/team")
    run("adapters", "pull", "me/team", "--out", tmp_path / "x")
    assert all(fault.times == 0 for fault in hub.faults)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(method="POST", path="/api/repos/create", status=503, times=99), "failed (503) in the upload of me/team"),
        (Fault(method="POST", path="*/commit/*", status=412), "was changed by another commit meanwhile (412)"),
        (Fault(method="POST", path="*/commit/*", status=0), "was broken off"),
        (Fault(method="POST", path="*/commit/*", status=429), "too many requests to the Hub (429)"),
    ],
)
def test_a_broken_upload_publishes_nothing_and_is_repeated(run: Any, hub: Hub, tmp_path: Path, fault: Fault, said: str):
    hub.faults = [fault]
    assert said in run("adapters", "push", "a:first", "me/team", code=1)
    assert not hub.repositories or set(hub.files("me/team")) == {".gitattributes"}
    hub.faults = []
    run("adapters", "push", "a:first", "me/team")
    assert WEIGHTS in hub.files("me/team")


def test_a_broken_download_leaves_no_folder(run: Any, hub: Hub, tmp_path: Path):
    run("adapters", "push", "a:first", "me/team")
    hub.faults = [Fault(method="GET", path="/cdn/*", status=404, times=99)]
    assert "404" in run("adapters", "pull", "me/team", "--out", tmp_path / "x", code=1)
    assert list(tmp_path.glob("*x*")) == []


def test_changed_weights_and_foreign_repositories_are_refused(run: Any, hub: Hub, tmp_path: Path):
    run("adapters", "push", "a", "me/team")
    repository = hub.repositories["models", "me/team"]
    files = dict(repository.at("main").files)
    mixed = {**files, f"first/{WEIGHTS}": files[f"second/{WEIGHTS}"]}
    repository.add("mixed", "weights of another role", mixed)
    assert "the file was changed" in run("adapters", "pull", "me/team", "--revision", "mixed", "--out", tmp_path / "x", code=1)
    both = mixed | {f"first/{META}": files[f"second/{META}"]}
    repository.add("other", "another adapter than the card states", both)
    assert "the card of me/team states" in run(
        "adapters", "pull", "me/team", "--revision", "other", "--out", tmp_path / "x", code=1
    )
    repository.add("foreign", "PEFT's alone", {CONFIG: files[f"first/{CONFIG}"], WEIGHTS: files[f"first/{WEIGHTS}"]})
    assert "adapters import" in run("adapters", "pull", "me/team", "--revision", "foreign", "--out", tmp_path / "x", code=1)
    repository.add("empty", "nothing", {})
    assert "holds no adapter" in run("adapters", "pull", "me/team", "--revision", "empty", "--out", tmp_path / "x", code=1)
    assert not (tmp_path / "x").exists()


def test_the_command_reads_the_environment_and_needs_a_token(hub: Hub, place: Path, tmp_path: Path):
    """As a user starts it: a process of its own, whose environment names the Hub."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environ |= {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}

    def command(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "onthejob", "adapters", *words]
        return subprocess.run(line, cwd=place, env={**environ, **more}, capture_output=True, text=True, timeout=120, check=False)

    refused = command("push", "a:first", "me/team")
    assert refused.returncode == 2
    assert "Set HF_TOKEN" in refused.stderr
    assert hub.seen == []
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text(TOKEN, encoding="utf-8")
    done = command("push", "a:first", "me/team")
    assert done.returncode == 0, done.stderr
    assert f"{WEIGHTS} (" in done.stderr
    assert hub.url in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    gone = command("pull", "me/team", "--out", str(tmp_path / "x"), HF_ENDPOINT="http://127.0.0.1:9")
    assert gone.returncode == 1
    starting, problem = gone.stderr.splitlines()
    assert starting == "onthejob adapters pull: starting"
    assert "Check the network" in problem
