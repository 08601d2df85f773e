"""The compiled engine computes what torch computes, on every instruction set of this machine, and touches no foreign memory."""

from __future__ import annotations

import os
import platform
import random
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from onthejob.errors import ConfigError, ContractError, ModelError
from onthejob.models.engines import make_engine
from onthejob.models.native import compiling, shared_library
from onthejob.models.native.compiling import VARIANTS, compile_library, find_compiler
from onthejob.models.native.engine import NativeEngine
from onthejob.models.native.shared_library import Library, cpu_flags, load_library
from onthejob.models.sampler import LocalSampler

FUZZ = Path(__file__).with_name("native_fuzz.py")
HERE = [variant for variant in VARIANTS if variant.needs <= cpu_flags()]
COUNTS_FULL = os.environ.get("ONTHEJOB_COUNTS") == "full"
ROUNDS = 400 if COUNTS_FULL else 4
SLOW_ROUNDS = 400 if COUNTS_FULL else 2
compiler = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler")
native = pytest.mark.skipif(load_library(bf16=False) is None, reason="there is no compiled code here; see `onthejob doctor`")
kinds = pytest.mark.parametrize("kind", ["bf16", "fp32"])
EVERY = [(variant, kind) for variant in HERE for kind in ("bf16", "fp32")]
ENDS = EVERY if len(EVERY) < 4 else [EVERY[0], EVERY[-1]]
"""The widest variant in bf16 and the narrowest in fp32: a build takes most of a minute."""


def named(part: object) -> str:
    """A variant by its name, a kind by itself."""
    return str(getattr(part, "name", part))


@compiler
@pytest.mark.parametrize(
    ("variant", "kind"), [pytest.param(*one, marks=() if one in ENDS else pytest.mark.slow) for one in EVERY], ids=named
)
def test_every_variant_computes_what_torch_computes(tmp_path: Path, variant, kind: str):
    path = tmp_path / "native.so"
    compile_library(find_compiler(), variant, path, bf16=kind == "bf16")
    runpy.run_path(str(FUZZ))["main"](str(path), variant.name, kind, str(ROUNDS), "1")


@compiler
@pytest.mark.slow
@kinds
@pytest.mark.skipif(not HERE, reason="no variant runs here")
def test_wider_vectors_than_this_machine_may_have(tmp_path: Path, kind: str):
    path = tmp_path / "native.so"
    compile_library(find_compiler(), HERE[-1], path, bf16=kind == "bf16", more=("-DWIDER",))
    runpy.run_path(str(FUZZ))["main"](str(path), HERE[-1].name, kind, str(SLOW_ROUNDS), "3")


