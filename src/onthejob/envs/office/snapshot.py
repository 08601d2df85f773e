"""The company as bytes: a line of JSON with the fields whose size is fixed, and behind it, as columns, those that grow with it.

Growing fields are what a library of snapshots is full of: accounts and pieces take bits and small numbers instead of words, a
double with its default value is omitted, texts are kept once. All of it comes back bit for bit, and none of it is code.
It is not compressed here: a store of many compresses them together, where one snapshot is nearly the next one.

A rare state that does not fit the columns is written as JSON, version 4. Versions 6 and 7 are 5 and 4 of a company whose names
were drawn. Versions 2 (all JSON) and 3 (columns) are still read: they lack what every role did last and the goal of the scenario.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice, repeat
from operator import attrgetter, mul
from typing import Any, NamedTuple

from onthejob.envs.office.company_state import ACCOUNT_FIELDS, PIECE_FIELDS, STATE_FIELDS, WON, Account, CompanyState, Piece
from onthejob.envs.office.market import PRICES, TIER_VESTS, VESTING_DAYS
from onthejob.envs.office.names import HELD_OUT_NAMES, NAMES
from onthejob.envs.office.new_company import DRAWN_WARMTH, brought, drawn_quality
from onthejob.envs.office.roles import ROLES

VERSION = 5
"""Raise it when a field, a role, an action or a name is added or moved, because the columns hold their places; and when prices,
vesting or what luck gives a lead change, because the columns omit what follows from them."""
_JSON_VERSION = 4
_OLD, _OLD_JSON = 3, 2
_DRAWN = {VERSION: 6, _JSON_VERSION: 7}
"""Version -> the one that says besides that the company's names were drawn."""
_ADDED = ("acted", "goal")
"""Fields that the old versions lack; empty then."""
_GROWING = ("accounts", "campaigns", "collab_seen", "daily", "events", "inbox", "pieces", "schedule", "shared")
_SLOTS = tuple(slot for slot in STATE_FIELDS if slot != "drawn_names")
_KINDS = {slot: type(getattr(CompanyState(), slot)) for slot in STATE_FIELDS}
"""What a snapshot's fields must be."""
_FIXED = tuple(slot for slot in _SLOTS if slot not in _GROWING and slot != "demand")
_OLD_FIXED, _OLD_SLOTS = (tuple(slot for slot in slots if slot not in _ADDED) for slots in (_FIXED, _SLOTS))
_fixed = attrgetter(*_FIXED)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

_ROLES = tuple(str(role) for role in ROLES)
_ROLE = {role: place for place, role in enumerate(_ROLES)}
_DEEDS = tuple((str(role), action) for role, spec in ROLES.items() for action in spec.actions)
"""How keys of `CompanyState.daily` begin."""
_DEED = {deed: place for place, deed in enumerate(_DEEDS)}
_NAMES = (*NAMES, *HELD_OUT_NAMES)
_NAME = {name: place for place, name in enumerate(_NAMES)}
_UNKNOWN = 255
"""Place of a name that is in no list; the text holds it."""
_ZERO, _PLAIN, _BROUGHT, _OTHER = range(4)
"""What the quality of an account is: none, as drawn, as drawn for whom a campaign brought, a number of its own."""
_ARTEFACT = 3_000 * 64 + _ROLE["content"] * 8
_USERS = ((_ROLE["sales"], 1 << 11), (_ROLE["marketing"], 1 << 12))
"""How a piece (its id x 64) stands in `CompanyState.collab_seen`, and the bit that says so of each user."""

_QUALITIES = (0.0, 0.5 * 1.3, 1.0, 1.3)
"""What the quality of a piece usually is: a post or a draft, published at full efficacy, revised from less, revised from that."""


def _faded() -> list[float]:
    """Nights -> warmth of a lead whom a campaign drew and no one called."""
    return [*accumulate(repeat(0.93, MOST_NIGHTS), mul, initial=DRAWN_WARMTH)]


