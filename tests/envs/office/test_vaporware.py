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


def promises(registry: Registry, text: str) -> set[str]:
    """The features that a text names without denying them."""
    return {mention.feature for mention in registry.scan(text) if not mention.denied}


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


BOLT = {
    "Webhooks": ["event callbacks", "push notifications to your server"],
    "Two-Factor Login": ["2FA", "two-step verification", "second factor"],
    "Bulk Import": ["mass import", "import many records at once", "bulk upload"],
    "Role Permissions": ["role-based access", "RBAC", "fine-grained permissions"],
    "Invoice Automation": ["automatic invoicing", "auto-invoices"],
    "Fraud Alerts": ["fraud detection", "fraud warnings"],
    "HIPAA Mode": ["HIPAA compliance", "health data protection"],
    "Inventory Sync": ["stock sync", "real-time stock"],
}
BOLT_PROMISES = [
    "Webhooks for everyone",
    "5 reasons to love web-hooks",
    "How Acme saved hours with webhook events",
    "WEBHOOKS",
    "weBhοοks made easy",
    "Get two factor login today",
    "2FA included",
    "2-FA at last",
    "Two‑Step Verification keeps you safe",
    "two factor  logins",
    "Secure it with a second factor",
    "RBAC explained",
    "R B A C for teams",
    "R.B.A.C. for teams",
    "Rоle Рermissions out now",
    "Role-permission presets",
    "fine grained permission control",
    "invoice automation is magic",
    "autoinvoices save time",
    "Auto invoices, auto joy",
    "We offer automatic invoicing",
    "Fraud-alerts in real time",
    "FraudAlerts",
    "Frаud detection by AI",
    "fraud warning emails",
    "HlPAA mode",
    "HIPAA-compliance made simple",
    "hipaa_mode",
    "Stock-sync across shops",
    "Inventory syncs every minute",
    "real time stock levels",
    "Your inventory, in sync: Inventory Sync",
    "Coming in May: bulk import",
    "Bulk-Upload your clients",
    "MASS IMPORT!!!",
    "Why nobody should live without 2FA",
    "Don't settle for less than webhooks",
    "We don't just have webhooks, we have great webhooks",
    "No team should work without webhooks",
    "Not a fan of passwords? Use our 2FA.",
    "There's no better fraud detection than ours",
    "Never lose stock again with inventory sync",
    "We couldn't be prouder of our RBAC",
    "No code needed: webhooks",
    "It is no secret that we ship webhooks",
    "Nothing beats bulk import",
    "Can't live without role permissions? Nor can we.",
    "Webhooks, not polling",
    "You asked, we built it: HIPAA mode",
    "Not sure about RBAC? Read on.",
    "bulk import for all",
    "𝗪𝗲𝗯𝗵𝗼𝗼𝗸𝘀 are fun",
    "Fraud alerts? Yes!",
    "Soon: stock sync",
    "we promise 2FA by Friday",
    "We don't charge for webhooks",
    "there is no limit to bulk imports",
    "Who said we do not have webhooks?",
    "customer: yes, we have role based access",
    "Case study: how Bolt uses Fraud Alerts",
    "Bulk import is not a dream anymore",
]
BOLT_NO_PROMISES = [
    "We have not built webhooks",
    "Webhooks are not part of the product",
    "I'm sorry, but we don't have webhooks yet",
    "At the moment we do not offer 2FA",
    "we haven't got RBAC",
    "bulk import isn't something we have",
    "Bulk import is not there yet",
    "Two-factor login has not been built",
    "Acme wants HIPAA mode; we do not have it",
    "there are no webhooks at this point",
    "No HIPAA compliance at this time",
    "no fraud alerts for now",
    "Unfortunately, inventory sync is not available",
    "Inventory sync won't be available this year",
    "We can't promise role permissions",
    "Our team has not started on webhooks",
    "Please note: RBAC is not supported",
    "Webhooks: not available",
    "bulk import does not work yet",
    "We are not offering invoice automation",
    "stock sync never made it",
    "The release does not contain fraud alerts",
    "Works today: dashboards. Not available: webhooks",
    "You cannot use webhooks yet",
    "We do not have webhooks, 2FA or RBAC",
    "we lack role permissions",
    "without fraud alerts for now",
    "Invoice automation hasn't shipped",
    "It has no bulk import",
    "Fraud alerts are out of scope",
    "You won't find webhooks in our product yet",
    "We would rather not promise 2FA",
    "We don't have automatic invoicing at the moment, sorry",
    "no, we do not have RBAC",
    "Do not expect HIPAA mode this year",
    "there isn't any bulk import",
    "we haven't released inventory sync",
    "Webhooks do not exist in our product",
    "Hooks and webs",
    "The factor two matters: log in",
    "A role for everyone, permissions on request",
    "Import taxes explained in bulk",
    "Invoice tips",
    "Stay alert: fraud rises",
    "Sync your calendar with inventory of ideas",
    "The stock market today",
    "Mode of the hippo",
    "Bulk orders and imports",
    "How to write an invoice",
    "A second look at the factor market",
    "Upload your photo",
    "Team sync on Monday",
    "Permission slips",
    "Real talk about time and stock",
    "Alerts off",
    "Our server pushes updates",
    "Two-step plan for growth",
    "We play many roles",
]

