"""The reader of claims: what is trained and kept is what is loaded and read."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from onthejob.compat.served import served
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.simulator import DESCRIBED
from onthejob.errors import ConfigError, ModelError
from onthejob.models.claims import COMING, LONGEST, NOW, STRIDE, ClaimReader, answers, claim_reader
from onthejob.office import Office
from onthejob.testing.tiny import tiny_model
from onthejob.types import Split, Task

# PEFT asks transformers for an attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
TEXT = "Every colleague signs in with the account that IT gave them."


@pytest.fixture(scope="module")
def script(repository: Path) -> ModuleType:
    sys.path.insert(0, str(repository / "benchmarks"))
    try:
        return importlib.import_module("train_claims")
    finally:
        sys.path.remove(str(repository / "benchmarks"))


@pytest.fixture(scope="module")
def trained(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader on a tiny base, moved by a few steps."""
    base = tmp_path_factory.mktemp("base")
    tiny = tiny_model()
    tiny.model.save_pretrained(base)
    tiny.tokenizer.save_pretrained(base)
    torch.manual_seed(0)
    student = script.Student(str(base), 4)
    for weight in student.model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.2)
    folder = tmp_path_factory.mktemp("kept") / "claims"
    student.keep(folder, 0.4)
    for weight in student.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.bfloat16().float()  # as they are kept
    with torch.no_grad():
        rows = answers(student.body, student.head, student.encode(TEXT)).softmax(-1)[0]
    (folder / "expected.json").write_text(json.dumps(rows.tolist()), encoding="utf-8")
    return folder


def test_it_reads_as_it_was_trained(trained: Path):
    reader = ClaimReader(trained)
    assert reader.features == DESCRIBED
    assert reader.bound == 0.4
    read = reader.read(TEXT)
    expected = json.loads((trained / "expected.json").read_text(encoding="utf-8"))
    assert list(read) == list(DESCRIBED)
    for verdict, row in zip(read.values(), expected, strict=True):
        assert verdict.now == pytest.approx(row[NOW], abs=1e-4)
        assert verdict.coming == pytest.approx(row[COMING], abs=1e-4)
    assert reader.read(TEXT) == read


def test_the_adapter_is_no_ornament(trained: Path, tmp_path: Path):
    """Without its LoRA weights the reader says something else."""
    from safetensors.torch import load_file, save_file

    bare = tmp_path / "bare"
    shutil.copytree(trained, bare)
    weights = load_file(bare / "adapter_model.safetensors")
    save_file({name: torch.zeros_like(weight) for name, weight in weights.items()}, bare / "adapter_model.safetensors")
    with_it, without = ClaimReader(trained).read(TEXT), ClaimReader(bare).read(TEXT)
    assert any(abs(with_it[name].now - without[name].now) > 1e-3 for name in DESCRIBED)


def test_no_part_of_a_long_text_is_skipped(trained: Path):
    """Every token is read in some part, and a claim in any part counts."""
    reader = ClaimReader(trained)
    encoder = reader._encoder
    for words in (1, LONGEST - 1, LONGEST, LONGEST + 1, 700):
        # A byte-level base: one token a letter.
        ids = encoder._tokenizer.encode("x" * words)
        parts = [
            part.ids[: part.places[0] - len(encoder._question) - len(encoder._names[0]) + 1]
            for part in encoder.parts("x" * words)
        ]
        assert all(0 < len(part) <= LONGEST for part in parts)
        covered = {
            start + offset for start, part in zip(range(0, len(ids), STRIDE), parts, strict=False) for offset in range(len(part))
        }
        assert covered == set(range(len(ids)))
    long = "y" * 400 + " " + TEXT
    strongest = [
        max(sum(read) for read in column) for column in zip(*(_each(reader, part) for part in encoder.parts(long)), strict=True)
    ]
    assert [sum(verdict) for verdict in reader.read(long).values()] == pytest.approx(strongest, abs=1e-6)


def _each(reader: ClaimReader, part) -> list[tuple[float, float]]:
    with torch.inference_mode():
        row = answers(reader._body, reader._head, [part]).softmax(-1)[0]
    return [(line[NOW].item(), line[COMING].item()) for line in row]


