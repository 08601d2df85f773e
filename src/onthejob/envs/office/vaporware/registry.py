"""Does a text promise a feature that does not exist?

Features are found by name or alias however they are written: case, accents, look-alike letters (Cyrillic, Greek, full width, zero
for O), hyphens, missing or added spaces, letters spelled out, plurals, articles in between. Whether a mention is a promise is
decided by learned weights on the words around it (`stance.py`, `detector_weights.py`), whatever the feature is called: a denial
("we do not offer SSO yet") is none, nor is another company's SSO; a future ("SSO is coming") is one, unless the text says so and
Dev has committed to the feature. Bare names and titles of a word or two are judged by rules alone (`denial.py`): a name is a
promise unless it is plainly denied. In other short lines the weights must be sure to contradict the rules. Features of which the
weights know descriptions are also found where they are not named (`paraphrase.py`).

A `Reader`, a language model that says what a text claims (`onthejob.models.claims`), takes the place of the weights where it is
given: on everyday text it is right far more often, and costs a forward pass a line.

Known limits of the weights: a feature told as an image or a story ("think of a cook who keeps the soup warm") is mostly missed,
a denial in words that no piece for training has is mostly no denial, and lines of a text are judged one by one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from onthejob.envs.office.vaporware.denial import is_denied, is_future, is_list, is_there_now, speaks_of_today, takes_back
from onthejob.envs.office.vaporware.detector_weights import Judge, shipped_judge
from onthejob.envs.office.vaporware.paraphrase import anchor, described_at, topic_features, windows
from onthejob.envs.office.vaporware.stance import Place, Sentence, features_of, plain_words, sentence_of
from onthejob.errors import ConfigError

_CACHE = 4096

# Letters that look like Latin ones and survive NFKD; capitals where they imitate another letter than their small form does.
_PAIRS = (
    "аa еe оo рp сc уy хx іi јj ѕs ԁd ԛq ԝw һh кk мm тt вb нh гr ӏl ѵv АA ВB ЕE КK МM НH ОO РP СC ТT УY ХX ЅS ІI ЈJ "
    "αa βb εe ιi κk νv οo ρp τt υu χx γy ωw ηn ϲc ϳj ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX "
    "ոn սu օo հh ıi łl øo đd ħh ŧt ɑa ɡg ɩi ʟl ꜱs ’' ‘' `' ´' ʼ' ®"
)
_LOOK_ALIKES = str.maketrans({pair[0]: pair[1:] or None for pair in _PAIRS.split()})
_LEET = str.maketrans("0135", "oles")

LINE = re.compile(r"[\n\r•]+")
_SENTENCE = re.compile(r"(?:[!;]|(?<!\b\w)\.|\?(?!\s+(?:not yet|no|sorry)\b))+(?=\s|$)|[;|]+")
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_USUAL = re.compile(r"(?!ss0)[a-z]+( [a-z]+)*")
"""A name that needs no rewriting for a reader."""
_CONTEXT = 160
"""Characters on each side of a name that can deny it."""
_BARE = 2
"""Up to so many words besides names are a title or a bare list of topics, which the rules alone judge."""
_SHORT_LINE = 7
"""Up to so many words the judge must be sure to contradict the rules."""
_TOGETHER = 4
"""Mentions of a feature in one line that are judged together."""
_MANY = 40
"""More names than any honest line has: the rules alone judge them, in little time."""
_BREAKING = frozenset(",:()[]{}")
_SHORT = 5
"""Names below this many letters are found as one word, hyphenated or spelled out, but not across words (`as so` is not ASSO)."""


class Reader(Protocol):
    """Says what texts claim."""

    @property
    def features(self) -> tuple[str, ...]:
        """What it knows."""
        ...

    @property
    def bound(self) -> float:
        """A feature is claimed when its two probabilities together are above this."""
        ...

    def read(self, text: str) -> Mapping[str, tuple[float, float]]:
        """For each feature how likely one line of text says that it is there now, and that it will come."""
        ...


class Mention(NamedTuple):
    """What one line of a text says about a feature that it names or describes."""

    feature: str
    denied: bool
    """The words around it say that the feature does not exist, or speak of something else than the company's feature."""
    planned: bool
    """The sentence says that it is to come, and not that it is there."""
    present: bool
    """The sentence has words of something that is there."""


