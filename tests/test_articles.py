"""docs/articles.md: whatever it points to exists, and what it calls the same as in the articles is the same."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from onthejob.cli import COMMANDS

from .test_docs import check_command, is_left_out
from .test_options_in_messages import OPTION, options_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/articles.md"
STATUSES = {"same", "differs", "open", "never run at this size", "omitted"}
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#]*)(?:#([^)]*))?\)")
NAME = re.compile(r"onthejob(?:\.\w+)+:\w+")


class Row(NamedTuple):
    """One row of a table."""

    article: str
    here: str
    status: str


def rows() -> list[Row]:
    """All rows but the headings and the meaning of the statuses."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.endswith("| status |"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == 3:
                found.append(Row(*cells))
    return found


def spans(text: str) -> Iterator[str]:
    yield from (code.replace("\\|", "|") for code in CODE.findall(text))


def row(article: str) -> Row:
    """The row whose first cell begins so."""
    (found,) = [one for one in rows() if one.article.startswith(article)]
    return found


def test_every_row_has_a_status_and_says_where_the_thing_is():
    found = rows()
    assert len(found) > 200
    told = set(re.findall(r"^\| ([a-z ]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)) - {"status"}
    assert told == STATUSES
    for one in found:
        assert one.status in STATUSES, one
        if one.status in ("same", "differs", "never run at this size"):
            pointers = [*LINK.findall(one.here), *NAME.findall(one.here)]
            pointers += [code for code in spans(one.here) if code.startswith(("onthejob ", "--", "make ")) or commands_in(code)]
            assert pointers, f"{one.article}: where is it?"


def test_links_and_their_headings_exist():
    for target, heading in LINK.findall(PAGE.read_text(encoding="utf-8")):
        path = (PAGE.parent / target).resolve() if target else PAGE
        if is_left_out(path):
            continue
        assert path.exists(), target
        if heading:
            assert heading in {slug(title) for title in headings(path)}, f"{target}#{heading}"


def headings(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def test_names_of_the_package_exist():
    named = set(NAME.findall(PAGE.read_text(encoding="utf-8")))
    assert len(named) > 40
    for ref in named:
        module, _, name = ref.partition(":")
        place = ROOT / "src" / module.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert file.is_file(), ref
        assert name in defined(file), ref


def defined(file: Path) -> set[str]:
    """Names that a module defines or imports; it is not imported, as it may need an extra."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {inner.id for target in node.targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def commands_in(code: str) -> str:
    """The command with which a span of text begins, with or without `onthejob`; empty when it is something else."""
    words = shlex.split(code)
    words = words[1:] if words[:1] == ["onthejob"] else words
    return next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), "")


def test_commands_parse(monkeypatch: pytest.MonkeyPatch):
    """Those without options, which the test of all documents takes for mere names; it parses the others."""
    monkeypatch.chdir(ROOT)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    spoken = [code for line in lines for code in spans(line) if code.startswith("onthejob ")]
    bare = [code for code in spoken if " -" not in code]
    assert len(bare) > 10
    assert len(spoken) - len(bare) > 15
    for line in bare:
        check_command(line, PAGE.name)


def test_options_exist(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    named = {
        option
        for one in rows()
        for code in spans(one.here)
        if code.startswith("--") or commands_in(code)
        for option in OPTION.findall(code)
    }
    assert len(named) > 40
    known: set[str] = set()
    for command in ("train", "play", "collect", "runs rescore", "serve env", "tasks synth"):
        known |= options_of(command, capsys, "office", "claw")
    for command in (
        "compare",
        "sft",
        "policy swap",
        "model merge",
        "adapters import",
        "office behaviours",
        "view",
        "runs show",
        "runs export",
    ):
        known |= options_of(command, capsys, "office")
    assert named <= known, named - known


@pytest.mark.parametrize("recipe", ["recipes/office_qwen14b.toml", "recipes/claw_qwen7b.toml", "container/Dockerfile"])
def test_what_has_never_run_is_said_to_have_never_run(recipe: str):
    sizes = PAGE.read_text(encoding="utf-8").split("## Sizes")[1].split("\n## ")[0]
    (line,) = [line for line in sizes.splitlines() if f"({'../' + recipe})" in line]
    assert line.endswith("| never run at this size |")


def test_numbers_of_the_first_article():
    """What the page calls the same, against the article's own figures, which stand here and nowhere else."""
    from onthejob.envs.office.company_state import PHASES, TURNS_PER_DAY
    from onthejob.envs.office.events import RANDOM_EVENTS
    from onthejob.envs.office.handlers.customer import REFERRAL_COOLDOWN
    from onthejob.envs.office.market import TIER_MULTIPLIER
    from onthejob.envs.office.memory import CAPACITY, DECAY, REFLECTION_TURNS
    from onthejob.envs.office.reward_parts import BASE, CRISIS_SATISFACTION, EFFECTS, ORDER, PARTS, STAGE_TABLE, USES
    from onthejob.envs.office.roles import ROLES, TRAINED_ROLES
    from onthejob.envs.office.scenarios import SHIPPED, load
    from onthejob.envs.office.scorer import MAX_SCORE
    from onthejob.envs.office.sections import LOWEST

    assert [spec.person for spec in ROLES.values()] == ["Jeeya", "Alex", "Jordan", "Sam", "Casey", "Pat", "Oracle"]
    assert sum(len(spec.actions) for spec in ROLES.values()) == 7 * 6 + 1
    assert len(TRAINED_ROLES) == 6
    assert (TURNS_PER_DAY, [PHASES.count(phase) for phase in dict.fromkeys(PHASES)]) == (420 // 30, [3, 8, 2, 1])
    assert (CAPACITY, REFLECTION_TURNS, DECAY, LOWEST, MAX_SCORE) == (200, 70, 0.01, 8, 1.45)
    assert (len(PARTS), len(RANDOM_EVENTS), REFERRAL_COOLDOWN) == (6, 8, 5)
    paid = {kind: {role: value for role, value in zip(ORDER, line, strict=True) if value} for kind, line in STAGE_TABLE.items()}
    assert paid.pop("qualified") == {"sales": 1.0, "hr": 0.3}
    assert paid == {
        "lead": {"marketing": 1.5, "content": 1.0},
        "demo": {"sales": 1.5, "dev": 1.0},
        "proposal": {"sales": 2.0},
        "closed_won": {"sales": 10, "marketing": 3, "dev": 2, "content": 2, "ceo": 5, "hr": 1, "customer": 2},
        "closed_lost": {"sales": -3, "marketing": -1, "content": -0.5, "ceo": -2, "hr": -0.5},
        "churned": {"sales": -3, "marketing": -1, "dev": -5, "content": -2, "ceo": -3, "hr": -1, "customer": -5},
    }
    assert (TIER_MULTIPLIER, BASE[0], CRISIS_SATISFACTION) == ((1.0, 2.0, 3.0), 0.1, 0.4)
    assert (EFFECTS["release shipped"][ORDER.index("dev")], EFFECTS["blocker cleared"][ORDER.index("hr")]) == (3.0, 1.5)
    assert list(USES.values()) == [1.0, 1.0, 0.5, 0.5, 0.5]
    scenarios = {name: load(name) for name in SHIPPED}
    assert {name: [event.day for event in scenario.schedule] for name, scenario in scenarios.items()} == {
        "baseline": [],
        "competitor": [3, 7, 15, 25],
        "series_a": [1, 10, 20],  # the article's 1, 30 and 60 do not fit into 30 days
        "churn": [1, 5, 10, 20],
        "viral": [1, 3, 7, 15, 21, 27],
    }
    assert {name: (scenario.cash, scenario.traffic) for name, scenario in scenarios.items()} == {
        "baseline": (100_000, 1000),
        "competitor": (100_000, 800),
        "series_a": (200_000, 1000),
        "churn": (100_000, 1000),
        "viral": (100_000, 3000),
    }


def test_numbers_of_the_second_article():
    from onthejob.claw import Claw
    from onthejob.commands.training import SMOKE_SIZE, SMOKE_TASKS
    from onthejob.envs.claw.episode_reward import RewardConfig, reward_of
    from onthejob.envs.claw.personas import CARDS
    from onthejob.envs.claw.protocol import ProtocolConfig
    from onthejob.envs.claw.splits import split_of
    from onthejob.envs.claw.synthesize import synthesize

    assert set(CARDS) == {
        *("academic-author", "backend-developer", "data-science-researcher", "devops-engineer"),
        *("embedded-firmware-dev", "indie-game-dev", "ml-engineer", "technical-writer"),
    }
    turns = ProtocolConfig().max_turns
    assert turns == 12

    def shaped(rate: float, used: int) -> float:
        return sum(reward_of(rate == 1, rate, turns=used, max_turns=turns, config=RewardConfig()).values())

    assert [round(shaped(*case), 3) for case in ((1, 4), (1, 12), (0.6, 12), (1, 2))] == [0.933, 0.8, 0.4, 0.967]
    assert (SMOKE_TASKS, SMOKE_SIZE, Claw.usual_group_size) == (4, 4, 4)
    page = PAGE.read_text(encoding="utf-8")
    counts = Counter(str(split_of(task)) for task in synthesize(1000, seed=0))
    assert f"{counts['train']} train, {counts['dev']} dev, {counts['test']} test" in page


@pytest.mark.parametrize(
    ("shape", "rank", "adapter"),
    [((3584, 18944, 28, 28, 4), 16, 40_370_176), ((5120, 13824, 48, 40, 8), 32, 137_625_600)],
    ids=["7b", "14b"],
)
def test_the_size_of_adapters_at_the_articles_sizes(shape: tuple[int, ...], rank: int, adapter: int):
    """Counted on models without weights, of one layer and of two; the second article prints what its 7B has."""
    one, more = (np.array(parameters(shape, layers, rank)) for layers in (1, 2))
    base, counted = (int(number) for number in one + (shape[2] - 1) * (more - one))
    assert counted == adapter
    if rank == 16:
        assert base + counted == 7_655_986_688
    else:
        share = f"{100 * counted / base:.1f} % of {base / 1e9:.1f} billion"
        assert f"{counted / 1e6:.1f} million parameters, {share}, {counted * 2 / 1e6:.0f} MB" in PAGE.read_text(encoding="utf-8")


def parameters(shape: tuple[int, ...], layers: int, rank: int) -> tuple[int, int]:
    """Of a Qwen2.5 with so many layers, and of an adapter of `rank` on all its linear layers."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from onthejob.learn.lora import LoraSpec, plan

    hidden, middle, _, heads, keys = shape
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=middle,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        vocab_size=152_064,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    base = model.num_parameters()
    plan(model, LoraSpec(rank=rank))
    return base, sum(value.numel() for name, value in model.named_parameters() if ".lora_" in name)
