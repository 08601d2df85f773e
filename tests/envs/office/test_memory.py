"""Retrieval worked by hand, true LRU, reflections with evidence, and forks that cannot touch each other."""

import math
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.office.memory import (
    CAPACITY,
    UNRELATED,
    ActionOutcome,
    Lexicon,
    MemoryKind,
    MemoryStream,
    record,
    reflection_prompt,
)
from onthejob.envs.office.phrases import PHRASES, lengthen, shorten
from onthejob.envs.office.records import Record
from onthejob.errors import ConfigError


@pytest.fixture
def stream() -> MemoryStream:
    return MemoryStream(Lexicon())


def held(stream: MemoryStream) -> tuple[Any, ...]:
    """All of a stream as plain data, as `from_state` takes it; records are shared."""
    rows = zip(*stream._held, strict=True) if stream._held else ((), (), (), ())
    ids, accessed, records, _ = rows
    return (stream._next_id, stream._reflected, stream._unread, stream._plan, ids, accessed, records)


def texts(memories) -> list[str]:
    return [memory.text for memory in memories]


def test_score_is_recency_times_importance_times_relevance(stream):
    a = stream.observe("Acme asks about SSO", 0, importance=4)
    b = stream.observe("Bolt churned", 90, importance=9)
    c = stream.observe("Acme won", 50, importance=5)
    rare, common = math.log(4 / 0.5), math.log(4 / 1.5)  # one and two of three memories hold the word
    want = {
        a: math.exp(-1.0) * 4 * 1.0,
        b: math.exp(-0.1) * 9 * UNRELATED,
        c: math.exp(-0.5) * 5 * (UNRELATED + (1 - UNRELATED) * common / (rare + common)),
    }
    got = stream.retrieve("SSO for Acme", 100, limit=3)
    assert [memory.id for memory in got] == sorted(want, key=lambda i: -want[i]) == [a, c, b]
    assert {number: score for score, number, _ in stream._scores("SSO for Acme", 100)} == pytest.approx(want)


def test_empty_query_ranks_by_importance_and_recency(stream):
    stream.observe("old and big", 0, importance=10)
    stream.observe("new and small", 99, importance=3)
    stream.observe("new and big", 95, importance=10)
    assert texts(stream.retrieve("", 100, limit=2)) == ["new and big", "old and big"]
    assert 10 * math.exp(-1.0) > 3 * math.exp(-0.01)


def test_each_factor_decides_when_the_others_are_equal(stream):
    stream.observe("acme demo", 10, importance=5)
    stream.observe("bolt demo", 10, importance=5)
    assert texts(stream.retrieve("bolt", 10, limit=1)) == ["bolt demo"]
    stream.observe("bolt demo again", 10, importance=6)
    assert texts(stream.retrieve("bolt", 10, limit=1)) == ["bolt demo again"]
    stream.observe("bolt demo later", 60, importance=6)
    assert texts(stream.retrieve("bolt", 60, limit=1)) == ["bolt demo later"]


def test_ties_go_to_the_newer(stream):
    ids = [stream.observe("same", 5, importance=5) for _ in range(4)]
    assert [memory.id for memory in stream.retrieve("same", 5, limit=4)] == ids[::-1]


def test_singular_finds_plural(stream):
    stream.observe("three blockers open", 1)
    stream.observe("nothing else here", 1)
    assert texts(stream.retrieve("the blocker", 1, limit=1)) == ["three blockers open"]


def test_the_least_recently_used_is_forgotten():
    stream = MemoryStream(Lexicon(), capacity=3)
    stream.observe("alpha", 0, importance=2)
    stream.observe("beta", 1, importance=9)
    stream.observe("gamma", 2, importance=2)
    assert texts(stream.retrieve("alpha", 3, limit=1)) == ["alpha"]
    stream.observe("delta", 4)
    assert texts(stream.memories()) == ["alpha", "gamma", "delta"]  # importance does not protect beta
    stream.retrieve("gamma", 5, limit=1)
    stream.observe("epsilon", 6)
    assert texts(stream.memories()) == ["gamma", "delta", "epsilon"]


def test_looking_without_touching_leaves_no_trace(stream):
    stream.observe("alpha", 0)
    stream.observe("beta", 0)
    before = held(stream)
    stream.retrieve("alpha", 9, touch=False)
    assert held(stream) == before
    stream.retrieve("alpha", 9)
    assert held(stream) != before


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=60))
def test_eviction_matches_a_reference_lru(steps):
    stream = MemoryStream(Lexicon(), capacity=4)
    reference: list[int] = []  # ids, least recently used first
    for turn, (add, pick) in enumerate(steps):
        if add or not reference:
            reference.append(stream.observe(f"word{len(steps) * turn}", turn))
            del reference[:-4]
        else:
            number = reference[pick % len(reference)]
            (found,) = stream.retrieve(next(m.text for m in stream.memories() if m.id == number), turn, limit=1)
            if found.id in reference:
                reference.remove(found.id)
                reference.append(found.id)
        assert list(held(stream)[4]) == reference


