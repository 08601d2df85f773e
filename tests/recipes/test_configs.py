"""Configuration files that we ship are accepted, and every value in them arrives."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


def test_the_office_recipe_is_a_training_configuration(repository: Path, capsys: pytest.CaptureFixture[str]):
    file = repository / "recipes" / "office.toml"
    assert main(["train", "--config", str(file), "--print-config", "--json"]) == 0
    settings = leaves(json.loads(capsys.readouterr().out))
    named = leaves(tomllib.loads(file.read_text(encoding="utf-8")))
    assert named
    assert {path: settings[path] for path in named} == named
