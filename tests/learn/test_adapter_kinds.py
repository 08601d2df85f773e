"""One rule of PEFT's kinds of LoRA: the supported ones are one policy in all rooms, the others are refused by all of them."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from onthejob.cli import main
from onthejob.errors import ConfigError, ModelError
from onthejob.learn import adapter_files, lora
from onthejob.learn.adapter_import import import_adapter
from onthejob.learn.lora import LoraSpec, Snapshot
from onthejob.learn.merge import merge_adapter
from onthejob.models.adapter_weights import read_adapter_weights
from onthejob.models.base_model import weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.models.targets import linear_layers
from onthejob.serve.intake import BaseShape, Intake
from onthejob.stack import find_adapters, shape_of
from onthejob.testing.tiny import tiny_model
from onthejob.types import Adapter

SAME: dict[str, dict[str, Any]] = {
    "plain": {},
    "rsLoRA": {"use_rslora": True},
    "ranks": {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 6}},
    "alphas": {"alpha_pattern": {"v_proj": 3, "layers.0.self_attn.o_proj": 40}},
    "all of them": {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 5, "up_proj": 7}},
    "some layers": {"layers_to_transform": [1]},
    "an expression": {"target_modules": r".*\.(q_proj|down_proj)"},
    "dropout": {"lora_dropout": 0.1},
    "Gaussian": {"init_lora_weights": "gaussian"},
}
"""Further arguments of PEFT's LoraConfig."""
REFUSED: dict[str, dict[str, Any]] = {
    "DoRA": {"use_dora": True},
    "biases": {"bias": "lora_only"},
    "bias of B": {"lora_bias": True},
    "PiSSA": {"init_lora_weights": "pissa_niter_4"},
    "OLoRA": {"init_lora_weights": "olora"},
    "LoftQ": {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}},
    "CorDA": {"init_lora_weights": "corda"},
    "aLoRA": {"alora_invocation_tokens": [5, 6]},
    "saved modules": {"modules_to_save": ["lm_head"]},
    "trained tokens": {"trainable_token_indices": [1, 2]},
    "parameters": {"target_parameters": ["mlp.experts.gate_up_proj"]},
    "repeated layers": {"layer_replication": [[0, 2], [1, 2]]},
    "QALoRA": {"use_qalora": True},
    "Conv1D": {"fan_in_fan_out": True},
    "another method": {"peft_type": "LOHA"},
    "a classifier": {"task_type": "SEQ_CLS"},
    "a later kind": {"use_something_new": True},
}
IDS = list(range(5, 45))


