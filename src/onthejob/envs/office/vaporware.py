"""Does a text promise a feature that does not exist?

Features are found by name or alias however they are written: case, accents, look-alike letters (Cyrillic, Greek, full width, zero
for O), hyphens, missing or added spaces, letters spelled out, plurals, articles in between. Whether a mention is a promise is
decided by rules on the words around it: a denial ("we do not offer SSO yet") is none; a future ("SSO is coming") is one, unless
the text says so and Dev has committed to the feature. When the rules are unsure, a mention counts as a promise.

Known limits: a question ("do you need SSO?") and another company's feature count as mentions; a paraphrase needs an alias.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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

_SENTENCE = re.compile(r"(?:[!;]|(?<!\b\w)\.|\?(?!\s+(?:not yet|no|sorry)\b))+(?=\s|$)|[;\n\r•|]+")
_CLAUSE = re.compile(r"[,:—–]|\s-\s|\b(?:but|however|although|while|because|therefore)\b|\bso\b(?=\s+(?:you|we|it)\b)")
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_CONTEXT = 160
"""Characters on each side of a name that can deny it."""
_BREAKING = frozenset(",:()[]{}")
_SHORT = 5
"""Names below this many letters are only found as one word or spelled out, never across words (`it's so` is not SSO)."""


class Mention(NamedTuple):
    """One place where a text names a feature."""

    feature: str
    denied: bool
    """The words around it say that the feature does not exist."""
    planned: bool
    """The sentence says that it is to come, and not that it is there."""
    present: bool
    """The sentence has words of something that is there."""


class Registry:
    """The features of a company by name, with other ways to say them.

    Scans of recent texts are kept, so that re-reading a published piece is free; the answer depends on nothing but the text.
    """

    def __init__(self, features: Mapping[str, Iterable[str]]) -> None:
        """Index names and aliases.

        Args:
            features: name -> aliases; the name itself is always one.

        Raises:
            ConfigError: an alias has no letter or digit, or two features share one.
        """
        self.features = tuple(features)
        self._names: dict[str, str] = {}
        self._beginnings: set[str] = set()
        for feature, aliases in features.items():
            for alias in (feature, *aliases):
                words = [word for word in _words(_normal(alias)) if _stem(word) not in _FILLERS] or _words(_normal(alias))
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

    def promises(self, text: str) -> frozenset[str]:
        """The features that `text` names without denying them."""
        return frozenset([mention.feature for mention in self.scan(text) if not mention.denied])

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
            marked = any(_is_future(_normal(text)) for text in texts)
            open_ones += [m for m in planned if not m.planned and (m.present or not marked)]
        return frozenset([mention.feature for mention in open_ones])

    def scan(self, text: str) -> tuple[Mention, ...]:
        """Every mention in the order of the text."""
        known = self._scanned.get(text)
        if known is not None:
            return known
        found: list[Mention] = []
        for sentence in _SENTENCE.split(_normal(text)):
            if sentence:
                found += self._scan_sentence(sentence)
        if len(self._scanned) >= _CACHE:
            del self._scanned[next(iter(self._scanned))]
        self._scanned[text] = scanned = tuple(found)
        return scanned

    def _scan_sentence(self, sentence: str) -> list[Mention]:
        tokens = list(_TOKEN.finditer(sentence))
        spans = [
            (feature, tokens[first].start(), tokens[last].end())
            for feature, first, last in self._spans([_stem(token[0]) for token in tokens], _breaks(sentence, tokens))
        ]
        if not spans:
            return []
        future = _is_future(sentence)
        planned = future and not _THERE_NOW.search(sentence)
        present = bool(_PRESENT.search(sentence))
        mentions: list[Mention] = []
        first = 0
        while first < len(spans):
            # What is listed together (`no SSO, SCIM or audit log`) is denied together.
            last = first
            while last + 1 < len(spans) and _LISTED.fullmatch(sentence, spans[last][2], spans[last + 1][1]):
                last += 1
            denied = _is_denied(sentence[: spans[first][1]][-_CONTEXT:], sentence[spans[last][2] :][:_CONTEXT])
            for feature, _, _ in spans[first : last + 1]:
                # Not there yet but announced is no denial.
                mentions.append(Mention(feature, denied and not future, planned or (denied and future), present and not denied))
            first = last + 1
        return mentions

    def _spans(self, stems: list[str], breaks: frozenset[int]) -> Iterable[tuple[str, int, int]]:
        """(feature, first word, last word): at each place the longest name, none overlapping, none across a break."""
        names, beginnings = self._names, self._beginnings
        first, size = 0, len(stems)
        while first < size:
            joined = stems[first]
            best: tuple[str, int] | None = None
            if joined in beginnings:
                single = len(joined) == 1
                last = first
                while True:
                    feature = names.get(joined)
                    if feature is not None and (last == first or len(joined) >= _SHORT or single):
                        best = (feature, last)
                    following = last + 1
                    if following in breaks:
                        break
                    if following < size and joined + stems[following] not in beginnings and stems[following] in _FILLERS:
                        following += 1
                    if following >= size or following in breaks:
                        break
                    word = stems[following]
                    if joined + word not in beginnings:
                        if word[-1] == "s" and joined + word[:-1] in names:  # plural of a short last word: sign-ons
                            best = (names[joined + word[:-1]], following)
                        break
                    joined += word
                    single = single and len(word) == 1
                    last = following
            if best is None:
                first += 1
            else:
                yield best[0], first, best[1]
                first = best[1] + 1


def _normal(text: str) -> str:
    """Lower-case Latin letters without accents, invisible characters or look-alikes; sentence marks are kept."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.replace("™", ""))
        text = "".join([c for c in text if unicodedata.category(c) not in ("Mn", "Cf", "Me")])
        return text.translate(_LOOK_ALIKES).casefold()
    return text.lower()