def test_capacity_is_200_by_default(stream):
    for turn in range(500):
        stream.observe(f"event {turn}", turn)
    assert len(stream) == CAPACITY == 200
    assert texts(stream.memories())[0] == "event 300"


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("team sync, nothing new", 1, 2),
        ("wrote a page", 3, 3),
        ("new lead from the blog", 5, 5),
        ("SSO shipped", 7, 7),
        ("Acme won, $12,000 a year", 9, 9),
        ("Bolt churned", 9, 9),
        ("PR crisis costs $40,000", 10, 10),
        ("two blockers", 6, 6),
    ],
)
def test_importance_by_rule(text, least, most):
    assert least <= Lexicon().importance(text) <= most


def test_bad_numbers_are_refused(stream):
    with pytest.raises(ConfigError, match=r"1\.\.10, got 11"):
        stream.observe("x", 0, importance=11)
    with pytest.raises(ConfigError, match="tries >= 1, got 0"):
        stream.observe("x", 0, outcome=ActionOutcome("RUN_DEMO", "lead", 0, 0, 0.0))
    with pytest.raises(ConfigError, match="capacity"):
        MemoryStream(Lexicon(), capacity=0)


def busy(stream: MemoryStream, start: int, turns: int = 70) -> None:
    """A period in which demos for fintech work, follow-ups at large firms do not, and SSO comes up."""
    for turn in range(start, start + turns, 7):
        worked = turn % 3 > 0
        stream.observe(
            f"demo at turn {turn}",
            turn,
            outcome=ActionOutcome("RUN_DEMO", "fintech lead", 1, int(worked), 1.5 if worked else 0.0),
        )
        if turn % 2:
            stream.observe("no answer", turn, outcome=ActionOutcome("FOLLOW_UP", "large lead", 1, 0, -0.5))
        if turn % 4 == 0:
            stream.observe("dev says SSO is late", turn)
        stream.observe(f"day {turn // 14} began", turn)


def test_reflection_is_due_every_70_turns(stream):
    assert not stream.reflection_due(70)
    stream.observe("x", 0)
    assert next(turn for turn in range(141) if stream.reflection_due(turn)) == 70
    stream.reflect(75)
    assert not stream.reflection_due(144)
    assert stream.reflection_due(145)


def test_reflection_counts_outcomes_and_cites_evidence(stream):
    busy(stream, 0)
    tries = range(0, 70, 7)
    wins = sum(turn % 3 > 0 for turn in tries)
    failed = [m.id for m in stream.memories() if m.outcome and m.outcome.action_type == "FOLLOW_UP"]
    best, worst, topics, plan = stream.reflect(70)
    assert best.text == f"RUN_DEMO on fintech lead worked {wins} of 10 times, {wins * 0.15:+.1f} each: it pays."
    assert best.outcome == ActionOutcome("RUN_DEMO", "fintech lead", 10, wins, wins * 1.5)
    assert worst.text == f"FOLLOW_UP on large lead worked 0 of {len(failed)} times, -0.5 each: something else may be better."
    assert worst.evidence == tuple(failed)
    assert "sso" in topics.text
    assert all("SSO" in m.text for m in stream.memories() if m.id in topics.evidence)
    assert plan.text == stream.plan
    assert plan.text.startswith("more RUN_DEMO on fintech lead; less FOLLOW_UP on large lead; keep an eye on ")
    assert plan.evidence == (best.id, worst.id, topics.id)
    assert [m.kind for m in (best, worst, topics, plan)] == [MemoryKind.REFLECTION] * 3 + [MemoryKind.PLAN]
    assert all(m.importance >= 7 for m in (best, worst, topics, plan))


def test_a_second_reflection_covers_only_what_is_new_and_builds_on_the_first(stream):
    busy(stream, 0)
    first = stream.reflect(70)
    busy(stream, 70)
    second = stream.reflect(140)
    assert second[0].outcome is not None
    assert second[0].outcome.tries == 10
    assert min(second[0].evidence) > max(m.id for m in first)
    metas = [m for m in second if m.text.startswith("Over 2 reviews")]
    assert [m.evidence for m in metas] == [(first[0].id, second[0].id), (first[1].id, second[1].id)]
    assert metas[0].text == "Over 2 reviews RUN_DEMO on fintech lead worked 13 of 20 times: it depends on the case."
    assert metas[1].text.endswith("stop it.")
    assert metas[0].importance == 9
    assert second[-1].kind is MemoryKind.PLAN
    assert {m.id for m in metas} < set(second[-1].evidence)


