"""The host of sandboxes of their own tests, and copies of the sandbox with the attacks of `checks/` next to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ...envs.claw.sandbox.conftest import Copy, bring_bubblewrap, host

__all__ = ["Copy", "bring_bubblewrap", "copy", "host", "with_attacks"]

CHECKS = Path(__file__).parents[3] / "checks"


def with_attacks(checkout: Path) -> Path:
    """Put the attacks into a checkout, next to its `src/`; returns the latter."""
    for path in (CHECKS / "__init__.py", *(CHECKS / "sandbox").glob("*.py")):
        target = checkout / path.relative_to(CHECKS.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return checkout / "src"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(with_attacks(tmp_path))
