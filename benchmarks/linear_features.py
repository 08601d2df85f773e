"""Hand-made features of the linear policy: binned facts of a role's view, crossed with the action they are looked at for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import View
from onthejob.envs.office.policies.heuristic import PAIN_OF, needs

DIMENSIONS = 8192
"""Features are hashed into so many weights per role."""
CATEGORICAL = frozenset(
    {"SET_OKRS", "ALLOCATE_BUDGET", "SEND_DIRECTIVE", "PIVOT", "FIX_BUG", "HIRE_CONTRACTOR", "RESOLVE_BLOCKER"}
)
"""Actions whose target belongs to the action itself: every target has weights of its own."""
WRITES = {"blog": "WRITE_BLOG", "case_study": "WRITE_CASE_STUDY", "email": "WRITE_EMAIL_SEQUENCE", "docs": "WRITE_DOCS"}


def candidates(view: View, legal: Sequence[Action]) -> list[Action]:
    """The legal actions, with the messages of the fixed vocabulary that the prompt explains as variants."""
    found = list(legal)
    if view["role"] == "sales":
        leads = {lead["name"]: lead for lead in view["leads"]}
        for action in legal:
            if action.action_type == "RUN_DEMO":
                need = f"need {leads[action.target]['pain']}"
                found += [replace(action, message_to=to, message=need) for to in ("dev", "content")]
            elif action.action_type == "SEND_PROPOSAL" and leads[action.target]["size"] == "L" and not action.parameters:
                found.append(replace(action, message_to="ceo", message=f"approve {action.target}"))
    return found


def bucket(value: float, *edges: float) -> int:
    """How many of `edges` are reached."""
    return sum(value >= edge for edge in edges)


def state_tokens(v: View) -> list[str]:
    """Binned facts of the view that do not depend on the action."""
    role = v["role"]
    tokens = [
        "bias",
        f"day{v['day'] // 6}",
        f"odd{v['day'] % 2}",
        f"focus {v['focus']}",
        f"blocked {v['blocked']}",
        f"directive {v['directive']}",
    ]
    tokens.append(f"shipped{bucket(len(v['shipped']), 1, 2, 5, 8)}")
    if role == "ceo":
        money = v["envelopes"]
        tokens += [
            f"okr{min(v['okr_left'], 2)}",
            f"funded{v['funded']}",
            f"hr{money['hr'] < 10}",
            f"mkt{bucket(money['marketing'], 5, 10)}",
            f"dev{money['dev'] < 5}",
            f"busy{v['traffic'] > 2200}",
            f"directed {v['directed']}",
            f"aligned{v['aligned'] // 15}",
            f"leads{bucket(v['leads'], 1, 2, 4, 7)}",
            f"customers{bucket(v['customers'], 1, 3, 8)}",
            f"sat{v['satisfaction'] // 15}",
            f"stable{v['stability'] // 15}",
            f"approve{bool(v['approve'])}",
            f"early{v['day'] <= 15}",
            f"late{v['day'] > 24}",
        ]
    elif role == "dev":
        bugs = v["bugs"]
        tokens += [
            f"ready{bool(v['ready'])}",
            f"critical{min(bugs['critical'], 2)}",
            f"major{bucket(bugs['major'], 1, 3)}",
            f"minor{bugs['minor'] > 0}",
            f"debt{v['debt'] // 10}",
            f"docs{v['docs'] // 20}",
            f"stable{v['stability'] // 10}",
            f"started{bool(v['started'])}",
            f"fast{bucket(v['velocity'], 0.1, 1.0, 1.5)}",
            f"needs{bool(needs(v))}",
            f"left{bucket(v['days'] - v['day'], 1, 3, 6)}",
            f"todo{bool(v['build'])}",
        ]
    elif role == "marketing":
        tokens += [
            f"purse{bucket(v['envelope'], 2, 3, 5, 12)}",
            f"leads{bucket(v['leads'], 2, 4, 5, 6, 9, 12)}",
            f"conversion{bucket(v['conversion'], 25, 30, 35, 40, 45)}",
            f"rival{bucket(v['competitor'], 10, 25, 50)}",
            f"intel{bucket(v['intel'], 1, 2)}",
            f"ad{v['ad']}",
            f"stable{v['stability'] // 20}",
            f"tired{min(len(v['tired']), 3)}",
            f"research{len(v['research'])}",
            f"new{bool(v['new'])}",
            f"visits{bucket(sum(v['traffic'].values()), 900, 1500, 2200, 3500)}",
        ]
    elif role == "sales":
        stages = {lead["stage"] for lead in v["leads"]}
        unhappy = any(c["mood"] <= 5 and c["silent"] >= 3 for c in v["customers"])
        tokens += [
            f"leads{bucket(len(v['leads']), 1, 3, 6)}",
            f"customers{len(v['customers'])}",
            f"updated{v['updated']}",
            f"unhappy{unhappy}",
            f"closing{bool(stages & {'proposal', 'negotiation'})}",
            f"demos{'demo' in stages}",
            f"fresh{'lead' in stages}",
        ]
    elif role == "content":
        tokens += [
            f"draft{bool(v['drafts'])}",
            f"revise{bool(v['revise'])}",
            f"needs{bool(needs(v))}",
            f"sat{v['satisfaction'] // 15}",
            f"served{bool(v['served'])}",
            f"visits{bucket(v['visits'], 50, 150, 300)}",
            f"young{v['day'] <= 5}",
        ]
    else:
        tokens += [
            *(f"stuck {name}" for name in v["blockers"]),
            f"purse{v['envelope'] >= 10}",
            *(f"hired {name}" for name in v["contractors"]),
            f"planned{min(v['planned'], 1)}",
            f"okr{min(v['okr_left'], 2)}",
            f"tracked{min(v['tracked'], 3)}",
            f"aligned{v['aligned'] // 10}",
            f"morale{v['morale'] // 10}",
            f"gap{v['aligned'] < v['morale']}",
            f"fast{bucket(v['velocity'], 0.7, 1.0, 1.3)}",
            f"late{v['day'] > 24}",
        ]
    return tokens


def target_tokens(v: View, a: Action) -> list[str]:
    """Binned facts about what the action is aimed at."""
    role, kind, target = v["role"], a.action_type, a.target
    if role == "sales" and target:
        lead = next((lead for lead in v["leads"] if lead["name"] == target), None)
        if lead is None:
            customer = next(c for c in v["customers"] if c["name"] == target)
            return [f"mood{bucket(customer['mood'], 4, 6, 8)}", f"silent{bucket(customer['silent'], 1, 3, 6)}"]
        served = "?" if lead["pain"] == "?" else lead["pain"] in {PAIN_OF[name] for name in v["shipped"]}
        idle, says = bucket(lead["idle"], 1, 2, 4), a.message_to or ""
        return [
            f"size {lead['size']}",
            f"served {served}",
            f"deal {lead['stage']} {lead['size']} {served}",
            f"idle{idle}",
            f"terms {lead['size'] == 'L'} {lead['approved']} {idle}",
            f"objections{min(lead['objections'], 2)} {idle}",
            f"stage {lead['stage']}",
            f"tier {a.parameters.get('tier', '')}",
            f"tier {a.parameters.get('tier', '')} {lead['size']}",
            f"says {says}",
            f"says {says} {served}",
            f"says {says} {lead['size']}",
        ]
    if role == "dev" and kind in ("BUILD_FEATURE", "SHIP_RELEASE", "REVIEW_PR"):
        wanted = needs(v)
        pain = PAIN_OF[target]
        effort = v["build"].get(target, 0)
        least = min(v["build"].values(), default=0)
        return [
            f"needed{pain in wanted}",
            f"first{wanted[:1] == [pain]}",
            f"started{target in v['started']}",
            f"effort{bucket(effort, 1, 3, 5, 8)}",
            f"least{effort == least}",
            f"unreviewed{target in v['unreviewed']}",
            f"ready{target in v['ready']}",
            f"order {list(v['build']).index(target) if target in v['build'] else -1}",
            f"name {target}",
        ]
    if role == "marketing" and target:
        if kind == "LAUNCH_CAMPAIGN":
            served = {PAIN_OF[name] for name in v["shipped"]}
            return [
                f"tired{target in v['tired']}",
                f"known{target in v['research'].values()}",
                f"served{target in served}",
                f"new{target in {PAIN_OF[name] for name in v['new']}}",
                f"fit{target in served}{target in v['tired']}",
            ]
        largest = max(v["traffic"], key=lambda name: v["traffic"][name])
        return [f"known{target in v['research']}", f"largest{target == largest}"]
    if role == "content" and kind != "REVISE_CONTENT":
        wanted = needs(v)
        goes_on = any(WRITES[draft["kind"]] == kind and draft["topic"] == target for draft in v["drafts"])
        proof = v["evidence"][target]
        return [
            f"continues{goes_on}",
            f"needed{target in wanted}",
            f"first{wanted[:1] == [target]}",
            f"proof{bucket(proof, 0.3, 0.6, 1.0, 1.4)}",
            f"weakest{proof <= min(v['evidence'].values())}",
            f"shipped{target in {PAIN_OF[name] for name in v['shipped']}}",
            f"customers{target in v['served']}",
            f"needed{target in wanted} proof{bucket(proof, 0.6, 1.2)}",
        ]
    if role == "content":
        return [f"newest{v['revise'][:1] == [target] or (v['revise'] or [''])[0].split(' ')[0] == target}"]
    return []


def features(view: View, actions: Sequence[Action]) -> list[list[int]]:
    """Indices of the active (value 1) features, one list per action."""
    state = state_tokens(view)
    rows = []
    for action in actions:
        kind = f"{action.action_type}:{action.target}" if action.action_type in CATEGORICAL else action.action_type
        tokens = [*state, *target_tokens(view, action)]
        rows.append([zlib.crc32(f"{kind}|{token}".encode()) % DIMENSIONS for token in tokens])
    return rows