def _breaks(sentence: str, tokens: Sequence[re.Match[str]]) -> frozenset[int]:
    """Places of the words before which a comma, colon or bracket stands: a name does not reach across."""
    return frozenset(
        [i for i in range(1, len(tokens)) if not _BREAKING.isdisjoint(sentence[tokens[i - 1].end() : tokens[i].start()])]
    )


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
    return word.replace("i", "l")


_FILLERS = frozenset(
    _stem(word)
    for word in ["the", "a", "an", "our", "your", "their", "its", "his", "her", "this", "that", "these", "those", "own"]
)

# The rules of denial. `before` is the clause up to the mention, `after` what follows it; both lower case.
_NOT = r"(?:not|never|no longer|cannot|[a-z]+n't|dont|doesnt|wont|cant)"
_ADVERBS = r"(?:\s+(?:yet|currently|still|really|even|actually|today|now|presently|ever|be|been|going to))*"
_HAVING = (
    r"(?:have|has|offer|offering|offered|support|supporting|ship|shipped|shipping|include|including|included|provide|"
    r"provided|providing|"
    r"sell|selling|promise|promised|promising|build|building|built|do|plan|planning|release|released|launch|launched|got|"
    r"contain|feature|finished|"
    r"started|announce|announced|advertise|claim|come with|carry|implement|implemented|deliver|delivered)"
)
_PREPOSITION = r"(?:only|just|merely|without|with|for|to|about|than|like|of|in|from|by|on|and|but|or|slow|bad|poor)"
_DENIED_BY_VERB = re.compile(  # we do not yet offer [any full] [support for] X
    rf"\b(?:{_NOT}{_ADVERBS}\s+{_HAVING}|(?:yet|still (?:have|has|need|"
    rf"needs)) to {_HAVING})(?:\s+(?!{_PREPOSITION}\b)[\w'-]+){{0,2}}"
    r"(?:\s+(?:support|plans?|dates?|form|kind|sort|version|timeline|option|feature|integration) (?:for|of|like|"
    r"to \w+))?(?:\s+(?:the|an?|any|our))*\s*$"
)
_DENIED_BY_NOUN = re.compile(  # no [native] X, without X, lacks X
    r"(?:\b(?:there is|there are|there's|have|has|had|with|currently|still|offers?|ships?|is|are|yet|includes?|sorry,?|and) no"
    r"|^\W*no|\b(?:without|lacks|lacking|lack|lack of|absence of|instead of|rather than|neither|nor|dropped|cancelled|"
    r"canceled|abandoned|"
    r"discontinued|postponed|ruled out|(?:is|are|was|were|still|currently) missing|\w+ (?:is|was|are|were) not|"
    r"[a-z]+ (?:isn't|aren't|wasn't)))"
    r"(?:\s+(?:yet|yet have|the|an?|any|our|native|built-in|full|real|such|support for|plans? for|sign of|integrated|working|"
    r"own))*\s*$"
)
_ABOUT_OTHERS = re.compile(
    r"\b(?:you|your|others?|competitors?|rivals?|vendors?|they|who|nobody|if|unlike|most|never|not|don't|no)\b"
)
# What turns `no X` into something else than a denial: no X fees, without X limits, we do not sell X separately.
_GOES_ON = re.compile(
    r"\s+(?!(?:yet|support|features?|integrations?|option|available|today|now|right|currently|at|for|in|until|and|or|on|so|"
    r"as|here|module|"
    r"add|with|capability|functionality|login|before|this|ourselves|anymore|either|planned|to|we|nor|by|when|though|still|"
    r"but|exists?|"
    r"(?:is|are|was|were) (?:yet |currently )?(?:available|planned|offered|included|supported|promised|built|shipped|"
    r"ready))\b)[a-z]"
)
_LIMITED = re.compile(
    r"\s+(?:only|just|separately|alone|merely|limits?|limitations?|fees?|tax|costs?|hassles?|halfway|late|as an? (?:add|"
    r"extra))\b"
)
_STATE = (
    r"(?:(?:yet|available|ready|built|shipped|live|included|supported|there|planned|something we|exist|exists|out|released|"
    r"offered|here|"
    r"finished|launched|coming|implemented|scheduled|promised|a feature|ship|sold|provided|started|in (?:the|this|our)|"
    r"part of|on (?:the|our))\b"
    r"(?!.{0,24}\b(?:plan|tier|package|edition|only)\b))"
)
_DENIED_AFTER = re.compile(
    r"['\")”]?(?:\s+(?:support|features?|login|integration|option|module|capability|functionality|itself|yet|still|"
    r"currently)){0,2}[\s,:?(–—-]*(?:"
    rf"(?:(?:is|are|was|were|does|do|did|has|have|will|can|would|could)(?:\s+(?:still|currently|sadly|simply|also|all|"
    rf"both))*\s+not|[a-z]+n't|"
    rf"cannot|not|never|no longer|is no longer|are no longer)(?:\s+(?:yet|currently|been|be|even|really|quite))*\s+{_STATE}"
    r"|(?:(?:is|are)\s+)?(?:(?:still|currently)\s+)?(?:missing|unavailable|unsupported|absent|unreleased|unfinished|"
    r"non-?existent|vaporware)\b"
    r"|(?:has|have|is|are) (?:yet|still) to\b|not yet\b|no\b(?=\W*$)|sorry\b|(?:is|are) (?:off|out of|not on)\b"
    r"|(?:was|were|is|are|has been|have been|got) (?:cancelled|canceled|dropped|postponed|removed|abandoned|ruled out|"
    r"discontinued)\b)"
)
_AFTER_ALL = re.compile(
    r"[,:–—-]\s*(?:it|they)(?:'s| is| are)? (?:already |now )?(?:here|live|available|shipped|out|included|works?)\b"
)
_LISTED = re.compile(r"['\")”]?\s*(?:,|/|&|\+|\bor\b|\band\b|\bnor\b|\s|\b(?:the|an?|any|our|no|yet)\b)+['\"(“]?")

