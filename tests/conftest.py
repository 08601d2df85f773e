"""Fixtures of all tests. The default suite is offline but for the embedded model, which is fetched once into the cache."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Before torch is imported by any test: small tensors are faster on one thread, and equal on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("COLUMNS", "120")

import hypothesis
import pytest

REPOSITORY = Path(__file__).parent.parent
MEASURING = Path(__file__).parent / "checks"
"""Tests of what measures the product."""
FULL_COUNTS = os.environ.get("ONTHEJOB_COUNTS", "reduced") == "full"

# Deadlines measure the machine, not the code; a fixed derandomised choice of examples keeps the suite reproducible.
hypothesis.settings.register_profile("reduced", max_examples=25, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("full", max_examples=500, deadline=None, database=None)
hypothesis.settings.load_profile("full" if FULL_COUNTS else "reduced")


WITHOUT_TORCH = importlib.util.find_spec("torch") is None
"""Where no torch can be had for an interpreter, the tests that need none are run (`make test-python`); the others are skipped."""
collect_ignore = ["api", "learn", "models", "serve"] if WITHOUT_TORCH else []
"""Folders whose own conftest needs it."""
OF_MODELS = ("torch", "transformers", "peft", "trl", "datasets", "bitsandbytes")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A module that imports torch is skipped where there is none."""
    report: pytest.CollectReport = yield  # type: ignore[assignment]
    if WITHOUT_TORCH and report.failed and any(f"No module named '{name}'" in str(report.longrepr) for name in OF_MODELS):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: needs torch")
    return report  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """So is a test that imports it while it runs."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if WITHOUT_TORCH and (error.name or "").split(".")[0] in OF_MODELS:
            pytest.skip("needs torch")
        raise


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of what measures are marked by their folder; those marked gpu are skipped where there is no GPU."""
    for item in items:
        if item.path.is_relative_to(MEASURING):
            item.add_marker(pytest.mark.checks)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What a test of connections and processes left open is met here, not in whichever test Python collects garbage next."""
    yield
    if item.get_closest_marker("slow") or item.get_closest_marker("server"):
        gc.collect()


@pytest.fixture
def pages() -> None:
    """For a test whose report is the viewer's page, which a checkout without node does not have."""
    from onthejob.api.one_file import is_built

    if not is_built():
        pytest.skip("the viewer's pages are not built; `make viewer` builds them")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def kept_adapters() -> Path:
    """The repository's trained adapters; skips in a source archive, which is without them."""
    folder = REPOSITORY / "adapters"
    if not folder.is_dir():
        pytest.skip("the source archive has no adapters/")
    return folder


@pytest.fixture(scope="session")
def counts() -> Callable[[int, int], int]:
    """`counts(reduced, full)`: how often to repeat; full with ONTHEJOB_COUNTS=full (make acceptance)."""
    return lambda reduced, full: full if FULL_COUNTS else reduced


@pytest.fixture(scope="session")
def small_disk() -> Callable[..., AbstractContextManager[None]]:
    """`with small_disk(folder, megabytes=2):` the folder is a disk of that size; skips where nothing may be mounted."""

    @contextmanager
    def mounted(folder: Path, *, megabytes: int) -> Iterator[None]:
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("mounting needs root")
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("may not mount a tmpfs here")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    return mounted


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Folder of the embedded SmolLM2-135M; fetched when the cache does not have it."""
    from onthejob.models.fetch import fetch

    return fetch()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path):
    """Tokenizer of the embedded model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_path)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM: $ONTHEJOB_VLLM_PYTHON, else that of `make vllm`; skips where there is neither."""
    python = os.environ.get("ONTHEJOB_VLLM_PYTHON") or str(REPOSITORY / ".venv-vllm/bin/python")
    if not os.access(python, os.X_OK):
        pytest.skip(f"no vLLM at {python}: `make vllm` installs it")
    return python


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """An empty folder for runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
