"""The pages in a real browser: Debian's Chromium, driven by playwright-core from `viewer/`. Run by `.ci/run`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.api.app import PAGES
from onthejob.record import Run
from onthejob.testing import tiny_model
from onthejob.train.collected import read_collected

from .recording import claw_run, comparison, kept_comparison, long_run, office_run
from .serving import TOKEN, served

ROOT = Path(__file__).parent.parent.parent
VIEWER = ROOT / "viewer"
CHECKS = VIEWER / "tests" / "browser"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


def node() -> str:
    """Node, or a skip that says what is missing."""
    found = shutil.which("node")
    if found is None or shutil.which("chromium") is None:
        pytest.skip("needs node and chromium; .ci/run installs them")
    if not (VIEWER / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs `npm --prefix viewer ci`; .ci/run does it")
    if not (PAGES / "index.html").is_file():
        pytest.skip("the pages are not built; `make viewer` builds them")
    return found


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    """A server of its own process, with one recorded run."""
    node()
    office_run(runs)
    claw_run(runs, isolated=True)
    comparison(runs)
    kept_comparison(runs, "office", others={"random": "first"})
    long_run(runs)
    with served(runs) as url:
        yield url


@pytest.mark.parametrize("name", ["guess", "negotiation"])
def test_a_person_plays_an_environment_of_their_own(name: str, tmp_path: Path):
    node()
    words = [sys.executable, "-m", "onthejob", "view", "--env", str(ROOT / "examples" / f"{name}.py"), "--no-open", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address, token = process.stdout.readline().strip().split("/#token=")
        play_in_browser("seats", address, token)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_seat_is_put_into_training_mode(tmp_path: Path):
    node()
    tiny = tiny_model(words=["customers", "company"])
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    words = [
        sys.executable, "-m", "onthejob", "view", "--collect", "shift", "--seat", "sales=base", "--env.days", "3", "--no-open",
        "--port", "0", "--max-new-tokens", "3", "--model.name", "base", "--model.dtype", "float32", "--quiet",
    ]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address, token = process.stdout.readline().strip().split("/#token=")
        play_in_browser("modes", address, token)
        with Run.open(tmp_path / "runs/shift", readonly=True) as run:
            turns = read_collected(run).turns
        assert [turn.actor for turn in turns] == ["sales"] * 4, "two days of sales"
        assert {turn.task.seed for turn in turns} == {100_000}
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    "check",
    [
        "pages",
        "timeline",
        "moments",
        "visit",
        "action",
        "happening",
        "photo",
        "links",
        "connection",
        "idle",
        "why",
        "scrub",
        "playground",
        "group",
        "recorded",
        "runs",
        "curves",
        "race",
        "stages",
        "customer",
        "access",
        "export",
    ],
)
def test_in_the_browser(check: str, address: str):
    play_in_browser(check, address, TOKEN)


def play_in_browser(check: str, address: str, token: str) -> None:
    """Run one of `viewer/tests/browser` against a server."""
    # A name of its own and a short one: the path of Chromium's socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        done = subprocess.run(
            [node(), str(CHECKS / f"{check}.mjs"), address, token],
            capture_output=True,
            text=True,
            timeout=800,
            cwd=VIEWER,
            env={**os.environ, "TMPDIR": folder},
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert json.loads(done.stdout.strip().splitlines()[-1])["checked"] > 0
