"""Tests that may run the agent's code are marked, and tests that only read are not."""

from __future__ import annotations

import pytest

from onthejob.envs.harbor.marks import why_marked

PYTEST = "pytest /tests/test_outputs.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
READS = "import json\nfrom pathlib import Path\n\ndef test():\n    assert json.loads(Path('/app/x').read_text()) == 1\n"

UNMARKED = {
    "pytest": PYTEST,
    "module": "cd /app\npython3 -m pytest -q -p no:cacheprovider /tests/test_outputs.py\necho $? > /logs/verifier/reward.txt",
    "in the folder of the tests": "cd /tests && pytest",
    "variable": 'pytest "$TEST_DIR/test_outputs.py" -rA',
    "uv": "curl -LsSf https://astral.sh/uv/install.sh | sh\n"
    "source $HOME/.local/bin/env\nuvx -p 3.13 -w pytest pytest /tests/test_outputs.py",
    "shell": 'if grep -q x /app/y && [ "$(wc -l < /app/y)" -eq 3 ]; then echo 1; fi > /logs/verifier/reward.txt',
    "python text": "python3 - <<'EOF'\nimport json\nprint(json.load(open('/app/x')))\nEOF",
    "python words": "python3 -c \"print(open('/app/x').read())\"",
    "own program": "python3 /tests/check.py > /logs/verifier/reward.json",
    "own script": "bash /tests/inner.sh",
    "path of uv": 'export PATH="$HOME/.local/bin:$PATH"\npytest /tests/test_outputs.py',
    "folder by its script": 'TEST_DIR="$(cd "$(dirname "$0")" && pwd)"\npytest "$TEST_DIR/test_outputs.py"',
    "a listed archive": "tar -tzf /app/x.tar.gz | grep -q a.txt",
    "an own function at the end": "done_() { echo done; }\ntrap done_ EXIT\npytest /tests/test_outputs.py",
}
MARKED = {
    "agent's script": "bash /app/run.sh",
    "agent's program": "/app/run | grep -q ok",
    "agent's module": "python3 /app/solution.py > /tmp/" + "out",
    "agent's tests": "cd /app\npytest",
    "folder of the agent": "pytest /app/tests",
    "source": ". /app/settings.sh",
    "git": "git -C /app log",
    "make": "cd /app && make test",
    "find": "find /app -name '*.sh' -exec {} ;",
    "python text that imports": "python3 -c \"import sys; sys.path.insert(0, '/app'); import solution\"",
    "eval": 'eval "$(cat /app/x)"',
    "verdict of the agent": "pytest /tests/t.py\ncp /app/score.json /logs/verifier/reward.json",
    "verdict of the agent, by cat": "cat /app/score > /logs/verifier/reward.txt",
    "unclosed": "echo 'x",
    "piped to a shell": "cat /app/x.sh | bash",
    "text to a shell": "bash -c 'cd /app; ./run'",
    "path of the agent": "export PATH=/app/bin:$PATH\npytest /tests/test_outputs.py",
    "modules of the agent": "PYTHONPATH=/app pytest /tests/test_outputs.py",
    "another folder of tests": "TEST_DIR=/app/tests\npytest $TEST_DIR/test_outputs.py",
    "environment of the agent": "source /app/venv/bin/activate",
    "awk of the agent": "awk -f /app/x.awk /app/y",
    "unpacked archive": "cd /srv && tar xf /app/x.tar",
    "at the end": "trap 'bash /app/x.sh' EXIT",
    "what is not read": "bash /tests/inner",
}


@pytest.mark.parametrize("name", UNMARKED)
def test_scripts_that_only_read(name: str):
    assert why_marked({"test.sh": UNMARKED[name].encode(), "test_outputs.py": READS.encode()}) == ""


@pytest.mark.parametrize("name", MARKED)
def test_scripts_that_may_run_the_agents_code(name: str):
    assert why_marked({"test.sh": MARKED[name].encode(), "test_outputs.py": READS.encode()}).startswith("test.sh ")


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['/app/x'])",
        "import os\nos.system('/app/x')",
        "import sys\nsys.path.append('/app')",
        "import importlib\nimportlib.import_module('solution')",
        "exec(open('/app/x').read())",
        "import pickle\npickle.load(open('/app/x', 'rb'))",
        "import yaml\nyaml.load(open('/app/x'), Loader=yaml.UnsafeLoader)",
        "import sys as s, pickle\ndef (",
        "import tarfile\ntarfile.open('/app/x.tar').extractall('/srv')",
        "import shutil\nshutil.unpack_archive('/app/x.tar', '/srv')",
    ],
)
def test_python_that_may_run_the_agents_code(text: str):
    assert why_marked({"test.sh": PYTEST.encode(), "test_outputs.py": text.encode()}).startswith("test_outputs.py ")
