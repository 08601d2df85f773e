"""Rules of English: do the words around a name deny that the thing exists, announce it, or claim it for today?

All functions take normalised text (see `vaporware.normal`): lower case, plain letters, straight apostrophes. The rules lean to
one side: when none of them fits, nothing is denied, so that a clever wording cannot turn a promise into a denial. They decide on
bare titles and are heard by the learned judge of longer texts.
"""

from __future__ import annotations

import re


def _any(*words: str) -> str:
    """A group of alternatives; `|` may separate them too."""
    return f"(?:{'|'.join(words)})"


_CLAUSE = re.compile(r"[,:—–]|\s-\s|\b(?:but|however|although|while|because|therefore)\b|\bso\b(?=\s+(?:you|we|it)\b)")

_NOT = _any("not|never|no longer|cannot", "[a-z]+n't", "dont|doesnt|wont|cant")
_ADVERBS = rf"(?:\s+{_any('yet|currently|still|really|even|actually|today|now|presently|ever|be|been|going to')})*"
_HAVING = _any(
    "have|has|got|do|contain|carry|come with|feature|advertise|claim",
    "offer|offered|offering|support|supporting|provide|provided|providing|sell|selling|sold|include|included|including",
    "ship|shipped|shipping|build|built|building|release|released|launch|launched|implement|implemented|deliver|delivered",
    "promise|promised|promising|plan|planning|announce|announced|finished|started|started on|started work on|begun",
    "mention|mentioned|mentioning",
)
_PREPOSITION = _any("only|just|merely|slow|bad|poor|without|with|for|to|about|than|like|of|in|from|by|on|and|but|or")
_SORT = _any("support|plans?|dates?|form|kind|sort|version|timeline|option|feature|integration")

# we do not yet offer [any full] [support for] X
_BY_VERB = re.compile(
    rf"\b(?:{_NOT}{_ADVERBS}\s+{_HAVING}|{_any('yet', 'still (?:have|has|need|needs)')} to {_HAVING})"
    rf"(?:\s+(?!{_PREPOSITION}\b)[\w'-]+){{0,2}}"
    rf"(?:\s+{_SORT} (?:for|of|like|to \w+))?(?:\s+(?:the|an?|any|our))*\s*$"
)
_HAS = _any("there is|there are|there's|have|has|had|with|currently|still|offers?|ships?|is|are|yet|includes?|sorry,?|and")
_GONE = _any("dropped|cancelled|canceled|abandoned|discontinued|postponed|ruled out")
_BE = _any("is|are|was|were")
# there is no [native] X; without X; lacks X; this is not X
_BY_NOUN = re.compile(
    rf"(?:\b{_HAS} no|\bbe no|^\W*no|\bthere (?:won't|will not|isn't|is not|aren't|are not)(?: be)?"
    rf"|\b(?:without|lacks|lacking|lack|lack of|absence of|instead of|rather than|neither|nor)|\b{_GONE}"
    rf"|\b{_any(_BE, 'still', 'currently')} missing|\b\w+ {_BE} not|\b[a-z]+ {_BE}n't)"
    r"(?:\s+(?:yet|yet have|the|an?|any|our|native|built-in|full|real|such|support for|plans? for|sign of|integrated|own))*\s*$"
)
# you cannot use X [yet]: only with one of these words, or nothing, after the name
_BY_READER = re.compile(
    rf"\b(?:(?:cannot|can not|can't|will not|won't){_ADVERBS}\s+(?:use|find|get|see|access|buy|enable|send)|"
    r"(?:do not|don't) expect)(?:\s+(?:the|an?|any|our))*\s*$"
)
_IN_TIME = re.compile(
    r"\W*$|\s+(?:yet|today|now|at the moment|currently|right now|so far|here|in (?:our|the|this)|"
    r"this (?:week|month|quarter|year)|with us)\b"
)
# `nobody here has built X`: unlike `nobody else`, which is advertising
_BY_NOBODY = re.compile(
    rf"\b(?:nobody|no one|none) (?:here|of us) (?:has|have|can|could|will)?\s*{_HAVING}(?:\s+(?:the|an?|any|our))*\s*$"
)
_STATES = (
    "available|supported|included|ready|shipped|built|released|live|offered|implemented|launched|finished|planned|promised|sold"
)
# not available: X
_BY_HEADING = re.compile(rf"\b(?:not (?:yet )?(?:{_STATES}|possible)|unavailable|unsupported|missing|out of scope)\s*:\s*$")

