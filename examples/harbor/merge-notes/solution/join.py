from pathlib import Path

notes = sorted(Path("/var/notes/days").iterdir())
Path("/var/notes/all.md").write_text("\n".join(path.read_text() for path in notes))