@compiler
@pytest.mark.slow
@pytest.mark.parametrize(("variant", "kind"), EVERY if COUNTS_FULL else ENDS, ids=named)
def test_sanitizers_report_nothing(tmp_path: Path, variant, kind: str):
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("the sanitizers' libraries are those of gcc")
    path = tmp_path / "native.so"
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    compile_library((gcc,), variant, path, bf16=kind == "bf16", more=flags)
    libraries = [
        subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    environ = {**os.environ, "LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"}
    words = [sys.executable, str(FUZZ), str(path), variant.name, kind, str(SLOW_ROUNDS), "2", "300"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "equal to torch" in done.stdout


@native
def test_a_row_does_not_depend_on_the_others_by_a_single_bit(make_model):
    engine = NativeEngine(make_model("llama"), load_library(bf16=False))
    draw = random.Random(0)
    prompts = [[draw.randrange(300) for _ in range(length)] for length in (1, 40, 300, 17)]
    batch = engine.batch([len(prompt) for prompt in prompts], rows=40, new_tokens=8, lora=None)
    together = [batch.prefill([(slot, prompt, 0) for slot, prompt in enumerate(prompts)])]
    batch.select([0, 1, 2, 3, *[2] * 36])
    tokens = [draw.randrange(300) for _ in range(40)]
    together += [batch.step(tokens) for _ in range(8)]
    alone = engine.batch([300], rows=1, new_tokens=8, lora=None)
    assert torch.equal(alone.prefill([(0, prompts[2], 0)])[0], together[0][2])
    alone.select([0])
    for step in together[1:]:
        assert torch.equal(alone.step([tokens[17]])[0], step[17])


@native
def test_wrong_numbers_are_errors_and_no_crashes(make_model):
    engine = NativeEngine(make_model("llama"), load_library(bf16=False))
    batch = engine.batch([3, 2], rows=2, new_tokens=1, lora=None)
    for wrong in ([5, 300, 7], [5, -1, 7]):
        with pytest.raises(ContractError, match=r"token ids must be in 0\.\.299"):
            batch.prefill([(0, wrong, 0)])
    with pytest.raises(ContractError, match="prompt 1 has 2 tokens"):
        batch.prefill([(1, [1, 2, 3], 0)])
    with pytest.raises(ContractError, match="prompt 1 has 2 tokens"):
        batch.prefill([(1, [1, 2], 2)])
    batch.prefill([(0, [1, 2, 3], 0), (1, [4, 5], 0)])
    batch.select([0, 1, 0])
    with pytest.raises(ContractError, match="a batch of 2 rows of 1 tokens has 3 rows"):
        batch.step([1, 2, 3])
    batch.select([0, 1])
    with pytest.raises(ContractError, match="2 rows of 1 tokens has 2 rows of 0 tokens, got 1 more"):
        batch.step([1])
    kept = batch.prefix(0)
    with pytest.raises(ContractError, match="a prompt of 2 tokens cannot begin with 3 cached ones"):
        batch.load_prefix(1, kept)
    batch.step([1, 2])
    with pytest.raises(ContractError, match="of 1 tokens has 2 rows of 1 tokens"):
        batch.step([1, 2])
    long = engine.batch([513], rows=0, new_tokens=0, lora=None)
    with pytest.raises(ContractError, match="the model has 512 positions, got a token at 512"):
        long.prefill([(0, [1] * 513, 0)])


@native
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(make_model, bad: float):
    engine = NativeEngine(make_model("llama"), load_library(bf16=False))
    logits = torch.zeros(3, 304)[:, :300]
    logits[1, 250] = bad
    with pytest.raises(ModelError, match="not finite"):
        engine.draw(logits, [0, 1, 2], torch.rand(3, dtype=torch.float64), temperature=1.0)


def test_a_machine_without_compiler_samples_with_torch(make_model, chat, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "find_compiler", lambda: ())
    shared_library._load.cache_clear()
    try:
        assert load_library(bf16=False) is None
        assert "no C compiler" in shared_library.why_none(bf16=False) or not HERE
        assert make_engine(make_model("llama")).describe() == "torch"
        with pytest.raises(ModelError, match="no compiled code"):
            LocalSampler(make_model("llama"), chat, engine="native")
    finally:
        shared_library._load.cache_clear()


def test_the_variant_can_be_chosen(monkeypatch):
    monkeypatch.setenv("ONTHEJOB_NATIVE", "off")
    assert load_library(bf16=False) is None
    assert shared_library.why_none(bf16=True) == "ONTHEJOB_NATIVE=off"
    monkeypatch.setenv("ONTHEJOB_NATIVE", "sse2")
    with pytest.raises(ConfigError, match="must be one of auto, off, avx512-bf16, avx512, avx2, neon, got 'sse2'"):
        load_library(bf16=False)
    if HERE and find_compiler():
        monkeypatch.setenv("ONTHEJOB_NATIVE", HERE[-1].name)
        found = load_library(bf16=False)
        assert found is not None
        assert found.variant is HERE[-1]


@native
def test_what_will_be_used_is_told_without_compiling_it(tmp_path: Path, monkeypatch):
    variant = load_library(bf16=False).variant
    assert shared_library.foresee(bf16=False) == (variant, "")
    cache = tmp_path / "cache"
    monkeypatch.setenv("ONTHEJOB_CACHE", str(cache))
    monkeypatch.setattr(shared_library, "SHIPPED", tmp_path)
    monkeypatch.setattr(compiling, "find_compiler", lambda: ("cc",))
    assert shared_library.foresee(bf16=False) == (variant, "compiled at the first use")
    monkeypatch.setattr(compiling, "find_compiler", lambda: ())
    found, why = shared_library.foresee(bf16=False)
    assert found is None
    assert "no C compiler" in why
    assert not cache.exists()


@native
def test_a_library_that_was_shipped_is_used(tmp_path: Path, monkeypatch):
    compiled = load_library(bf16=False)
    monkeypatch.setattr(shared_library, "SHIPPED", tmp_path)
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "find_compiler", lambda: ())
    shipped = tmp_path / compiled.variant.file_name
    shutil.copyfile(compiled.path, shipped)
    assert shared_library._open(compiled.variant).path == shipped
    other = tmp_path / "other"
    other.mkdir()
    (other / compiled.variant.file_name).write_bytes(b"for another system")
    monkeypatch.setattr(shared_library, "SHIPPED", other)
    with pytest.raises(OSError, match="no C compiler"):
        shared_library._open(compiled.variant)


@compiler
@pytest.mark.slow
def test_a_wheel_carries_the_libraries_of_its_kind_of_processor(tmp_path: Path, repository: Path):
    of_machine = [variant for variant in VARIANTS if variant.machine == platform.machine()]
    if not of_machine:
        pytest.skip("no variant is for this machine")
    source = tmp_path / "source"
    shutil.copytree(repository / "src/onthejob", source / "src/onthejob", ignore=shutil.ignore_patterns("_viewer", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copyfile(repository / name, source / name)
    environ = {**os.environ, "ONTHEJOB_VIEWER": "skip", "ONTHEJOB_NATIVE_WHEEL": "require"}
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stem.endswith(f"py3-none-linux_{platform.machine()}")
    with zipfile.ZipFile(wheel) as archive:
        folder = "onthejob/models/native/built/"
        names = {name.removeprefix(folder) for name in archive.namelist() if name.startswith(folder)}
        assert names == {variant.file_name for variant in of_machine}
        for variant in of_machine:
            if variant in HERE:
                Library(Path(archive.extract(folder + variant.file_name, tmp_path)), variant, bf16=variant.bf16)


@compiler
def test_a_library_of_another_source_is_refused(tmp_path: Path, monkeypatch):
    if not HERE:
        pytest.skip("no variant runs here")
    for source in (*compiling.HEADERS, *compiling.SOURCES):
        text = source.read_text(encoding="utf-8").replace("case 1: return", "case 1: return 8 +")
        (tmp_path / source.name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(compiling, "SOURCES", tuple(tmp_path / source.name for source in compiling.SOURCES))
    compile_library(find_compiler(), HERE[-1], tmp_path / "other.so", bf16=False)
    with pytest.raises(OSError, match="another version"):
        Library(tmp_path / "other.so", HERE[-1], bf16=False)


@native
def test_models_that_do_not_suit_it_are_run_by_torch(make_model, monkeypatch):
    model = make_model("llama")
    assert NativeEngine.library_for(model) is not None
    monkeypatch.setattr("onthejob.models.native.engine.MOST_MEMORY", 0.0)
    assert NativeEngine.library_for(model) is None, "it would take too much memory"
    monkeypatch.undo()
    assert NativeEngine.library_for(model.half()) is None
    with pytest.raises(ModelError, match="Llama-shaped models only"):
        make_engine(make_model("qwen2"), "native")
