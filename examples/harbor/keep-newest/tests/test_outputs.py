from pathlib import Path


def test_two_are_left():
    assert sorted(path.name for path in Path("/backup").iterdir()) == ["day-2.bak", "day-5.bak"]


def test_times():
    assert Path("/backup/day-2.bak").stat().st_mtime == 1775044800
    assert Path("/backup/day-5.bak").stat().st_mtime == 1772712000
