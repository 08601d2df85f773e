"""What a command may use of the machine."""

import subprocess
import sys


def test_cores_that_this_process_may_not_use_do_not_count() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from onthejob.commands.cores import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