def _vesting(tier: int) -> list[float]:
    """Nights since the signature -> share of the closing reward that is still to vest."""
    night = TIER_VESTS[tier] / VESTING_DAYS[tier]
    return [*accumulate(repeat(night, MOST_NIGHTS), lambda left, part: left - min(left, part), initial=TIER_VESTS[tier])]


MOST_NIGHTS = 90
_FADED, _VESTING = _faded(), [_vesting(tier) for tier in range(len(TIER_VESTS))]
"""Numbers that follow from dates: an account that has exactly these is not written with others."""

_account = attrgetter(
    "stage", "segment", "size", "pain", "tier", "objections", "failed", "expanded", "touches", "approved", "known", "rewarded",
    "name", "id", "contact", "deadline", "paid_until", "won_day", "price", "demo", "quality", "sat", "vest_left", "warmth",
)  # fmt: skip
_piece = attrgetter("kind", "left", "topic", "vapor", "id", "day", "quality")
_account_row, _piece_row = attrgetter(*ACCOUNT_FIELDS), attrgetter(*PIECE_FIELDS)


def dumps(s: CompanyState) -> bytes:
    """The snapshot of `s`.

    Raises:
        ValueError: a number of it is none.
    """
    try:
        return _columns(s)
    except (LookupError, TypeError, ValueError, struct.error):
        values = {slot: getattr(s, slot) for slot in _SLOTS}
        values["accounts"] = [_account_row(a) for a in s.accounts]
        values["pieces"] = [_piece_row(p) for p in s.pieces]
        return _encode([_version(s, _JSON_VERSION), *values.values()]).encode()


def loads(data: bytes) -> CompanyState:
    """The state that `dumps` wrote.

    Raises:
        ValueError, LookupError: `data` is not a snapshot of a version that is read.
        TypeError: a field of it has another type.
    """
    head, _, block = data.partition(b"\n")
    values = json.loads(head)
    version = values[0] if isinstance(values, list) and values else None
    new = CompanyState.__new__(CompanyState)
    new.acted, new.goal = {}, {}
    new.drawn_names = version in _DRAWN.values()
    version = next((plain for plain, drawn in _DRAWN.items() if drawn == version), version)
    fixed = _FIXED if version == VERSION else _OLD_FIXED if version == _OLD else None
    slots = _SLOTS if version == _JSON_VERSION else _OLD_SLOTS if version == _OLD_JSON else None
    if fixed is not None and len(values) == 3 + len(fixed):
        _set(new, ("demand", *fixed), values[1:-1])
        _from_columns(new, values[-1], block)
    elif slots is not None and len(values) == 1 + len(slots) and not block:
        _set(new, slots, values[1:])
        new.accounts = [Account.unpack(row) for row in new.accounts]  # type: ignore[arg-type]
        new.pieces = [Piece.unpack(row) for row in new.pieces]  # type: ignore[arg-type]
    else:
        raise ValueError(f"not an office snapshot of version {_OLD_JSON} to 7: it begins with {str(values)[:20]!r}")
    if not 0 <= new.turn <= new.horizon:
        raise ValueError(f"turn {new.turn} is outside an episode of {new.days} days")
    return new


def _version(s: CompanyState, plain: int) -> int:
    return _DRAWN[plain] if s.drawn_names else plain


def _set(s: CompanyState, slots: Iterable[str], values: list[Any]) -> None:
    for slot, value in zip(slots, values, strict=True):
        kind = _KINDS[slot]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise TypeError(f"{slot} of a snapshot must be {kind.__name__}, got {type(value).__name__}")
        setattr(s, slot, value)


