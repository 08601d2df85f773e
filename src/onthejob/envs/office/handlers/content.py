"""Content: pieces take Content turns; a draft is published at half quality and doubled by a revision."""

from __future__ import annotations

from types import MappingProxyType

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CATALOGUE, KINDS, PAIN_INDEX, PAINS, CompanyState, Piece, Stage
from onthejob.envs.office.handlers import GROWTH, PRODUCT, RETENTION, Handler, HandlerContext

WORK = (3, 1, 4, 2, 2)
"""Content turns per kind: blog, social, case study, email, docs."""
VERBS = ("WRITE_BLOG", "WRITE_SOCIAL_POST", "WRITE_CASE_STUDY", "WRITE_EMAIL_SEQUENCE", "WRITE_DOCS")
"""Action per kind."""
VERB_OF = MappingProxyType(dict(zip(KINDS, VERBS, strict=True)))
"""Kind of a piece -> the action that begins or continues it."""
KEPT = 24
"""Pieces that still count; older ones are forgotten."""


def shipped_for(s: CompanyState, topic: int) -> int:
    """Catalogue index of a shipped feature for this pain, -1 when none is."""
    return next((i for i, spec in enumerate(CATALOGUE) if spec.pain == topic and s.feature_shipped[i] >= 0), -1)


def _write(s: CompanyState, a: Action, now: HandlerContext, kind: int) -> bool:
    """Continue the draft of this kind and topic, or begin it; publish it when the work is done."""
    if "content" in s.blockers:
        return False
    topic = PAIN_INDEX[a.target]
    piece = next((p for p in s.pieces if p.kind == kind and p.topic == topic and p.left > 0), None)
    if piece is None:
        piece = Piece(day=s.day, id=s.turn, kind=kind, left=WORK[kind], quality=0.0, topic=topic, vapor=False)
        s.pieces.append(piece)
        del s.pieces[:-KEPT]
    piece.left = max(0, piece.left - (2 if "content" in s.contractor_days else 1))
    if piece.left == 0:
        _publish(s, piece, now)
    return True


def _publish(s: CompanyState, piece: Piece, now: HandlerContext) -> None:
    piece.quality, piece.day = 0.5 * min(1.3, now.e), s.day
    demand = sum(wants[piece.topic] / sum(wants) for wants in s.demand) / len(s.demand)
    visits = (60.0, 0.0, 24.0, 0.0, 12.0)[piece.kind] * (0.5 + 3.0 * demand) * min(1.3, now.e)
    s.content_stock += visits
    if visits > 0:
        now.log.effect("piece published", piece)
    feature = shipped_for(s, piece.topic)
    if feature >= 0:
        now.log.collaboration(
            "dev", "content", 4000 + feature * 8 + piece.kind, "feature written about", s.catalogue[feature].name
        )
    if piece.kind == 3:  # an email sequence wakes leads that wait for an answer
        for lead in s.accounts:
            if lead.stage < Stage.WON and lead.pain == piece.topic and lead.known:
                lead.contact = s.turn
                lead.warmth = min(1.0, lead.warmth + 0.35 * now.e)
    if piece.kind == 4:
        for customer in s.customers():
            customer.sat = min(1.0, customer.sat + (0.06 if customer.pain == piece.topic else 0.03) * now.e)


def write_blog(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A blog post (3 turns): slow, lasting traffic and a touchpoint."""
    return _write(s, a, now, 0)


def write_social_post(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A post (1 turn): a few visits tomorrow, the fewer the more were posted this week."""
    if "content" in s.blockers:
        return False
    recent = sum(1 for p in s.pieces if p.kind == 1 and s.day - p.day < 7)
    s.pieces.append(Piece(day=s.day, id=s.turn, kind=1, left=0, quality=0.0, topic=PAIN_INDEX[a.target], vapor=False))
    del s.pieces[:-KEPT]
    total = sum(s.segment_base)
    visits = 90.0 * now.e / (1.0 + recent)
    for i, base in enumerate(s.segment_base):
        s.adstock[i] += visits * base / total
    return recent < 3


def write_case_study(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """A case study (4 turns): the strongest touchpoint; needs a customer with that pain."""
    return _write(s, a, now, 2)


def write_email_sequence(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """An email sequence (2 turns): warms qualified leads with that pain."""
    return _write(s, a, now, 3)


def write_docs(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Product docs (2 turns): satisfy customers, a small touchpoint."""
    return _write(s, a, now, 4)


def worked_on(s: CompanyState, action: Action) -> Piece | None:
    """The piece that a Content action just worked on."""
    if action.action_type == "REVISE_CONTENT":
        return next((p for p in s.pieces if f"p{p.id}" == action.target), None)
    kind = VERBS.index(action.action_type)
    same = [p for p in s.pieces if p.kind == kind and PAINS[p.topic] == action.target]
    return same[-1] if same else None


def to_revise(s: CompanyState) -> list[Piece]:
    """Published pieces that are still drafts in quality, newest first, at most three."""
    return [p for p in reversed(s.pieces) if p.left == 0 and p.kind != 1 and p.quality < 0.9][:3]


def revise_content(s: CompanyState, a: Action, now: HandlerContext) -> bool:
    """Revise a published draft: its quality doubles."""
    if "content" in s.blockers:
        return False
    piece = next(p for p in s.pieces if f"p{p.id}" == a.target and p.left == 0)
    piece.quality = min(1.3, max(piece.quality * 2.0, 1.0))
    return True


def served(s: CompanyState) -> list[str]:
    """Pains that a customer has."""
    pains = {c.pain for c in s.customers()}
    return [pain for i, pain in enumerate(PAINS) if i in pains]


HANDLERS = {
    "WRITE_BLOG": Handler(lambda s: list(PAINS), write_blog, GROWTH),
    "WRITE_SOCIAL_POST": Handler(lambda s: list(PAINS), write_social_post, GROWTH),
    "WRITE_CASE_STUDY": Handler(served, write_case_study, GROWTH),
    "WRITE_EMAIL_SEQUENCE": Handler(lambda s: list(PAINS), write_email_sequence, GROWTH),
    "WRITE_DOCS": Handler(lambda s: list(PAINS), write_docs, RETENTION),
    "REVISE_CONTENT": Handler(lambda s: [f"p{p.id}" for p in to_revise(s)], revise_content, PRODUCT),
}
