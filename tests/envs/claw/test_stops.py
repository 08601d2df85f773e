"""Stop sentinels: every row's examples stop, its near misses do not, and the decided traps hold in whole replies."""

from __future__ import annotations

import pytest

from onthejob.envs.claw.replies import Problem, Reply, parse
from onthejob.envs.claw.script import top_lines
from onthejob.envs.claw.stops import LITERAL, SEED, STANDARD, TABLES, Place, Sentinel, sentinel_at, stop_table
from onthejob.errors import ConfigError

ROWS = [(name, sentinel) for name, table in TABLES.items() for sentinel in table]


EXAMPLES: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("standard", "token"): (
        ("TASK_COMPLETE", "TASK_COMPLETE.", "Task complete!", "**TASK_COMPLETE**", "`TASK_COMPLETE`", "task_complete"),
        ("The task is complete.", "I will say TASK_COMPLETE when I am done.", "TASK-COMPLETE", "Task completed successfully."),
    ),
    ("standard", "echo"): (
        (
            'echo "Task complete."',
            "echo 'Task complete'",
            "echo Task Complete",
            "echo TASK_COMPLETE",
            'echo "Task completed!"',
            'echo "taskcomplete" # done',
        ),
        (
            'echo "Task complete." > done.txt',
            'echo "Task complete." >> done.txt',
            'echo "Task complete." | tee done.txt',
            'echo "Task complete."; ls',
            'echo "Task complete." && exit',
            'echo -n "Task complete."',
            'printf "Task complete."',
            'echo "Task completed successfully."',
            'echo "The task is complete."',
            "echo task-complete",
            "exit",
        ),
    ),
    ("seed", "token"): (
        ("TASK_COMPLETE", "  TASK_COMPLETE  "),
        ("TASK_COMPLETE.", "**TASK_COMPLETE**", "`TASK_COMPLETE`", "task_complete", "Task complete!"),
    ),
    ("seed", "echo"): (
        ('echo "Task complete."', "echo TASK_COMPLETE", "echo 'Task Complete' # done"),
        ('echo "Task complete!"', 'echo "Task complete." > f', 'echo -n "Task complete."'),
    ),
}
"""(Table, row) -> lines that match, and lines that look alike and do not match."""


