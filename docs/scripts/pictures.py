"""The documentation's pictures of the viewer: its pages at 1366 and at 390 pixels.

    make viewer && python docs/scripts/pictures.py docs/images [RUNS [NAME...]]

RUNS is a folder of recorded runs named `runs`. Where it is missing it is made first, in minutes of one core: a run of the office
whose replies are legal ones drawn at random and whose branches are played in 16 worlds, a run of the claw with its tasks' own
commands, two trainings of a tiny model on `examples/guess.py` that are compared, and the kept team's comparison. NAME takes only
pictures of that name. Needs node, `viewer/node_modules` and Chromium. The pages are shown as they are; only the number of colours
is chosen here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from onthejob.evaluate.pass_fail import keep  # noqa: E402
from onthejob.models.fetch import fetch  # noqa: E402
from onthejob.rollout.branch import BranchConfig  # noqa: E402
from onthejob.testing import teach, tiny_model  # noqa: E402
from onthejob.types import Message  # noqa: E402
from tests.api.recording import claw_run, office_run  # noqa: E402
from tests.api.serving import TOKEN, served  # noqa: E402

WORDS = [*map(str, range(1, 10)), "It", "is", "one", "of", "to", "Guess", "my", "number", "Digits", "only"]
"""Of the tiny model."""
MODEL = "smollm2-135m"
"""Its tokenizer makes the prompts readable."""
COLORS = 128
MOST_BYTES = 300_000
"""Of a picture."""


def record(runs: Path) -> None:
    """Record the runs that the pictures show."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(fetch(MODEL, weights=False), local_files_only=True)
    claw_run(runs, tokenizer=tokenizer, model=MODEL)
    branch = BranchConfig(group_size=8, turns=70, worlds=16)
    office_run(runs, iterations=3, tokenizer=tokenizer, model=MODEL, branch=branch)
    held = json.loads((ROOT / "adapters/office/evaluation.json").read_text(encoding="utf-8"))
    keep(runs, "kept-team", {**held, "featured": "grpo", "start": "start"})
    train(runs)


def train(runs: Path) -> None:
    """Train a tiny model with two learning rates, and compare both with the model that they started from."""
    tiny = tiny_model(words=WORDS)
    asked = (Message(role="user", content="Guess my number: 1 to 9. Digits only."),)
    teach(tiny, [(asked, str(number)) for number in range(1, 10)], steps=80, batch=9)
    base = runs.parent / "tiny"
    tiny.model.save_pretrained(base)
    tiny.tokenizer.save_pretrained(base)
    model = ("--env", str(ROOT / "examples/guess.py"), "--model.name", str(base), "--model.dtype", "float32")
    for name, rate in (("quick", "0.005"), ("slow", "0.0005")):
        loop = ("--iterations", "12", "--grouping", "branch", "--branch.turns", "3", "--branch.worlds", "8", "--eval-every", "3")
        learn = ("--learner.loss.loss", "expected", "--learner.lr", rate, "--lora.rank", "4", "--eval-temperature", "1")
        command(runs, "train", *model, *loop, *learn, "--name", name)
    command(runs, "compare", "start=base", "slow", "quick", "halving", "random", *model, "--temperature", "1", "--name", "rates")


def command(runs: Path, *words: str) -> None:
    """Run a command of onthejob where its runs are `runs`."""
    subprocess.run([sys.executable, "-m", "onthejob", *words], check=True, cwd=runs.parent)


def main(target: Path, runs: Path, names: list[str]) -> None:
    """Let a browser take the pictures, and write them with few colours.

    Raises:
        ValueError: a picture is too large for the repository.
    """
    if not runs.is_dir():
        record(runs)
    # A short name: the path of Chromium's socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="page-") as folder, served(runs) as address:
        words = ["node", str(ROOT / "viewer/tests/browser/pictures.mjs"), address, TOKEN, folder, *names]
        subprocess.run(words, check=True, cwd=ROOT / "viewer", env={**os.environ, "TMPDIR": folder})
        for path in sorted(Path(folder).glob("*.png")):
            kept = target / path.name
            Image.open(path).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(kept, optimize=True)
            size = kept.stat().st_size
            if size > MOST_BYTES:
                raise ValueError(f"{kept} has {size:,} bytes, more than {MOST_BYTES:,}. Take it with fewer COLORS.")
            print(f"{kept}: {size:,} bytes")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        target, *given = sys.argv[1:]
        main(Path(target), Path(given[0] if given else f"{made}/runs"), given[1:])
