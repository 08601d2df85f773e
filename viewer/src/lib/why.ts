// Why one reply is worth more than another: what differs between their branches, over all worlds in which both were continued.
import type { BranchTerms, BranchTrace, GroupView } from '../api/client';
import { agrees, type Arithmetic } from './advantage';
import { dollars, fixed, replyTitle, signed } from './format';
import { actionText } from './listing';
import { TURNS_PER_DAY } from './world';

/** The branches of two replies in one world: the same luck met both. */
export interface Pair {
  world: number;
  a: BranchTrace;
  b: BranchTrace;
}

/** Replies that do the same, by their places. */
export interface Bundle {
  members: number[];
  /** As training took it; null where the group was dropped or the estimator is the user's own. */
  advantage: number | null;
  ret: number;
}

export const titleOfReply = (group: GroupView, index: number): string => {
  const reply = group.replies[index]!;
  if (group.source === 'episodes' || reply.turns.length) return `attempt ${index + 1}`;
  if (!reply.valid) return 'an invalid reply';
  return actionText(replyTitle(reply.text));
};

/** Replies by what they do, ordered by advantage, then by return. Eight equal answers need no eight cards. */
export function bundles(group: GroupView, result: Arithmetic, apart = false): Bundle[] {
  const found = new Map<string, number[]>();
  group.replies.forEach((reply, index) => {
    // Whole episodes that begin alike may continue differently.
    const same = [reply.valid, reply.text, reply.turns.map((turn) => turn.text), reply.turns.length ? reply.ret : 0];
    const key = apart ? String(index) : JSON.stringify(same);
    found.set(key, [...(found.get(key) ?? []), index]);
  });
  const own = group.rule.estimator !== 'group';
  return [...found.values()]
    .map((members) => {
      const reply = group.replies[members[0]!]!;
      const advantage = reply.advantage ?? (own ? null : (result.values[members[0]!] ?? null));
      return { members, advantage, ret: reply.ret };
    })
    .sort((one, other) => (other.advantage ?? 0) - (one.advantage ?? 0) || other.ret - one.ret);
}

/** The replies to compare at first: the best legal one, and the one that was played, or else the worst legal one. */
export function firstPair(group: GroupView, order: readonly Bundle[]): [number, number] | null {
  const legal = order.filter(({ members }) => group.replies[members[0]!]!.valid).sort((one, other) => other.ret - one.ret);
  const best = legal[0];
  if (!best || order.length < 2) return null;
  const played = order.find(({ members }) => group.chosen !== null && members.includes(group.chosen));
  const second = played && played !== best ? played : legal.length > 1 ? legal.at(-1)! : order.find((one) => one !== best)!;
  return [best.members[0]!, second.members[0]!];
}

/** The two terms of a value, and their sum. */
export function termsOf(terms: BranchTerms, { outcome = 0, return: own = 0 }: { outcome?: number; return?: number }) {
  const company = (terms.outcome_weight * outcome) / terms.turns / terms.outcome_scale;
  const role = (terms.return_weight * own) / terms.turns / terms.return_scale;
  return { company, role, value: company + role };
}

type Fate = 'won' | 'lost' | 'churned';
interface Met {
  name: string;
  fate: Fate;
  price: number;
  /** World -> day counted from 1. */
  a: Map<number, number>;
  b: Map<number, number>;
}
const FATES: ReadonlySet<string> = new Set(['won', 'lost', 'churned']);
/** A deal tells of the difference when it ends otherwise in this share of the worlds. */
const TELLING = 0.25;

function meetings(pairs: readonly Pair[]): Met[] {
  const found = new Map<string, Met>();
  for (const { world, a, b } of pairs)
    for (const [side, trace] of [
      ['a', a],
      ['b', b],
    ] as const)
      for (const turn of trace.turns)
        for (const { id, name, after, price } of turn.moves) {
          if (!FATES.has(after)) continue;
          const key = `${id} ${name} ${after}`;
          const met = found.get(key) ?? { name, fate: after as Fate, price, a: new Map(), b: new Map() };
          if (!met[side].has(world)) met[side].set(world, Math.floor(turn.turn / TURNS_PER_DAY) + 1);
          found.set(key, met);
        }
  return [...found.values()];
}

const middle = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
const inWorlds = (count: number, all: number): string =>
  all === 1 ? (count ? 'here' : 'not here') : `in ${count} of ${all} worlds`;

