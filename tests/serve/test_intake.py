"""Adapters that must never reach a server, each refused with its reason; and one that is let in."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from onthejob.errors import ModelError
from onthejob.serve.intake import Intake, IntakeLimits

from .conftest import Workshop

WEIGHTS, CONFIG, META = "adapter_model.safetensors", "adapter_config.json", "adapter_meta.json"
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def edit(path: Path, name: str, **changes: object) -> None:
    content = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**content, **changes}))


def reweigh(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change tensors and sign them again, so that only the content is wrong."""
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)
    sign(path)


def sign(path: Path) -> None:
    edit(path, META, digest=hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest())


def put(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[PREFIX + "A.weight"].view(-1)[0].fill_(value)


def symlinked(path: Path) -> None:
    (path / WEIGHTS).rename(path.parent / "elsewhere")
    (path / WEIGHTS).symlink_to(path.parent / "elsewhere")


def linked_folder(path: Path) -> None:
    path.rename(path.parent / "real")
    path.symlink_to(path.parent / "real")


def fifo(path: Path) -> None:
    (path / WEIGHTS).unlink()
    os.mkfifo(path / WEIGHTS)


def pickled(path: Path) -> None:
    (path / WEIGHTS).write_bytes(pickle.dumps({"a": 1}))
    sign(path)


def bomb(path: Path) -> None:
    """A header that announces more than there is."""
    (path / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    sign(path)


def truncated(path: Path) -> None:
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-100])
    sign(path)


def large(path: Path) -> None:
    with (path / WEIGHTS).open("r+b") as file:
        file.truncate(20_000_000)


def repeated(path: Path) -> None:
    text = (path / CONFIG).read_text()
    (path / CONFIG).write_text(text.replace('"r": 4', '"r": 4, "r": 400', 1))


def to_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("adapter")


def drop(pattern: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if re.search(pattern, name)]:
            del tensors[name]

    return change


