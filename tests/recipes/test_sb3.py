"""The recipe with sb3-contrib's MaskablePPO: it runs, and the role does better afterwards."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest


@pytest.mark.slow
def test_sales_is_learned(repository: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("sb3_contrib", reason="the sb3 extra is not installed")
    spec = importlib.util.spec_from_file_location("sb3_maskable_ppo", repository / "recipes" / "sb3_maskable_ppo.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    assert recipe.main(["--tiny"]) == 0
    out = capsys.readouterr().out
    difference, error = map(float, re.findall(r"episode by episode: (\S+) \+- (\S+)", out)[0])
    assert difference > error > 0, out
    assert "(3072 decisions" in out
