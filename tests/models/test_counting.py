"""Tokens are counted by the model's tokenizer, or estimated from above where there is none."""

from __future__ import annotations

import pytest

from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply, players
from onthejob.models.chat import ChatEncoder
from onthejob.models.counting import MARKS, chat_window, estimated_tokens, hosted_window
from onthejob.testing import tiny_tokenizer
from onthejob.types import Message, Split, Task

WRITTEN = {
    "code": 'def pay(cents: int) -> str:\n    return f"${cents / 100:,.2f}"  # 1_000 -> $10.00\n\tif x != {"a": [1, 2]}: pass',
    "numbers": "Cash 123456.789k MRR 12.3k; 2026-11-30T06:28:30Z; 0x1F4A9 1e-09 (-7) 99% +49 30 1234567",
    "emoji": "Well done \U0001f680\U0001f389 team \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f!!",
    "cjk": "顧客は同期が必要です。我们需要同步功能，请尽快发布。안녕하세요 고객님",
    "accents": "Größenänderung naïveté façade São Paulo Łódź Ærø İstanbul Hà Nội",
    "cyrillic": "Клиенту нужна синхронизация до пятницы",
    "json": '{"action_type":"SEND_PROPOSAL","target":"Initech","message":"ceo: approve Initech","parameters":{"tier":"annual"}}',
    "identifiers": "getHTTPResponseCode XMLHttpRequest snake_case_name SCREAMING_CASE kebab-case-name v2.0.1-rc.3",
    "white space": "a  b\n\n\nc\t\td   \n e \r\n",
    "control": "<|im_start|>system\n<|im_end|><|endoftext|>",
    "punctuation": "!?...---***(((]]]}}}\"\"'''``~~@@##$$%%^^&&",
    "empty": "",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_people_write_is_never_estimated_below_its_tokens(name: str, smollm2_tokenizer):
    chat = ChatEncoder(smollm2_tokenizer)
    assert estimated_tokens(WRITTEN[name]) >= chat.count(WRITTEN[name])


@pytest.mark.parametrize("profile", ["compact", "full"])
@pytest.mark.parametrize("scenario", ["baseline", "viral", "series_a"])
def test_prompts_of_the_office_are_never_estimated_below_their_tokens(profile: str, scenario: str, smollm2_tokenizer):
    """Nor so far above that a context would be wasted."""
    chat, expert = ChatEncoder(smollm2_tokenizer), as_reply(players()["expert-explained"])
    window = hosted_window(8_192, reply=256)
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    task = Task(id="t", env="office", split=Split.DEV, seed=1_000, payload={"scenario": scenario, "days": 12})
    observation, shares = env.reset(task), []
    texts = [*WRITTEN.values()]
    while observation is not None:
        system, user = observation.messages
        for text in (system.content, user.content, *user.content.split("\n")):
            assert window.count(text) >= chat.count(text), text
        assert window.measure(observation.messages) >= len(chat.encode(observation.messages))
        shares.append(window.count(user.content) / chat.count(user.content))
        reply = expert(observation, env.company.turn)
        if env.company.turn % 3 == 0:
            text = texts[env.company.turn % len(texts)].replace('"', "'").replace("\\", "/")
            reply = f'{reply.rpartition("}")[0]}, "message": "dev: {" ".join(text.split())}"}}'
        observation = env.step(reply).observation
    assert len(shares) == 12 * 12
    assert 1.0 <= max(shares) < 2.5


def test_the_rule_worked_by_hand():
    # A capital is one token, as are one or two small letters, with the blank before; else one a character, or a byte.
    assert estimated_tokens("Sell") == 1 + 2
    assert estimated_tokens(" sales") == 3
    assert estimated_tokens("a b") == 2
    assert estimated_tokens("MRR 12.3k") == 3 + 1 + 4 + 1
    assert estimated_tokens("\N{SLIGHTLY SMILING FACE}") == 4
    assert estimated_tokens("A_B\n") == 1 + 1 + 1 + 1
    assert hosted_window(100, reply=1).measure([Message("user", "Sell")]) == 3 + 2 * MARKS


def test_the_window_of_an_encoder():
    chat = ChatEncoder(tiny_tokenizer(), window=512)
    messages = [Message("system", "You sell"), Message("user", "Sell it")]
    window = chat_window(chat, reply=8)
    assert window is not None
    assert (window.tokens, window.reply, window.estimated) == (512, 8, False)
    assert window.measure(messages) == len(chat.encode(messages))
    assert window.count("Sell it") == chat.count("Sell it")
    assert chat_window(ChatEncoder(tiny_tokenizer()), reply=8) is None
