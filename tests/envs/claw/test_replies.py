"""The reply parser: whole blocks, corrective problems, and no reply that raises or takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.claw.replies import FEEDBACK, MAX_REPLY_CHARS, ParsedReply, ReplyProblem, parse
from onthejob.envs.claw.stops import TABLES
from onthejob.keys import keyed_seed
from onthejob.testing import ADVERSARIAL_REPLIES


def test_a_block_runs_whole():
    script = 'for f in a b; do\n  cp "$f" "$f.bak"\ndone\n\n# then\ncat > x <<EOF\n\none\nEOF'
    assert parse(f"I copy.\n```bash\n{script}\n```\nThat is all.") == ParsedReply(command=script)


@pytest.mark.parametrize("language", ["bash", "sh", "shell", "", "Bash", "bash title=x"])
def test_fences_of_a_shell_are_read(language: str):
    assert parse(f"```{language}\nls\n```").command == "ls"


def test_windows_line_ends_and_longer_fences():
    assert parse("```bash\r\nls\r\npwd\r\n```\r\n").command == "ls\npwd"
    assert parse("````bash\necho '```'\n```\n````").command == "echo '```'\n```"


def test_a_markdown_file_may_hold_a_block():
    script = "cat > README.md <<'EOF'\n# Use\n```bash\nmake\n```\nEOF\nls"
    assert parse(f"```bash\n{script}\n```\nTASK_COMPLETE") == ParsedReply(command=script, stop="token")


def test_a_heredoc_without_an_end_does_not_swallow_the_reply():
    assert parse("```bash\ncat > f <<EOF\nx\n```\nTASK_COMPLETE") == ParsedReply(command="cat > f <<EOF\nx", stop="token")


def test_only_the_first_block_with_commands_runs_and_what_follows_a_second_is_not_read():
    assert parse("```bash\nls\n```\n```bash\nrm a\n```\nTASK_COMPLETE") == ParsedReply(command="ls", ignored=True)
    assert parse("```bash\nls\n```\n```bash\nrm a") == ParsedReply(command="ls", ignored=True)
    assert parse("```bash\n# nothing\n```\n```bash\nls\n```") == ParsedReply(command="ls")
    assert parse('```json\n{"a": 1}\n```\n```bash\nls\n```') == ParsedReply(command="ls")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", ReplyProblem.NO_BLOCK),
        ("ls -l", ReplyProblem.NO_BLOCK),
        ("```ls```", ReplyProblem.NO_BLOCK),
        ("```bash\n```", ReplyProblem.EMPTY),
        ("```bash\n\n# only a comment\n```", ReplyProblem.EMPTY),
        ("```python\nprint(1)\n```", ReplyProblem.LANGUAGE),
        ("```bash\ncat > f <<EOF\nhalf of", ReplyProblem.UNCLOSED),
        ("TASK_COMPLETE\n```bash\nrm -r", ReplyProblem.UNCLOSED),
        ("```bash\necho \0\n```", ReplyProblem.CHARACTER),
        ("```bash\necho \ud800\n```", ReplyProblem.CHARACTER),
        ("<think>\n```bash\nls\n```", ReplyProblem.NO_BLOCK),
        ("```bash\n" + "x" * MAX_REPLY_CHARS + "\n```", ReplyProblem.TOO_LONG),
    ],
)
def test_what_cannot_run_has_a_reason_and_feedback(reply: str, problem: ReplyProblem):
    assert parse(reply) == ParsedReply(problem=problem)
    assert "```bash" in FEEDBACK[problem]
    assert "TASK_COMPLETE" in FEEDBACK[problem]


def test_thoughts_are_not_commands():
    assert parse("<think>TASK_COMPLETE\n```bash\nrm x\n```\n</think>\n```bash\nls\n```") == ParsedReply(command="ls")


def check(reply: str) -> None:
    for table in TABLES.values():
        read = parse(reply, table)
        assert (read.problem is None) == (read.command is not None or read.stop is not None)
        assert read.command is None or (read.command.strip() and "\0" not in read.command)


PIECES = (
    *("```", "````", "```bash", "```python", "``` sh x", "`", "TASK_COMPLETE", "task complete.", "echo ", '"', "'", "$'", "\\"),
    *("<<EOF", "<<-'E'", '<<"', "<<<", "EOF", "E", "$((", "((", "))", "$(", "(", ")", "#", " #", "\n", "\n", "\n", "\r\n", "\t"),
    *(" ", "ls", "mv a b", "for f in *; do", "done", "<think>", "</think>", "\0", "\ud800", "\u202e", "\U0001f4a5", "\u0130"),
    *(";", "&&", ">", "|", "{", "}"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=200))
@settings(max_examples=300)
def test_no_text_raises(reply: str):
    check(reply)


def test_adversarial_replies_do_not_raise():
    for reply in ADVERSARIAL_REPLIES:
        check(reply)


def test_fuzz(counts: Callable[[int, int], int]):
    """Concatenations of every piece that means something to the parser; a million with ONTHEJOB_COUNTS=full."""
    stopped = ran = 0
    for index in range(counts(2_000, 1_000_000)):
        bits = keyed_seed(index, "fuzz")
        reply = "```bash\n" if bits & 1 else ""
        while bits:
            bits, piece = divmod(bits, len(PIECES) + 3)
            reply += PIECES[piece] if piece < len(PIECES) else "\n```\n"
        read = parse(reply)
        assert (read.problem is None) == (read.command is not None or read.stop is not None)
        stopped += read.stop is not None
        ran += read.command is not None
    assert stopped > 10
    assert ran > 100


@pytest.mark.parametrize(
    "pattern",
    [
        "```bash\ncat <<EOF\n```\n",
        "```bash\n",
        "```\n",
        "```bash\nTASK_COMPLETE\n```\n",
        "`",
        "'",
        '"$(',
        "((",
        ")",
        "<<A ",
        "<<A\n",
        "\\\n",
        "echo 'task complete",
        "*`\"'",
        " ",
        "\n",
        "<<'",
        "#",
        "$'",
        "a",
        "a ",
    ],
)
def test_time_grows_no_faster_than_the_text(pattern: str):
    """Ten times the text takes about ten times as long; a quadratic parser would take a hundred times as long."""

    def seconds(size: int) -> float:
        reply = (pattern * (size // len(pattern) + 1))[:size]
        started = time.process_time()
        for text in (reply, f"```bash\n{reply}", f"```bash\n{reply}\n```", f"```{reply}`"):
            parse(text)
        return time.process_time() - started

    small, large = seconds(4_000), seconds(40_000)
    assert large < 40 * small + 0.1, (small, large)