class _Block:
    """The columns of one snapshot: blocks of equal width, each filled and emptied in order."""

    __slots__ = ("doubles", "longs", "shorts", "signed", "small")

    def __init__(self) -> None:
        self.longs: list[int] = []
        """0 to 2^32 - 1."""
        self.shorts: list[int] = []
        """-32768 to 32767."""
        self.signed: list[int] = []
        """-128 to 127."""
        self.small: list[int] = []
        """0 to 255."""
        self.doubles: list[float] = []

    def pack(self) -> tuple[list[int], bytes]:
        """The lengths, and the bytes.

        Raises:
            ValueError, struct.error: a number does not fit.
        """
        if self.doubles and ({*map(type, self.doubles)} != {float} or not math.isfinite(sum(self.doubles))):
            raise ValueError("what a double is to hold is another number, or none")
        blocks = (self.longs, self.shorts, self.signed, self.small, self.doubles)
        lengths = [*map(len, blocks)]
        return lengths, struct.pack(_layout(lengths), *chain(*blocks))


class _Cells(NamedTuple):
    """The columns of a block, to be read in the order in which they were filled."""

    longs: Iterator[int]
    shorts: Iterator[int]
    signed: Iterator[int]
    small: Iterator[int]
    doubles: Iterator[float]


def _cells(lengths: list[int], data: bytes) -> _Cells:
    try:
        cells = iter(struct.unpack(_layout(lengths), data))
    except (TypeError, struct.error) as error:
        raise ValueError(f"not an office snapshot: its columns are cut ({error})") from error
    columns = [[*islice(cells, length)] for length in lengths]
    if not math.isfinite(sum(columns[-1])):
        raise ValueError("not an office snapshot: a number of it is none")
    return _Cells(*map(iter, columns))


def _layout(lengths: list[int]) -> str:
    longs, shorts, signed, small, doubles = lengths
    return f"<{longs}I{shorts}h{signed}b{small}B{doubles}d"


def _columns(s: CompanyState) -> bytes:
    """`s` in version 3.

    Raises:
        LookupError, TypeError, ValueError, struct.error: something of it does not fit.
    """
    block, texts, paid = _Block(), dict[str, int](), set(s.collab_seen)
    odd = _put_accounts(s, block)
    _put_pieces(s, block, paid)
    _put_talk(s, block, texts)
    for day, segment, visits, theme in s.campaigns:
        if not 0 <= segment < 4:
            raise ValueError(f"a campaign in segment {segment}")
        block.small += (int(day), int(segment) | int(theme) << 2)
        block.doubles.append(visits)
    counts = [*map(len, (s.accounts, s.pieces, s.shared, s.inbox, s.daily, s.events, s.schedule, s.campaigns))]
    lengths, data = block.pack()
    rest = [counts, lengths, [*texts], odd, [pair for pair in s.collab_seen if pair in paid]]
    head = f"[{_version(s, VERSION)},{_market(tuple(map(tuple, s.demand)))},{_encode([*_fixed(s), rest])[1:]}\n"
    return head.encode() + data


@lru_cache(maxsize=256)
def _market(demand: tuple[tuple[float, ...], ...]) -> str:
    """`demand` as JSON; kept, because it never changes."""
    return _encode(demand)


def _from_columns(s: CompanyState, rest: Any, data: bytes) -> None:
    """Set the fields of `s` that `_columns` put into `rest` and `data`."""
    (accounts, pieces, *talk, campaigns), lengths, texts, odd, paid = rest
    cells = _cells(lengths, data)
    try:
        s.accounts = _take_accounts(s, cells, accounts, odd)
        s.pieces, pairs = _take_pieces(cells, pieces)
        s.collab_seen = [*map(int, paid), *pairs]
        _take_talk(s, cells, talk, texts)
        s.campaigns = [
            [day, way & 3, visits, way >> 2]
            for day, way, visits in [(next(cells.small), next(cells.small), next(cells.doubles)) for _ in range(campaigns)]
        ]
    except StopIteration as error:
        raise ValueError("not an office snapshot: its columns are short") from error
    if any(True for column in cells for _ in column):
        raise ValueError("not an office snapshot: its columns are long")