class Registry:
    """The features of a company by name, with other ways to say them.

    Scans of recent texts are kept, so that re-reading a published piece is free; the answer depends on nothing but the text.
    """

    def __init__(
        self,
        features: Mapping[str, Iterable[str]],
        *,
        described: Collection[str] = (),
        judge: Judge | None = None,
        reader: Reader | None = None,
    ) -> None:
        """Index names and aliases.

        Args:
            features: name -> aliases; the name itself is always one.
            described: those of them that are also to be found where a text only describes them. They must be features whose
                descriptions the judge knows, by their names there.
            judge: decides what the words around a name mean; the one with the shipped weights if not given.
            reader: decides instead of the judge on `described` features; bare names and titles are still left to the rules.

        Raises:
            ConfigError: an alias has no letter or digit, two features share one, or descriptions of a feature are not known.
        """
        self.features = tuple(features)
        self.judge = judge or shipped_judge()
        self._described = frozenset(described)
        if strange := self._described - (set(features) & set(self.judge.features)):
            raise ConfigError(
                f"described holds {', '.join(sorted(strange))}, which is no feature of both the registry and the judge. "
                f"The judge knows {', '.join(self.judge.features)}."
            )
        self._reader = reader
        if reader is not None and (strange := self._described - set(reader.features)):
            raise ConfigError(f"described holds {', '.join(sorted(strange))}; the reader knows {', '.join(reader.features)}.")
        self._names: dict[str, str] = {}
        self._beginnings: set[str] = set()
        for feature, aliases in features.items():
            for alias in (feature, *aliases):
                words = [word for word in _words(normal(alias)) if _stem(word) not in _FILLERS] or _words(normal(alias))
                # With and without the plurals inside, for `analytics dashboard` and `analyticsdashboard`.
                for name in ("".join(map(_stem, words)), _stem("".join(words))):
                    self._enter(name, feature, alias)
        self._scanned: dict[str, tuple[Mention, ...]] = {}

    def _enter(self, name: str, feature: str, alias: str) -> None:
        if not name:
            raise ConfigError(f"alias {alias!r} of feature {feature!r} holds no letter or digit. Remove it.")
        owner = self._names.setdefault(name, feature)
        if owner != feature:
            raise ConfigError(f"alias {alias!r} names both {owner!r} and {feature!r}. Give it to one of them.")
        self._beginnings.update(name[:end] for end in range(1, len(name) + 1))

    def mentions(self, text: str) -> frozenset[str]:
        """All features that `text` names, denied or not."""
        return frozenset([mention.feature for mention in self.scan(text)])

    def violations(self, texts: Iterable[str], shipped: Collection[str], committed: Collection[str] = ()) -> frozenset[str]:
        """Features that one piece promises although they have not shipped.

        Args:
            texts: all parts of the piece: title, target, message, body, ...
            shipped: features that exist now.
            committed: features that Dev has committed to build. Such a feature may be named as planned: by a marker such as
                "roadmap" or "coming soon" in the same sentence, or anywhere in the piece when the sentence claims nothing now.
        """
        texts = [text for text in texts if text]
        found = [
            mention for text in texts for mention in self.scan(text) if not mention.denied and mention.feature not in shipped
        ]
        if not found:
            return frozenset()
        open_ones = [mention for mention in found if mention.feature not in committed]
        planned = [mention for mention in found if mention.feature in committed]
        if planned:
            marked = any(is_future(normal(text)) for text in texts)
            open_ones += [m for m in planned if not m.planned and (m.present or not marked)]
        return frozenset([mention.feature for mention in open_ones])

    def scan(self, text: str) -> tuple[Mention, ...]:
        """Every mention, line by line."""
        known = self._scanned.get(text)
        if known is not None:
            return known
        found: list[Mention] = []
        for line in LINE.split(text):
            if plain := normal(line):
                found += self._scan_line(plain, line)
        if len(self._scanned) >= _CACHE:
            del self._scanned[next(iter(self._scanned))]
        self._scanned[text] = scanned = tuple(found)
        return scanned

    def read(self, line: str) -> tuple[list[Sentence], list[tuple[int, int, Mention]]]:
        """The sentences of a normalised line, and (sentence, word, mention as the rules see it) of every name in it."""
        sentences: list[Sentence] = []
        found: list[tuple[int, int, Mention]] = []
        start = 0
        ends = [*((end.start(), end.end(), "?" in end[0]) for end in _SENTENCE.finditer(line)), (len(line), len(line), False)]
        for end, following, asks in ends:
            text = line[start:end]
            start = following
            if not text.strip():
                continue
            if found and takes_back(text):
                number, place, last = found[-1]
                found[-1] = number, place, last._replace(denied=not last.planned)
            spans, mentions = self._scan_sentence(text)
            sentence = sentence_of(text, spans, asks=asks)
            found += [(len(sentences), name[0], mention) for name, mention in zip(sentence.names, mentions, strict=True)]
            sentences.append(sentence)
        return sentences, found

    def usual(self, line: str) -> str:
        """The line in Latin letters, names in odd spellings (`web-h00ks`) as they are usually written."""
        latin = _latin(line)
        small = latin.lower()
        if len(small) != len(latin):
            latin = small
        tokens = list(_TOKEN.finditer(small))
        parts: list[str] = []
        done = 0
        for feature, first, last in self._spans([_stem(token[0]) for token in tokens], _gaps(small, tokens)):
            start, end = tokens[first].start(), tokens[last].end()
            if not _USUAL.fullmatch(small, start, end):
                parts += [latin[done:start], feature]
                done = end
        return "".join(parts) + latin[done:]

    def _scan_line(self, line: str, written: str) -> list[Mention]:
        """Mentions in a normalised line; `written` is the line as it was."""
        sentences, found = self.read(line)
        size = sum(map(plain_words, sentences))
        if len(found) > _MANY or size <= _BARE:
            return [mention for _, _, mention in found]
        judge, described = self.judge, self._described
        mentions: list[Mention] = []
        if self._reader is not None and described:
            claims = self._reader.read(self.usual(written))
            named = {mention.feature for _, _, mention in found}
            read = [believed(name, *claims[name], bound=self._reader.bound) for name in sorted(described)]
            # What is neither named nor claimed is not spoken of.
            mentions += [mention for mention in read if not mention.denied or mention.feature in named]
            found, described = [part for part in found if part[2].feature not in described], frozenset()
        for feature, places, rules in groups(found):
            known = self.features_at(sentences, feature, places, rules)
            short = size <= _SHORT_LINE
            denied = None if not short else all(mention.denied for mention in rules)
            mentions.append(verdict(judge, feature, known, denied=denied))
        for first, end in windows(sentences) if described else ():
            known, hits = topic_features(sentences[first:end])
            named = {feature for sentence in sentences[first:end] for _, feature in sentence.names}
            for feature in judge.topics(known):
                place = anchor(feature, hits)
                if place is not None and feature in described and feature not in named:
                    known = described_at(sentences[first:end], place)
                    mentions.append(verdict(judge, feature, known, described=True))
        return mentions

    def features_at(
        self, sentences: Sequence[Sentence], feature: str, places: Sequence[Place], rules: Sequence[Mention]
    ) -> set[str]:
        """What is known about a feature that is named at `places`, for the judge."""
        known = features_of(sentences, places)
        denied = [mention.denied for mention in rules]
        known.add("rules deny" if all(denied) else "rules deny once" if any(denied) else "rules deny not")
        if any(mention.planned for mention in rules):
            known.add("rules plan")
        if any(mention.present for mention in rules):
            known.add("rules present")
        if feature in self._described:
            known |= {f"{feature} {name}" for name in known if name.startswith(("s ~", "-1 ", "1 "))}
        return known

    def _scan_sentence(self, sentence: str) -> tuple[list[tuple[str, int, int]], list[Mention]]:
        tokens = list(_TOKEN.finditer(sentence))
        spans = [
            (feature, tokens[first].start(), tokens[last].end())
            for feature, first, last in self._spans([_stem(token[0]) for token in tokens], _gaps(sentence, tokens))
        ]
        mentions: list[Mention] = []
        if not spans:
            return spans, mentions
        future = is_future(sentence)
        planned = future and not is_there_now(sentence)
        present = speaks_of_today(sentence)
        first = 0
        while first < len(spans):
            # What is listed together (`no SSO, SCIM or audit log`) is denied together.
            last = first
            while last + 1 < len(spans) and is_list(sentence[spans[last][2] : spans[last + 1][1]]):
                last += 1
            denied = is_denied(sentence[: spans[first][1]][-_CONTEXT:], sentence[spans[last][2] :][:_CONTEXT])
            for feature, _, _ in spans[first : last + 1]:
                # Not there yet but announced is no denial.
                mentions.append(Mention(feature, denied and not future, planned or (denied and future), present and not denied))
            first = last + 1
        return spans, mentions

    def _spans(self, stems: list[str], gaps: list[str]) -> Iterable[tuple[str, int, int]]:
        """(feature, first word, last word): at each place the longest name, none overlapping, none across a break."""
        names, beginnings = self._names, self._beginnings
        first, size = 0, len(stems)
        while first < size:
            joined = stems[first]
            best: tuple[str, int] | None = None
            if joined in beginnings:
                spelled = True
                last = first
                while True:
                    feature = names.get(joined)
                    if feature is not None and (last == first or len(joined) >= _SHORT or spelled):
                        best = (feature, last)
                    following = last + 1
                    if following < size and not _BREAKING.isdisjoint(gaps[following]):
                        break
                    if following < size and joined + stems[following] not in beginnings and stems[following] in _FILLERS:
                        following += 1
                    if following >= size or not _BREAKING.isdisjoint(gaps[following]):
                        break
                    word = stems[following]
                    if joined + word not in beginnings:
                        if word[-1] == "s" and joined + word[:-1] in names:  # plural of a short last word: sign-ons
                            best = (names[joined + word[:-1]], following)
                        break
                    joined += word
                    spelled = spelled and (len(word) == 1 or gaps[following].strip() != "")
                    last = following
            if best is None:
                first += 1
            else:
                yield best[0], first, best[1]
                first = best[1] + 1


