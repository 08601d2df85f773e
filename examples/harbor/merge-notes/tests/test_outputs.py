from pathlib import Path


def test_all():
    assert Path("/var/notes/all.md").read_text() == "# Monday\n\n# Tuesday\n\n# Friday\n"


def test_archive():
    assert list(Path("/var/notes/archive").iterdir()) == []
