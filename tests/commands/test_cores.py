"""What a command may use of the machine."""

import os
import subprocess
import sys

import pytest

from onthejob.commands.cores import usable_cores


def test_every_usable_core_counts() -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core there is nothing to take away")
def test_cores_of_others_do_not_count() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from onthejob.commands.cores import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
