"""Parts of a request stand above the commands that do them, and the commands are the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from onthejob.envs.claw.agent_messages import block
from onthejob.envs.claw.demonstrations import DemonstrationConfig, demonstrations
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.quotes import quoted
from onthejob.envs.claw.sandbox import SandboxHost, open_host
from onthejob.envs.claw.splits import claw_tasks
from onthejob.types import Split, Task

TASKS = claw_tasks(Split.TRAIN, count=1000)


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


def comments(turns: tuple[str, ...]) -> list[str]:
    return [line[2:] for turn in turns for line in turn.split("\n") if line.startswith("# ")]


def made(task: Task) -> tuple[str, ...]:
    return quoted(task.payload["intent"], task.payload["gold"])


def test_an_item_stands_above_its_command():
    intent = "Please do this:\n- copy a.txt to b.txt\n- in b.txt, write 'owl' wherever it says 'fox'\n- delete a.txt\nThanks!"
    gold = ["cp a.txt b.txt\nsed -i 's/fox/owl/g' b.txt", "rm a.txt"]
    assert quoted(intent, gold) == (
        "# copy a.txt to b.txt\ncp a.txt b.txt\n# in b.txt, write 'owl' wherever it says 'fox'\nsed -i 's/fox/owl/g' b.txt",
        "# delete a.txt\nrm a.txt",
    )


def test_running_text_is_quoted_clause_by_clause_without_greeting_and_each_once():
    intent = "For today: Put all of a.csv but its header into out/b.csv, and write its length to n.txt. Leave a.csv alone."
    gold = ["mkdir -p out\ntail -n +2 a.csv > out/b.csv", "wc -l < out/b.csv > n.txt"]
    assert quoted(intent, gold) == (
        "# Put all of a.csv but its header into out/b.csv\nmkdir -p out\ntail -n +2 a.csv > out/b.csv",
        "# and write its length to n.txt\nwc -l < out/b.csv > n.txt",
    )


def test_what_is_done_in_another_order_is_found_by_its_words():
    intent = "These:\n- write 'done' to log.txt\n- move old.cfg to conf/new.cfg"
    gold = ["mv old.cfg conf/new.cfg", "echo 'done' > log.txt"]
    assert comments(quoted(intent, gold)) == ["move old.cfg to conf/new.cfg", "write 'done' to log.txt"]


@pytest.mark.parametrize(
    "command",
    ["cat > f.txt <<'EOF'\none\ntwo\nEOF", "for f in *.txt\ndo\n  cp $f $f.bak\ndone", "cp a.txt \\\n  b.txt", "ls |\n  wc -l"],
)
def test_nothing_is_put_into_a_command_of_several_lines(command: str):
    (turn,) = quoted("Please:\n- make f.txt from a.txt\n- then list what is there", [command])
    assert turn.endswith(command)
    assert all(line.startswith("# ") for line in turn.removesuffix(command).splitlines())


def test_nothing_in_common_is_quoted_as_nothing():
    assert quoted("Bitte aufräumen!", ["rm x.tmp"]) == ("rm x.tmp",)
    assert quoted("", ["rm x.tmp"]) == ("rm x.tmp",)
    assert quoted("- remove x.tmp", []) == ()


def test_errands_quote_every_item_in_its_order_and_no_command_changes():
    lists = 0
    for task in TASKS:
        turns = made(task)
        without = ["\n".join(line for line in turn.split("\n") if not line.startswith("# ")) for turn in turns]
        assert without == list(task.payload["gold"])
        items = [line[2:] for line in task.payload["intent"].split("\n") if line.startswith("- ")]
        if items and task.payload["family"].startswith(("errand", "round")):
            assert comments(turns) == items
            lists += 1
    assert lists > 60


def test_hardly_an_item_of_a_recipe_goes_unquoted():
    items = found = 0
    for task in TASKS:
        asked = [line[2:] for line in task.payload["intent"].split("\n") if line.startswith("- ")]
        items += len(asked)
        found += len(set(comments(made(task))) & set(asked))
    assert found >= 0.97 * items


def test_demonstrations_with_quotes_say_and_do_the_same(host: SandboxHost):
    def shown(quotes: bool) -> list[tuple[str, float, list[str]]]:
        config = DemonstrationConfig(count=12, near_misses=0.0, quotes=quotes)
        played = demonstrations(TASKS, partial(ClawEnvironment, host=host), config, workers=3)
        return [(item.task, item.rate, [m.content for m in item.messages if m.role == "assistant"]) for item in played]

    by_id = {task.id: task for task in TASKS}
    for (task, rate, replies), (other, _, plain) in zip(shown(True), shown(False), strict=True):
        assert (task, rate) == (other, 1.0)
        assert replies[:-1] == [block(turn) for turn in made(by_id[task])]
        assert plain[:-1] == [block(turn) for turn in by_id[task].payload["gold"]]