# Who denies: that others lack it, or that someone goes without it, is advertising.
_ABOUT_OTHERS = re.compile(
    r"\b(?:you|your|others?|competitors?|rivals?|vendors?|they|who|nobody|nothing|if|unlike|most|never|not|no|cannot|[a-z]+n't)\b"
)
# What turns `no X` into something else than a denial: no X fees, without X limits.
_DENIAL_CONTINUES = _any(
    "yet|support|features?|integrations?|option|module|capability|functionality|login|exists?|available|planned",
    "today|now|right|currently|at|for|in|until|before|this|when|on|by|here|so|as|still|anymore|either|with|to",
    "and|or|nor|but|though|we|ourselves|add",
    rf"{_BE} (?:yet |currently )?(?:{_STATES})",
)
_GOES_ON = re.compile(rf"\s+(?!{_DENIAL_CONTINUES}\b)[a-z]")
# we do not sell X separately
_PAST = re.compile(r"\bdid(?:n't| not) have\b")
"""Acme did not have X until it met us."""
_LIMITED = re.compile(
    r"\s+(?:only|just|separately|alone|merely|limits?|limitations?|fees?|tax|costs?|hassles?|halfway|late|as an? (?:add|extra))\b"
)

_STATE = (
    rf"(?:(?:{_STATES}|yet|there|here|out|coming|scheduled|exists?|ship|started|provided|something we|a feature|made it|part of|"
    r"in (?:the|this|our)|on (?:the|our)|work(?:ing)? (?:yet|today|now)|work(?=\W*$))\b"
    r"(?!.{0,24}\b(?:plan|tier|package|edition|only)\b))"
)
_AUXILIARY = _any("is|are|was|were|does|do|did|has|have|will|can|would|could")
_NEGATED = (
    rf"(?:{_AUXILIARY}(?:\s+(?:still|currently|sadly|simply|also|all|both))*\s+not|[a-z]+n't|cannot|not|never|"
    r"no longer|is no longer|are no longer)(?:\s+(?:yet|currently|been|be|even|really|quite))*"
)
# X [support] is not available; X: not yet; X was cancelled
_AFTER = re.compile(
    rf"['\")”]?(?:\s+{_any('support|features?|login|integration|option|module|capability|functionality|itself|yet|still|currently')})"
    rf"{{0,2}}[\s,:?(–—-]*(?:{_NEGATED}\s+{_STATE}"
    r"|(?:(?:is|are)\s+)?(?:(?:still|currently)\s+)?"
    r"(?:missing|unavailable|unsupported|absent|unreleased|unfinished|non-?existent)\b"
    rf"|(?:is|are) (?:something|a thing|one thing|features?) (?:that )?(?:we|our \w+) {_NEGATED} {_HAVING}"
    r"|(?:has|have|is|are) (?:yet|still) to\b|not yet\b|no\b(?=\W*$)|sorry\b|(?:is|are) (?:off|out of|not on)\b"
    rf"|(?:was|were|is|are|has been|have been|got) {_any(_GONE, 'removed')}\b)"
)
# ... it is already here
_AFTER_ALL = re.compile(
    r"[,:–—-]\s*(?:it|they)(?:'s| is| are)? (?:already |now )?(?:here|live|available|shipped|out|included|works?)\b"
)
# A sentence of its own, or a last clause, that takes the name back: we do not have it.
_TAKEN_BACK = re.compile(
    r"\W*(?:but |sorry,? |unfortunately,? |sadly,? )?(?:we|our \w+|the \w+|it|they|these|those|this|that)\s+"
    rf"{_NEGATED}\s+(?:have|offer|support|ship|do|provide|build|built|{_STATES}|there|exist)(?:\s+(?:it|that|this|those|them|yet))*\W*"
)
_LISTED = re.compile(r"['\")”]?\s*(?:,|/|&|\+|\bor\b|\band\b|\bnor\b|\s|\b(?:the|an?|any|our|no|yet)\b)+['\"(“]?")

