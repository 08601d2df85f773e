from pathlib import Path

NAMES = ["april.txt", "march.txt", "may.txt"]


def test_renamed():
    assert sorted(path.name for path in Path("/data/reports").iterdir()) == NAMES
    assert Path("/data/reports/may.txt").read_text() == "report of may\n"


def test_index():
    assert Path("/data/index.txt").read_text().split() == NAMES
