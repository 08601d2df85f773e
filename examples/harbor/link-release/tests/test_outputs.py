import os
from pathlib import Path


def test_link():
    assert os.readlink("/srv/service/current") == "releases/2"
    assert Path("/srv/service/current/version").read_text() == "two\n"
    assert Path("/srv/service/releases/1/version").read_text() == "one\n"