@pytest.mark.parametrize(("table", "sentinel"), ROWS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_row_matches_its_examples_and_no_near_miss(table: str, sentinel: Sentinel):
    # The literal table is the first row of the seed's.
    examples, near = EXAMPLES["seed" if table == "literal" else table, sentinel.name]
    for place in sentinel.places:
        assert [line for line in examples if not sentinel.matches(line, place)] == []
        assert [line for line in near if sentinel_at(TABLES[table], line, place)] == []


def test_a_sentinel_counts_only_in_its_place():
    assert sentinel_at(STANDARD, 'echo "Task complete."', Place.TEXT) is None
    assert sentinel_at(STANDARD, "TASK_COMPLETE", Place.EDGE) is None
    assert sentinel_at(STANDARD, "TASK_COMPLETE" + " " * 300, Place.TEXT) is None


def test_an_unknown_table_is_refused():
    assert stop_table("literal") is LITERAL
    with pytest.raises(ConfigError, match=r"unknown stop table 'none'; known are standard, seed, literal"):
        stop_table("none")


def block(*lines: str) -> str:
    return "\n".join(["```bash", *lines, "```"])


# (reply, what runs, whether it stops): the seed's cases first, then the traps.
CASES: list[tuple[str, str | None, bool]] = [
    ("TASK_COMPLETE", None, True),
    ("   TASK_COMPLETE  ", None, True),
    ("I moved the files.\n\nTASK_COMPLETE", None, True),
    (block("TASK_COMPLETE"), None, True),
    (block('echo "Task complete."'), None, True),
    (block('echo "task complete"'), None, True),
    (block("echo 'Task Complete'"), None, True),
    (block("echo Task complete."), None, True),
    (block("echo TASK_COMPLETE"), None, True),
    (block("echo taskcomplete"), None, True),
    (block('echo "TASK_COMPLETED"'), None, True),
    (block('ECHO "Task completed."'), None, True),
    (block("", "# all is done", 'echo "Task complete." # bye'), None, True),
    (block('echo "Task complete." > done.txt'), 'echo "Task complete." > done.txt', False),
    (block('echo "Task complete." >> done.txt'), 'echo "Task complete." >> done.txt', False),
    (block('echo "Task complete." | tee done.txt'), 'echo "Task complete." | tee done.txt', False),
    (block('echo "Task complete."; ls'), 'echo "Task complete."; ls', False),
    (block('echo "Task complete." && exit'), 'echo "Task complete." && exit', False),
    (block('echo -n "Task complete."'), 'echo -n "Task complete."', False),
    (block('printf "Task complete."'), 'printf "Task complete."', False),
    (block('echo "Task completed successfully."'), 'echo "Task completed successfully."', False),
    (block('echo "The task is complete."'), 'echo "The task is complete."', False),
    (block("echo task-complete"), "echo task-complete", False),
    (block("exit"), "exit", False),
    # Decided: punctuation, emphasis and case do not keep an agent that is done from stopping.
    ("TASK_COMPLETE.", None, True),
    ("Task complete!", None, True),
    ("**TASK_COMPLETE**", None, True),
    ("`TASK_COMPLETE`", None, True),
    ("task_complete", None, True),
    (block('echo "Task complete!"'), None, True),
    # Decided: a command next to a declaration runs first, wherever the declaration stands.
    (block("mv a b") + "\nTASK_COMPLETE", "mv a b", True),
    ("TASK_COMPLETE\n" + block("mv a b"), "mv a b", True),
    (block("mv a b", "TASK_COMPLETE"), "mv a b", True),
    (block("TASK_COMPLETE", "mv a b"), "mv a b", True),
    (block("mv a b", 'echo "Task complete."'), 'mv a b\necho "Task complete."', True),
    (block('echo "Task complete."', "mv a b"), 'echo "Task complete."\nmv a b', True),
    (block("mv a b") + "\n" + block('echo "Task complete."'), "mv a b", True),
    (block("mv a b") + "\n" + block("TASK_COMPLETE"), "mv a b", True),
    # Decided: an echo in the middle is only an echo.
    (block("ls", 'echo "Task complete."', "mv a b"), 'ls\necho "Task complete."\nmv a b', False),
    # Decided: file content is content.
    (block("cat > f <<EOF", "TASK_COMPLETE", "EOF"), "cat > f <<EOF\nTASK_COMPLETE\nEOF", False),
    (block("cat > f <<'END'", 'echo "Task complete."', "END"), "cat > f <<'END'\necho \"Task complete.\"\nEND", False),
    (block("cat > f <<-EOF", "\tTASK_COMPLETE", "\tEOF"), "cat > f <<-EOF\n\tTASK_COMPLETE\n\tEOF", False),
    (block("echo 'notes:", "TASK_COMPLETE", "' > f"), "echo 'notes:\nTASK_COMPLETE\n' > f", False),
    (block("cat > f <<EOF", "TASK_COMPLETE"), "cat > f <<EOF\nTASK_COMPLETE", False),
    (block("cat > f <<EOF", "x", "EOF", "TASK_COMPLETE"), "cat > f <<EOF\nx\nEOF", True),
    (
        block("tee f <<A <<B", "TASK_COMPLETE", "A", "TASK_COMPLETE", "B"),
        "tee f <<A <<B\nTASK_COMPLETE\nA\nTASK_COMPLETE\nB",
        False,
    ),
    # What is not a heredoc does not hide a declaration.
    (block("cat <<< EOF", "TASK_COMPLETE"), "cat <<< EOF", True),
    (block("echo $((1<<2))", "TASK_COMPLETE"), "echo $((1<<2))", True),
    (block("echo '<<EOF' # it's", "TASK_COMPLETE"), "echo '<<EOF' # it's", True),
    (block("echo it\\'s", "TASK_COMPLETE"), "echo it\\'s", True),
    (block("echo $'it\\'s'", "TASK_COMPLETE"), "echo $'it\\'s'", True),
    (block('x="$(echo "a" | tr a b)"', "TASK_COMPLETE"), 'x="$(echo "a" | tr a b)"', True),
]


@pytest.mark.parametrize(("reply", "command", "stops"), CASES)
def test_what_runs_and_whether_the_episode_ends(reply: str, command: str | None, stops: bool):
    read = parse(reply)
    assert (read.command, read.stop is not None, read.problem) == (command, stops, None)


SAID = ("I will write TASK_COMPLETE at the end.", "The task is complete.", "TASK-COMPLETE", "Done.")


@pytest.mark.parametrize("reply", SAID)
def test_a_mention_is_no_declaration(reply: str):
    assert parse(reply) == Reply(problem=Problem.NO_BLOCK)


def test_the_seed_tables_know_fewer_forms():
    """The article: before the patch the prose echo ran as shell for ten turns; after it, it stops; `!` never did."""
    echo, shout = block('echo "Task complete."'), block('echo "Task complete!"')
    assert [parse(echo, table).stop for table in (LITERAL, SEED, STANDARD)] == [None, "echo", "echo"]
    assert parse(echo, LITERAL).command == 'echo "Task complete."'
    assert [parse(shout, table).stop for table in (LITERAL, SEED, STANDARD)] == [None, None, "echo"]
    assert parse("TASK_COMPLETE.", SEED).problem is Problem.NO_BLOCK


@pytest.mark.parametrize(
    ("script", "top"),
    [
        ("ls\npwd", [True, True]),
        ("ls \\\n-l\npwd", [True, False, True]),
        ("a='x\ny'\nb", [True, False, True]),
        ('git commit -m "$(cat <<EOF\nbody "\nEOF\n)"\nls', [True, False, False, False, True]),
        ("cat <<EOF; echo $((2<<1))\nx\nEOF\nls", [True, False, False, True]),
        ("(cd a\nls)\npwd", [True, False, True]),
        ('cat <<"E F"\nE F\nls', [True, False, True]),
        ("echo a#b <<X # <<Y\nX\nls", [True, False, True]),
    ],
)
def test_lines_that_begin_commands(script: str, top: list[bool]):
    assert top_lines(script.split("\n")) == top
