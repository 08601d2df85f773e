"""`collect --variants`: contract tiers are among what a warm start imitates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.commands.collect_office import demonstrations
from onthejob.envs.office.tasks import office_tasks
from onthejob.types import Split


def decisions(*, variants: bool) -> Iterator[list[dict[str, Any]]]:
    """What was written of each decision of Sales, in one training episode."""
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["viral"], days=12)
    by_turn: dict[int, list[dict[str, Any]]] = {}
    for row in demonstrations(task, "expert", 0.3, 1, variants=variants):
        if row["role"] == "sales":
            by_turn.setdefault(row["turn"], []).append(row)
    yield from by_turn.values()


def test_a_proposal_comes_with_every_tier_and_its_message() -> None:
    proposals = 0
    for rows in decisions(variants=True):
        best, *others = (json.loads(row["reply"]) for row in rows)
        if best["action_type"] != "SEND_PROPOSAL":
            continue
        proposals += 1
        assert rows[0]["marked"] == "expert"
        same = [other for other in others if other["target"] == best["target"] and other["action_type"] == "SEND_PROPOSAL"]
        assert {"six_month", "annual"} <= {other.get("parameters", {}).get("tier", "monthly") for other in same}
        named = [row for row, other in zip(rows[1:], others, strict=True) if other.get("parameters") and other in same]
        assert all(row["marked"] != "expert" and row["weight"] >= 0.7 for row in named)
        assert any(other.get("message") == best.get("message") for other in same)
    assert proposals > 2


def test_other_decisions_are_written_as_without() -> None:
    plain, varied = list(decisions(variants=False)), list(decisions(variants=True))
    assert len(plain) == len(varied)
    for before, after in zip(plain, varied, strict=True):
        if json.loads(before[0]["reply"])["action_type"] != "SEND_PROPOSAL":
            assert before == after


def test_variants_need_alternatives(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--variants", "--out", str(tmp_path / "d")]) == 2
    assert "Set --alternatives 1" in capsys.readouterr().err