def test_reflection_on_nothing_adds_nothing(stream):
    assert stream.reflect(70) == []
    stream.observe("one thing", 71)
    assert stream.reflect(140) == []
    assert stream.plan == ""


def test_a_single_success_is_praised_and_not_blamed(stream):
    stream.observe("won", 1, outcome=ActionOutcome("CLOSE_DEAL", "", 1, 1, 10.0))
    added = stream.reflect(70)
    assert texts(added) == ["CLOSE_DEAL worked 1 of 1 times, +10.0 each: it pays.", "more CLOSE_DEAL"]


def test_what_mostly_works_is_not_called_a_failure(stream):
    for i in range(5):
        stream.observe("demo", i, outcome=ActionOutcome("RUN_DEMO", "lead", 1, 1, 3.0))
        stream.observe("mail", i, outcome=ActionOutcome("FOLLOW_UP", "lead", 1, int(i > 0), 1.0))
    (insight, plan) = stream.reflect(70)
    assert insight.text == "RUN_DEMO on lead worked 5 of 5 times, +3.0 each: it pays."
    assert plan.text == "more RUN_DEMO on lead"


def test_a_model_may_reflect_instead(stream):
    busy(stream, 0)
    prompt = reflection_prompt(stream, limit=5)
    assert prompt.count("\n[") == 5
    assert "Plan:" in prompt
    reply = "1. SSO decides deals [0, 2, 999]\n\n- **Call fintech first** [3]\n"
    reply += "**Plan:** ask dev about SSO [1]\nkept\none too many\n"
    added = stream.accept_reflection(reply, turn=70, importance=12)
    assert texts(added) == ["SSO decides deals", "Call fintech first", "kept", "ask dev about SSO"]
    assert added[0].evidence == (0, 2)
    assert added[0].importance == 10
    assert stream.plan == "ask dev about SSO"
    assert not stream.reflection_due(139)
    assert "[0]" not in reflection_prompt(stream)


@given(st.text(max_size=300))
def test_what_a_model_writes_never_breaks_the_stream(reply):
    stream = MemoryStream(Lexicon())
    stream.observe("x", 0)
    for memory in stream.accept_reflection(reply, turn=70):
        assert 0 < len(memory.text) <= 240
        assert memory.text.isprintable()
    assert not stream.reflection_due(100)


def test_rating_by_a_model_replaces_the_rule(stream):
    number = stream.observe("wrote a page", 0)
    twin = stream.fork()
    stream.rate(number, 99)
    stream.rate(12345, 5)
    assert stream.memories()[0].importance == 10
    assert twin.memories()[0].importance == 3


def test_a_model_that_reflects_may_rate(stream):
    first, second = (stream.observe(text, 0) for text in ("wrote a page", "sso sells"))
    usual = {memory.id: memory.importance for memory in stream.memories()}
    assert "Importance: 12=9" in reflection_prompt(stream)
    added = stream.accept_reflection(
        f"Security closes deals [{second}]\n- Importance: {first}=9, [{second}]: 2, 777=5, x=3", turn=70
    )
    assert [memory.text for memory in added] == ["Security closes deals"]
    rated = {memory.id: memory.importance for memory in stream.memories()}
    assert (rated[first], rated[second]) == (9, 2) != (usual[first], usual[second])


def test_forks_are_independent_and_equal_in_future():
    stream = MemoryStream(Lexicon(), capacity=20)
    busy(stream, 0)
    stream.reflect(70)
    before = held(stream)
    twin = stream.fork()
    restored = MemoryStream.from_state(pickle.loads(pickle.dumps(before)), Lexicon(), capacity=20)
    futures = []
    for copy in (twin, restored):
        copy.retrieve("SSO demo", 71)
        busy(copy, 72)
        copy.reflect(142)
        futures.append((held(copy), copy.memories(), copy.retrieve("lead", 143)))
    assert futures[0] == futures[1]
    assert held(stream) == before
    assert held(twin) != before


def test_a_public_event_is_held_once_for_all(stream):
    other = MemoryStream(Lexicon())
    event = record("SSO shipped", 3, 7)
    stream.add(event)
    other.observe("private", 1)
    other.add(event)
    assert held(stream)[6][0] is held(other)[6][1]
    assert stream.memories()[0].id == 0
    assert other.memories()[1].id == 1


def test_state_is_pure_data(stream):
    busy(stream, 0)
    stream.reflect(70)

    def check(value):
        assert type(value) in (str, bytes, int, float, tuple, type(None)), type(value)
        if type(value) is tuple:
            for item in value:
                check(item)

    check(held(stream))


