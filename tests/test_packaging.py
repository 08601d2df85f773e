"""What the archives hold, and what is said about the rest."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checks.office.players.exploiters import EXPLOITS
from checks.sandbox import ATTACKS
from onthejob.cli import main
from onthejob.files import where_kept

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_source_archive_is_the_repository_without_the_adapters(repository: Path):
    included = {name.removeprefix("/") for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert sorted(name for name in included if not (repository / name).exists()) == []
    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    # Hatchling adds the project's own file.
    assert {name.split("/")[0] for name in listed.stdout.splitlines()} - {"adapters", "pyproject.toml"} == included


def wheel_files(repository: Path) -> list[str]:
    """What Hatchling packs into a wheel from the committed files, by its name there."""
    target = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(target) == {"packages"}, "this test does not know what else a wheel may hold"
    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    roots = [(package, package.rpartition("/")[0]) for package in target["packages"]]
    names = listed.stdout.splitlines()
    return [name.removeprefix(f"{above}/") for package, above in roots for name in names if name.startswith(f"{package}/")]


MEASURES = re.compile(r"gates|exploit|oracle|attack|handbook|recall|planting|(chat|hub|model)_server|envs/office/behaviours")


def test_the_wheel_holds_nothing_that_measures_the_product(repository: Path):
    packed = wheel_files(repository)
    assert "onthejob/envs/office/policies/expert.py" in packed
    assert {name.split("/")[0] for name in packed} == {"onthejob"}
    assert [name for name in packed if MEASURES.search(name)] == []
    defined = {
        node.name
        for name in packed
        if name.endswith(".py")
        for node in ast.walk(ast.parse((repository / "src" / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    players = {exploit.player for exploit in EXPLOITS.values()}
    exploiting = {getattr(player, "__name__", type(player).__name__) for player in players}
    attacks = {attack.attack.__name__ for attack in ATTACKS}
    assert len(exploiting | attacks) == len(players) + len(ATTACKS)
    assert defined & (exploiting | attacks) == set()


def locked(file: Path) -> dict[str, list[str]]:
    """Normalised name -> its requirement's lines, without comments; a package may have a version for each interpreter."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\s*\\\n\s*", " ", file.read_text(encoding="utf-8")).splitlines():
        if line and not line.startswith("#"):
            found.setdefault(canonicalize_name(re.split(r"==", line)[0]), []).append(line)
    return found


def asked(extras: Collection[str]) -> list[Requirement]:
    """Requirements of the project and these extras, without those that name the project again."""
    project, found, waiting = PROJECT["project"], [*PROJECT["project"]["dependencies"]], [*extras]
    while waiting:
        for line in project["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(line)
            if requirement.name == project["name"]:
                waiting += requirement.extras
            else:
                found.append(line)
    return [Requirement(line) for line in found]


@pytest.mark.parametrize(
    ("name", "extras"), [("requirements.lock", ()), ("requirements-test.lock", ("test", "check"))], ids=["run", "test"]
)
def test_locked_packages_are_what_the_project_asks_for(name: str, extras: tuple[str, ...], repository: Path):
    lines = locked(repository / name)
    for requirement in asked(extras):
        if requirement.name == "torch":
            continue
        rows = lines.get(canonicalize_name(requirement.name))
        assert rows, f"{requirement.name} is missing: make lock"
        versions = [re.findall(r"==(\S+)", row)[0] for row in rows]
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}, locked {versions}: make lock"
        )
    assert "torch" not in lines, "it depends on the machine"
    for row in (row for rows in lines.values() for row in rows):
        assert re.fullmatch(r"\S+==\S+( ; [^-]+)?( --hash=sha256:[0-9a-f]{64})+", row), row[:200]


def test_both_files_of_locked_packages_agree(repository: Path):
    few, many = (locked(repository / name) for name in ("requirements.lock", "requirements-test.lock"))

    def versions(rows: list[str]) -> list[str]:
        return sorted(re.findall(r"==(\S+)", row)[0] for row in rows)

    assert few
    assert {name: versions(rows) for name, rows in few.items()} == {name: versions(many[name]) for name in few}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("play", "office", "--team", "adapters/office"), "only in the project's repository"),
        (("play", "claw", "--policy", "adapters/claw"), "only in the project's repository"),
        (("compare", "kept=adapters/office", "expert"), "only in the project's repository"),
        (("train", "--init", "./adapters/office"), "only in the project's repository"),
        (("train", "--env", "claw", "--init", "adapters/claw"), "only in the project's repository"),
        (("serve", "model", "adapters/office"), "only in the project's repository"),
        (("model", "merge", "sales", "out", "--from", "adapters/office"), "only in the project's repository"),
        (("train", "--env.reader", "adapters/claims"), "only in the project's repository"),
        (("serve", "env", "--port", "0", "--env.reader", "adapters/claims"), "only in the project's repository"),
        (("train", "--config", "recipes/office.toml"), "repository and source archive"),
        (("train", "--config", "checks/office.toml"), "repository and source archive"),
    ],
)
def test_what_an_installed_package_lacks_is_said_to_be_elsewhere(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--quiet"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_other_folders_are_not_said_to_be_anywhere():
    assert [where_kept(name) for name in ("runs/mine", "my/adapters", "office", "")] == [""] * 4


def test_the_package_is_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "onthejob", "--version"], capture_output=True, text=True, timeout=280, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "onthejob"), done.stderr
