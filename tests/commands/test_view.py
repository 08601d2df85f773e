"""`onthejob view`: serves from the command line, and says what is wrong before it does."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.record import Run

GUESS = str(Path(__file__).parent.parent.parent / "examples" / "guess.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "holds no run"),
        (["--port", "70000"], "port must be in 0..65535"),
        (["--env.scenarios", "moon"], "scenario must be one of"),
        (["--env.days", "0"], "days"),
        (["--policy", "nobody"], "unknown player"),
        (["--policy", "run:nowhere"], "unknown player"),
        (["--policy", "openai:ftp://x"], "must be http or https"),
        (["--seat", "janitor=expert"], "--seat takes ROLE=PLAYER"),
        (["--host", "192.0.2.1"], "cannot listen"),
        (["--env", "claw", "--env.count", "0"], "claw needs count in 1..100000"),
        (["--env", "nowhere.py"], "there is no file nowhere.py"),
        (["--env", GUESS, "--env.days", "3"], "Unrecognized options"),
        (["--env", GUESS, "--env.highest", "much"], "much"),
    ],
)
def test_bad_options_end_at_once(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["view", "--no-open", "--port", "0", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "token=" not in captured.out


@pytest.mark.server
def test_it_serves_an_environment_of_ones_own_with_its_options(tmp_path: Path):
    words = [sys.executable, "-m", "onthejob.cli", "view", "--env", GUESS, "--env.highest", "20", "--no-open", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address, token = process.stdout.readline().strip().split("/#token=")
        with urllib.request.urlopen(f"{address}/api/config", timeout=60) as answer:
            assert json.load(answer)["env"]["options"] == {"highest": 20}
        headers = {"content-type": "application/json", "x-onthejob-token": token}
        begin = urllib.request.Request(f"{address}/api/tables", data=b'{"seats": {"guesser": "human"}}', headers=headers)
        with urllib.request.urlopen(begin, timeout=60) as answer:
            assert json.load(answer)["asked"]["legal"][-1] == "20"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, 130, -signal.SIGINT)
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", "--no-open", "--port", str(port)]) == 2
    assert str(port) in capsys.readouterr().err


@pytest.mark.server
def test_it_serves_a_run_until_it_is_interrupted(tmp_path: Path):
    with Run.create(tmp_path, config={}, name="first") as run, run.iteration(0) as it:
        it.metrics("train/dev", {"loss": 0.5})
    words = [sys.executable, "-m", "onthejob.cli", "view", str(tmp_path / "first"), "--no-open", "--port", "0", "--env.days", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#token=([\w-]{20,})", process.stdout.readline().strip())
        assert address, process.communicate(timeout=60)
        with urllib.request.urlopen(f"{address[1]}/api/config", timeout=60) as answer:
            config = json.load(answer)
        assert config["open_run"] == "first"
        assert config["worlds"][0]["days"] == 1
        step = urllib.request.Request(f"{address[1]}/api/step", data=b"{}", headers={"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(step, timeout=60)
        refused.value.close()
        step.add_header("x-onthejob-token", address[2])
        with urllib.request.urlopen(step, timeout=60) as answer:
            assert json.load(answer)["length"] > 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, 130, -signal.SIGINT)
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8080/#token=abc_-9", "http://[::1]:1/#token=x&y", "http://h/#token=<'\">"])
def test_the_browsers_command_line_has_no_token(address: str, tmp_path: Path):
    """Any user of the machine can read it; what leads to the address is a file of this user alone, which goes with the server."""
    browser = tmp_path / "browser"
    browser.write_text(
        "#!/bin/sh\n"
        f"printf '%s' \"$*\" > {tmp_path}/words\n"
        f'file=${{1#file://}}; stat -c %a "$file" "$(dirname "$file")" > {tmp_path}/modes\n'
        f'cp "$file" {tmp_path}/copy; mv {tmp_path}/copy {tmp_path}/page\n'
    )
    browser.chmod(0o755)
    code = (
        "import sys, time; from pathlib import Path; from onthejob.commands.view import opened\n"
        "with opened(sys.argv[1], after_s=0):\n"
        "    while not Path(sys.argv[2], 'page').is_file(): time.sleep(0.05)\n"
    )
    path = os.pathsep.join(sys.path)
    environ = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code, address, str(tmp_path)], env=environ, timeout=240, check=True)
    assert "token" not in (tmp_path / "words").read_text()
    assert (tmp_path / "modes").read_text().split() == ["600", "700"]
    assert html.unescape((tmp_path / "page").read_text()).count(address) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["browser", "modes", "page", "words"]