def move(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for half in "AB":
            tensors[f"{new}.lora_{half}.weight"] = tensors.pop(f"{old}.lora_{half}.weight")

    return change


def encoded(name: str, encoding: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_text(encoding="utf-8").encode(encoding))


def scaled(stated: str) -> Callable[[Path], object]:
    """State a logarithm of the logit scale next to the tensors."""

    def change(path: Path) -> None:
        save_file(load_file(path / WEIGHTS), path / WEIGHTS, metadata={"format": "pt", "log_logit_scale": stated})
        sign(path)

    return change


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
POISON: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (to_file, "not a directory"),
    "a linked folder": (linked_folder, "not a directory"),
    "no weights": (lambda p: (p / WEIGHTS).unlink(), "exactly"),
    "no config": (lambda p: (p / CONFIG).unlink(), "exactly"),
    "no meta": (lambda p: (p / META).unlink(), "exactly"),
    "a pickle beside": (lambda p: (p / "adapter_model.bin").write_bytes(b"x"), "exactly"),
    "code beside": (lambda p: (p / "modeling.py").write_text("x"), "exactly"),
    "a folder inside": (lambda p: (p / "more").mkdir(), "exactly"),
    "linked weights": (symlinked, "file of its own"),
    "a fifo": (fifo, "no regular file"),
    "truncated": (truncated, "not safetensors"),
    "empty": (lambda p: ((p / WEIGHTS).write_bytes(b""), sign(p)), "not safetensors"),
    "a pickle": (pickled, "not safetensors"),
    "a header bomb": (bomb, "not safetensors"),
    "a large file": (large, "larger than"),
    "not a number": (lambda p: reweigh(p, put(float("nan"))), "not finite"),
    "infinite": (lambda p: reweigh(p, put(float("-inf"))), "not finite"),
    "a large number": (lambda p: reweigh(p, put(5e3)), "larger than anything"),
    "a huge number": (lambda p: reweigh(p, put(1e30)), "overflows in float16"),
    "just beyond float16": (lambda p: reweigh(p, put(65_536.0)), "overflows in float16"),
    "other ranks inside": (lambda p: edit(p, CONFIG, r=2), "rank"),
    "rank 512": (lambda p: edit(p, CONFIG, r=512), "rank must be"),
    "rank true": (lambda p: edit(p, CONFIG, r=True), "needs r, an integer"),
    "alpha NaN": (lambda p: edit(p, CONFIG, lora_alpha=float("nan")), "not JSON"),
    "alpha negative": (lambda p: edit(p, CONFIG, lora_alpha=-1), "lora_alpha"),
    "alpha huge": (lambda p: edit(p, CONFIG, lora_alpha=1e6), "scaling"),
    "config cut off": (lambda p: (p / CONFIG).write_text('{"r": 4'), "not JSON"),
    "config a list": (lambda p: (p / CONFIG).write_text("[]"), "not an object"),
    "config nested deep": (lambda p: (p / CONFIG).write_text("[" * 30_000), "not JSON"),
    "a key twice": (repeated, "repeated"),
    "an unknown key": (lambda p: edit(p, CONFIG, exec="x"), "states exec="),
    "auto_mapping": (lambda p: edit(p, CONFIG, auto_mapping={"base_model_class": "x"}), "auto_mapping"),
    "a hub id": (lambda p: edit(p, CONFIG, base_model_name_or_path="evil/model"), "base_model_name_or_path"),
    "DoRA": (lambda p: edit(p, CONFIG, use_dora=True), "use_dora"),
    "whole modules": (lambda p: edit(p, CONFIG, modules_to_save=["lm_head"]), "modules_to_save"),
    "ranks by pattern": (lambda p: edit(p, CONFIG, rank_pattern={"q_proj": 64}), "states rank 64"),
    "a pattern that is none": (lambda p: edit(p, CONFIG, alpha_pattern={"(": 4}), "no regular expression"),
    "rank 512 by pattern": (lambda p: edit(p, CONFIG, rank_pattern={"q_proj": 512}), "rank must be"),
    "an alpha of 0 by pattern": (lambda p: edit(p, CONFIG, alpha_pattern={"q_proj": 0}), "alpha_pattern"),
    "weights as an initialisation": (lambda p: edit(p, CONFIG, init_lora_weights="pissa"), "init_lora_weights"),
    "activated LoRA": (lambda p: edit(p, CONFIG, alora_invocation_tokens=[5]), "alora_invocation_tokens"),
    "biases": (lambda p: edit(p, CONFIG, bias="all"), "bias"),
    "another task": (lambda p: edit(p, CONFIG, task_type="SEQ_CLS"), "task_type"),
    "another method": (lambda p: edit(p, CONFIG, peft_type="LOHA"), "peft_type"),
    "an unknown target": (lambda p: edit(p, CONFIG, target_modules=["q_proj", "w_evil"]), "w_evil"),
    "a target expression": (lambda p: edit(p, CONFIG, target_modules=".*"), "list of names"),
    "an untargeted tensor": (lambda p: edit(p, CONFIG, target_modules=["q_proj"]), "belongs to no target"),
    "the embedding": (lambda p: reweigh(p, move(LAYER, "base_model.model.model.embed_tokens")), "belongs to no target"),
    "a half missing": (lambda p: reweigh(p, drop(r"layers\.0\.self_attn\.q_proj\.lora_B")), "incomplete"),
    "a layer missing": (lambda p: reweigh(p, drop(r"layers\.1\.self_attn\.q_proj")), "lacks 1 of"),
    "no tensors": (lambda p: reweigh(p, dict.clear), "incomplete"),
    "another shape": (
        lambda p: reweigh(p, lambda t: t.update({PREFIX + "A.weight": torch.zeros(4, 65)})),
        "shape",
    ),
    "integers": (
        lambda p: reweigh(p, lambda t: t.update({PREFIX + "A.weight": torch.zeros(4, 64, dtype=torch.int32)})),
        "not a LoRA matrix",
    ),
    "float64": (
        lambda p: reweigh(p, lambda t: t.update({PREFIX + "A.weight": torch.zeros(4, 64, dtype=torch.float64)})),
        "not a LoRA matrix",
    ),
    "float8": (
        lambda p: reweigh(p, lambda t: t.update({PREFIX + "A.weight": torch.zeros(4, 64).to(torch.float8_e4m3fn)})),
        "not a LoRA matrix",
    ),
    "float8 of the other kind": (
        lambda p: reweigh(p, lambda t: t.update({PREFIX + "B.weight": torch.zeros(64, 4).to(torch.float8_e5m2)})),
        "not a LoRA matrix",
    ),
    "config in UTF-16": (encoded(CONFIG, "utf-16"), "not JSON"),
    "config in UTF-16 without a mark": (encoded(CONFIG, "utf-16-le"), "not JSON"),
    "config in UTF-32": (encoded(CONFIG, "utf-32"), "not JSON"),
    "config with a byte order mark": (encoded(CONFIG, "utf-8-sig"), "not JSON"),
    "meta with a byte order mark": (encoded(META, "utf-8-sig"), "not JSON"),
    "a folder as the config": (lambda p: ((p / CONFIG).unlink(), (p / CONFIG).mkdir()), "no regular file"),
    "a folder as the weights": (lambda p: ((p / WEIGHTS).unlink(), (p / WEIGHTS).mkdir()), "no regular file"),
    "an alpha of 400 digits": (lambda p: edit(p, CONFIG, lora_alpha=10**400), "lora_alpha"),
    "an alpha of 400 digits by pattern": (lambda p: edit(p, CONFIG, alpha_pattern={"q_proj": 10**400}), "alpha_pattern"),
    "a rank of 400 digits": (lambda p: edit(p, CONFIG, r=10**400), "needs r, an integer"),
    "a rank of 400 digits by pattern": (lambda p: edit(p, CONFIG, rank_pattern={"q_proj": 10**400}), "rank_pattern"),
    "an alpha of 5,000 digits": (
        lambda p: (p / CONFIG).write_text((p / CONFIG).read_text().replace('"lora_alpha": 8', '"lora_alpha": ' + "8" * 5000)),
        "not JSON",
    ),
    "a logit scale of NaN": (scaled("nan"), "logit scale"),
    "a logit scale that overflows": (scaled("1e308"), "logit scale"),
    "a logit scale that underflows": (scaled("-1e308"), "logit scale"),
    "an infinite logit scale": (scaled("-inf"), "logit scale"),
    "a logit scale just beyond": (scaled("10.5"), "logit scale"),
    "a logit scale of text": (scaled("large"), "could not convert"),
    "another base": (lambda p: edit(p, META, base_digest="0" * 64), "base"),
    "other weights than signed": (lambda p: edit(p, META, digest="0" * 64), "sha256"),
    "another name": (lambda p: edit(p, META, role="ceo"), "says ceo"),
    "a version as text": (lambda p: edit(p, META, version="1"), "says"),
    "a path as parent": (lambda p: edit(p, META, parent="../../etc"), "no adapter's name"),
}


