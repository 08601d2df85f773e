"""Promises of features that do not exist are found however they are written; denials and other words are not promises."""

import pickle
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.office.vaporware import Registry
from onthejob.errors import ConfigError

FEATURES = {
    "SSO": ("single sign-on", "single sign on", "SAML login", "one login for all tools"),
    "Audit Log": ("audit trail", "activity log", "record of every change"),
    "Analytics Dashboard": ("analytics", "reporting dashboard", "usage charts"),
    "API": ("REST interface", "programmatic access", "developer interface"),
    "Mobile App": ("iPhone app", "Android app", "phone client"),
    "CSV Export": ("export to CSV", "CSV download", "spreadsheet export"),
    "Slack Integration": ("Slack connector", "Slack bot", "works inside Slack"),
    "Offline Mode": ("offline support", "work without internet"),
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(FEATURES)


PROMISES = [
    # plainly
    ("Try our SSO today", {"SSO"}),
    ("sso is here", {"SSO"}),
    ("Why SSO matters", {"SSO"}),
    ("Announcing the Audit Log", {"Audit Log"}),
    ("Our analytics dashboard shows it all.", {"Analytics Dashboard"}),
    ("Build on our API and get the mobile app for free", {"API", "Mobile App"}),
    # look-alikes and odd letters
    ("Try our S\u0405O today", {"SSO"}),  # Cyrillic dze
    ("ＳＳＯ for everyone", {"SSO"}),  # full width
    ("SS0 for everyone", {"SSO"}),  # zero
    ("5SO for everyone", {"SSO"}),  # five
    ("Meet 𝐒𝐒𝐎", {"SSO"}),  # mathematical bold
    ("S\u200bS\u200bO inside", {"SSO"}),  # zero-width spaces
    ("S\u00adSO inside", {"SSO"}),  # soft hyphen
    ("ŚṠÖ inside", {"SSO"}),
    ("ΑΡΙ for developers", {"API"}),  # Greek capitals
    ("АРІ for developers", {"API"}),  # Cyrillic capitals
    ("ap1 for developers", {"API"}),
    ("AUDlT LOG for your lawyers", {"Audit Log"}),  # small L for capital I
    ("Slаck integration", {"Slack Integration"}),  # Cyrillic a
    ("SSO™ by us", {"SSO"}),
    # hyphens, spaces, spelling out, plurals
    ("single-sign-on for teams", {"SSO"}),
    ("SingleSignOn for teams", {"SSO"}),
    ("single sign\u2011on for teams", {"SSO"}),  # non-breaking hyphen
    ("S-S-O for teams", {"SSO"}),
    ("S.S.O. for teams", {"SSO"}),
    ("s s o for teams", {"SSO"}),
    ("audit_log for teams", {"Audit Log"}),
    ("auditlog for teams", {"Audit Log"}),
    ("Audit   logs for teams", {"Audit Log"}),
    ("analytics dashboards", {"Analytics Dashboard"}),
    ("AnalyticsDashboards", {"Analytics Dashboard"}),
    ("all our APIs", {"API"}),
    ("the API's speed", {"API"}),
    ("mobile-apps for every phone", {"Mobile App"}),
    ("#MobileApp launch", {"Mobile App"}),
    ("export your data? Export to a CSV in seconds", {"CSV Export"}),
    ("CSV-downloads are live", {"CSV Export"}),
    # paraphrase by alias
    ("One login for all your tools!", {"SSO"}),
    ("We keep a record of every change", {"Audit Log"}),
    ("full programmatic access", {"API"}),
    ("Now with SAML login", {"SSO"}),
    ("On the train? Work without internet.", {"Offline Mode"}),
    ("Beautiful usage charts for managers", {"Analytics Dashboard"}),
    # the future is a promise too
    ("SSO is coming soon", {"SSO"}),
    ("We will ship the API next week", {"API"}),
    ("On our roadmap: offline mode", {"Offline Mode"}),
    ("SSO is not available yet, but it ships next month: coming soon!", {"SSO"}),
    ("We do not have SSO yet but we are working on it", {"SSO"}),
    # words of denial that deny something else
    ("Not only SSO but also an API", {"SSO", "API"}),
    ("It's not just analytics, it's magic", {"Analytics Dashboard"}),
    ("No more passwords: SSO is here", {"SSO"}),
    ("No passwords, just SSO", {"SSO"}),
    ("You will never need passwords with SSO", {"SSO"}),
    ("Don't wait, try our API", {"API"}),
    ("No other vendor has SSO like ours", {"SSO"}),
    ("No SSO tax, ever", {"SSO"}),
    ("SSO without the hassle", {"SSO"}),
    ("SSO has never been easier", {"SSO"}),
    ("Our competitors do not have SSO", {"SSO"}),
    ("If you do not have SSO yet, get it from us", {"SSO"}),
    ("Isn't SSO great?", {"SSO"}),
    ("Teams without SSO lose hours", {"SSO"}),
    ("We never ship without an audit log", {"Audit Log"}),
    ("We do not sell SSO separately, it is included", {"SSO"}),
    ("SSO is not available only to large firms", {"SSO"}),
    ("We do not have SCIM yet. SSO works today.", {"SSO"}),
    ("We lack nothing; SSO, API, offline mode", {"SSO", "API", "Offline Mode"}),
    ("Can't wait for the mobile app? Neither can we.", {"Mobile App"}),
    ("We had to build SSO first, and now it is live", {"SSO"}),
    ("Why wait? Slack bot inside!", {"Slack Integration"}),
    ("We do not have SSO yet, but our API is ready", {"API"}),
]

NO_PROMISES = [
    # denials
    "We do not have SSO yet",
    "We don't have SSO yet.",
    "We do not currently support single sign-on.",
    "We don’t offer SSO",  # typographic apostrophe
    "SSO is not available",
    "SSO is not available yet.",
    "SSO isn't ready",
    "Single sign-on is not supported.",
    "SSO has not shipped",
    "The mobile app has not been released.",
    "There is no API",
    "There is currently no mobile app.",
    "No SSO yet",
    "No API, sorry",
    "we have no audit log",
    "The product ships with no analytics.",
    "Honest review: works well without SSO.",
    "It lacks an audit log",
    "We have yet to build the API",
    "The API is still missing",
    "SSO: not yet",
    "SSO (not yet available)",
    "SSO - not ready",
    "SSO? Not yet.",
    "We never promised an API",
    "We cannot offer offline mode",
    "We won't ship SSO",
    "Our product does not include analytics dashboards",
    "This is not an audit log",
    "We do not have SSO, audit logs or an API.",
    "No SSO, no API and no mobile app",
    "SSO and the API are not available yet",
    "Neither SSO nor an API",
    "CSV export was cancelled",
    "Offline mode does not exist",
    "SSO is unavailable",
    "We do not have any plans for SSO",
    "SSO is not on our roadmap",
    "Please use email login instead of SSO",
    "We dropped the mobile app",
    "I must be honest: we do not have single-sign-on yet, so please plan without it",
    # other words
    "",
    "It's so good",
    "Is so much speed possible?",
    "A rapid capital gain",
    "Our associate will call you",
    "Mobile first, and an app of your choice",
    "An audit by a log company",
    "Export tips for small firms",
    "How to choose a CRM",
    "A dashboard of a car",
    "Sign on the dotted line, single page",
    "Slack off on Fridays: integration of work and life",
    "Going offline: a mode of life",
    "The espresso machine is here",
    "CSV files explained",
    "Sam, please so order lunch",
    "Download our price list",
    "Happy customers tell all",
    "Every change is a chance",
    "We work with internet companies",
    "Charts of the week",
]


@pytest.mark.parametrize(("text", "features"), PROMISES)
def test_promises_are_found(registry, text, features):
    assert registry.violations([text], shipped=()) == features


@pytest.mark.parametrize("text", NO_PROMISES)
def test_denials_and_other_words_are_no_promises(registry, text):
    assert registry.violations([text], shipped=()) == frozenset()


def test_there_are_enough_of_both():
    assert len(PROMISES) >= 40
    assert len(NO_PROMISES) >= 40


@pytest.mark.parametrize(("text", "features"), PROMISES)
def test_shipping_makes_every_promise_true(registry, text, features):
    assert registry.violations([text], shipped=features) == frozenset()
    assert registry.violations([text], shipped=set(FEATURES) - features) == features


def test_mentions_contain_what_is_denied(registry):
    assert registry.mentions("We do not have SSO yet, but our API is ready") == {"SSO", "API"}
    assert registry.promises("We do not have SSO yet, but our API is ready") == {"API"}


@pytest.mark.parametrize(
    "piece",
    [
        ["SSO is coming soon"],
        ["Our roadmap: SSO"],
        ["What comes next", "We are building SSO."],
        ["Roadmap", "SSO"],
        ["SSO is not available yet but it is on its way"],
        ["SSO will be available next month"],
    ],
)
def test_a_roadmap_is_exempt_only_when_dev_committed(registry, piece):
    assert registry.violations(piece, shipped=()) == {"SSO"}
    assert registry.violations(piece, shipped=(), committed={"API"}) == {"SSO"}
    assert registry.violations(piece, shipped=(), committed={"SSO"}) == frozenset()


@pytest.mark.parametrize(
    "piece",
    [
        ["Try our SSO"],
        ["SSO is live today. See our roadmap for more."],
        ["Roadmap", "SSO works now"],
        ["SSO is already available, and more is coming soon"],
        ["SSO is not on the roadmap, it is here"],
    ],
)
def test_commitment_does_not_excuse_a_claim_about_today(registry, piece):
    assert registry.violations(piece, shipped=(), committed={"SSO"}) == {"SSO"}


def test_any_part_of_a_piece_counts(registry):
    assert registry.violations(["Our news", "", "acme", "all: SSO is out"], shipped=()) == {"SSO"}


def test_the_longest_name_wins():
    registry = Registry({"API": (), "Analytics API": (), "Analytics": ()})
    assert registry.mentions("the analytics API") == {"Analytics API"}
    assert registry.mentions("analytics and API") == {"Analytics", "API"}


@pytest.mark.parametrize(
    ("features", "text"),
    [({"SSO": ["--"]}, "no letter"), ({"SSO": ["login"], "SAML": ["log-in"]}, "both 'SSO' and 'SAML'"), ({"": []}, "no letter")],
)
def test_impossible_registries_are_refused(features, text):
    with pytest.raises(ConfigError, match=text):
        Registry(features)


NAMES = [(feature, alias) for feature, aliases in FEATURES.items() for alias in (feature, *aliases)]


@given(
    name=st.sampled_from(NAMES),
    case=st.sampled_from([str.upper, str.lower, str.title, str.swapcase]),
    space=st.sampled_from([" ", "-", "_", "  ", "\u00a0", "\u2010", ""]),
    form=st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]),
    before=st.sampled_from(["", "Try ", "Now: ", "(", "“"]),
    after=st.sampled_from(["", "!", ")", "s", "”", ", at last"]),
    data=st.data(),
)
def test_spelling_does_not_hide_a_name(registry, name, case, space, form, before, after, data):
    feature, alias = name
    after = "" if alias.endswith("s") else after
    twins = {"a": "а", "e": "е", "o": "о", "p": "р", "c": "с", "A": "Α", "S": "Ѕ", "O": "О", "I": "І"}
    written = "".join(twins[c] if c in twins and data.draw(st.booleans()) else c for c in case(alias).replace(" ", space))
    assert feature in registry.promises(unicodedata.normalize(form, before + written + after))


@given(st.text(max_size=200))
def test_any_text_can_be_scanned(registry, text):
    assert registry.violations([text], shipped=()) <= registry.mentions(text) <= set(FEATURES)


@given(st.lists(st.sampled_from([text for text in NO_PROMISES if text]), max_size=4))
def test_denials_stay_denials_next_to_each_other(registry, texts):
    assert registry.violations(["\n".join(texts)], shipped=()) == frozenset()


def test_hostile_texts_cost_little(registry):
    for text in (
        "s " * 4000,
        "no " * 2600,
        "not have " * 900 + "SSO",
        "sso " * 2000,
        "SSO is not " * 700,
        "s\u0301" * 4000,
        "a-" * 4000,
    ):
        start = time.process_time()
        registry.scan(text)
        assert time.process_time() - start < 1.0


def test_scans_are_kept_and_bounded():
    registry = Registry({"SSO": ()})
    first = registry.scan("SSO now")
    assert registry.scan("SSO now") is first
    for i in range(5000):
        registry.scan(f"text {i}")
    assert registry.scan("SSO now") == first
    assert registry.scan("SSO now") is not first


def test_a_registry_can_be_copied(registry):
    assert pickle.loads(pickle.dumps(registry)).mentions("S-S-O") == {"SSO"}