class Made:
    """A base on disk, and an adapter that PEFT itself made and saved."""

    def __init__(self, folder: Path, **options: Any) -> None:
        tiny = tiny_model()
        self.base, self.source = folder / "base", folder / "peft" / "default"
        tiny.model.save_pretrained(self.base)
        tiny.tokenizer.save_pretrained(self.base)
        self.digest, self.chat = weights_digest(self.base), ChatEncoder(tiny.tokenizer)
        targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
        config = LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": targets, "task_type": "CAUSAL_LM"} | options))
        with quiet():
            self.peft: Any = get_peft_model(tiny.model, config).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in self.peft.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        self.peft.save_pretrained(self.source)

    def wanted(self) -> torch.Tensor:
        return next_logprobs(self.peft)

    def fresh(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self.base)

    def signed(self) -> Path:
        """The same with onthejob's own files in addition to PEFT's."""
        digest = hashlib.sha256((self.source / adapter_files.WEIGHTS).read_bytes()).hexdigest()
        folder = self.source.parent / "sales@0001"
        self.source.rename(folder)
        (folder / "README.md").unlink(missing_ok=True)
        meta = {"role": "sales", "version": 1, "parent": None, "base_digest": self.digest, "digest": digest}
        (folder / adapter_files.META).write_text(json.dumps(meta))
        config = json.loads((folder / adapter_files.CONFIG).read_text())
        (folder / adapter_files.CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": None}))
        return folder


@contextmanager
def quiet() -> Iterator[None]:
    """PEFT asks transformers for a flag that was renamed in 5.23."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))


def next_logprobs(model: Any) -> torch.Tensor:
    """Of IDS[1:]."""
    with torch.no_grad():
        found = model(input_ids=torch.tensor([IDS])).logits[0, :-1].double().log_softmax(-1)
    return found.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]


def in_sampler(made: Made, adapter: Adapter, _: Path) -> torch.Tensor:
    sampler = Sampler(made.fresh(), made.chat, base_digest=made.digest)
    sampler.publish(adapter)
    return torch.tensor(sampler.score(IDS, adapter=adapter.name), dtype=torch.float64)


def in_learner(made: Made, adapter: Adapter, _: Path) -> torch.Tensor:
    model = lora.attach(made.fresh(), ["sales"], shape_of({"sales": adapter}, LoraSpec(), where="here"), seed=0)
    adapter_files.load_adapter(model, "sales", adapter, base_digest=made.digest)
    return next_logprobs(model)


def as_reference(made: Made, adapter: Adapter, _: Path) -> torch.Tensor:
    model = lora.attach(made.fresh(), ["sales"], shape_of({"sales": adapter}, LoraSpec(), where="here"), seed=0)
    adapter_files.load_adapter(model, "sales", adapter)
    reference = Snapshot.take(model, "sales")
    with torch.no_grad():
        for parameter in lora.parameters(model, "sales").values():
            parameter.add_(0.1)
    with reference.applied(model, "sales"):
        return next_logprobs(model)


def saved_again(made: Made, adapter: Adapter, folder: Path) -> torch.Tensor:
    model = lora.attach(made.fresh(), ["sales"], shape_of({"sales": adapter}, LoraSpec(), where="here"), seed=0)
    adapter_files.load_adapter(model, "sales", adapter)
    later = adapter_files.save_adapter(
        model, "sales", folder / "later", version=2, parent=adapter.name, base_digest=made.digest, dtype="float32"
    )
    return in_sampler(made, later, folder)


def merged(made: Made, adapter: Adapter, folder: Path) -> torch.Tensor:
    merge_adapter(made.base, adapter, folder / "merged")
    return next_logprobs(AutoModelForCausalLM.from_pretrained(folder / "merged"))


def served(made: Made, adapter: Adapter, folder: Path) -> torch.Tensor:
    """As a server computes it that knows one rank and one alpha, as vLLM does."""
    copy = Intake(folder / "store", BaseShape.of_folder(made.base, digest=made.digest)).admit(adapter.path)
    assert copy.digest == adapter.digest
    config = json.loads((copy.path / adapter_files.CONFIG).read_text())
    known = {name: config[name] for name in ("r", "lora_alpha", "target_modules", "use_rslora")}
    (copy.path / adapter_files.CONFIG).write_text(json.dumps(known | {"peft_type": "LORA", "task_type": "CAUSAL_LM"}))
    with quiet():
        return next_logprobs(PeftModel.from_pretrained(made.fresh(), copy.path))


ROOMS = (in_sampler, in_learner, as_reference, saved_again, merged, served)


def compare(made: Made, adapter: Adapter, folder: Path) -> None:
    want = made.wanted()
    assert (next_logprobs(made.fresh()) - want).abs().max() > 0.3, "the adapter changes too little to show anything"
    for room in ROOMS:
        assert (room(made, adapter, folder) - want).abs().max() < 1e-4, room.__name__


@pytest.mark.parametrize("kind", SAME)
def test_an_imported_adapter_is_the_same_policy_everywhere(kind, tmp_path: Path):
    made = Made(tmp_path, **SAME[kind])
    adapter = import_adapter(made.source, tmp_path / "out", role="sales", base=made.base)
    assert adapter_files.read_adapter(adapter.path) == adapter
    compare(made, adapter, tmp_path)


@pytest.mark.parametrize("kind", ["rsLoRA", "ranks", "alphas", "all of them"])
def test_an_adapter_that_states_its_kind_is_the_same_policy_everywhere(kind, tmp_path: Path):
    made = Made(tmp_path, **SAME[kind])
    compare(made, adapter_files.read_adapter(made.signed()), tmp_path)


def test_what_fills_up_a_rank_is_never_trained(tmp_path: Path):
    made = Made(tmp_path, rank_pattern={"q_proj": 2})
    adapter = import_adapter(made.source, tmp_path / "out", role="sales", base=made.base)
    model = lora.attach(made.fresh(), ["sales"], shape_of({"sales": adapter}, LoraSpec(), where="here"), seed=0)
    adapter_files.load_adapter(model, "sales", adapter)
    optimizer = torch.optim.AdamW(lora.parameters(model, "sales").values(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=torch.tensor([IDS])).logits.square().mean().backward()
        optimizer.step()
    for name, parameter in lora.parameters(model, "sales").items():
        spare = (parameter[2:] if ".lora_A." in name else parameter[:, 2:]).abs().sum()
        assert (spare == 0) == ("q_proj" in name), name


def readers(made: Made, folder: Path, adapter: Adapter) -> dict[str, Callable[[], object]]:
    shapes = linear_layers(made.fresh())
    model = lora.attach(made.fresh(), ["sales"], LoraSpec(rank=4, alpha=8), seed=0)
    return {
        "sampler": lambda: read_adapter_weights(adapter, shapes, device=torch.device("cpu")),
        "search": lambda: find_adapters(folder.parent),
        "shape": lambda: adapter_files.read_spec(folder),
        "learner": lambda: adapter_files.load_adapter(model, "sales", folder),
        "merge": lambda: merge_adapter(made.base, adapter, folder.parent / "merged"),
        "server": lambda: Intake(folder.parent / "store", BaseShape.of_folder(made.base, digest=made.digest)).admit(folder),
    }


def test_other_kinds_are_refused_everywhere_by_one_rule(tmp_path: Path):
    made = Made(tmp_path)
    source = made.source
    plain = json.loads((source / adapter_files.CONFIG).read_text())
    for kind, options in REFUSED.items():
        (source / adapter_files.CONFIG).write_text(json.dumps(plain | options))
        with pytest.raises(ModelError, match=r"states .*, which is not computed here"):
            import_adapter(source, tmp_path / "out", role="sales", base=made.base)
        assert not (tmp_path / "out").exists(), kind
    folder = made.signed()
    adapter = Adapter(role="sales", version=1, path=folder)
    for name, read in readers(made, folder, adapter).items():
        for kind, options in REFUSED.items():
            (folder / adapter_files.CONFIG).write_text(json.dumps(plain | {"base_model_name_or_path": None} | options))
            stated = next(iter(options))
            with pytest.raises(ModelError, match=rf"states ({stated}|loftq_config)=.*, which is not computed here"):
                read()
            assert not (tmp_path / "merged").exists(), (name, kind)


def test_what_cannot_be_imported_says_why(tmp_path: Path):
    made = Made(tmp_path)
    out = tmp_path / "out"

    def refused(error: type[Exception], match: str, **changes: Any) -> None:
        with pytest.raises(error, match=match):
            import_adapter(**({"source": made.source, "directory": out, "role": "sales", "base": made.base} | changes))
        assert not out.exists()

    refused(ConfigError, "cannot name an adapter", role="Sales 1")
    refused(ConfigError, "version must be >= 0", version=-1)
    refused(ConfigError, f"holds no adapter_config.json. Name one of .*{made.source.name}", source=made.source.parent)
    refused(ConfigError, "Give the folder that PEFT", source=tmp_path / "nowhere")
    other = tiny_model(hidden=32)
    other.model.save_pretrained(tmp_path / "small")
    other.tokenizer.save_pretrained(tmp_path / "small")
    refused(ModelError, "has shape .*Name the base it was trained on", base=tmp_path / "small")
    same = tiny_model(seed=1)
    same.model.save_pretrained(tmp_path / "same")
    same.tokenizer.save_pretrained(tmp_path / "same")
    config = json.loads((made.source / adapter_files.CONFIG).read_text())
    (made.source / adapter_files.CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": str(made.base)}))
    refused(ModelError, "was trained on .*Name the base", base=tmp_path / "same")
    imported = import_adapter(made.source, tmp_path / "ours", role="sales", base=made.base)
    refused(ConfigError, "is an adapter of this program already", source=imported.path)
    weights = made.source / adapter_files.WEIGHTS
    weights.rename(made.source / "adapter_model.bin")
    refused(ModelError, "pickled weights")


def stated(**changes: Any) -> Callable[[Path], object]:
    """Change values of the configuration."""

    def change(folder: Path) -> None:
        config = json.loads((folder / adapter_files.CONFIG).read_text())
        (folder / adapter_files.CONFIG).write_text(json.dumps(config | changes))

    return change


def written(name: str, content: Callable[[str], bytes]) -> Callable[[Path], object]:
    """Replace a file by what is made of its text."""
    return lambda folder: (folder / name).write_bytes(content((folder / name).read_text(encoding="utf-8")))


def as_folder(name: str) -> Callable[[Path], object]:
    """A folder in the place of a file."""
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def weighted(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], object]:
    """Change every matrix, and sign the file where it is signed."""

    def write(folder: Path) -> None:
        weights = folder / adapter_files.WEIGHTS
        save_file({name: change(tensor) for name, tensor in load_file(weights).items()}, weights)
        if (folder / adapter_files.META).is_file():
            meta = json.loads((folder / adapter_files.META).read_text())
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()
            (folder / adapter_files.META).write_text(json.dumps(meta | {"digest": digest}))

    return write


CONFIG = adapter_files.CONFIG
DAMAGED: dict[str, Callable[[Path], object]] = {
    "an alpha of 400 digits": stated(lora_alpha=10**400),
    "an alpha of 400 digits by pattern": stated(alpha_pattern={"q_proj": 10**400}),
    "an alpha that overflows": stated(lora_alpha=1e308),
    "a rank of 400 digits": stated(r=10**400),
    "a rank of 400 digits by pattern": stated(rank_pattern={"q_proj": 10**400}),
    "an alpha of NaN": written(CONFIG, lambda text: text.replace("8", "NaN").encode()),
    "UTF-16": written(CONFIG, lambda text: text.encode("utf-16")),
    "UTF-32": written(CONFIG, lambda text: text.encode("utf-32")),
    "a byte order mark": written(CONFIG, lambda text: text.encode("utf-8-sig")),
    "deep nesting": written(CONFIG, lambda text: b"[" * 100_000),
    "a repeated key": written(CONFIG, lambda text: text.replace("{", '{"r": 4, ', 1).encode()),
    "a folder as the configuration": as_folder(CONFIG),
    "a folder as the weights": as_folder(adapter_files.WEIGHTS),
    "float8": weighted(lambda tensor: tensor.to(torch.float8_e4m3fn)),
    "float8 of the other kind": weighted(lambda tensor: tensor.to(torch.float8_e5m2)),
    "float64": weighted(lambda tensor: tensor.double()),
    "weights that overflow in float16": weighted(lambda tensor: torch.full_like(tensor.float(), 65_536.0)),
    "weights that nearly overflow": weighted(lambda tensor: torch.full_like(tensor.float(), 3e38)),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_adapters_are_refused_by_import_and_readers(kind: str, tmp_path: Path):
    made, source = Made(tmp_path), tmp_path / "damaged"
    shutil.copytree(made.source, source)
    DAMAGED[kind](source)
    with pytest.raises((ModelError, ConfigError), match="damaged"):
        import_adapter(source, tmp_path / "out", role="sales", base=made.base)
    assert not (tmp_path / "out").exists()
    signed = made.signed()
    DAMAGED[kind](signed)
    with pytest.raises(ModelError):
        adapter_files.read_adapter(signed)
    with pytest.raises(ModelError):
        read_adapter_weights(
            Adapter(role="sales", version=1, path=signed), linear_layers(made.fresh()), device=torch.device("cpu")
        )


def test_the_command_imports_and_links_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    made = Made(tmp_path, use_rslora=True)
    monkeypatch.chdir(tmp_path)
    words = ["adapters", "import", str(made.source), "--role", "sales", "--model", str(made.base), "--json", "--quiet"]
    assert main(words) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["lora"]["alpha"] == 16  # 8 / sqrt(4) = 16 / 4
    found = find_adapters(Path("adapters/imported"))["sales"]
    assert str(found.path) == shown["adapter"]["path"]

    team, elsewhere = tmp_path / "team", tmp_path / "elsewhere"
    team.mkdir()
    (tmp_path / "adapters").rename(elsewhere)
    (team / "sales@0000").symlink_to(elsewhere / "imported" / "sales@0000")
    (team / "loop").symlink_to(team)
    assert find_adapters(team)["sales"].digest == found.digest
    assert main(["model", "merge", "sales@0000", "merged", "--from", "team", "--model", str(made.base), "--quiet"]) == 0
    assert (next_logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")) - made.wanted()).abs().max() < 1e-3
    with pytest.raises(ConfigError, match=r"can be taken in: onthejob adapters import .*default"):
        find_adapters(made.source.parent)
