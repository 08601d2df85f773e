"""What measures the product is found in a checkout; an installed package says what it lacks and where that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onthejob
from checks.office.players import players as measuring_players
from checks.sandbox import ATTACKS
from onthejob.checkout import PLAYERS, checks_folder, from_checks, missing_player
from onthejob.envs.claw.sandbox.faults import FAULTS, all_faults
from onthejob.envs.office.policies import players

# As a wheel: the package in a folder of its own. Prints what was found, and what each command answered.
INSTALLED = """
import contextlib, io, json, sys
from onthejob.checkout import checks_folder
from onthejob.cli import main
from onthejob.envs.claw.sandbox.faults import all_faults
from onthejob.envs.office.policies import players
answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        answers.append([main(words), " ".join(said.getvalue().split())])
print(json.dumps({
    "folder": str(checks_folder()), "players": list(players()), "faults": [fault.number for fault in all_faults()],
    "answers": answers, "imported": sorted(name for name in sys.modules if name.split(".")[0] == "checks"),
}))
"""
COMMANDS = (
    ("office", "gates", "--quick"),
    ("office", "behaviours"),
    ("office", "gates", "--help"),
    ("tasks", "convert", "intercode", "--out", "out"),
)
NAMING = (
    ("inert-farmer", "policy", "swap", "sales", "inert-farmer"),
    ("late-stopper", "compare", "expert", "--env.partner", "late-stopper"),
    ("tuned-viral", "collect", "--policy", "tuned-viral", "--out", "out"),
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the package finds and says where it is installed without a checkout."""
    site = tmp_path_factory.mktemp("installed") / "site-packages"
    site.mkdir()
    (site / "onthejob").symlink_to(Path(onthejob.__file__).parent)
    words = [*map(list, COMMANDS), *(list(words) for _, *words in NAMING)]
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED, json.dumps(words)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_checkout_finds_its_own(repository: Path):
    assert checks_folder() == repository / "checks"
    assert from_checks("office.players", what="players").players is measuring_players
    assert set(measuring_players()) <= set(players())
    assert all(missing_player(name) == "" for name in players())


def test_the_package_knows_the_names_of_the_players_that_it_lacks():
    assert frozenset(measuring_players()) == PLAYERS


def test_an_installed_package_has_no_player_and_no_attack_that_only_measures(installed: dict[str, Any]):
    assert installed["folder"] == "None"
    assert installed["imported"] == []
    assert set(installed["players"]) == set(players()) - PLAYERS
    assert installed["faults"] == [fault.number for fault in FAULTS]
    assert {fault.number for fault in all_faults()} - set(installed["faults"]) == {attack.number for attack in ATTACKS}


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[" ".join(words) for words in COMMANDS])
def test_commands_that_measure_say_where_they_are(installed: dict[str, Any], number: int):
    code, said = installed["answers"][number]
    name = " ".join(COMMANDS[number][:2])
    assert code == 2
    problem = said.removeprefix(f"onthejob {name}: starting").lstrip()
    assert problem.startswith(f"ConfigError: `onthejob {name}` is measurement, which the installed package does not include.")
    assert "checks/ of the project's repository and source archive" in said
    assert "pip install --editable ." in said


@pytest.mark.parametrize("number", range(len(NAMING)), ids=[words[0] for words in NAMING])
def test_players_that_measure_are_said_to_be_elsewhere(installed: dict[str, Any], number: int):
    code, said = installed["answers"][len(COMMANDS) + number]
    assert code == 2
    assert f"{NAMING[number][0]} is one of the players with which the office is measured" in said
    assert "pip install --editable ." in said


def test_another_package_of_that_name_is_refused_in_words(tmp_path: Path, repository: Path):
    (tmp_path / "checks.py").write_text("MINE = True\n", encoding="utf-8")
    program = "import checks; from onthejob.cli import main; raise SystemExit(main(['office', 'gates', '--quick']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(repository / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"{tmp_path / 'checks.py'} was imported under its name" in " ".join(done.stderr.split())
