"""What a Dockerfile makes without Docker, and what is refused, with its reason."""

from __future__ import annotations

import pytest

from onthejob.envs.claw.sandbox.sandbox_interface import Kind, as_item
from onthejob.envs.harbor.dockerfile import assignments, expanded, parse
from onthejob.envs.harbor.image import image_of, prefix
from onthejob.envs.harbor.refusal import Reason

FILES = {"data/a.txt": b"a", "data/sub/b.txt": b"b", "run.sh": b"#!/bin/sh\n", "notes.md": b"n"}


def image(dockerfile: str):
    return image_of({**FILES, "Dockerfile": dockerfile.encode()})


def files(dockerfile: str) -> dict[str, bytes]:
    """Path -> content of what a Dockerfile adds, without folders."""
    base = image("FROM debian:12\n").files
    return {path: item.data for path, item in image(dockerfile).files.items() if path not in base and item.kind is Kind.FILE}


def test_instructions_continue_over_comments_and_hold_heredocs():
    found = parse("# a\nFROM ubuntu:24.04\nRUN one && \\\n# no\n\n  two\nCOPY <<EOF /x\nFROM inside\nEOF\nWORKDIR /x\n")
    assert [(one.name, one.text) for one in found] == [
        ("FROM", "ubuntu:24.04"), ("RUN", "one &&   two"), ("COPY", "<<EOF /x"), ("WORKDIR", "/x"),
    ]  # fmt: skip
    assert found[2].bodies == {"EOF": "FROM inside\n"}


def test_variables():
    (found,) = parse('ENV A=1 B="two words" C=x\\ y')
    assert assignments(found) == {"A": "1", "B": "two words", "C": "x y"}
    assert assignments(parse("ENV NAME some value")[0]) == {"NAME": "some value"}
    assert expanded("$A ${B:-c} ${D:-e} \\$F ${A:+g}", {"A": "1", "B": "2"}) == "1 2 e $F g"


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("WORKDIR /app\nCOPY data/a.txt .", {"app/a.txt": b"a"}),
        ("WORKDIR /app\nCOPY data/a.txt ./b.txt", {"app/b.txt": b"a"}),
        ("COPY data /srv/data", {"srv/data/a.txt": b"a", "srv/data/sub/b.txt": b"b"}),
        ("WORKDIR /app\nCOPY data/ ./in/", {"app/in/a.txt": b"a", "app/in/sub/b.txt": b"b"}),
        ('COPY ["run.sh", "notes.md", "/app/"]', {"app/run.sh": b"#!/bin/sh\n", "app/notes.md": b"n"}),
        ("COPY data/*.txt /app/", {"app/a.txt": b"a"}),
        ("ARG TO=/data\nENV HERE=$TO/x\nCOPY notes.md ${HERE}/", {"data/x/notes.md": b"n"}),
        ("COPY <<EOF /app/made.txt\nhello\nEOF", {"app/made.txt": b"hello\n"}),
    ],
)
def test_copied_files(lines: str, wanted: dict[str, bytes]):
    assert files(f"FROM ubuntu:24.04\n{lines}\n") == wanted


def test_modes_folders_and_variables():
    made = image("FROM python:3.11-slim\nENV A=1\nWORKDIR /app\nCOPY --chmod=750 --chown=root:root run.sh bin/\nWORKDIR sub\n")
    assert made.refusals == []
    assert made.files["app/bin/run.sh"].mode == 0o750
    assert made.files["app/sub"].kind is Kind.FOLDER
    assert (made.workdir, made.env) == ("/app/sub", {"A": "1"})
    assert made.notes == ["the Python of this machine stands for that of python:3.11-slim"]


def test_what_is_copied_after_a_run_line_is_copied_in_its_turn():
    made = image("FROM debian:12\nRUN mkdir /a\nCOPY notes.md /a/notes.md\nRUN cat /a/notes.md\n")
    assert [command.partition("; ")[2] or command for command in made.commands] == [
        "mkdir /a", "cp -a /.copied/1/. /", "cat /a/notes.md",
    ]  # fmt: skip
    assert as_item("", made.files[".copied/1/a/notes.md"]).data == b"n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("FROM nvidia/cuda:12", Reason.IMAGE),
        ("FROM alpine:3.20", Reason.IMAGE),
        ("FROM ubuntu AS a\nFROM debian", Reason.IMAGE),
        ("FROM ubuntu\nCOPY --from=builder /x /y", Reason.IMAGE),
        ("FROM ubuntu\nRUN apt-get update && apt-get install -y no-such-package-anywhere", Reason.PACKAGES),
        ("FROM ubuntu\nRUN apt-get install -y gfortran-of-nowhere golang-go rustc cargo", Reason.COMPILERS),
        ("FROM ubuntu\nRUN pip install no-such-module-anywhere==1.0", Reason.PACKAGES),
        ("FROM ubuntu\nRUN python3 -m pip install --no-cache-dir -r requirements.txt", Reason.PACKAGES),
        ("FROM ubuntu\nRUN curl -o x https://example.org/x", Reason.NETWORK),
        ("FROM ubuntu\nRUN git clone https://example.org/x", Reason.NETWORK),
        ("FROM ubuntu\nADD https://example.org/x /x", Reason.NETWORK),
        ("FROM ubuntu\nRUN useradd -m worker", Reason.RUN),
        ("FROM ubuntu\nRUN frobnicate --all", Reason.RUN),
        ("FROM ubuntu\nUSER worker", Reason.USER),
        ("FROM ubuntu\nCOPY run.sh /usr/local/bin/run.sh", Reason.PLACE),
        ('FROM ubuntu\nCMD ["nginx", "-g", "daemon off;"]', Reason.SERVICES),
        ("FROM ubuntu\nCOPY missing.txt /x", Reason.FORMAT),
        ("FROM ubuntu\nFROBNICATE x", Reason.FORMAT),
    ],
)
def test_refusals(lines: str, reason: Reason):
    assert reason in {one.reason for one in image(lines + "\n").refusals}


@pytest.mark.parametrize(
    "lines",
    [
        "RUN apt-get update && apt-get install -y bash coreutils ca-certificates && rm -rf /var/lib/apt/lists/*",
        "RUN pip install --no-cache-dir pytest==8.0 'pyyaml>=6' pytest-json-ctrf",
        'CMD ["/bin/bash"]',
        "EXPOSE 80\nLABEL a=b\nSTOPSIGNAL SIGTERM\nUSER root",
    ],
)
def test_what_is_here_already_needs_nothing(lines: str):
    made = image(f"FROM ubuntu:24.04\n{lines}\n")
    assert (made.refusals, made.commands) == ([], [])


def test_compose_is_a_service():
    found = image_of({"Dockerfile": b"FROM ubuntu\n", "docker-compose.yaml": b"services:\n"})
    assert [one.reason for one in found.refusals] == [Reason.SERVICES]


def test_the_prefix_is_one_line_and_quoted():
    assert prefix("/a b", {"X": "it's\nnew", "1bad": "y"}) == "cd -- '/a b' 2>/dev/null; export X=$'it\\'s\\nnew'; "
