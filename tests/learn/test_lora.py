from __future__ import annotations

import hashlib
import json
import warnings

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from onthejob.errors import ConfigError, ContractError, ModelError
from onthejob.learn import adapter_files, lora
from onthejob.learn.lora import LoraSpec, Snapshot, weight_delta

from .conftest import tiny_base, tiny_peft


def digests(model) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.detach().float().numpy().tobytes()).hexdigest() for name, tensor in model.state_dict().items()
    }


def test_roles_share_one_base_and_start_as_it():
    base = tiny_base()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        before = base(input_ids=ids).logits.clone()
    weights = {name: tensor.data_ptr() for name, tensor in base.named_parameters()}
    model = lora.attach(base, ["sales", "dev"], LoraSpec(rank=4, alpha=8), seed=0)
    kept = {p.data_ptr() for name, p in model.named_parameters() if ".lora_" not in name}
    assert kept == set(weights.values())
    for role in ("sales", "dev"):
        lora.activate(model, role)
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids).logits, before)


def test_initialisation_depends_on_seed_and_role_only():
    state = torch.random.get_rng_state()
    alone = lora.state(tiny_peft(("sales",), moved=False), "sales")
    together = tiny_peft(("dev", "sales"), moved=False)
    assert weight_delta(alone, lora.state(together, "sales")) == (0, 0)
    assert weight_delta(alone, lora.state(together, "dev")).l2 > 0
    assert weight_delta(alone, lora.state(tiny_peft(("sales",), moved=False, seed=1), "sales")).l2 > 0
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_fp32_and_only_the_active_one_is_trained(dtype):
    model = tiny_peft(("sales", "dev"), dtype=dtype)
    assert {p.dtype for role in ("sales", "dev") for p in lora.parameters(model, role).values()} == {torch.float32}
    lora.activate(model, "dev")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".dev." in name for name in trained)


@pytest.mark.parametrize(
    ("roles", "spec", "problem"),
    [
        ([], {}, "at least one"),
        (["sales", "sales"], {}, "distinct"),
        (["Sales.1"], {}, "cannot name"),
        (["sales"], {"targets": ("no_such_layer",)}, "matches no layer"),
        (["sales"], {"targets": ()}, "targets must be of length >= 1"),
        (["sales"], {"rank": 0}, "rank"),
        (["sales"], {"alpha": 0}, "alpha"),
    ],
)
def test_bad_requests(roles, spec, problem):
    with pytest.raises(ConfigError, match=problem):
        lora.attach(tiny_base(), roles, LoraSpec(**spec), seed=0)


def test_attaching_twice_and_unknown_roles_are_errors():
    model = tiny_peft()
    with pytest.raises(ContractError, match="already"):
        lora.attach(model, ["dev"], LoraSpec(), seed=0)
    with pytest.raises(ContractError, match="attached are"):
        lora.activate(model, "dev")
    with pytest.raises(ContractError, match="attached are"):
        lora.state(model, "dev")


def test_snapshot_is_applied_and_taken_back_bit_for_bit():
    model = tiny_peft(("sales", "dev"))
    reference = Snapshot.take(model, "dev")
    before = digests(model)
    with reference.applied(model, "sales"):
        assert weight_delta(reference, lora.state(model, "sales")) == (0, 0)
        assert digests(model) != before
    assert digests(model) == before


def test_snapshot_is_taken_back_after_an_exception():
    model = tiny_peft(("sales", "dev"))
    before = digests(model)
    with pytest.raises(RuntimeError, match="in the middle"), Snapshot.take(model, "dev").applied(model, "sales"):
        raise RuntimeError("in the middle")
    assert digests(model) == before


def test_nested_snapshots_raise_and_leave_the_outer_one_alone():
    model = tiny_peft(("sales", "dev"))
    one, other = Snapshot.take(model, "sales"), Snapshot.take(model, "dev")
    before = digests(model)
    with other.applied(model, "sales"):
        inside = digests(model)
        for snapshot in (one, other):
            with pytest.raises(ContractError, match="applied to role 'sales' already"), snapshot.applied(model, "sales"):
                pass
        assert digests(model) == inside
        with one.applied(model, "dev"):  # Another role is no nesting.
            pass
    assert digests(model) == before
    with one.applied(model, "sales"):
        pass


def test_snapshot_does_not_follow_the_model():
    model = tiny_peft()
    snapshot = Snapshot.take(model, "sales")
    with torch.no_grad():
        for parameter in lora.parameters(model, "sales").values():
            parameter.add_(1)
    assert weight_delta(snapshot, Snapshot.take(model, "sales")).max_abs == pytest.approx(1, abs=1e-5)


