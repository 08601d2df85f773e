"""A small deterministic program that records a run, and the ways to kill it. Imported by tests and run as a script.

python record_program.py grid ROOT STRIDE      die at every STRIDE-th call that touches the disk, then resume
python record_program.py random ROOT COUNT     be killed COUNT times at random moments, resuming each time
python record_program.py write ROOT UNTIL      record run `r` up to iteration UNTIL, resuming; for strace
python record_program.py hold PATH             open a run for writing, say so, wait for a line
python record_program.py heir PATH             like hold, but die at "ready" and leave a forked child with the lock file
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from onthejob.errors import RecordError
from onthejob.files import TEMPORARY, published
from onthejob.record import Run
from onthejob.types import Adapter, Completion, Group, Kind, StopReason, Trajectory, Turn

LAST = 3
CONFIG = {"seed": 7}
DISK_CALLS = {
    "execute", "executemany", "fetchone", "fetchall", "fsync", "rename", "mkdir", "rmdir", "unlink", "open", "write", "close",
    "ftruncate", "pwrite", "flock", "connect", "replace",
}  # fmt: skip


def a_turn(seed: int, *, prompt: int = 40) -> Turn:
    ids = tuple((seed * 31 + i) % 70_000 for i in range(6))
    completion = Completion(text=f"reply {seed}", token_ids=ids, logprobs=tuple(-(i + seed) / 7 for i in range(6)))
    return Turn(prompt_ids=tuple(range(prompt)), completion=completion, policy_version="sales@0001", kind=Kind.ACT)


def a_group(key: str, *, size: int = 3, turns: int = 2) -> Group:
    trajectories = tuple(
        Trajectory(
            task_id="baseline-1",
            actor="sales",
            turns=tuple(a_turn(k * 10 + t, prompt=40 + 5 * t) for t in range(turns)),
            rewards=tuple(k + t / 3 for t in range(turns)),
            stop=StopReason.BRANCH,
            metrics={"outcome": k / 9},
        )
        for k in range(size)
    )
    return Group(key=key, actor="sales", trajectories=trajectories, facts={"day": 3, "worlds": [1, 2]})


def save_adapter(run: Run, version: int, weights: bytes) -> Adapter:
    path = run.adapter_path("sales", version)
    with published(path) as folder:
        (folder / "adapter_model.safetensors").write_bytes(weights)
    parent = f"sales@{version - 1:04d}" if version else None
    return Adapter(role="sales", version=version, path=path, parent=parent, digest=hashlib.sha256(weights).hexdigest())


def advance(run: Run) -> None:
    """One iteration whose content depends on the previous checkpoint, as training does."""
    last = run.last_iteration()
    n = 0 if last is None else last + 1
    if last is None:
        state = b""
    else:
        assert run.latest_checkpoint() == last
        state = run.read_checkpoint(last)["state"]
        assert isinstance(state, bytes)
    state = hashlib.sha256(state + bytes([n])).digest()
    run.live("progress", {"n": n})
    with run.iteration(n) as it:
        groups = [a_group(f"{n}/{i}") for i in range(2)]
        it.groups(groups, [[-1.0, 0.0, 1.0], None])
        it.metrics("train/sales", {"loss": int.from_bytes(state[:4]) / 1e9, "kl": float("nan"), "update_s": time.monotonic()})
        it.episode("dev/1", policies={"sales": f"sales@{n:04d}"}, metrics={"value": n / 3}, trajectories=groups[0].trajectories,
                   timeline=[{"actor": "sales", "day": 1}])  # fmt: skip
        it.event("dead_group", {"key": f"{n}/1"})
        it.put_blob("snapshot", state * 20)
        it.adapter(save_adapter(run, n, state))
        run.write_checkpoint(n, {"state": state, "big": state * 5000})


def resume(root: Path, until: int) -> None:
    path = root / "r"
    with Run.open(path) if path.is_dir() else Run.create(root, config=CONFIG, name="r") as run:
        while until not in run.iterations():
            advance(run)


def check(root: Path, reference: Run) -> int:
    """What a killed writer left must be a whole prefix of the reference; returns its number of iterations."""
    path = root / "r"
    if not path.is_dir():
        Run.create(root, config={}, name="r").close()  # what a creator left behind is removed by the next of that name
        assert [p.name for p in root.iterdir()] == ["r"], "leftover runs"
        shutil.rmtree(path)
        return 0
    with Run.open(path) as run:
        last = run.last_iteration()
        assert run.iterations() == list(range(0 if last is None else last + 1))
        assert run.digest() == reference.digest(through=-1 if last is None else last), f"not a prefix at {last}"
        assert run.latest_checkpoint() == last, "the last iteration has no valid checkpoint"
        assert all(adapter.path.is_dir() for adapter in run.adapters())
        found = {p.name for p in (path / "adapters").glob("*/*")}
        assert found == {adapter.name for adapter in run.adapters()}, f"leftover adapters {found}"
        left = list(path.rglob(f"{TEMPORARY}*"))
        assert not left, f"leftover folders {left}"
        return 0 if last is None else last + 1


def in_child(function, *arguments) -> int:
    """Wait status of a forked child that runs `function`."""
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def die_at(point: int, root: Path) -> None:
    seen = 0

    def profile(frame, event, argument):
        nonlocal seen
        if event in ("c_call", "c_return") and argument.__name__ in DISK_CALLS:
            seen += 1
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    resume(root, LAST)
    sys.setprofile(None)


def grid(root: Path, stride: int) -> dict[str, int]:
    resume(root / "reference", LAST)
    kills, prefixes, point = 0, set(), 1
    with Run.open(root / "reference" / "r", readonly=True) as reference:
        while True:
            case = root / "case"
            shutil.rmtree(case, ignore_errors=True)
            status = in_child(die_at, point, case)
            if not os.WIFSIGNALED(status):
                assert os.WEXITSTATUS(status) == 0
                return {"kills": kills, "prefixes": len(prefixes)}
            kills += 1
            prefixes.add(check(case, reference))
            resume(case, LAST)
            assert check(case, reference) == LAST + 1
            assert check(case, reference) == LAST + 1
            point += stride


def killed_randomly(root: Path, count: int) -> dict[str, int]:
    until = 10
    start = time.monotonic()
    resume(root / "reference", until)
    iteration_s = (time.monotonic() - start) / until
    rng, kills, inside = random.Random(1), 0, 0
    with Run.open(root / "reference" / "r", readonly=True) as reference:
        done = 0
        while kills < count:
            begun, begin = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(begin, b"!")
                resume(root / "killed", until)
                os._exit(0)
            os.read(begun, 1)
            os.close(begun)
            os.close(begin)
            time.sleep(rng.uniform(0.0, 3 * iteration_s))
            os.kill(child, signal.SIGKILL)
            kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
            now = check(root / "killed", reference)
            inside += now > done
            iteration_s *= 0.9 if now > done else 1.2  # kills stay spread over a few iterations while other work comes and goes
            done = now
            if done == until + 1:  # finished: start over
                shutil.rmtree(root / "killed")
                done = 0
        resume(root / "killed", until)
        assert check(root / "killed", reference) == until + 1
    return {"kills": kills, "with_progress": inside}


def main() -> None:
    command, path, *rest = sys.argv[1:]
    if command == "grid":
        print(json.dumps(grid(Path(path), int(rest[0]))))
    elif command == "random":
        print(json.dumps(killed_randomly(Path(path), int(rest[0]))))
    elif command == "write":
        try:
            resume(Path(path), int(rest[0]))
        except RecordError as error:
            print(error, file=sys.stderr)
            sys.exit(3)
    elif command == "hold":
        with Run.open(path):
            print("ready", flush=True)
            sys.stdin.readline()
    elif command == "heir":
        Run.open(path)
        heir = os.fork()
        if heir == 0:
            sys.stdin.readline()
            os._exit(0)
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