def test_carrying_memories_over_keeps_what_was_learned(stream):
    busy(stream, 0)
    learned = stream.reflect(70)
    carried = stream.carried(420)
    assert texts(carried.memories()) == texts(learned)
    assert [m.turn for m in carried.memories()] == [70 - 420] * len(learned)
    assert carried.plan == stream.plan
    fresh = carried.observe("new episode", 0)
    assert fresh > max(m.id for m in learned)
    assert carried.reflection_due(70)
    scores = {number: score for score, number, _ in carried._scores("", 0)}
    assert scores[learned[0].id] == pytest.approx(8 * math.exp(-3.5))


SCRIPT = """
from onthejob.envs.office.memory import *
import random
rng = random.Random(3)
words = "acme bolt cori sso api churn demo lead blog bug price slow late won".split()
stream = MemoryStream(Lexicon())
out = []
for turn in range(420):
    stream.observe(" ".join(rng.sample(words, 4)), turn)
    if turn % 7 == 0:
        outcome = ActionOutcome(rng.choice(["A", "B", "C"]), rng.choice(["x", "y"]), 1, rng.randrange(2), rng.random())
        stream.observe("did it", turn, outcome=outcome)
        out.append([memory.text for memory in stream.retrieve(" ".join(rng.sample(words, 5)), turn)])
    if stream.reflection_due(turn):
        out.append([memory.text for memory in stream.reflect(turn)])
print(out, stream.pack())
"""


def test_equal_in_processes_with_different_hash_seeds():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"What keeps coming up" in outputs.pop()


TEXTS = st.text(max_size=300) | st.lists(st.sampled_from((*PHRASES, " ", "x", "\x80", "\0"))).map("".join)


@given(TEXTS)
def test_a_text_comes_back_from_its_phrases(text):
    assert lengthen(shorten(text)) == text


def test_phrases_have_a_byte_each_and_what_the_office_says_is_short():
    assert len(PHRASES) == len(set(PHRASES)) <= 128
    assert all(phrase.isascii() for phrase in PHRASES)
    assert len(shorten("I did BUILD_FEATURE Dashboard: it worked")) == 5
    assert len(shorten("CLOSE_DEAL on a security lead worked 3 of 4 times, +2.5 each: it pays.")) <= 20


@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 9), st.floats(allow_nan=False) | st.none()), max_size=12),
    st.sampled_from((0, 65_530, 2**31)),
)
def test_a_packed_stream_is_the_stream(said, first):
    stream = MemoryStream(Lexicon(), capacity=9)
    stream._next_id = stream._unread = first
    for turn, (text, wins, gain) in enumerate(said):
        if gain is None:
            stream.observe(text, turn)
        else:
            stream.observe(text, turn, outcome=ActionOutcome("RUN_DEMO", text[:9], 10, wins, gain))
        if turn % 3 == 2:
            stream.retrieve(text, turn)
    if len(said) > 8:
        stream.reflect(70)
        stream.accept_reflection("SSO sells [0, 1]\nPlan: " + said[0][0], turn=71)
    packed = stream.pack()
    known: dict[bytes, Record] = {}
    again = MemoryStream.unpack(packed, Lexicon(), known, capacity=9)
    assert held(again) == held(stream)
    assert again.pack() == packed
    assert again.fork().pack() == packed
    assert all(one is known[one[6]] for one in held(again)[6])
    assert MemoryStream.is_whole(packed)
    assert not any(
        MemoryStream.is_whole(packed[:place] + bytes((packed[place] ^ 1,)) + packed[place + 1 :]) for place in range(9)
    )
    assert [MemoryStream.due(packed, turn) for turn in (70, 141)] == [stream.reflection_due(turn) for turn in (70, 141)]
    fresh = MemoryStream.from_state(held(again), Lexicon(), capacity=9)
    assert fresh.pack() == packed
    for wrong in (packed[:-1], packed + b"\0", packed[: len(packed) // 2]):
        with pytest.raises((ValueError, LookupError)):
            MemoryStream.unpack(wrong, Lexicon(), {})


def test_a_change_is_packed_again(stream):
    taken = {stream.pack()}
    number = stream.observe("sso sells", 1)
    taken.add(stream.pack())
    stream.observe("api sells", 1)
    taken.add(stream.pack())
    stream.retrieve("sso", 2, limit=1)
    taken.add(stream.pack())
    stream.rate(number, 9)
    taken.add(stream.pack())
    stream.accept_reflection("Plan: sell", turn=70)
    taken.add(stream.pack())
    stream.accept_reflection("", turn=141)
    taken.add(stream.pack())
    assert len(taken) == 7


def test_what_a_reflection_has_counted_is_forgotten_and_what_it_found_is_not(stream):
    busy(stream, 0)
    added = stream.reflect(70)
    assert {m.outcome for m in stream.memories(MemoryKind.OBSERVATION)} == {None}
    assert [m for m in stream.memories() if m.outcome is not None] == [m for m in added if m.outcome is not None]