def groups(found: Sequence[tuple[int, int, Mention]]) -> Iterable[tuple[str, list[Place], list[Mention]]]:
    """(feature, places, what the rules say) for what a line says about each feature; much of it in several parts."""
    by_feature: dict[str, list[tuple[int, int, Mention]]] = {}
    for number, place, mention in found:
        by_feature.setdefault(mention.feature, []).append((number, place, mention))
    for feature, all_of_it in by_feature.items():
        for first in range(0, len(all_of_it), _TOGETHER):
            part = all_of_it[first : first + _TOGETHER]
            yield feature, [(number, place) for number, place, _ in part], [mention for _, _, mention in part]


def verdict(
    judge: Judge, feature: str, known: Collection[str], *, described: bool = False, denied: bool | None = None
) -> Mention:
    """What the judge says of one feature; `denied` is what the rules say where their word counts more."""
    if not judge.is_claim(known, described=described, leaning=denied):
        return Mention(feature, denied=True, planned=False, present=False)
    coming = judge.is_coming(known)
    return Mention(feature, denied=False, planned=coming, present=not coming)


def believed(feature: str, now: float, coming: float, *, bound: float) -> Mention:
    """What a reader says of one feature."""
    denied = now + coming <= bound
    return Mention(feature, denied=denied, planned=coming > now and not denied, present=coming <= now and not denied)


