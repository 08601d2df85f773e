from pathlib import Path


def test_sorted():
    assert Path("/workspace/sorted.txt").read_text().split() == ["apple", "fig", "pear"]