def test_weight_delta_by_hand():
    a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[0.0]])}
    b = {"x": torch.tensor([1.0, 5.0]), "y": torch.tensor([[-4.0]])}
    assert weight_delta(a, b) == (5.0, 4.0)
    assert weight_delta(a, a) == (0, 0)
    with pytest.raises(ModelError, match="different tensors"):
        weight_delta(a, {"x": a["x"]})


def save(model, folder, *, version=1, **options):
    return adapter_files.save_adapter(
        model, "sales", folder, version=version, parent="sales@0000", base_digest="b" * 64, **options
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_adapter_comes_back(tmp_path, dtype):
    model = tiny_peft(("sales", "dev"))
    adapter = save(model, tmp_path, dtype=dtype)
    assert adapter.name == "sales@0001"
    assert adapter.path == tmp_path / "sales@0001"
    assert adapter_files.read_adapter(adapter.path) == adapter
    assert [path.name for path in tmp_path.iterdir()] == ["sales@0001"]
    assert adapter_files.load_adapter(model, "dev", adapter, base_digest="b" * 64) == adapter
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    rounded = {name: tensor.to(kind).float() for name, tensor in lora.state(model, "sales").items()}
    assert weight_delta(rounded, lora.state(model, "dev")) == (0, 0)


def test_weight_delta_equals_recomputation_from_files(tmp_path):
    model = tiny_peft()
    first, before = save(model, tmp_path, dtype="float32"), Snapshot.take(model, "sales")
    with torch.no_grad():
        for index, parameter in enumerate(lora.parameters(model, "sales").values()):
            parameter.add_(0.01 * index)
    second = save(model, tmp_path, version=2, dtype="float32")
    files = [load_file(adapter.path / adapter_files.WEIGHTS) for adapter in (first, second)]
    flat = torch.cat([(files[0][name].double() - files[1][name].double()).flatten() for name in files[0]])
    delta = weight_delta(before, Snapshot.take(model, "sales"))
    assert delta.l2 == pytest.approx(flat.norm().item(), rel=1e-12)
    assert delta.max_abs == flat.abs().max().item()


def test_peft_itself_reads_the_directory(tmp_path):
    model = tiny_peft()
    adapter = save(model, tmp_path, dtype="float32")
    ids = torch.arange(3, 20)[None]
    with warnings.catch_warnings():  # PEFT asks transformers for a flag that was renamed in 5.23.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        loaded = PeftModel.from_pretrained(tiny_base(), adapter.path)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_versions_are_never_rewritten(tmp_path):
    model = tiny_peft()
    adapter = save(model, tmp_path)
    assert save(model, tmp_path) == adapter  # A resumed run publishes the same weights again.
    with torch.no_grad():
        next(iter(lora.parameters(model, "sales").values())).add_(1)
    with pytest.raises(ModelError, match="other weights"):
        save(model, tmp_path)
    assert adapter_files.read_adapter(adapter.path) == adapter


def test_failed_write_leaves_nothing(tmp_path):
    model = tiny_peft()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        save(model, tmp_path / "file")
    with torch.no_grad():
        next(iter(lora.parameters(model, "sales").values()))[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        save(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def rewrite(path, change) -> None:
    """Edit the tensors and make the digest right again."""
    tensors = load_file(path / adapter_files.WEIGHTS)
    change(tensors)
    save_file(tensors, path / adapter_files.WEIGHTS)
    meta = json.loads((path / adapter_files.META).read_text())
    meta["digest"] = hashlib.sha256((path / adapter_files.WEIGHTS).read_bytes()).hexdigest()
    (path / adapter_files.META).write_text(json.dumps(meta))


def _restate(path, file: str, **values) -> None:
    stated = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(stated | values))


def first(tensors) -> str:
    return sorted(tensors)[0]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: (path / adapter_files.WEIGHTS).unlink(), "not a readable"),
        (lambda path: (path / adapter_files.META).write_text("{"), "not a readable"),
        (lambda path: (path / adapter_files.META).write_text("{}"), "not a readable"),
        (lambda path: (path / adapter_files.WEIGHTS).write_bytes(b"x" * 100), "not a readable"),
        (
            lambda path: (path / adapter_files.WEIGHTS).write_bytes((path / adapter_files.WEIGHTS).read_bytes() + b"x"),
            "not a readable|was changed",
        ),
        (lambda path: _restate(path, adapter_files.META, version="0"), "version must be a whole number >= 0, got '0'"),
        (lambda path: _restate(path, adapter_files.META, role=3), "role must be text, got 3"),
        (lambda path: _restate(path, adapter_files.META, parent=1), "parent must be text or null, got 1"),
        (lambda path: _restate(path, adapter_files.CONFIG, r="4"), "needs r, an integer in 1..65536, .* got '4'"),
        (lambda path: (path / "adapter_model.bin").write_bytes(b""), "pickled"),
        (lambda path: rewrite(path, lambda t: t[first(t)].fill_(float("inf"))), "not finite"),
        (lambda path: rewrite(path, lambda t: t.pop(first(t))), "incomplete"),
        (lambda path: rewrite(path, lambda t: t.update(other=torch.zeros(2, 2))), "not a LoRA matrix"),
        (lambda path: rewrite(path, lambda t: t.update({first(t): torch.zeros(5, 64)})), "states rank 4"),
        (lambda path: rewrite(path, lambda t: t[first(t)].mul_(2)) or _stale_digest(path), "was changed"),
    ],
    ids=[
        "no weights",
        "bad json",
        "no meta",
        "no tensors",
        "longer",
        "version as text",
        "role as number",
        "parent as number",
        "rank as text",
        "pickle",
        "inf",
        "half a pair",
        "foreign",
        "rank",
        "digest",
    ],
)
def test_damaged_adapters_are_refused(tmp_path, damage, problem):
    model = tiny_peft()
    adapter = save(model, tmp_path, dtype="float32")
    damage(adapter.path)
    before = digests(model)
    with pytest.raises(ModelError, match=problem):
        adapter_files.load_adapter(model, "sales", adapter.path)
    assert digests(model) == before


