"""Replies of the office fit into its usual limit of tokens."""

from __future__ import annotations

from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.names import COMPANY_NAMES, HELD_OUT_NAMES, NAMES
from onthejob.office import Office


def test_the_longest_offer_fits(smollm2_path) -> None:
    """An offer to a large company names its tier and asks the CEO; the end of the reply is a token, too."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))
    offers = [
        Action("SEND_PROPOSAL", name, {"tier": "six_month"}, message_to="ceo", message=f"approve {name}")
        for name in (*NAMES, *HELD_OUT_NAMES, *COMPANY_NAMES)
    ]
    longest = max(len(tokenizer.encode(render(offer)).ids) + 1 for offer in offers)
    assert 32 < longest <= Office.max_new_tokens
