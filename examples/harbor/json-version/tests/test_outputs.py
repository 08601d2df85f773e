from pathlib import Path

WANTED = '{\n  "name": "parcel",\n  "version": "2.4.10",\n  "private": true\n}\n'


def test_version():
    assert Path("/app/package.json").read_text() == WANTED