/** What most explains that A's company is worth more than B's, in words after "because"; empty where nothing of it tells. */
export function cause(pairs: readonly Pair[]): string {
  const all = pairs.length;
  if (!all) return '';
  const met = meetings(pairs);
  const ranked = met
    .map((one) => ({ one, gap: ((one.a.size - one.b.size) / all) * (one.fate === 'won' ? 1 : -1) }))
    .filter(({ gap }) => gap >= TELLING)
    .sort((x, y) => y.gap * y.one.price - x.gap * x.one.price);
  const first = ranked[0]?.one;
  if (first) {
    const price = `${dollars(first.price)} a month`;
    if (first.fate === 'won') {
      const day = `usually on day ${middle([...first.a.values()])}`;
      return `${first.name} (${price}) is won ${inWorlds(first.a.size, all)}, ${day}, and after the other reply ${inWorlds(first.b.size, all)}`;
    }
    const verb = first.fate === 'lost' ? 'is lost' : 'churns';
    return `${first.name} (${price}) ${verb} ${inWorlds(first.a.size, all)}, and after the other reply ${inWorlds(first.b.size, all)}`;
  }
  const sooner = met
    .filter(({ fate }) => fate === 'won')
    .map((one) => {
      const both = [...one.a].flatMap(([world, day]) => (one.b.has(world) ? [one.b.get(world)! - day] : []));
      return { one, worlds: both.length, days: both.length ? mean(both) : 0 };
    })
    .filter(({ worlds, days }) => worlds / all >= TELLING && days >= 1)
    .sort((x, y) => y.days * y.one.price - x.days * x.one.price)[0];
  if (sooner) return `${sooner.one.name} (${dollars(sooner.one.price)} a month) is won ${fixed(sooner.days, 1)} days earlier`;
  const revenue = pairs.map(({ a, b }) => (a.turns.at(-1)?.mrr ?? 0) - (b.turns.at(-1)?.mrr ?? 0));
  if (mean(revenue) >= 1) {
    const more = revenue.filter((one) => one > 0).length;
    return `monthly revenue ends ${dollars(mean(revenue))} higher on average, and is higher ${inWorlds(more, all)}`;
  }
  return '';
}

/** The first turn, counted from 1, in which the two branches differ beyond the decision itself, in any world; null where none does. */
export function firstDifference(pairs: readonly Pair[]): number | null {
  let first: number | null = null;
  for (const { a, b } of pairs)
    for (let index = 1; index < Math.max(a.turns.length, b.turns.length); index++) {
      const [one, other] = [a.turns[index], b.turns[index]];
      const same = one && other && one.actor === other.actor && one.action === other.action && one.target === other.target;
      if (same) continue;
      const turn = (one ?? other)!.turn + 1;
      first = first === null ? turn : Math.min(first, turn);
      break;
    }
  return first;
}

/** One sentence: which reply is worth more, by how much, and why. `pairs` may still be growing. */
export function sentence(group: GroupView, [a, b]: readonly [number, number], pairs: readonly Pair[]): string {
  const one = group.replies[a]!;
  const other = group.replies[b]!;
  const [first, second] = [titleOfReply(group, a), titleOfReply(group, b)];
  const gap = one.ret - other.ret;
  if (gap < 0)
    return sentence(
      group,
      [b, a],
      pairs.map((pair) => ({ world: pair.world, a: pair.b, b: pair.a })),
    );
  const better = one.by_world.filter((value, index) => value > (other.by_world[index] ?? value)).length;
  const often = one.by_world.length > 1 ? `; it is worth more in ${better} of ${one.by_world.length} worlds` : '';
  if (!group.terms) return `${first} is worth ${fixed(gap)} more than ${second}${often}.`;
  const outcome = (one.metrics.outcome ?? 0) - (other.metrics.outcome ?? 0);
  const own = (one.metrics.return ?? 0) - (other.metrics.return ?? 0);
  const office = group.env === 'office' || group.env === '';
  const amount = (value: number): string => (office ? dollars(value) : fixed(value));
  const said = cause(pairs);
  if (outcome > 0) {
    const parts = { whole: termsOf(group.terms, { outcome }).company, role: termsOf(group.terms, { return: own }).role };
    const reason = said ? ` because ${said}` : parts.role > parts.whole ? `, and ${group.actor} earns ${fixed(own, 1)} more` : '';
    return `${first} is worth ${amount(outcome)} more than ${second}${reason}${often}.`;
  }
  return `${first} is worth ${fixed(gap)} more than ${second} because ${group.actor} earns ${signed(own, 1)} of own reward, while the company gains ${amount(Math.abs(outcome))} ${outcome < 0 ? 'less' : 'more'}${often}.`;
}

/** True when every recorded advantage is what the page computes from the returns. */
export const recomputed = (group: GroupView, result: Arithmetic): boolean => {
  const recorded = group.replies.some((reply) => reply.advantage !== null);
  return group.replies.every((reply, index) => agrees(reply.advantage, recorded ? (result.values[index] ?? null) : null));
};