def _at(table: list[float], nights: int) -> float:
    return table[nights] if 0 <= nights < len(table) else math.nan


def _put_accounts(s: CompanyState, block: _Block) -> list[str | int]:
    """Fill the columns; returns names and prices that are in no list."""
    odd: list[str | int] = []
    longs, shorts, small, doubles = block.longs, block.shorts, block.small, block.doubles
    today, seed, world = s.day, s.seed, s.world
    for row in map(_account, s.accounts):
        (
            stage, segment, size, pain, tier, objections, failed, expanded, touches, approved, known, rewarded,
            name, number, contact, deadline, paid_until, won_day, price, demo, quality, sat, vest_left, warmth,
        ) = row  # fmt: skip
        fits = 0 <= (segment | size | tier | failed | expanded) < 4 and 0 <= (stage | pain | objections) < 8
        if not fits or not 0 <= touches < 256 or (paid_until or won_day != -1 if stage != WON else deadline):
            raise ValueError(f"account {number} does not fit")
        shape, source = 0, _ZERO
        if demo != 0.0:
            shape = 1
            doubles.append(demo)
        if sat != 0.5:
            shape |= 2
            doubles.append(sat)
        if vest_left != (stage != WON):
            if stage == WON and _at(_VESTING[tier], today - won_day) == vest_left:
                shape |= 32
            else:
                shape |= 4
                doubles.append(vest_left)
        if warmth != 0.0:
            if _at(_FADED, today - (number >> 4)) == warmth:
                shape |= 64
            else:
                shape |= 8
                doubles.append(warmth)
        if price != PRICES[size]:
            shape |= 16
            odd.append(price)
        place = _NAME.get(name, _UNKNOWN)
        if place == _UNKNOWN:
            odd.append(name)
        if quality != 0.0:
            plain = drawn_quality(seed, world, number)
            source = _PLAIN if quality == plain else _BROUGHT if quality == brought(plain) else _OTHER
            if source == _OTHER:
                doubles.append(quality)
        if stage == WON:
            block.signed.append(won_day)
        small += (shape, place)
        shorts += (number, contact, deadline or paid_until)
        longs.append(
            stage | segment << 3 | size << 5 | pain << 7 | tier << 10 | objections << 12 | failed << 15 | expanded << 17
            | touches << 19 | source << 27 | approved << 29 | known << 30 | rewarded << 31
        )  # fmt: skip
    return odd


def _take_accounts(s: CompanyState, cells: _Cells, count: int, odd: list[Any]) -> list[Account]:
    longs, shorts, signed, small, doubles = cells
    others, today, found = iter(odd), s.day, []
    for _ in range(count):
        a = Account.__new__(Account)
        traits, shape, place = next(longs), next(small), next(small)
        a.stage, a.segment, a.size, a.pain = traits & 7, traits >> 3 & 3, traits >> 5 & 3, traits >> 7 & 7
        a.tier, a.objections, a.failed, a.expanded = traits >> 10 & 3, traits >> 12 & 7, traits >> 15 & 3, traits >> 17 & 3
        a.touches, source = traits >> 19 & 255, traits >> 27 & 3
        a.approved, a.known, a.rewarded = traits & 1 << 29 != 0, traits & 1 << 30 != 0, traits & 1 << 31 != 0
        a.id, a.contact, due = next(shorts), next(shorts), next(shorts)
        if a.stage == WON:
            a.deadline, a.paid_until, a.won_day, usual = 0, due, next(signed), 0.0
        else:
            a.deadline, a.paid_until, a.won_day, usual = due, 0, -1, 1.0
        a.price = int(next(others)) if shape & 16 else PRICES[a.size]
        a.name = str(next(others)) if place == _UNKNOWN else _NAMES[place]
        a.demo = next(doubles) if shape & 1 else 0.0
        a.sat = next(doubles) if shape & 2 else 0.5
        a.vest_left = next(doubles) if shape & 4 else _at(_VESTING[a.tier], today - a.won_day) if shape & 32 else usual
        a.warmth = next(doubles) if shape & 8 else _at(_FADED, today - (a.id >> 4)) if shape & 64 else 0.0
        if source == _ZERO:
            a.quality = 0.0
        elif source == _OTHER:
            a.quality = next(doubles)
        else:
            plain = drawn_quality(s.seed, s.world, a.id)
            a.quality = plain if source == _PLAIN else brought(plain)
        found.append(a)
    return found


