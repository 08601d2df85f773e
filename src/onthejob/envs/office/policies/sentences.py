"""Wordings of the explained expert: why a rule fired, and what a colleague may hear of it. Slots are filled by `reasons`.

A message is short and never begins with a word to which scripted colleagues react.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REASONS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({
    ("ceo", "approve"): (
        "Sales asked for my approval of {target}, a large deal whose odds are poor without special terms.",
        "{target} is a large deal and waits for me, and an approval costs this turn only.",
        "Large deals hardly sign without the CEO, so the approval of {target} goes before everything else.",
    ),
    ("ceo", "retention"): (
        "Satisfaction is {satisfaction} and stability {stability}, so keeping what we have comes before growing.",
        "With {served} at satisfaction {satisfaction} and the product at stability {stability}, the focus has to be retention.",
    ),
    ("ceo", "product"): (
        "By day {day} we have shipped {features}, and Sales has little to show before there are two.",
        "We have {features} on day {day}, so the team should build before it sells.",
    ),
    ("ceo", "growth"): (
        "The product stands at stability {stability} with {features} shipped, so the next days are for winning customers.",
        "Nothing urgent is broken, stability is {stability}, and {open} can become revenue, so the focus is growth.",
    ),
    ("ceo", "fund dev"): (
        "With {visits} visits a day we have to pay for hosting, and Dev's envelope holds only {held}.",
        "Traffic of {visits} has to be hosted from Dev's envelope, in which {held} are left.",
    ),
    ("ceo", "fund hr"): (
        "HR has {held}, and a contractor who speeds up the team costs 1,000.",
        "There are {held} in HR's envelope on day {day}, too little to hire help while it still pays.",
    ),
    ("ceo", "fund marketing"): (
        "Marketing has {held} left, and it takes 1,000 to launch two campaigns.",
        "Leads come from campaigns of 500 dollars each, and Marketing is down to {held}.",
    ),
    ("ceo", "direct dev"): (
        "No directive is live, and with {open}, focus {focus} and stability {stability} Dev's work matters most now.",
        "Dev gets the directive: stability is {stability} and Sales has {open}, so the product is what holds us back.",
    ),
    ("ceo", "direct sales"): (
        "No directive is live, and Sales has {open} while the product is sound at stability {stability}.",
        "Sales gets the directive, because we have {open} to win and stability is {stability}.",
    ),
    ("ceo", "review"): (
        "Money and directives are given out, so the turn goes into alignment, which is {aligned} of 100.",
        "Nothing needs a decision now, and a strategy review lifts alignment from {aligned}.",
    ),
    ("dev", "review"): (
        "{target} is finished and unreviewed, and at stability {stability} we cannot afford the bugs it would bring.",
        "A review of {target} before it ships costs one turn and saves bugs, with stability only {stability}.",
    ),
    ("dev", "ship"): (
        "{target} is finished and cures {pain}, and nobody gains from it before it ships.",
        "Customers who suffer from {pain} wait for {target}, which is ready to go out.",
    ),
    ("dev", "critical"): (
        "We have {criticals} with stability at {stability}, and nothing drives customers away faster.",
        "Stability is {stability} and we know of {criticals}, so fixing goes before building.",
    ),
    ("dev", "majors"): (
        "There are {majors}, and two of them go in one turn, which is the quickest way to stability.",
        "With {majors} open and stability at {stability}, demos get worse every day.",
    ),
    ("dev", "debt"): (
        "Technical debt is {debt} of 100 and brings bugs and blockers every night until it is paid back.",
        "At a debt of {debt} each new feature costs more than it should, so I refactor first.",
    ),
    ("dev", "begun"): (
        "{target} is begun and needs {turns} more, and leaving it would waste what is done.",
        "I stay with {target} until it can ship: {turns} to go for those who suffer from {pain}.",
    ),
    ("dev", "asked"): (
        "A colleague asked for {pain}, and {target} cures it in {turns}.",
        "There is demand for {pain}, so {target}, which takes {turns}, comes before other features.",
    ),
    ("dev", "smallest"): (
        "Nobody asked for anything I could finish soon, and {target} is the smallest feature with {turns}.",
        "{target} needs {turns} and cures {pain}, so it is the cheapest way to something we can show.",
    ),
    ("dev", "docs"): (
        "With {remain} left no feature would be finished in time, and docs at {docs} of 100 help customers at once.",
        "There is nothing to build that would be done in time, so I bring the docs up from {docs}.",
    ),
    ("dev", "late bugs"): (
        "There is nothing left to build in time, so I fix what is broken: {majors}.",
        "With {remain} left the best I can do for customers is to remove bugs, of which we have {majors}.",
    ),
    ("dev", "late debt"): (
        "There is nothing left to build and no major bug, so I pay back debt, which is {debt} of 100.",
        "With {remain} left and no major bug open, less debt means fewer bugs for our customers.",
    ),
    ("marketing", "new"): (
        "{feature} has just shipped and cures {target}, and a campaign right after a ship draws twice the visits.",
        "A launch makes news: {feature} is new, so a campaign on {target} is worth its 500 dollars now.",
    ),
    ("marketing", "rival"): (
        "The competitor's pressure is {competitor} of 100, and no analysis of ours blunts it at the moment.",
        "Sales loses deals to a rival at pressure {competitor}, and an analysis helps for four days.",
    ),
    ("marketing", "research"): (
        "Of the segments that we do not know {target} brings most visits, {visits} a day.",
        "Campaigns should hit a real need, and for {target}, {visits} visits a day, we have none researched.",
    ),
    ("marketing", "researched"): (
        "Sales has {open}, and our research says that {segment} needs {target} most.",
        "As we found out, {segment} cares about {target}, and with {open} Sales can serve more.",
    ),
    ("marketing", "served"): (
        "Sales has {open}, and with {feature} we can help with {target}, which no campaign used this week.",
        "A campaign on {target} draws leads whom {feature} already helps, and Sales has only {open}.",
    ),
    ("marketing", "test"): (
        "Conversion is {rate} with money left in the envelope, so a test for 200 dollars is worth its even chance.",
        "Sales has {open} and conversion is {rate}, and a won test raises it for good.",
    ),
    ("marketing", "funnel"): (
        "Conversion is {rate}, and the lower it is, the more a turn on the funnel gains.",
        "More of our visitors should sign up than {rate}, and the funnel costs nothing but this turn.",
    ),
    ("marketing", "late rival"): (
        "The funnel is at {rate} already, and our last analysis of the competitor has run out.",
        "With conversion at {rate} the next best thing is to keep the rival's pressure, {competitor}, down.",
    ),
    ("marketing", "late funnel"): (
        "The analysis holds for {days_left} more, so the turn goes into the funnel at {rate}.",
        "There is nothing to launch or analyse now, and conversion at {rate} can still rise a little.",
    ),
    ("sales", "unhappy"): (
        "{target} is a customer in a mood of {mood} of 10 and has heard nothing from us for {silent}.",
        "Losing {target} would cost more than a new lead brings: its mood is {mood} and we were silent for {silent}.",
    ),
    ("sales", "doubts"): (
        "{target} has {objections} and last heard from us {idle}, so a follow-up comes before the next try.",
        "With {objections} a signature from {target} is unlikely, and a call may remove one.",
    ),
    ("sales", "close"): (
        "{target} has our proposal and {objections}, so now is the time to ask for the signature.",
        "Nothing is gained by waiting with {target}: the proposal is out, with {objections}.",
    ),
    ("sales", "large"): (
        "{target} is large and ready for a proposal, and such a deal needs the CEO's approval to sign.",
        "The demo at {target} is done, and for a deal of this size I ask for approval with the proposal.",
    ),
    ("sales", "offer"): (
        "{target} has seen the demo, and a {size} account like this can be offered a contract now.",
        "The demo at {target} is done, and a proposal is the step that brings it to a signature.",
    ),
    ("sales", "served"): (
        "{target} needs {pain}, which a shipped feature serves, so a demo can convince it.",
        "We have what {target} is looking for, {pain}, and content on it would make the demo better.",
    ),
    ("sales", "unserved"): (
        "{target} needs {pain}, which nothing of ours serves yet, so Dev should hear of it with the demo.",
        "{target} is worth a demo, a {size} account, although {pain} is not served yet.",
    ),
    ("sales", "qualify"): (
        "{target} is new, and we know neither what it needs nor how large it is.",
        "Before anything can be shown to {target} I have to know its need and its size.",
    ),
    ("sales", "care"): (
        "No lead can be moved today, and {target} has not been called for {silent}.",
        "With no lead to work on I call {target}, because a customer who is heard stays.",
    ),
    ("sales", "sheet"): (
        "There is no lead to move and no customer to call, so I keep the record current.",
        "Nothing can be sold at the moment, and a day without an update to the pipeline costs us.",
    ),
    ("content", "draft"): (
        "The {kind} on {target} is begun and needs {turns} more, and only a finished piece convinces anybody.",
        "I finish what I have begun: the {kind} on {target}, {turns} to go.",
    ),
    ("content", "revise"): (
        "The piece {target} is published as a draft, and one revision doubles how much it convinces.",
        "A revision of {target} costs one turn, far less than another piece of that quality.",
    ),
    ("content", "docs"): (
        "Satisfaction is {satisfaction}, and documentation on {target} helps customers who have that pain.",
        "At a satisfaction of {satisfaction} customers come first, so I write docs on {target}.",
    ),
    ("content", "case"): (
        "We have a customer with {target} but evidence of only {proof}, and a case study is the strongest proof.",
        "Evidence on {target} is {proof}, and somebody we serve can tell that story.",
    ),
    ("content", "asked"): (
        "A colleague asked for {target}, where our evidence is {proof}, and emails warm the leads who wait for it.",
        "Leads with {target} are waiting and evidence on it is {proof}, so an email sequence comes first.",
    ),
    ("content", "shipped"): (
        "Of the pains that our features serve, {target} has the weakest evidence, {proof}.",
        "We can help with {target} already, and with evidence of {proof} too few people know it.",
    ),
    ("content", "weakest"): (
        "Nothing has shipped yet, and of all pains {target} has the weakest evidence, {proof}.",
        "A blog post on {target} brings lasting visits, and our evidence there is {proof}.",
    ),
    ("hr", "blocker"): (
        "With {target} blocked, little or nothing gets done there until somebody clears it.",
        "While {target} is blocked, we lose more than anything else I could do now would gain.",
    ),
    ("hr", "hire"): (
        "There are {held} in the envelope, and a contractor helps Dev for seven days.",
        "Day {day} leaves time for a contractor to pay off, and {held} are enough to hire one for Dev.",
    ),
    ("hr", "plan"): (
        "No sprint is planned today, and a plan is what lifts velocity, now {velocity}, most.",
        "The first sprint plan of a day adds the most to velocity, which is {velocity}.",
    ),
    ("hr", "track"): (
        "The OKRs run for {okr_days} more, and their effect is full only for three days after they were tracked.",
        "It is time to track the OKRs again, with {okr_days} left in which their full effect counts.",
    ),
    ("hr", "sync"): (
        "Alignment is {aligned} and behind morale at {morale}, so the team should hear what everybody does.",
        "People are willing, morale is {morale}, but they pull apart: alignment is only {aligned}.",
    ),
    ("hr", "talk"): (
        "Morale is {morale} and behind alignment at {aligned}, so I talk with people first.",
        "The team knows what to do, alignment is {aligned}, but morale at {morale} slows everybody down.",
    ),
})  # fmt: skip
"""(role, rule of `expert`) -> reasons."""

MESSAGES: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = MappingProxyType({
    ("ceo", "approve"): (("sales", "{target} has its special terms, go ahead"), ("sales", "approved {target}, close it")),
    ("ceo", "retention"): (("dev", "bugs before features this week"), ("sales", "call our customers, they come first")),
    ("ceo", "product"): (("dev", "we want two features, build first"), ("marketing", "launches follow once Dev ships")),
    ("ceo", "growth"): (("sales", "growth is the focus, win what is open"), ("marketing", "growth is the focus, bring leads")),
    ("ceo", "fund dev"): (("dev", "2,000 dollars for hosting are yours"),),
    ("ceo", "fund hr"): (("hr", "2,000 dollars are yours, hire for Dev"), ("hr", "your envelope is filled again")),
    ("ceo", "fund marketing"): (("marketing", "2,000 dollars are yours for campaigns"), ("marketing", "your envelope is filled")),
    ("ceo", "direct dev"): (("dev", "your next three turns count most"),),
    ("ceo", "direct sales"): (("sales", "your next three turns count most"),),
    ("dev", "ship"): (("marketing", "{target} ships today, it cures {pain}"), ("sales", "{target} is out, show it for {pain}")),
    ("dev", "begun"): (("sales", "{target}: {after}"), ("marketing", "{target} for {pain}: {after}")),
    ("dev", "asked"): (("sales", "{target} for {pain} is under way"),),
    ("dev", "critical"): (("sales", "fixing {criticals} first"), ("hr", "{criticals} before features")),
    ("marketing", "new"): (("content", "{target} campaign is on, write about it"), ("sales", "leads for {target} are coming")),
    ("marketing", "researched"): (("sales", "{segment} leads for {target} are coming"),),
    ("marketing", "rival"): (("sales", "the rival's arguments are answered"),),
    ("sales", "doubts"): (("content", "{target} doubts us on {pain}"),),
    ("sales", "close"): (("ceo", "asking {target} to sign today"),),
    ("sales", "unhappy"): (("dev", "{target} is in a bad mood, {mood} of 10"),),
    ("sales", "offer"): (("ceo", "{target} has an offer"), ("hr", "{target} has an offer")),
    ("content", "draft"): (("sales", "the {kind} on {target}: {after}"),),
    ("content", "case"): (("sales", "case study on {target} begun"),),
    ("content", "asked"): (("sales", "emails on {target} go out in 2 turns"),),
    ("content", "docs"): (("sales", "docs on {target} come next"),),
    ("hr", "blocker"): (("{target}", "your blocker is cleared"), ("{target}", "you are free to work again")),
    ("hr", "hire"): (("dev", "a contractor joins you for seven days"),),
    ("hr", "track"): (("ceo", "OKRs are tracked, {okr_days} left"),),
    ("hr", "sync"): (("all", "tell each other what you do"),),
})  # fmt: skip
"""(role, rule) -> colleague and message. Rules whose action carries a request, or concerns no colleague, have none."""