_FUTURE = re.compile(
    r"\broad\s?-?map\b|\bcoming\b|\bplanned\b|\bplan(?:ning)? (?:to|for)\b|\bupcoming\b|\bon (?:the|its|their) way\b|"
    r"\bsoon\b|\bworking on\b|"
    r"\bwill (?:\w+ )?(?:ship|launch|arrive|come|release|add|be|support|offer|have|follow|land|get|include)\b|"
    r"\bnext (?:release|week|month|quarter|version)\b|"
    r"\b(?:in|under) development\b|\b(?:are|is|being|we're) (?:building|built|developed)\b|\bpreview\b|\blater this\b|"
    r"\bin the works\b|\bgoing to\b"
)
_NO_FUTURE = re.compile(
    r"\b(?:not|no|never|off|[a-z]+n't)\b(?:\s+(?!but\b)\w+){0,5}?\s+(?:planned|plans?(?: to| for)?|planning(?: to| for)?|"
    r"road\s?-?map|coming(?: soon)?|soon|on its way|"
    r"working on|building|in development|in the works|going to|next \w+|later this)\b"
)
_THERE_NOW = re.compile(
    r"\b(?:is|are|now|today) (?:now |already |finally )?(?:live|available|here|shipped|released|launched|included|supported)\b|"
    r"\bavailable (?:now|today)\b|\balready\b|\b(?:introducing|announcing)\b|\b(?:has|have) (?:shipped|launched|arrived)\b"
)
_PRESENT = re.compile(
    r"\b(?:now|today|live|already|here|available|shipped|launched|released|introducing|announcing|includes?|included|"
    r"supports?|comes? with|"
    r"offers?|provides?|ships with|works?|get|try|use|enjoy|meet|has|have)\b"
)


def _is_denied(before: str, after: str) -> bool:
    """True when the normalised words around a name say that it does not exist."""
    before = _CLAUSE.split(before)[-1].rstrip(" '\"“”(")
    verb, noun = _DENIED_BY_VERB.search(before), _DENIED_BY_NOUN.search(before)
    return bool(
        (verb and not _ABOUT_OTHERS.search(before, 0, verb.start()) and not _LIMITED.match(after))
        or (noun and not _ABOUT_OTHERS.search(before, 0, noun.start()) and not _GOES_ON.match(after))
        or (_DENIED_AFTER.match(after) and not _AFTER_ALL.search(after))
    )


def _is_future(normal: str) -> bool:
    """True when a normalised text announces something for later."""
    return bool(_FUTURE.search(_NO_FUTURE.sub("", normal)))
