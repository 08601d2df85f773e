"""Checkpoints are complete and checked, or they are not used."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from onthejob.errors import ContractError, RecordError
from onthejob.record import Run


def recorded(run: Run, last: int) -> None:
    for n in range(last + 1):
        with run.iteration(n):
            run.write_checkpoint(n, {"state": b"%d" % n})


def test_tensors_and_bytes_come_back_exactly(runs_dir):
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(4, 6, generator=generator)
    tensors = {
        "a": shared,
        "view": shared.T,  # not contiguous, shares memory
        "half": shared.to(torch.bfloat16),
        "step": torch.tensor(7),
        "odd": torch.tensor([float("nan"), -0.0, float("inf")]),
        "grad": torch.ones(2, requires_grad=True),
    }
    with Run.create(runs_dir, config={}, name="r") as run:
        with run.iteration(0):
            run.write_checkpoint(0, {"learner.safetensors": tensors, "rng": b"\0\1", "none": {}})
        assert run.latest_checkpoint() == 0
        files = run.read_checkpoint(0)
    assert files["rng"] == b"\0\1"
    assert files["none"] == {}
    read = files["learner.safetensors"]
    assert isinstance(read, dict)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (read[name], tensor)]
        assert torch.equal(*raw), name


def test_the_last_two_and_every_tenth_are_kept(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        recorded(run, 23)
        assert sorted(int(p.name) for p in (run.path / "checkpoints").iterdir()) == [0, 10, 20, 22, 23]


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing file", "missing manifest", "broken manifest"])
def test_a_damaged_checkpoint_is_passed_over(runs_dir, damage, caplog):
    with Run.create(runs_dir, config={}, name="r") as run:
        recorded(run, 2)
        folder = run.path / "checkpoints" / "000002"
        match damage:
            case "flip":
                (folder / "state").write_bytes(b"3")
            case "truncate":
                (folder / "state").write_bytes(b"")
            case "missing file":
                (folder / "state").unlink()
            case "missing manifest":
                (folder / "manifest.json").unlink()
            case "broken manifest":
                (folder / "manifest.json").write_text('{"files": [1]}')
        with caplog.at_level(logging.WARNING):
            assert run.latest_checkpoint() == 1
        assert "checkpoint 2 is not used" in caplog.text
        with pytest.raises(RecordError, match="earlier checkpoint"):
            run.read_checkpoint(2)
        run.rewind(1)  # redo iteration 2 from the good one
        with run.iteration(2):
            run.write_checkpoint(2, {"state": b"2"})
        assert run.latest_checkpoint() == 2


def test_a_manifest_cannot_point_outside(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        recorded(run, 0)
        manifest = run.path / "checkpoints" / "000000" / "manifest.json"
        content = json.loads(manifest.read_text())
        content["files"] = {"../../run.sqlite": content["files"]["state"]}
        manifest.write_text(json.dumps(content))
        with pytest.raises(RecordError, match="lacks"):
            run.read_checkpoint(0)


def test_an_uncommitted_checkpoint_is_replaced_and_a_committed_one_is_not(runs_dir):
    with Run.create(runs_dir, config={}, name="r") as run:
        run.write_checkpoint(0, {"state": b"first"})
        assert run.latest_checkpoint() is None  # its iteration is not committed
        run.write_checkpoint(0, {"state": b"second"})
        with run.iteration(0):
            pass
        assert run.read_checkpoint(0) == {"state": b"second"}
        with pytest.raises(RecordError, match="committed and its checkpoint is final"):
            run.write_checkpoint(0, {"state": b"third"})


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "manifest.json", "", ".."])
def test_file_names_are_plain(runs_dir, name):
    with Run.create(runs_dir, config={}, name="r") as run:
        with pytest.raises(ContractError, match="file name must be plain"):
            run.write_checkpoint(0, {name: b""})
        assert run.latest_checkpoint() is None


def test_an_interrupted_write_leaves_nothing(runs_dir):
    class Unreadable:
        def detach(self):
            raise KeyboardInterrupt

    with Run.create(runs_dir, config={}, name="r") as run:
        with pytest.raises(KeyboardInterrupt):
            run.write_checkpoint(0, {"a": b"1", "b": {"x": Unreadable()}})  # pyright: ignore[reportArgumentType]
        assert list((run.path / "checkpoints").iterdir()) == []
