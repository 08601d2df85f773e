"""Control groups of version 2, whose files a machine with version 1 cannot show: what is looked for, written and read back.

That limits hold is tested with the real kernel, in the version that it has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox import cgroups
from onthejob.envs.claw.sandbox.cgroups import Cgroups, ControlGroup, candidates, limit


def test_groups_of_version_2_are_looked_for_from_ones_own_upwards(tmp_path: Path):
    own = tmp_path / "unified/user.slice/me"
    own.mkdir(parents=True)
    mount = f"30 24 0:26 / {tmp_path}/unified rw shared:4 - cgroup2 cgroup2 rw"
    (tmp_path / "cgroup").write_text("0::/user.slice/me\n")
    (tmp_path / "mountinfo").write_text(f"24 1 8:1 / / rw - ext4 /dev/sda rw\n{mount}\n")
    for controller in ("pids", "memory"):
        assert list(candidates(controller, proc=tmp_path)) == [(2, own), (2, own.parent), (2, tmp_path / "unified")]
    own.rmdir()
    assert next(candidates("pids", proc=tmp_path)) == (2, tmp_path / "unified"), "its own group is not visible here"


def test_a_controller_that_is_not_enabled_leaves_the_group_of_the_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As for a user to whom only `pids` is delegated."""

    def claim(self: Cgroups, folder: Path, version: int, controller: str) -> ControlGroup:
        assert controller == "pids", "tried again in the same folder, which ends with its removal"
        (folder / "mine").mkdir()
        return ControlGroup(folder / "mine", version, ("pids",))

    monkeypatch.setattr(cgroups, "candidates", lambda controller: [(2, tmp_path)])
    monkeypatch.setattr(Cgroups, "_claim", claim)
    made = Cgroups()
    assert [group.controllers for group in made.groups] == [("pids",)]
    assert made.detail("pids") == "cgroup v2"
    assert list(made.problems) == ["memory"]
    assert "not enabled" in made.detail("memory")


def test_limits_of_version_2_are_written_and_read_back(tmp_path: Path):
    host = Cgroups.__new__(Cgroups)
    host.groups = [ControlGroup(tmp_path, 2, ("pids", "memory"))]
    (made,) = host.make("s1", processes=66, memory=1 << 28)
    assert made == tmp_path / "s1"
    assert {file.name: file.read_text() for file in made.iterdir()} == {
        "pids.max": "66",
        "memory.max": str(1 << 28),
        "memory.swap.max": "0",
    }


def test_a_limit_that_does_not_hold_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for said in ("max", "65", "268500000"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, said=said: said)
            with pytest.raises(OSError, match=f"memory.max is '{said}' after"):
                limit(tmp_path / "memory.max", 1 << 28)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: f"{(1 << 28) - 4096}\n")
        limit(tmp_path / "memory.max", 1 << 28)  # down to a page
