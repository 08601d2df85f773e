"""TRL's own GRPOTrainer learns on the office, through both of its interfaces, with the commands that are documented."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.testing import tiny_tokenizer
from onthejob.types import Split

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL, PEFT and transformers warn about each other
RECIPES = ("trl_environment_factory", "trl_rollout_func")


def documented(repository: Path, name: str) -> list[list[str]]:
    """Arguments of each command line of a recipe, from its docstring and from docs/compat.md."""
    about = ast.get_docstring(ast.parse((repository / "recipes" / f"{name}.py").read_text(encoding="utf-8")))
    pages = f"{about}\n{(repository / 'docs' / 'compat.md').read_text(encoding='utf-8')}"
    lines = re.findall(rf"^ *python recipes/{name}\.py (.*)$", pages, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in dict.fromkeys(lines)]


@pytest.fixture
def recipes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the recipes, from which they can be imported."""
    monkeypatch.syspath_prepend(repository / "recipes")
    return repository / "recipes"


def figures(text: str, start: str) -> dict[str, float]:
    """Name -> number of the printed line that begins like this."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{start} "))
    return {name: float(number) for name, number in re.findall(r"([a-z_/]+) (-?[0-9.e+-]+)", line)}


def learns(name: str, arguments: list[str], out: Path, printed: pytest.CaptureFixture[str]) -> str:
    """Run a recipe, and require that groups were alive and the adapter moved; returns what was printed."""
    assert importlib.import_module(name).main([*arguments, "--out", str(out)]) == 0
    text = printed.readouterr().out
    mean = figures(text, "mean of")
    assert mean["frac_reward_zero_std"] < 0.5
    assert mean["grad_norm"] > 0
    weights = load_file(out / "adapter_model.safetensors")
    # A new adapter's B matrices are zero.
    assert any(tensor.abs().max() > 0 for key, tensor in weights.items() if "lora_B" in key)
    return text


@pytest.mark.parametrize("name", RECIPES)
def test_both_documents_show_the_same_two_commands(name: str, repository: Path) -> None:
    tiny, real = documented(repository, name)
    assert tiny == ["--tiny"]
    assert real[:4] == ["--model", "DIR", "--adapter", "adapters/office/sales@0006"]
    assert (repository / real[3]).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_tiny_command_learns(
    name: str, recipes: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = learns(name, documented(repository, name)[0], tmp_path, capsys)
    before, after = map(float, re.findall(r"held-out reward (\S+) -> (\S+)", text)[0])
    assert after > before
    if name == "trl_environment_factory":
        assert figures(text, "update 1")["tools/call_frequency"] > 0.2


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", RECIPES)
def test_the_kept_adapter_learns_on(
    name: str,
    recipes: Path,
    repository: Path,
    smollm2_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    counts: Callable[[int, int], int],
) -> None:
    """Minutes each: with reduced counts one of the two."""
    if name not in RECIPES[: counts(1, 2)]:
        pytest.skip("with ONTHEJOB_COUNTS=full")
    arguments = documented(repository, name)[1]
    places = {"DIR": str(smollm2_path), arguments[3]: str(repository / arguments[3])}
    learns(name, [places.get(word, word) for word in arguments], tmp_path, capsys)


def test_replies_that_are_all_worth_the_same_are_a_failure(
    recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that was taught nothing: no reply is legal, so that TRL reports a finite loss and a gradient of zero."""
    recipe = importlib.import_module("trl_environment_factory")
    few = ["--updates", "1", "--decisions", "1", "--replies", "2", "--ahead", "0", "--held-out", "0"]
    assert recipe.main(["--tiny", "--taught", "1", *few, "--out", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert figures(text, "update 1")["frac_reward_zero_std"] == 1
    assert "Nothing was learned: in every group all replies were worth the same (frac_reward_zero_std 1)" in text
    assert not (tmp_path / "adapter_model.safetensors").exists()


def test_an_adapter_is_trained_in_its_own_role(recipes: Path, tmp_path: Path) -> None:
    recipe = importlib.import_module("trl_start")

    def role(*more: str) -> str:
        return recipe.role_of(recipe.arguments(None).parse_args(["--model", "m", *more]))

    known, unknown = tmp_path / "sales@0003", tmp_path / "other"
    known.mkdir()
    unknown.mkdir()
    (known / "adapter_meta.json").write_text(json.dumps({"role": "sales"}), encoding="utf-8")
    assert role() == "hr"
    assert role("--adapter", str(known)) == "sales"
    assert role("--adapter", str(unknown), "--role", "dev") == "dev"
    with pytest.raises(ConfigError, match="was trained as sales, got --role dev"):
        role("--adapter", str(known), "--role", "dev")
    with pytest.raises(ConfigError, match=r"no adapter_meta\.json that names its role\. Set --role"):
        role("--adapter", str(unknown))


def test_a_rollout_appends_the_feedback_and_does_not_train_on_it(recipes: Path) -> None:
    """With --retries an unusable reply is answered in the conversation, 0 in the mask, and the decision stays open."""
    recipe, tokenizer = importlib.import_module("trl_rollout_func"), tiny_tokenizer()
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["baseline"])
    trainer = SimpleNamespace(processing_class=tokenizer)
    ids = tokenizer.encode("no<|im_end|>")
    for retries in (0, 1):
        rollouts = recipe.Rollouts([task], "hr", new_tokens=8, decisions=1, ahead=0, retries=retries)
        rollout = rollouts.begin(task, trainer)
        rollout.append(ids, [-1.0] * len(ids), sampled=True)
        rollouts.answer(rollout, ids, trainer)
        assert rollout.job.over == (retries == 0)
        told = tokenizer.decode([token for token, mine in zip(rollout.completion, rollout.mask, strict=True) if not mine])
        assert ("Your reply was not usable" in told) == (retries == 1)
        assert rollout.mask[: len(ids)] == [1] * len(ids)


@pytest.mark.parametrize("name", [*RECIPES, "trl_start"])
def test_they_stay_short(name: str, repository: Path) -> None:
    assert len((repository / "recipes" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 180
