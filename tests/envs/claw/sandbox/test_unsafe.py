"""The one limit that plain subprocesses keep: a command's time, whatever it does to its output."""

from __future__ import annotations

import pytest

from checks.sandbox import holding
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.sandbox.programs import PYTHONS, executables

LIMIT_S = 3.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", holding.THIEVES)
def test_a_time_limit_holds_while_output_is_taken_away(kind: str):
    python = next(executables(PYTHONS))
    with open_host(unsafe=True) as host, host.open({"steal.py": holding.THIEVES[kind].encode()}) as sandbox:
        result = sandbox.run(f"{python} -I steal.py", timeout_s=LIMIT_S)
    assert result.timed_out
    assert LIMIT_S <= result.wall_s < LIMIT_S + holding.LATE_S
