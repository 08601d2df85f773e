"""The eight personas: who asks for file work, with which skills, and what else lies around in the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from onthejob.envs.claw.skills import Skill
from onthejob.envs.claw.task_schema import FileKind, Persona, SeedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonaCard:
    """One persona with what the synthesizer needs to know about its work."""

    persona: Persona
    focus: tuple[Skill, Skill, Skill, Skill]
    """The four skills that its tasks are mostly about."""
    clutter: tuple[SeedFile, ...]
    """Files that may lie around and have nothing to do with the task."""


def _text(path: str, content: str) -> SeedFile:
    return SeedFile(path=path, content=content)


def _stub(path: str, size_bytes: int) -> SeedFile:
    return SeedFile(path=path, kind=FileKind.BINARY_STUB, size_bytes=size_bytes)


def _card(name: str, role: str, context: str, focus: tuple[Skill, Skill, Skill, Skill], *clutter: SeedFile) -> PersonaCard:
    return PersonaCard(persona=Persona(name=name, role=role, context=context), focus=focus, clutter=clutter)


_CARDS = (
    _card(
        "academic-author",
        "Academic author",
        "Prepares papers, bibliographies and submissions, and keeps every draft in plain files.",
        (Skill.FILE_READ, Skill.SHELL_GREP, Skill.SHELL_SED, Skill.SHELL_WC),
        _text("notes/reading-list.md", "- Hoel 2021\n- Ito 2019\n"),
        _text("letters/response.txt", "Dear editors,\nwe thank the reviewers.\n"),
        _stub("figures/setup-photo.jpg", 2048),
        _text(".latexmkrc", "$pdf_mode = 1;\n"),
    ),
    _card(
        "backend-developer",
        "Backend developer",
        "Maintains web services: configuration, logs, migrations and small scripts around them.",
        (Skill.SHELL_GREP, Skill.SHELL_SED, Skill.FILE_WRITE, Skill.FILE_COPY),
        _text("docs/oncall.md", "Page the second line after 15 minutes.\n"),
        _text("Procfile", "web: run-server --bind 0.0.0.0\n"),
        _text("scripts/seed.sh", "#!/bin/sh\necho seeding\n"),
        _stub("static/favicon.ico", 318),
    ),
    _card(
        "data-science-researcher",
        "Data science researcher",
        "Cleans tables, computes summaries and must be able to repeat every number from the raw files.",
        (Skill.SHELL_HEAD, Skill.SHELL_TAIL, Skill.SHELL_WC, Skill.FILE_READ),
        _text("notebooks/ideas.md", "try a log transform\n"),
        _text("requirements.txt", "numpy\npandas\n"),
        _stub("models/old.pkl", 4096),
        _text("raw/README.txt", "Never edit files in this folder.\n"),
    ),
    _card(
        "devops-engineer",
        "DevOps engineer",
        "Keeps servers running: rotates logs, rolls out configuration and writes down what happened.",
        (Skill.SHELL_FIND, Skill.FILE_DELETE, Skill.SHELL_TAIL, Skill.FILE_MOVE),
        _text("runbooks/restart.md", "1. drain\n2. restart\n3. check\n"),
        _text("etc/motd", "be careful\n"),
        _stub("backup/disk.img", 8192),
        _text("scripts/ping.sh", "#!/bin/sh\necho pong\n"),
    ),
    _card(
        "embedded-firmware-dev",
        "Embedded firmware developer",
        "Ships firmware for small boards: headers, register tables, images and release notes.",
        (Skill.SHELL_SED, Skill.SHELL_GREP, Skill.FILE_COPY, Skill.SHELL_MKDIR),
        _text("docs/wiring.txt", "pin 1 is ground\n"),
        _text("linker/flash.ld", "MEMORY { FLASH : ORIGIN = 0x08000000 }\n"),
        _stub("build/bootloader.bin", 1024),
        _text("tools/flash.sh", "#!/bin/sh\necho flash\n"),
    ),
    _card(
        "indie-game-dev",
        "Indie game developer",
        "Builds a small game alone: sprites, levels, dialogue and balance tables.",
        (Skill.FILE_MOVE, Skill.FILE_COPY, Skill.SHELL_HEAD, Skill.SHELL_SED),
        _text("design/pitch.md", "A fox looks for its lantern.\n"),
        _text("project.godot", "config_version=5\n"),
        _stub("audio/theme.ogg", 3000),
        _text("notes/playtest.txt", "jump feels floaty\n"),
    ),
    _card(
        "ml-engineer",
        "Machine learning engineer",
        "Runs training jobs, compares their metrics and keeps checkpoints and configurations in order.",
        (Skill.SHELL_GREP, Skill.SHELL_SED, Skill.FILE_DELETE, Skill.FILE_COPY),
        _text("docs/cluster.md", "Two nodes, eight cards each.\n"),
        _text("scripts/launch.sh", "#!/bin/sh\necho launch\n"),
        _stub("data/tokens.bin", 4096),
        _text("requirements.txt", "torch\n"),
    ),
    _card(
        "technical-writer",
        "Technical writer",
        "Keeps manuals consistent: terms, headings, drafts, links and release notes.",
        (Skill.SHELL_SED, Skill.SHELL_GREP, Skill.SHELL_CAT, Skill.FILE_MOVE),
        _text("style/voice.md", "Write short sentences.\n"),
        _text("mkdocs.yml", "site_name: Manual\n"),
        _stub("images/logo.png", 900),
        _text("archive/2019.md", "# Old manual\n"),
    ),
)

CARDS: MappingProxyType[str, PersonaCard] = MappingProxyType({card.persona.name: card for card in _CARDS})
"""Persona name -> card, in alphabetical order."""