_ANNOUNCED = _any("ship|launch|arrive|come|release|add|be|support|offer|have|follow|land|get|include")
_FUTURE = re.compile(
    r"\b(?:road\s?-?map|coming|planned|plan(?:ning)? (?:to|for)|upcoming|on (?:the|its|their) way|soon|later this|in the works|"
    rf"going to|working on|preview|will (?:\w+ )?{_ANNOUNCED}(?! no\b)|next (?:release|week|month|quarter|version)|"
    r"(?:in|under) development|(?:are|is|being|we're) (?:building|built|developed))\b"
)
_NO_FUTURE = re.compile(
    r"\b(?:not|no|never|off|[a-z]+n't)\b(?:\s+(?!but\b)\w+){0,5}?\s+(?:planned|plans?(?: to| for)?|planning(?: to| for)?|"
    r"road\s?-?map|coming(?: soon)?|soon|on its way|working on|building|in development|in the works|going to|next \w+|"
    r"later this)\b"
)
_THERE_NOW = re.compile(
    r"\b(?:is|are|now|today) (?:now |already |finally )?(?:live|available|here|shipped|released|launched|included|supported)\b|"
    r"\bavailable (?:now|today)\b|\balready\b|\b(?:introducing|announcing)\b|\b(?:has|have) (?:shipped|launched|arrived)\b"
)
_PRESENT = re.compile(
    r"\b(?:now|today|live|already|here|available|shipped|launched|released|introducing|announcing|includes?|included|supports?|"
    r"comes? with|offers?|provides?|ships with|works?|get|try|use|enjoy|meet|has|have)\b"
)


def is_denied(before: str, after: str) -> bool:
    """True when the words around a name say that it does not exist. `before` is the sentence up to the name, `after` the rest."""
    if _BY_HEADING.search(before):
        return True
    clause = _CLAUSE.split(before)[-1].rstrip(" '\"“”(")
    verb, noun = _BY_VERB.search(clause), _BY_NOUN.search(clause)
    return bool(
        (verb and not _PAST.search(clause) and not _ABOUT_OTHERS.search(clause, 0, verb.start()) and not _LIMITED.match(after))
        or (noun and not _ABOUT_OTHERS.search(clause, 0, noun.start()) and not _GOES_ON.match(after))
        or (_BY_NOBODY.search(clause) and not _GOES_ON.match(after))
        or (_BY_READER.search(clause) and _IN_TIME.match(after))
        or (_AFTER.match(after) and not _AFTER_ALL.search(after))
        or _TAKEN_BACK.fullmatch(after)
    )


def takes_back(sentence: str) -> bool:
    """True when a sentence denies what the one before it named last: `we do not have it`."""
    return bool(_TAKEN_BACK.fullmatch(sentence))


def is_list(between: str) -> bool:
    """True when two names with these words between them are denied together: no X, Y or Z."""
    return bool(_LISTED.fullmatch(between))


def is_future(text: str) -> bool:
    """True when a text announces something for later."""
    return bool(_FUTURE.search(_NO_FUTURE.sub("", text)))


def is_there_now(sentence: str) -> bool:
    """True when a sentence says outright that something exists now."""
    return bool(_THERE_NOW.search(sentence))


def speaks_of_today(sentence: str) -> bool:
    """True when a sentence has any word of something that exists now."""
    return bool(_PRESENT.search(sentence))