CORI = {
    "Voice Assistant": ["talk to your data", "voice control"],
    "Custom Reports": ["report builder", "tailored reports"],
    "Calendar Sync": ["Google Calendar integration", "sync with Outlook"],
    "E-Signature": ["digital signing", "sign documents online"],
    "Multi-Currency": ["many currencies", "FX support"],
    "Live Chat": ["chat widget", "in-app chat"],
    "GDPR Toolkit": ["GDPR"],
    "Workflow Builder": ["automation designer", "no-code workflows"],
}
CORI_PROMISES = [
    "Just say it: the voice assistant listens",
    "Talk to your data!",
    "Voice-Control 2.0",
    "VoiceAssistant for busy people",
    "Custom  Report templates",
    "reportbuilder tips",
    "Tailored report, happy boss",
    "calendar syncs in both directions",
    "Sync with your Outlook",
    "е-Ѕignature in one click",
    "eSignature",
    "e signatures are legal",
    "Digital-signing for all",
    "multicurrency invoices",
    "Multi currency wallets",
    "FX-support",
    "in app chat that delights",
    "LiveChat",
    "L1ve Chat",
    "G.D.P.R. made easy",
    "G D P R ready",
    "GDРR ready",
    "work flow builder",
    "No code workflows for ops",
    "We plan to ship the workflow builder in June",
    "Expect live chat soon",
    "Our next version brings custom reports",
    "Chat widgets are not hard with us",
    "We don't do boring: voice control is fun",
    "It's never too late for GDPR",
    "There is nothing like our custom reports",
    "Live chat with no waiting",
    "No queue, live chat instead of mail",
    "Without doubt the best report builder",
    "You won't believe our voice assistant",
    "Customers can't get enough of live chat",
    "Don't miss the workflow builder",
    "Not one, but two: live chat and voice control",
    "Multi-currency isn't a luxury",
    "Haven't tried live chat? Now is the time",
    "Acme did not have live chat. Now it does, thanks to us.",
    "Only we have e-signature",
    "customer: sure, multi-currency is in there",
    "Never again copy dates by hand: calendar sync",
    "We said no to chaos and yes to the workflow builder",
]
CORI_NO_PROMISES = [
    "Live chat isn't in the product yet",
    "we still do not have a voice assistant",
    "Our app cannot do multi-currency",
    "Custom reports? We do not offer them.",
    "Calendar sync: unavailable",
    "E-signature is something we do not have",
    "dev says the workflow builder is not finished",
    "GDPR toolkit has not been started",
    "Sorry, no live chat yet",
    "No voice control so far",
    "There won't be live chat this year",
    "There will be no live chat",
    "We haven't shipped custom reports or calendar sync",
    "Voice assistant was dropped",
    "To be clear, e-signature is not included",
    "The workflow builder doesn't exist yet",
    "We are not planning a voice assistant",
    "it does not support multi-currency",
    "Live chat is not something we offer",
    "Please do not promise live chat",
    "honestly we don't have that: calendar sync is not built",
    "We do not yet support sync with Outlook",
    "live chat and custom reports are not ready yet",
    "Multi-currency: not supported",
    "we ship without custom reports today",
    "no e-signature, no digital signing, sorry",
    "All voices matter to our assistant team",
    "A live show and a chat",
    "Customs and reports of the border",
    "Your calendar for spring",
    "Documents need a sign",
    "One currency to rule them",
    "Flow of work",
    "We build things",
    "Chatting with Sam about life",
    "Our signature dish",
    "Sync up on Friday",
    "Currency prices fall",
    "Custom made, reported by the press",
    "Talk to your doctor",
    "The assistant found her voice",
    "Many thanks",
    "In the app store you can chat",
    "An automation story by a designer",
]


@pytest.mark.parametrize("text", BOLT_PROMISES)
def test_promises_of_a_second_company(text):
    assert Registry(BOLT).violations([text], shipped=())


@pytest.mark.parametrize("text", BOLT_NO_PROMISES)
def test_no_promises_of_a_second_company(text):
    assert not Registry(BOLT).violations([text], shipped=())


@pytest.mark.parametrize("text", CORI_PROMISES)
def test_promises_of_a_third_company(text):
    assert Registry(CORI).violations([text], shipped=())


@pytest.mark.parametrize("text", CORI_NO_PROMISES)
def test_no_promises_of_a_third_company(text):
    assert not Registry(CORI).violations([text], shipped=())


def test_there_are_enough_of_both():
    assert len(PROMISES) >= 40
    assert len(NO_PROMISES) >= 40


@pytest.mark.parametrize(("text", "features"), PROMISES)
def test_shipping_makes_every_promise_true(registry, text, features):
    assert registry.violations([text], shipped=features) == frozenset()
    assert registry.violations([text], shipped=set(FEATURES) - features) == features


def test_mentions_contain_what_is_denied(registry):
    assert registry.mentions("We do not have SSO yet, but our API is ready") == {"SSO", "API"}
    assert promises(registry, "We do not have SSO yet, but our API is ready") == {"API"}


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
    assert feature in promises(registry, unicodedata.normalize(form, before + written + after))


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
