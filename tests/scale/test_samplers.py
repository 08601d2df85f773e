"""Several samplers in the place of one: the same replies to the last bit, under kills too; publishing in two phases."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ConfigError, ContractError, ScaleError
from onthejob.learn.adapter_files import save_adapter
from onthejob.learn.lora import LoraSpec, attach, parameters
from onthejob.models.base_model import weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.engines import is_batch_invariant
from onthejob.models.sampler import LocalSampler
from onthejob.scale.base_spec import BaseSpec
from onthejob.scale.crew_sampler import CrewSampler, check_exact, spread
from onthejob.scale.local import LocalRuntime
from onthejob.scale.sampler_job import SamplerSpec
from onthejob.testing import tiny_model
from onthejob.types import Adapter, Message, Sampling

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
ROLES = ("maker", "seller")


class Made:
    """A tiny model on the disk, with two versions of an adapter of two roles, and its own sampler."""

    def __init__(self, folder: Path) -> None:
        tiny = tiny_model(seed=0)
        self.folder = folder / "base"
        tiny.model.save_pretrained(self.folder)
        tiny.tokenizer.save_pretrained(self.folder)
        self.digest = weights_digest(self.folder)
        self.chat = ChatEncoder(tiny.tokenizer)
        model = attach(tiny.model, ROLES, LoraSpec(rank=4, alpha=8), seed=1)
        self.model = model
        self.adapters: dict[str, Adapter] = {}
        generator = torch.Generator().manual_seed(0)
        for role in ROLES:
            for version in (1, 2):
                with torch.no_grad():
                    for parameter in parameters(model, role).values():
                        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
                adapter = save_adapter(
                    model,
                    role,
                    folder / f"{role}-{version}",
                    version=version,
                    parent=None,
                    base_digest=self.digest,
                    dtype="float32",
                )
                self.adapters[adapter.name] = adapter

    @property
    def spec(self) -> SamplerSpec:
        base = BaseSpec(model=str(self.folder), dtype="float32", threads=torch.get_num_threads())
        return SamplerSpec(base=base, base_digest=self.digest, arguments=())

    def alone(self) -> LocalSampler:
        return LocalSampler(self.model, self.chat, base_digest=self.digest)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    found = Made(tmp_path_factory.mktemp("samplers"))
    if not is_batch_invariant(found.model):
        pytest.skip("needs the compiled code")
    return found


@pytest.fixture(scope="module")
def three(made: Made) -> Iterator[CrewSampler]:
    """Three samplers, for all tests: each takes seconds to start."""
    with LocalRuntime(0) as opened:
        yield CrewSampler(opened, 3, made.chat, made.spec)
    assert [child for child in multiprocessing.active_children() if child.name.startswith("sampler")] == []


@pytest.fixture
def crew(three: CrewSampler) -> CrewSampler:
    """The same, without a live adapter."""
    for name in three.published:
        three.withdraw(name)
    return three


@pytest.fixture(scope="module")
def expected(made: Made) -> list[Any]:
    """What one sampler says."""
    alone = made.alone()
    for role in ROLES:
        alone.publish(made.adapters[f"{role}@0001"])
    said = talk(alone, made)
    assert len({reply.token_ids for replies in said for reply in replies}) > 10, "replies that are equal say nothing"
    return said


def talk(sampler: Any, made: Made, *, rounds: int = 3, between: Any = None) -> list[Any]:
    """Conversations of both roles that continue, several replies to each prompt, and what was said."""
    said = []
    for role in ROLES:
        texts = [f"{word} a thing" for word in ("buy", "sell", "make", "wait", "pay")]
        prompts = [made.chat.encode([Message("system", "you work"), Message("user", text)]) for text in texts for _ in range(2)]
        for turn in range(rounds):
            if between is not None:
                between(role, turn)
            seeds = [1000 * turn + number for number in range(len(prompts))]
            replies = sampler.generate(prompts, adapter=f"{role}@0001", sampling=Sampling(max_new_tokens=6), seeds=seeds)
            said.append(replies)
            after = made.chat.tokenizer.encode(" and then ?", add_special_tokens=False)
            prompts = [(*prompt, *reply.token_ids, *after) for prompt, reply in zip(prompts, replies, strict=True)]
    return said


def test_several_samplers_give_the_replies_of_one(made: Made, crew: CrewSampler, expected: list[Any]):
    for role in ROLES:
        crew.publish(made.adapters[f"{role}@0001"])
    assert talk(crew, made) == expected
    assert len({number for homes in crew._homes["maker@0001"].values() for number in homes.values()}) == 3, "all have worked"


def test_a_killed_sampler_is_given_all_live_adapters_and_changes_no_reply(made: Made, crew: CrewSampler, expected: list[Any]):
    for role in ROLES:
        crew.publish(made.adapters[f"{role}@0001"])
    killed: list[int] = []

    def kill(role: str, turn: int) -> None:
        if role == ROLES[0] and turn == 1:
            victim = next(one for one in multiprocessing.active_children() if one.name.startswith("sampler"))
            os.kill(victim.pid or 0, signal.SIGKILL)
            killed.append(victim.pid or 0)

    assert talk(crew, made, between=kill) == expected
    assert len(killed) == 1
    assert sum(one.lost for one in crew._crews) == 1  # type: ignore[attr-defined]


def test_a_version_is_asked_for_once_all_samplers_have_it(made: Made, crew: CrewSampler):
    sampler = crew
    first, second = (made.adapters[f"maker@000{version}"] for version in (1, 2))
    prompts = [made.chat.encode([Message("user", "make a thing")])] * 4
    usual = {"sampling": Sampling(max_new_tokens=4), "seeds": [1, 2, 3, 4]}
    with pytest.raises(ContractError, match=r"'maker@0001' is not published. Published are: none"):
        sampler.generate(prompts, adapter="maker@0001", **usual)
    sampler.publish(first)
    before = sampler.generate(prompts, adapter="maker@0001", **usual)
    sampler.publish(second, keep=True)
    assert sampler.published == ("maker@0001", "maker@0002")
    assert sampler.generate(prompts, adapter="maker@0001", **usual) == before
    sampler.publish(made.adapters["seller@0001"])
    sampler.withdraw("maker@0001")
    assert sampler.published == ("maker@0002", "seller@0001")
    with pytest.raises(ContractError, match=r"not published"):
        sampler.generate(prompts, adapter="maker@0001", **usual)
    alone = made.alone()
    alone.publish(second)
    assert sampler.generate(prompts, adapter="maker@0002", **usual) == alone.generate(prompts, adapter="maker@0002", **usual)
    damaged = Adapter(role="maker", version=3, path=second.path, digest="0" * 64)
    with pytest.raises(Exception, match=r"digest|sha256|damaged"):
        sampler.publish(damaged)
    assert sampler.published == ("maker@0002", "seller@0001")


def test_a_sampler_with_other_numbers_is_started_anew(made: Made, crew: CrewSampler, monkeypatch: pytest.MonkeyPatch):
    sampler = crew
    published, wrong = CrewSampler._published, iter([True])

    def odd(self: CrewSampler, crew: Any, sent: Any) -> Any:
        results = published(self, crew, sent)
        if crew is self._crews[1] and next(wrong, False):
            return lambda: tuple(tuple(score + 1e-6 for score in scores) for scores in results())
        return results

    monkeypatch.setattr(CrewSampler, "_published", odd)
    before = sampler._crews[1]
    sampler.publish(made.adapters["maker@0001"])
    assert sampler._crews[1] is not before
    assert sampler.published == ("maker@0001",)


def test_numbers_that_stay_wrong_end_the_run(made: Made, crew: CrewSampler, monkeypatch: pytest.MonkeyPatch):
    crew.publish(made.adapters["maker@0001"])
    published = CrewSampler._published

    def odd(self: CrewSampler, one: Any, sent: Any) -> Any:
        results = published(self, one, sent)
        return results if one is self._crews[0] else lambda: tuple(tuple(2 * score for score in row) for row in results())

    monkeypatch.setattr(CrewSampler, "_published", odd)
    # It would start one anew: that is seen in the test above.
    monkeypatch.setattr(crew, "_runtime", SimpleNamespace(crew=lambda *_, **__: crew._crews[2], share=crew._runtime.share))
    monkeypatch.setattr(crew._crews[1], "close", lambda: None)
    one, crew._crews[1:] = crew._crews[1], [crew._crews[1], crew._crews[2]]
    try:
        with pytest.raises(ScaleError, match=r"computes other numbers with maker@0002.*also after a restart"):
            crew.publish(made.adapters["maker@0002"])
    finally:
        crew._crews[1] = one
    assert crew.published == ("maker@0001",), "the version before stays in its place"


def test_a_base_that_torch_would_run_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch):
    check_exact(made.model)
    monkeypatch.setenv("ONTHEJOB_NATIVE", "off")
    with pytest.raises(ConfigError, match=r"--scale.samplers needs the compiled code"):
        check_exact(made.model)


prompts_of = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=20)


@given(prompts_of, prompts_of, st.integers(1, 4))
def test_every_prompt_goes_to_one_sampler_with_its_equals(prompts: list[Any], earlier: list[Any], count: int):
    homes: dict[int, dict[Any, int]] = {}
    for index, prompt in enumerate(earlier):
        homes.setdefault(len(prompt), {})[prompt] = index % count
    parts = spread(prompts, count, limit=3, homes=homes)
    assert sorted(index for indices in parts.values() for index in indices) == list(range(len(prompts)))
    assert all(0 <= number < count and indices for number, indices in parts.items())
    owner = {index: number for number, indices in parts.items() for index in indices}
    assert all(owner[a] == owner[b] for a in owner for b in owner if prompts[a] == prompts[b])


def test_work_is_even_and_conversations_stay():
    prompts = [(number, 1, 2, 3) for number in range(8)]
    parts = spread(prompts, 4, limit=4, homes={})
    assert [len(indices) for indices in parts.values()] == [2, 2, 2, 2]
    homes = {3: {(number, 1, 2): number % 2 for number in range(8)}}
    assert spread(prompts, 2, limit=4, homes=homes) == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    # All at one sampler would take twice as long as needed.
    crowded = spread(prompts, 2, limit=4, homes={3: {(number, 1, 2): 0 for number in range(8)}})
    assert {number: len(indices) for number, indices in crowded.items()} == {0: 5, 1: 3}