def _put_pieces(s: CompanyState, block: _Block, paid: set[int]) -> None:
    """Fill the columns, and take from `paid` what a piece says of itself."""
    for kind, left, topic, vapor, number, day, quality in map(_piece, s.pieces):
        if not 0 <= (kind | left | topic) < 8:
            raise ValueError(f"piece {number} does not fit")
        usual = quality in _QUALITIES
        mark = kind | left << 3 | topic << 6 | vapor << 9 | (_QUALITIES.index(quality) << 13 if usual else 1 << 10)
        pair = _ARTEFACT + number * 64
        for user, bit in _USERS:
            if pair + user in paid:
                paid.remove(pair + user)
                mark |= bit
        block.shorts += (mark, number)
        block.small.append(day)
        if not usual:
            block.doubles.append(quality)


def _take_pieces(cells: _Cells, count: int) -> tuple[list[Piece], list[int]]:
    pieces, paid = [], []
    for _ in range(count):
        p = Piece.__new__(Piece)
        mark, p.id, p.day = next(cells.shorts), next(cells.shorts), next(cells.small)
        p.kind, p.left, p.topic, p.vapor = mark & 7, mark >> 3 & 7, mark >> 6 & 7, mark & 1 << 9 != 0
        p.quality = next(cells.doubles) if mark & 1 << 10 else _QUALITIES[mark >> 13 & 3]
        paid += [_ARTEFACT + p.id * 64 + user for user, bit in _USERS if mark & bit]
        pieces.append(p)
    return pieces, paid


def _put_talk(s: CompanyState, block: _Block, texts: dict[str, int]) -> None:
    shorts, small = block.shorts, block.small
    for turn, who, text in s.shared:
        shorts.append(turn)
        small += (_ROLE[who], texts.setdefault(text, len(texts)))
    for owner, box in s.inbox.items():
        small += (_ROLE[owner], len(box))
        for turn, sender, text, to in box:
            shorts.append(turn)
            small += (_ROLE[sender] | _ROLE[to] << 4, texts.setdefault(text, len(texts)))
    for key, times in s.daily.items():
        role, action, target = key.split(" ", 2)
        small += (_DEED[role, action], texts.setdefault(target, len(texts)), times)
    for when, kind in (*s.events, *s.schedule):
        shorts.append(when)
        small.append(texts.setdefault(kind, len(texts)))


def _take_talk(s: CompanyState, cells: _Cells, counts: list[int], texts: list[str]) -> None:
    shorts, small = cells.shorts, cells.small
    shared, inbox, daily, events, schedule = counts
    s.shared = [[next(shorts), _ROLES[next(small)], texts[next(small)]] for _ in range(shared)]
    s.inbox = {}
    for _ in range(inbox):
        box = s.inbox[_ROLES[next(small)]] = []
        for _ in range(next(small)):
            turn, ways, text = next(shorts), next(small), texts[next(small)]
            box.append([turn, _ROLES[ways & 15], text, _ROLES[ways >> 4]])
    s.daily = {}
    for _ in range(daily):
        (role, action), target = _DEEDS[next(small)], texts[next(small)]
        s.daily[f"{role} {action} {target}"] = next(small)
    s.events = [[next(shorts), texts[next(small)]] for _ in range(events)]
    s.schedule = [[next(shorts), texts[next(small)]] for _ in range(schedule)]