@pytest.mark.parametrize("text", ["", " ", "\ud800 half a pair", "\0\x1b[2J", "😀" * 50, "\u202eoverride", "a" * 3000])
def test_strange_text_is_read(trained: Path, text: str):
    verdicts = ClaimReader(trained).read(text).values()
    assert all(0 <= verdict.now <= 1 and 0 <= verdict.coming <= 1 for verdict in verdicts)


def test_a_batch_reads_as_one_by_one(trained: Path):
    reader = ClaimReader(trained)
    parts = [
        reader._encoder.parts(text)[0] for text in (TEXT, "Short.", "Something that is a little longer than the others are.")
    ]
    with torch.inference_mode():
        together = answers(reader._body, reader._head, parts)
        alone = torch.cat([answers(reader._body, reader._head, [part]) for part in parts])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda folder: (folder / "reader.json").unlink(), "reader.json"),
        (lambda folder: (folder / "reader.json").write_text('{"base": 1, "features": ["SSO"], "bound": 0.5}'), "base"),
        (lambda folder: (folder / "head.safetensors").write_bytes(b"no"), "head.safetensors"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"no"), "adapter_model.safetensors"),
        (lambda folder: (folder / "adapter_meta.json").write_text('{"base_digest": "0123"}'), "another|base"),
    ],
    ids=["no settings", "bad settings", "bad head", "bad adapter", "another base"],
)
def test_a_broken_reader_is_refused(trained: Path, tmp_path: Path, spoil, what: str):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    spoil(copy)
    with pytest.raises(ModelError, match=what):
        ClaimReader(copy)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        ClaimReader(tmp_path / "nowhere")


def test_the_office_asks_the_reader(trained: Path):
    """An environment made for the commands judges by the reader that its configuration names; its forks too."""
    from onthejob.office import make_office

    env = make_office(OfficeConfig(reader=str(trained), days=1))()
    env.reset(Task(id="t", env="office", split=Split.DEV, seed=1))
    for one in (env, env.fork()):
        assert one._simulator is not None
        assert one._simulator.registry._reader is claim_reader(str(trained))
    place = Office(reader=str(trained), days=1)
    place.check_options()
    assert place.full_fingerprint() != Office(days=1).full_fingerprint()
    with pytest.raises(ConfigError, match=r"reader\.json"):
        Office(reader=str(trained.parent)).check_options()
    with pytest.raises(ConfigError, match="reader"):
        OfficeEnvironment(OfficeConfig(reader=str(trained)))


def test_a_server_seats_players_under_the_reader(trained: Path):
    place = served(Office(reader=str(trained)))
    made = place.make()
    assert isinstance(made, OfficeEnvironment)
    assert made.config.reader == str(trained)
    assert not place.inline  # other connections do not wait for a reading
    assert served(Office()).inline


def test_training_prints_a_table_and_keeps_what_loads(script: ModuleType, trained: Path, tmp_path: Path, monkeypatch, capsys):
    base = json.loads((trained / "reader.json").read_text(encoding="utf-8"))["base"]
    words = ["--base", base, "--rank", "2", "--epochs", "1", "--limit", "8", "--threads", "1", "--keep", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", ["train_claims.py", *words])
    assert script.main() == 0
    printed = capsys.readouterr().out
    assert "8 pieces to train on, w14 held out" in printed
    assert "model at 0.5" in printed
    assert set(ClaimReader(tmp_path / "kept").read(TEXT)) == set(DESCRIBED)


def test_a_long_piece_is_judged_as_the_reader_reads_it(script: ModuleType):
    """Not by its beginning alone: the linear weights next to it see the whole text."""
    none, claim = [0.8, 0.1, 0.0, 0.05, 0.05], [0.1, 0.7, 0.1, 0.05, 0.05]
    parts = torch.tensor([[none, none], [none, claim]])  # (parts, features, answers)
    assert script.strongest(parts).tolist() == torch.tensor([none, claim]).tolist()


def test_a_writer_of_promises_only_is_refused_before_training(script: ModuleType, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_claims.py", "--left-out", "lines"])
    with pytest.raises(SystemExit) as stop:
        script.main()
    assert stop.value.code == 2
    assert "are all honest pieces" in capsys.readouterr().err