def test_wrong_base_shape_or_record_are_refused(tmp_path):
    model = tiny_peft()
    adapter = save(model, tmp_path)
    with pytest.raises(ModelError, match="trained on base bbbb"):
        adapter_files.load_adapter(model, "sales", adapter, base_digest="c" * 64)
    other = lora.attach(tiny_base(), ["sales"], LoraSpec(rank=2, alpha=8), seed=0)
    with pytest.raises(ModelError, match="has shape"):
        adapter_files.load_adapter(other, "sales", adapter)
    narrow = lora.attach(tiny_base(), ["sales"], LoraSpec(rank=4, alpha=8, targets=("q_proj",)), seed=0)
    with pytest.raises(ModelError, match="names differ"):
        adapter_files.load_adapter(narrow, "sales", adapter)
    with torch.no_grad():
        next(iter(lora.parameters(model, "sales").values())).add_(1)
    newer = save(model, tmp_path, version=2)
    newer.path.rename(tmp_path / "elsewhere")
    adapter.path.rename(tmp_path / "sales@0002")
    with pytest.raises(ModelError, match="recorded was"):
        adapter_files.load_adapter(model, "sales", newer)


def test_another_alpha_is_refused_and_nothing_is_written(tmp_path):
    """The tensors fit, so without the check the adapter would act with another strength than it was trained with."""
    adapter = save(tiny_peft(), tmp_path, dtype="float32")
    other = lora.attach(tiny_base(), ["sales"], LoraSpec(rank=4, alpha=16), seed=0)
    before = digests(other)
    with pytest.raises(ModelError, match=r"alpha 8, role 'sales' was attached with 16; .*--lora.alpha 8"):
        adapter_files.load_adapter(other, "sales", adapter)
    assert digests(other) == before


def test_the_shape_of_a_saved_adapter_is_read_back(tmp_path):
    spec = LoraSpec(rank=3, alpha=7.5, targets=("q_proj", "v_proj"))
    adapter = save(lora.attach(tiny_base(), ["sales"], spec, seed=0), tmp_path)
    assert adapter_files.read_spec(adapter.path) == spec
    for damage, problem in (
        ('{"r": 3}', "needs r, an integer"),
        ('{"r": 3, "lora_alpha": 1, "target_modules": "all"}', "needs target_modules as a list of names, got 'all'"),
        ('{"r": 3, "lora_alpha": 1, "target_modules": ["q"], "layers_to_transform": [1]}', "got layers_to_transform=.1."),
        ('{"r": 0, "lora_alpha": 1, "target_modules": ["q"]}', "needs r, an integer"),
        ('{"r": 3, "lora_alpha": 1, "target_modules": []}', "states no shape"),
        ("{", "cannot be read"),
        ("[]", "holds a list, not an object"),
    ):
        (adapter.path / adapter_files.CONFIG).write_text(damage)
        with pytest.raises(ModelError, match=problem):
            adapter_files.read_spec(adapter.path)


def test_base_does_not_drift_over_publish_cycles(tmp_path):
    model = tiny_peft(dtype=torch.bfloat16)
    before = {name: digest for name, digest in digests(model).items() if ".lora_" not in name}
    for version in range(1, 21):
        adapter = save(model, tmp_path, version=version)
        adapter_files.load_adapter(model, "sales", adapter)
    assert {name: digest for name, digest in digests(model).items() if ".lora_" not in name} == before


def _stale_digest(path) -> None:
    meta = json.loads((path / adapter_files.META).read_text())
    meta["digest"] = "0" * 64
    (path / adapter_files.META).write_text(json.dumps(meta))
