"""Models of this machine in the viewer: each on the base of its run, loaded on demand within a memory limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from onthejob.api.asking import Asking
from onthejob.commands.model import weights_bytes
from onthejob.commands.player_specs import ModelOptions
from onthejob.commands.view_models import GIB, Loader
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.errors import ConfigError
from onthejob.learn import lora
from onthejob.learn.adapter_files import save_adapter
from onthejob.models.base_model import weights_digest
from onthejob.record import Run
from onthejob.testing import tiny_model
from onthejob.types import Context, Message, Sampling, Split, Task

TASK = Task(id="office-baseline-1000", env="office", split=Split.DEV, seed=1_000, payload={"scenario": "baseline", "days": 1})


def model_folder(place: Path, seed: int) -> Path:
    """A base model on disk; another seed is another one."""
    tiny = tiny_model(seed=seed)
    tiny.model.save_pretrained(place)
    tiny.tokenizer.save_pretrained(place)
    return place


def train_run(root: Path, name: str, base: Path, *, versions: int = 1) -> Path:
    """A run whose sales adapter was trained on `base` with the full profile and replies of 48 tokens."""
    config = {
        "env": {"ref": "office", "profile": "full"},
        "model": {"name": str(base), "template_arguments": []},
        "train": {"sampling": {"max_new_tokens": 48}},
    }
    with Run.create(root, config=config, name=name) as run:
        add_versions(run, base, range(versions))
    return root / name


def add_versions(run: Run, base: Path, versions: range) -> None:
    model = lora.attach(tiny_model(seed=int(base.name[-1])).model, ["sales"], lora.LoraSpec(rank=2, alpha=4), seed=0)
    for version in versions:
        with run.iteration(version) as it:
            it.adapter(
                save_adapter(
                    model,
                    "sales",
                    run.path / "adapters",
                    version=version,
                    parent=f"sales@{version - 1:04d}" if version else None,
                    base_digest=weights_digest(base),
                    dtype="float32",
                )
            )


@pytest.fixture
def bases(tmp_path: Path) -> tuple[Path, Path]:
    return model_folder(tmp_path / "base1", 1), model_folder(tmp_path / "base2", 2)


def loader(base: Path, *, room: float | None = None) -> tuple[Loader, list[str]]:
    """With what it says; `room` is for so many models of the size of `base`."""
    said: list[str] = []
    options = ModelOptions(name=str(base), dtype="float32")
    limit = None if room is None else room * weights_bytes(base, "float32") / GIB
    return Loader(options, Asking(), said.append, max_gib=limit), said


def test_the_weights_are_counted_by_their_headers(bases: tuple[Path, Path]):
    tiny = tiny_model(seed=1)
    held = sum(parameter.numel() for parameter in tiny.model.parameters())
    assert weights_bytes(bases[0], "float32") == 4 * held
    assert weights_bytes(bases[0], "bfloat16") == 2 * held
    assert weights_bytes(bases[0], "bfloat16", nf4=True) < 2 * held


def test_a_run_plays_on_its_own_base_and_is_asked_as_it_was(bases: tuple[Path, Path], tmp_path: Path):
    load, _ = loader(bases[0])
    run = train_run(tmp_path / "runs", "mine", bases[1])
    found = load(str(run))
    assert found.team.policies["sales"].version == "sales@0000"
    assert found.team.policies["dev"].version == "heuristic"
    asked = found.asking["sales"]
    assert (asked.profile, asked.max_new_tokens, asked.base) == ("full", 48, str(bases[1]))
    usual = load("base")
    assert usual.asking["sales"].max_new_tokens == 48
    # Different weights answer differently; both are there at the same time.
    replies = [one.team.policies["sales"] for one in (usual, load(f"base:{bases[1]}"))]
    env = OfficeEnvironment()
    context = Context(observation=env.reset(TASK), prompt_ids=usual.encoder.encode([Message("user", "JSON:")]))
    said = [policy.act([context], Sampling(temperature=0.0))[0].token_ids for policy in replies]
    assert said[0] != said[1]


def test_a_run_that_goes_on_is_seated_with_its_newest_adapter(bases: tuple[Path, Path], tmp_path: Path):
    load, said = loader(bases[0])
    run = train_run(tmp_path / "runs", "mine", bases[0])
    assert load(str(run)).team.policies["sales"].version == "sales@0000"
    with Run.open(run) as record:
        add_versions(record, bases[0], range(1, 2))
    assert load(str(run)).team.policies["sales"].version == "sales@0001"
    assert not any("makes way" in line for line in said)


def test_models_that_nobody_needs_make_way_and_those_that_sit_do_not(bases: tuple[Path, Path]):
    load, said = loader(bases[0], room=1.5)
    first, second = "base", f"base:{bases[1]}"
    load(first)
    with pytest.raises(ConfigError, match="Give those seats to another player first, or raise --max-model-gib"):
        load(second, {first})
    load(second)
    assert f"{bases[0]} makes way for another model" in said
    with pytest.raises(ConfigError, match="in other seats takes"):
        load(first, {second})
    both, _ = loader(bases[0], room=2.0)
    both(first)
    both(second, {first})
    small, _ = loader(bases[0], room=0.9)
    with pytest.raises(ConfigError, match="choose a smaller model"):
        small(first)


def test_a_folder_is_one_base_however_it_is_named(bases: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    load, said = loader(Path("base1"), room=1.0)
    run = train_run(tmp_path / "runs", "mine", bases[0])
    load("base")
    load(str(run), {"base"})
    load(f"base:{bases[0]}", {"base"})
    assert not any("makes way" in line for line in said)


def test_a_base_that_has_gone_is_replaced_by_the_one_that_is_named(bases: tuple[Path, Path], tmp_path: Path):
    moved = tmp_path / "moved1"
    run = train_run(tmp_path / "runs", "mine", bases[0])
    bases[0].rename(moved)
    load, _ = loader(moved)
    assert load(str(run)).team.policies["sales"].version == "sales@0000"
