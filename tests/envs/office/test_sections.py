"""Pruning keeps budgets, pinned sections and whole lines, and never keeps less for more budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.office.sections import Count, Pruned, Section, adds_up, cached, prune
from onthejob.errors import ConfigError


def words(text: str) -> int:
    """A tokenizer whose tokens are words and line breaks: small enough to count by hand."""
    return len(text.split()) + text.count("\n")


PROMPT = (
    Section("header", 0, "day 3 sales", pinned=True),
    Section("pipeline", 0, "pipeline\nacme demo\nbolt lead\ncori lead", keep_lines=2),
    Section("memory", 6, "acme wants sso"),
    Section("events", 5, "viral tweet today"),
    Section("call", 8, "reply with json", pinned=True),
)


def keys(pruned: Pruned) -> list[str]:
    return [section.key for section in pruned.kept]


def test_everything_fits():
    pruned = prune(PROMPT, 100, words)
    assert pruned.text == "\n".join(section.text for section in PROMPT)
    assert pruned.tokens == words(pruned.text) == 19 + 7
    assert pruned.kept == PROMPT
    assert (pruned.dropped, pruned.cut) == ((), None)


@pytest.mark.parametrize(
    ("budget", "kept", "dropped", "cut", "tokens"),
    [
        (26, ["header", "pipeline", "memory", "events", "call"], (), None, 26),
        (25, ["header", "pipeline", "events", "call"], ("memory",), None, 22),
        (21, ["header", "pipeline", "call"], ("memory", "events"), None, 18),
        (17, ["header", "pipeline", "call"], ("memory", "events"), "pipeline", 15),
        (14, ["header", "pipeline", "call"], ("memory", "events"), "pipeline", 12),
        (11, ["header", "call"], ("memory", "events", "pipeline"), None, 7),
        (7, ["header", "call"], ("memory", "events", "pipeline"), None, 7),
    ],
)
def test_drop_order_worked_by_hand(budget, kept, dropped, cut, tokens):
    pruned = prune(PROMPT, budget, words)
    assert (keys(pruned), pruned.dropped, pruned.cut, pruned.tokens) == (kept, dropped, cut, tokens)


def test_lines_are_cut_from_the_end():
    pruned = prune(PROMPT, 14, words)
    assert pruned.text == "day 3 sales\npipeline\nacme demo\nreply with json"


def test_priority_eight_can_be_pinned_and_render_order_is_kept():
    pruned = prune(PROMPT, 7, words)
    assert pruned.text == "day 3 sales\nreply with json"


def test_among_equal_priorities_the_last_goes_first():
    sections = [Section("a", 3, "one"), Section("b", 3, "two"), Section("c", 3, "three")]
    assert prune(sections, 3, words).dropped == ("c",)
    assert prune(sections, 1, words).dropped == ("c", "b")


def test_an_important_long_section_is_not_jumped_over_for_a_less_important_short_one():
    sections = [Section("big", 1, "w " * 20), Section("tiny", 7, "x")]
    assert prune(sections, 10, words).dropped == ("tiny", "big")


def test_empty_sections_render_nothing():
    sections = [Section("a", 0, "one", pinned=True), Section("b", 0, "", pinned=True), Section("c", 0, "two", pinned=True)]
    assert prune(sections, 10, words).text == "one\ntwo"


def test_pinned_sections_above_the_budget_are_an_error():
    with pytest.raises(ConfigError, match=r"budget of 6 tokens .*header, call.* need 7"):
        prune(PROMPT, 6, words)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"priority": 9}, r"0\.\.8, got 9"),
        ({"priority": -1}, r"got -1"),
        ({"priority": 1, "pinned": True, "keep_lines": 1}, "pinned"),
        ({"priority": 1, "keep_lines": 0}, "got 0"),
    ],
)
def test_impossible_sections_are_refused(section, text):
    with pytest.raises(ConfigError, match=text):
        Section("s", text="x", **section)


def test_keys_must_be_unique():
    with pytest.raises(ConfigError, match="unique"):
        prune([Section("a", 0, "x"), Section("a", 1, "y")], 10, words)


def test_counts_are_cached_per_text():
    calls: list[str] = []

    def count(text: str) -> int:
        calls.append(text)
        return words(text)

    counted = cached(count, capacity=64)
    calls.clear()
    prune(PROMPT, 14, counted)
    first = len(calls)
    prune(PROMPT, 14, counted)
    assert len(calls) == first
    assert len(set(calls)) == first


def test_a_tokenizer_that_splits_at_joins_cannot_exceed_the_budget():
    def hostile(text: str) -> int:
        return words(text) + 5 * text.count("\nviral")  # worth more together than apart

    for budget in range(7, 40):
        pruned = prune(PROMPT, budget, hostile)
        assert pruned.tokens == hostile(pruned.text) <= budget


def test_a_tokenizer_that_merges_at_joins_keeps_what_really_fits():
    def merging(text: str) -> int:
        return words(text) - 3 * text.count("sales\nreply")

    pruned = prune(PROMPT, 4, merging)
    assert pruned.tokens == 4
    assert prune([PROMPT[0], PROMPT[4]], 4, merging).tokens == 4


TEXT = st.text(alphabet="ab 1.é\n-$🙂", max_size=40) | st.lists(
    st.sampled_from(["Acme", "demo", " SSO", "MRR $6,000", "day 3", "  x", "\n\n", "- lead:", "naïve"]), max_size=12
).map(" ".join)


@st.composite
def prompts(draw) -> list[Section]:
    sections = []
    for i in range(draw(st.integers(1, 7))):
        pinned = draw(st.booleans())
        lines = None if pinned else draw(st.none() | st.integers(1, 3))
        sections.append(Section(f"s{i}", draw(st.integers(0, 8)), draw(TEXT), pinned, lines))
    return sections


def check_properties(sections: list[Section], count: Count) -> None:
    pinned = "\n".join(section.text for section in sections if section.pinned and section.text)
    floor = count(pinned)
    ceiling = sum(count(section.text + "\n") for section in sections) + 8
    previous: Pruned | None = None
    for budget in sorted({floor, floor + 1, (floor + ceiling) // 2, ceiling - 6, ceiling - 2, ceiling * 2}):
        if budget < floor:
            continue
        pruned = prune(sections, budget, count)
        assert count(pruned.text) == pruned.tokens <= budget
        assert pruned.text == "\n".join(section.text for section in pruned.kept)
        kept = {section.key: section for section in pruned.kept}
        for section in sections:
            got = kept.get(section.key)
            if section.pinned and section.text:
                assert got == section
            if got is not None and got != section:
                assert section.key == pruned.cut
                assert section.text.startswith(got.text + "\n")
                assert section.keep_lines is not None
                assert got.text.count("\n") + 1 >= section.keep_lines
        order = [section.key for section in sections if section.key in kept]
        assert [section.key for section in pruned.kept] == order
        if previous is not None:
            assert set(previous.dropped) >= set(pruned.dropped)
            for section in previous.kept:
                assert kept[section.key].text.startswith(section.text)
        previous = pruned
    assert previous is not None
    assert previous.dropped == ()
    if floor > 0:
        with pytest.raises(ConfigError):
            prune(sections, floor - 1, count)


@given(prompts())
def test_properties_with_words(sections):
    check_properties(sections, words)


@given(sections=prompts())
def test_properties_with_the_embedded_tokenizer(sections, smollm2_tokenizer):
    backend = smollm2_tokenizer.backend_tokenizer

    def count(text: str) -> int:
        return len(backend.encode(text, add_special_tokens=False).ids)

    counted = cached(count)
    assert adds_up(counted)
    check_properties(sections, counted)
    for section in sections:
        assert counted(section.text) == count(section.text)


def test_adds_up_finds_tokenizers_that_do_not():
    assert adds_up(words)
    assert not adds_up(lambda text: words(text) - text.count(".\na"))
    assert not adds_up(lambda text: words(text) - text.count("a ..."))
    assert not adds_up(lambda text: len(text) // 3)


def test_words_are_tokenized_once_and_odd_white_space_as_it_stands():
    calls: list[str] = []

    def count(text: str) -> int:
        calls.append(text)
        return words(text)

    counted = cached(count)
    calls.clear()
    assert counted("day 3 sales\nday 4 sales") == words("day 3 sales\nday 4 sales")
    assert sorted(calls) == [" 3", " 4", " sales", " sales\n", "day"]
    calls.clear()
    assert counted("sales\nday 4") == 4
    assert calls == ["sales\n"]
    for text in (" indented", "two  blanks", "a\n\nb", "tab\tbed", "end ", "line \nline", ""):
        calls.clear()
        assert counted(text) == words(text)
        assert calls in ([text], []), "an empty text has no words"
