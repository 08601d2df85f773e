"""Which checks are marked: those in whose own process what the agent wrote may run."""

from __future__ import annotations

import pytest

from onthejob.envs.claw.separation import starts_programs, why_inseparable

from .official import CHECK

STARTS = "import subprocess\nsubprocess.run(['python3', 'tool.py'])"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("import importlib\nimportlib.import_module('tool')", "imports a module by name (import_module)"),
        ("from importlib import import_module as load\nload('tool')", "imports a module by name (import_module)"),
        ("import sys\nsys.path.insert(0, sys.argv[1])\nimport tool", "changes where modules are imported from (sys.path)"),
        ("from sys import path\npath.append('.')", "changes where modules are imported from (sys.path)"),
        ("exec(open('tool.py').read())", "executes text (exec)"),
        ("run = eval\nrun('1')", "evaluates text (eval)"),
        ("import runpy\nrunpy.run_path('tool.py')", "executes files (runpy)"),
        ("import pickle\npickle.load(open('x', 'rb'))", "unpickles (pickle)"),
        ("from pickle import load", "unpickles (pickle)"),
        ("import yaml\nyaml.load('', Loader=yaml.UnsafeLoader)", "constructs objects from YAML (yaml.UnsafeLoader)"),
        ("import ctypes\nctypes.CDLL('x.so')", "loads a library (ctypes)"),
        ("import unittest\nunittest.main()", "runs tests in its own process (unittest)"),
        ("__import__('tool')", "imports a module by name (__import__)"),
        ("exec(", "cannot be read as Python"),
        ("import sys as system\nsystem.path.append('.')", "changes where modules are imported from (sys.path)"),
        ("import json, sys as s\ns.meta_path.clear()", "changes where modules are imported from (sys.meta_path)"),
        ("import sys\nsys.modules['json'] = None", "changes what is imported (sys.modules)"),
        ("import site\nsite.addsitedir('.')", "imports from a folder (addsitedir)"),
        ("from importlib.machinery import SourcelessFileLoader", "imports a file (SourcelessFileLoader)"),
        ("import pkgutil\npkgutil.resolve_name('tool:f')", "imports modules by name (pkgutil)"),
        ("import pydoc\npydoc.importfile('tool.py')", "imports modules by name (pydoc)"),
        ("import code\ncode.InteractiveInterpreter().runsource('1')", "executes text (code)"),
        ("import os, timeit\ntimeit.timeit('1')", "executes text (timeit)"),
        ("import json, \\\n    cProfile\ncProfile.run('1')", "executes text (cProfile)"),
        ("import types\ntypes.FunctionType(compile('1', '', 'eval'), {})()", "executes compiled code (FunctionType)"),
        ("import builtins\ngetattr(builtins, 'ex' + 'ec')('1')", "looks functions up by name (builtins)"),
        ("__builtins__.exec('1')", "looks functions up by name (__builtins__)"),
        ("import os\ngetattr(os, 'exec')('1')", "executes text (exec)"),
        ("import numpy as np\nnp.load('a.npy', allow_pickle=True)", "unpickles (allow_pickle)"),
        ("import torch\ntorch.load('a.pt')", "unpickles (torch)"),
        ("from pandas import read_pickle", "unpickles (read_pickle)"),
        ("import pandas as pd\npd.read_pickle('a')", "unpickles (read_pickle)"),
        ("import pandas as pd\npd.read_csv('a').eval('1')", "evaluates text (pandas eval)"),
        ("import pandas as pd\npd.read_csv('a').query(open('q').read())", "evaluates text (pandas query)"),
        ("import yaml as y\ny.load('', Loader=y.CFullLoader)", "constructs objects from YAML (yaml.CFullLoader)"),
        ("import yaml\nyaml.unsafe_load_all('')", "constructs objects from YAML (unsafe_load_all)"),
        ("import jinja2\njinja2.Template('')", "executes templates (jinja2)"),
        ("import sqlite3\nsqlite3.connect('').load_extension('x')", "loads a library (load_extension)"),
        ("from cffi import FFI", "loads a library (cffi)"),
        ("import logging.config\nlogging.config.fileConfig('a')", "constructs what a file names (fileConfig)"),
        ("from setuptools import setup", "executes files (setuptools)"),
    ],
)
def test_checks_that_may_run_the_agents_code_are_marked_with_the_reason(check: str, reason: str):
    assert why_inseparable({"check.py": check.encode()}) == f"check.py {reason}"


@pytest.mark.parametrize(
    "check",
    [
        CHECK,
        STARTS,
        "import ast\nast.literal_eval('1')",
        "import re\nre.compile('exec(')",
        "# exec(text), pickle",
        "import yaml\nyaml.safe_load('')",
        "text = 'importlib.import_module'\nimport json",
        "import sys\nsys.stdout.write('sys.path')",
        "import numpy\nnumpy.load('a.npy', allow_pickle=False)",
        "import re, sqlite3\nsqlite3.connect('a.db').execute('select 1')",
        "import configparser, string, tarfile\nstring.Template('$a').substitute(a=1)",
        "import ast\ncompile('1', 'tool.py', 'exec')",
        "def query(eval_id): return eval_id\nquery(1)",
        "from pathlib import Path\nPath('code').exists()\n# from code",
    ],
)
def test_checks_that_cannot_run_it_are_not_marked(check: str):
    assert why_inseparable({"check.py": check.encode(), "reward.sh": b""}) == ""


def test_a_started_program_could_read_files_beside_the_check():
    assert why_inseparable({"check.py": STARTS.encode(), "expected.txt": b"7"}) == (
        "a program that check.py starts could read expected.txt next to it"
    )
    assert why_inseparable({"check.py": CHECK.encode(), "expected.txt": b"7"}) == ""


@pytest.mark.parametrize(
    "check",
    [
        STARTS,
        "import os\nos.system('ls')",
        "import os\nrun = os.system\nrun('ls')",
        "from os import system as run\nrun('ls')",
        "import os as o\no.popen('ls')",
        "import os\ngetattr(os, 'system')('ls')",
        "import os\nos.posix_spawn('/bin/ls', ['ls'], {})",
        "import asyncio\nasyncio.create_subprocess_exec('ls')",
        "import pexpect\npexpect.run('ls')",
        "from concurrent.futures import ProcessPoolExecutor",
        "import shutil\nshutil.which('git')",
    ],
)
def test_checks_that_may_start_programs_are_kept_apart_from_them(check: str):
    assert starts_programs({"check.py": check.encode()})
    assert starts_programs({"check.py": b"import helper", "helper.py": check.encode()})
    assert not starts_programs({"check.py": CHECK.encode(), "notes.txt": check.encode()})
