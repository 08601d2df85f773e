"""`onthejob tasks convert`: tasks of another benchmark in the Harbor format, for `--env harbor:FOLDER`."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from onthejob.commands.outputs import check_folder
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from checks.harbor.intercode import InterCodeTask

JOBS = 4
"""Gold commands that run at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert:
    """Write the tasks of a checkout of InterCode (princeton-nlp/intercode) in the Harbor format, below OUT/test.

    Each gold command runs twice in a sandbox, and what it leaves and prints is what the tests expect. Excluded, with the reason,
    are commands that need a program that is not here, do something else each time, or do nothing.
    """

    source: tyro.conf.Positional[Path]
    """The checkout: it holds data/nl2bash and docker/bash_scripts."""
    out: Path
    """Folder to write; it is created, and must not hold a folder test yet."""
    jobs: int = JOBS
    """Gold commands that run at the same time."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Write the tasks, and print how many were excluded for which reason."""
        from checks.harbor.intercode import converted, read_intercode
        from onthejob.envs.claw.sandbox import open_host
        from onthejob.envs.harbor.claw_export import write_files
        from onthejob.envs.harbor.harbor_work import Images
        from onthejob.interop.harbor import HarborRules

        if self.jobs < 1:
            raise ConfigError(f"--jobs must be >= 1, got {self.jobs}. Try 4.")
        tasks = read_intercode(self.source)
        if (self.out / "test").exists():
            raise ConfigError(f"--out {self.out} holds a folder test already. Give another folder, or delete that one.")
        check_folder(self.out, "--out")
        left_out: dict[str, str] = {}
        with open_host(data=[self.source]) as host, ThreadPoolExecutor(self.jobs) as threads:
            images = Images(host, HarborRules().sandbox)

            def one(task: InterCodeTask) -> tuple[dict[str, bytes], str]:
                return converted(task, images)

            for task, (files, why) in zip(tasks, threads.map(one, tasks), strict=True):
                if files:
                    write_files(files, self.out / "test" / task.name)
                else:
                    left_out[task.name] = why
        written = len(tasks) - len(left_out)
        reasons = Counter(left_out.values()).most_common()
        tables = [table(("excluded because", "tasks"), reasons)] if reasons else []
        terminal.result(
            {"written": written, "left_out": left_out}, *tables, f"{written} of {len(tasks)} tasks written to {self.out}"
        )
        return 0
