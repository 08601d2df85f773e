"""What a turn changed in its files: recorded commands, executed again in a real sandbox and compared with the record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onthejob.api.app import create_app
from onthejob.api.changed_files import COMPARED_LINES, READ_BYTES, SHOWN_LINES, Changes, ShellWork
from onthejob.commands.recorded_work import opened_work
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.sandbox import SandboxError, open_host
from onthejob.errors import ContractError, RecordError
from onthejob.record import Run
from onthejob.record.codec import pack_bytes, unpack_bytes
from onthejob.record.from_rows import RecordedEpisode

from .recording import claw_run, harbor_run, office_run, without_checksums
from .test_harbor import folder  # noqa: F401

TOKEN = "a-token-for-tests-0123"
COMMANDS = (
    # 0: text, a file of many lines, one that is too large, one of too many lines, binary, empty, a link, a folder
    "printf 'one\\ntwo\\nthree\\n' > notes.txt; seq 300 > many.txt; head -c 70000 /dev/zero > large.bin; "
    "yes | head -2001 > long.txt; printf 'a\\0b' > some.bin; : > empty.txt; ln -s notes.txt link; mkdir folder",
    "sed -i 's/two/2\\r/' notes.txt; printf four >> notes.txt; rm many.txt; printf 'a\\0c' > some.bin; rmdir folder",
    "cat notes.txt",
    "for n in $(seq 60); do echo $n > made$n.txt; done",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    claw_run(made, isolated=True, commands=COMMANDS)
    claw_run(made, "gold", isolated=True)
    claw_run(made, "unsafe", commands=["echo 1 > one.txt"])
    claw_run(made, "chance", isolated=True, commands=["echo 1 > one.txt", "echo $RANDOM$RANDOM$RANDOM", "echo 2 > one.txt"])
    office_run(made, iterations=1)
    return made


def recorded(root: Path, run: str) -> list[RecordedEpisode]:
    with Run.open(root / run, readonly=True) as opened:
        return list(opened.read_episodes(1))


@pytest.fixture
def client(root: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(token=TOKEN, hosts=("testserver",), runs=root, pages=tmp_path / "no pages", open_work=opened_work)
    with TestClient(app) as made:
        yield made


def ask(client: TestClient, run: str, turn: int, episode: str = "") -> Any:
    name = episode or client.get(f"/api/runs/{run}/episodes").json()[0]["name"]
    return client.get(f"/api/runs/{run}/files", params={"iteration": 1, "episode": name, "turn": turn})


def shown(client: TestClient, run: str, turn: int) -> dict[str, Any]:
    answer = ask(client, run, turn)
    assert answer.status_code == 200, answer.text
    return {one["path"]: one for one in answer.json()["files"]}


def refusal(client: TestClient, run: str, turn: int, episode: str = "") -> str:
    answer = ask(client, run, turn, episode)
    assert answer.status_code in (400, 404, 409), answer.text
    return answer.json()["detail"]


def test_what_a_turn_created_is_shown(client: TestClient):
    files = shown(client, "claw", 0)
    assert {one["what"] for one in files.values()} == {"created"}
    assert files["notes.txt"]["lines"] == ["@@ -0,0 +1,3 @@", "+one", "+two", "+three"]
    assert (files["notes.txt"]["further"], files["notes.txt"]["note"]) == (0, "")
    assert len(files["many.txt"]["lines"]) == SHOWN_LINES
    assert files["many.txt"]["further"] == 301 - SHOWN_LINES
    notes = {path: one["note"] for path, one in files.items() if not one["lines"]}
    assert notes == {
        "large.bin": f"It has 70000 bytes, more than the {READ_BYTES} that are read.",
        "long.txt": f"It has 2001 lines, more than the {COMPARED_LINES} that are compared.",
        "some.bin": "It is binary, 3 bytes.",
        "empty.txt": "It is empty.",
        "link": "It is a link or a special file.",
        "folder/": "It is an empty folder.",
    }


def test_what_a_turn_changed_and_removed_is_shown(client: TestClient):
    files = shown(client, "claw", 1)
    assert files["notes.txt"]["lines"] == [
        "@@ -1,3 +1,4 @@",
        " one",
        "-two",
        "+2\N{SYMBOL FOR CARRIAGE RETURN}",
        " three",
        "+four",
        "\\ No newline at end of file",
    ]
    assert (files["many.txt"]["what"], files["many.txt"]["lines"][:2]) == ("removed", ["@@ -1,300 +0,0 @@", "-1"])
    assert files["some.bin"]["note"] == "Before it is binary, 3 bytes; afterwards it is binary, 3 bytes."
    assert (files["folder/"]["what"], files["folder/"]["note"]) == ("removed", "It was an empty folder.")
    assert set(files) == {"notes.txt", "many.txt", "some.bin", "folder/"}


def test_a_turn_that_changes_nothing_has_no_files_and_many_are_counted(client: TestClient):
    assert shown(client, "claw", 2) == {}
    answer = ask(client, "claw", 3).json()
    assert (len(answer["files"]), answer["further"]) == (50, 10)
    assert answer["files"][0] | {"lines": 0} == {"path": "made1.txt", "what": "created", "lines": 0, "further": 0, "note": ""}
    assert "ran no command" in refusal(client, "claw", 4)
    assert "ran no command" in refusal(client, "claw", 5)
    assert "has no episode" in refusal(client, "claw", 0, "s99")


def test_every_recorded_change_of_a_solved_task_is_shown(client: TestClient, root: Path):
    seen = 0
    for episode in recorded(root, "gold"):
        for turn, row in enumerate(episode.timeline):
            for change in row["facts"].get("files", []):
                answer = ask(client, "gold", turn, episode.name)
                assert answer.status_code == 200, answer.text
                (found,) = [one for one in answer.json()["files"] if one["path"] == change["path"]]
                added = [line[1:] for line in found["lines"] if line.startswith("+")]
                if change["what"] == "created":
                    ends = 0 if found["lines"][-1].startswith("\\") else 1
                    assert len("\n".join(added).encode()) + ends == change["bytes"]
                seen += 1
        if seen:
            return
    pytest.fail("no episode changed a file")


def test_what_differs_from_the_record_is_refused(client: TestClient, root: Path, tmp_path: Path):
    assert set(shown(client, "chance", 0)) == {"one.txt"}
    said = refusal(client, "chance", 2)
    assert "executed again, turn 2 did something else than recorded" in said
    # A record that was altered differs too, and the commands of an altered one are found out before anything is shown.
    run = Path(shutil.copytree(root / "claw", tmp_path / "claw"))
    with without_checksums(run) as database:
        for name, blob in database.execute("SELECT name, timeline FROM episodes").fetchall():
            turns = json.loads(unpack_bytes(blob))
            turns[0]["text"] = turns[0]["text"].replace("three", "3")
            database.execute("UPDATE episodes SET timeline = ? WHERE name = ?", (pack_bytes(json.dumps(turns).encode()), name))
    altered = recorded(tmp_path, "claw")[0]
    config = {"env": "claw", "claw": {"count": 40}}
    with pytest.raises(RecordError, match="turn 1 did something else than recorded"):
        Changes(opened_work).of("claw", config, altered, 1)


def test_nothing_runs_without_isolation(client: TestClient, root: Path):
    assert "recorded without isolation" in refusal(client, "unsafe", 0)
    episode = recorded(root, "claw")[0]
    with pytest.raises(RecordError, match="recorded without isolation"):
        Changes(opened_work).of("claw", {"env": "claw", "claw": {"unsafe": True}}, episode, 0)
    with pytest.raises(RecordError, match="executes no recorded commands"):
        Changes().of("claw", {"env": "claw"}, episode, 0)

    @contextmanager
    def unsafe(config: Any, run: str) -> Iterator[ShellWork]:
        with open_host(unsafe=True) as host:
            yield ShellWork(ClawEnvironment(host=host), lambda _: pytest.fail("a task was asked for"))

    with pytest.raises(RecordError, match="nothing would isolate"):
        Changes(unsafe).of("claw", {}, episode, 0)

    @contextmanager
    def forbidden(config: Any, run: str) -> Iterator[ShellWork]:
        raise SandboxError("commands cannot be isolated on this machine: no user namespaces.")
        yield

    with pytest.raises(RecordError, match="cannot be executed again here: commands cannot be isolated"):
        Changes(forbidden).of("claw", {}, episode, 0)


def opened(config: dict[str, Any]) -> AbstractContextManager[ShellWork]:
    return opened_work(config, "mine")


def test_other_environments_are_refused_and_nothing_of_theirs_is_imported(client: TestClient, root: Path, tmp_path: Path):
    assert "ran no command" in refusal(client, "office", 0)
    own = tmp_path / "own.py"
    own.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nfrom onthejob.claw import Claw\nclass Mine(Claw): pass\n")
    for config in (
        {"env": {"ref": f"{own}:Mine"}},
        {"env": str(own)},
        {"env": "office"},
        {"env": {"ref": "program:ls"}},
        {},
    ):
        with pytest.raises(RecordError, match="only the commands of 'claw' and of 'harbor:' tasks"), opened(config):
            pytest.fail("it was opened")
    with opened({"env": "claw", "claw": {"count": 40}, "reward": f"{own}:reward"}) as work:
        assert isinstance(work.env, ClawEnvironment)
    assert not (tmp_path / "imported").exists()


def test_time_is_bounded(root: Path):
    config = {"env": "claw", "claw": {"count": 40}}
    episode = recorded(root, "claw")[0]
    with pytest.raises(RecordError, match=r"take longer than the 0\.001 s"):
        Changes(opened_work, commands_s=0.002).of("claw", config, episode, 1)
    busy = Changes(waiting := Waiting(), wait_s=0.01)
    waiting.ask = lambda: busy.of("claw", config, episode, 0)
    with pytest.raises(ContractError, match="another recorded turn is being executed"):
        busy.of("claw", config, episode, 0)


class Waiting:
    """Asks a second question while the first one is being answered."""

    ask: Callable[[], object]

    def __call__(self, config: Any, run: str) -> AbstractContextManager[ShellWork]:
        self.ask()
        raise AssertionError("two questions were answered at once")


def test_the_workspace_of_a_harbor_task_is_the_whole_tree(folder: Path, tmp_path: Path):  # noqa: F811
    harbor_run(tmp_path, folder)
    with Run.open(tmp_path / "harbor", readonly=True) as run:
        episodes, config = list(run.read_episodes(1)), run.config
    solved = next(episode for episode in episodes if len(episode.timeline) == 3)
    assert Changes(opened_work).of("harbor", config, solved, 0).files == []
    folder_before, found = Changes(opened_work).of("harbor", config, solved, 1).files
    assert (folder_before.path, folder_before.note) == ("app/", "It is no longer an empty folder.")
    assert (found.path, found.what, found.lines) == ("app/answer.txt", "created", ["@@ -0,0 +1 @@", "+42"])
    config = {**config, "env": {**config["env"], "engine": "podman"}}
    with pytest.raises(RecordError, match="come from the container engine 'podman'"):
        Changes(opened_work).of("harbor", config, solved, 1)