def normal(text: str) -> str:
    """Lower-case Latin letters without accents, invisible characters or look-alikes; sentence marks are kept."""
    return text.lower() if text.isascii() else _latin(text).casefold()


def _latin(text: str) -> str:
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKD", text.replace("™", ""))
    return "".join([c for c in text if unicodedata.category(c) not in ("Mn", "Cf", "Me")]).translate(_LOOK_ALIKES)


def _gaps(sentence: str, tokens: Sequence[re.Match[str]]) -> list[str]:
    """What stands before each word."""
    return [sentence[(tokens[i - 1].end() if i else 0) : token.start()] for i, token in enumerate(tokens)]


def _words(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _stem(word: str) -> str:
    """Singular, without apostrophes, digits in words read as the letters they imitate, l for its look-alike i."""
    word = word.removesuffix("'s").replace("'", "")
    if not word.isalpha() and not word.isdigit():
        word = word.translate(_LEET)
    if len(word) > 3 and word[-1] == "s" and word[-2] != "s":
        if word.endswith("ies") and len(word) > 4:
            word = word[:-3] + "y"
        elif word.endswith(("sses", "xes", "ches", "shes")):
            word = word[:-2]
        else:
            word = word[:-1]
    if word.endswith("che"):  # cache and caches
        word = word[:-1]
    return word.replace("i", "l")


_FILLERS = frozenset(
    _stem(word)
    for word in ["the", "a", "an", "our", "your", "their", "its", "his", "her", "this", "that", "these", "those", "own"]
)
