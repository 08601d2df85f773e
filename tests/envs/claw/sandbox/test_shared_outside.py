"""What the doctor says that sandboxes share with others."""

from __future__ import annotations

from pathlib import Path

from onthejob.envs.claw.sandbox.shared_outside import shared

DOCS = Path(__file__).parents[4] / "docs" / "sandbox.md"


def test_every_shared_resource_is_in_the_documentation():
    text = " ".join(DOCS.read_text(encoding="utf-8").replace("`", "").split()).lower()
    rows = shared()
    assert len(rows) >= 6
    assert [row.resource for row in rows if row.resource.lower() not in text] == []


def test_limits_are_those_of_this_machine(tmp_path: Path):
    for name, value in {
        "fs/pipe-user-pages-soft": "77\n",
        "fs/epoll/max_user_watches": "88\n",
        "net/ipv4/tcp_mem": "1\t2\t3\n",
    }.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value, encoding="ascii")
    found = {row.resource: row.effect for row in shared(tmp_path)}
    assert "beyond 77 pages" in found["pipe pages"]
    assert "beyond 88 " in found["epoll watches"]
    assert "1 2 3 pages" in found["memory of sockets"]
    assert "an unknown number of pages" in {row.resource: row.effect for row in shared(tmp_path / "none")}["pipe pages"]
