"""The matched comparison works on a plain PEFT model, without the loop."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

# PEFT asks transformers for an attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def recipe(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("library_compare", repository / "recipes" / "library_compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("pages")
def test_an_adapter_that_saw_the_expert_is_told_from_its_base(
    recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, report = tmp_path / "cache.sqlite", tmp_path / "report.html"
    assert "python recipes/library_compare.py --tiny  " in (recipe.__doc__ or "")
    assert recipe.main(["--tiny", "--cache", str(cache), "--report", str(report)]) == 0
    first = capsys.readouterr().out
    assert "adapter minus others" in first
    assert "  base " in first.split("adapter minus others")[1]
    html = report.read_text(encoding="utf-8")
    assert "Actions of " in html
    assert '"subject":"against base","word":"better"' in html


def test_base_and_adapter_share_weights_but_not_replies(recipe: ModuleType) -> None:
    model, tokenizer = recipe.tiny_adapter(15)
    before = recipe.weights_digest(model)
    base, adapted = (recipe.GeneratePolicy(model, tokenizer, adapted=flag) for flag in (False, True))
    env = recipe.ToyWorkplace()
    contexts = []
    for task in recipe.toy_tasks(6, split=recipe.Split.TEST, first_seed=5):
        observation = env.reset(task)
        contexts.append(recipe.Context(observation=observation, messages=tuple(observation.messages), seed=task.seed))
    sampling = recipe.Sampling(temperature=1.0, max_new_tokens=4)
    replies = [policy.act(contexts, sampling) for policy in (base, adapted, base)]
    assert replies[0] == replies[2]  # the same seeds give the same replies, whichever policy answered in between
    assert replies[0] != replies[1]
    assert recipe.weights_digest(model) == before


def test_it_says_what_it_needs(recipe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        recipe.main([])
    assert stop.value.code == 2
    assert "--model and --adapter" in capsys.readouterr().err


def test_it_stays_short(repository: Path) -> None:
    assert len((repository / "recipes" / "library_compare.py").read_text(encoding="utf-8").splitlines()) <= 120