@pytest.fixture
def intake(workshop: Workshop, tmp_path: Path) -> Intake:
    return Intake(tmp_path / "store", workshop.base, IntakeLimits(max_bytes=10_000_000))


def test_there_are_enough_kinds():
    assert len(POISON) >= 30


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_refused_and_leaves_nothing(kind: str, workshop: Workshop, intake: Intake):
    poison, said = POISON[kind]
    source = workshop.write("sales", 1).path
    poison(source)
    with pytest.raises(ModelError, match=re.escape(said)):
        intake.admit(source)
    assert not intake.store.exists()


@pytest.mark.parametrize("name", ["sales", "sales@1", "Sales@0001", "..", "sales@0001/../x"])
def test_only_versioned_names_are_admitted(name: str, workshop: Workshop, intake: Intake):
    source = workshop.write("sales", 1).path
    other = source.parent / name
    if name not in ("..", "sales@0001/../x"):
        source.rename(other)
    with pytest.raises(ModelError):
        intake.admit(other)


def test_a_sound_adapter_gets_a_path_of_its_own(workshop: Workshop, intake: Intake):
    source = workshop.write("sales", 7)
    admitted = intake.admit(source.path)
    assert admitted.name == "sales@0007"
    assert admitted.digest == source.digest
    assert admitted.path.is_relative_to(intake.store)
    assert source.digest[:12] in admitted.path.name
    for name in (WEIGHTS, CONFIG, META):
        assert (admitted.path / name).read_bytes() == (source.path / name).read_bytes()
    # What happens to the source afterwards is nothing to the server.
    (source.path / WEIGHTS).write_bytes(b"changed")
    assert hashlib.sha256((admitted.path / WEIGHTS).read_bytes()).hexdigest() == source.digest


def test_the_same_again_is_the_same(workshop: Workshop, intake: Intake):
    source = workshop.write("sales", 7).path
    assert intake.admit(source) == intake.admit(source)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a bit of the weights": lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:-1] + b"\x01"),
    "truncated weights": lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:-100]),
    "alpha": lambda p: edit(p, CONFIG, lora_alpha=16),
    "its parent": lambda p: edit(p, META, parent="sales@0001"),
    "lost weights": lambda p: (p / WEIGHTS).unlink(),
    "a file more": lambda p: (p / "tokenizer.json").write_text("{}"),
    "linked weights": symlinked,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_that_was_changed_in_the_store_is_not_served(change: str, workshop: Workshop, intake: Intake):
    source = workshop.write("sales", 7).path
    CHANGES[change](intake.admit(source).path)
    with pytest.raises(ModelError, match="not served"):
        intake.admit(source)
