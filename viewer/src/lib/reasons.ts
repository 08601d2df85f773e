// Why a turn or a night paid what it paid: the server's reasons from the point of view of one role, or of the team.
import type { Frame, Reason } from '../api/client';
import { NIGHT } from './roles';
import { paid } from './world';

/** A reason with what it paid to whom it is shown for. */
export interface Share {
  reason: Reason;
  amount: number;
  /** Index of a part -> its amount; parts that paid nothing are omitted. */
  parts: readonly (readonly [number, number])[];
}

/** Reasons that paid less are folded away. */
export const LEAST = 0.1;

/** The six parts that a reason paid to `whose`: a role, or the team (all but the customer) where that is the night. */
function line({ amounts }: Reason, whose: string): number[] {
  if (whose !== NIGHT) return amounts[whose] ?? [];
  const sum: number[] = [];
  for (const [role, parts] of Object.entries(amounts))
    if (role !== 'customer') parts.forEach((part, index) => (sum[index] = (sum[index] ?? 0) + part));
  return sum;
}

/** What paid something to `whose`, the largest first. */
export function shares({ reasons }: Pick<Frame, 'reasons'>, whose: string): Share[] {
  return reasons
    .map((reason) => {
      const parts = line(reason, whose);
      const named = parts.map((part, index) => [index, part] as const).filter(([, part]) => part !== 0);
      return { reason, amount: parts.reduce((sum, part) => sum + part, 0), parts: named };
    })
    .filter(({ parts }) => parts.length > 0)
    .sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount));
}

/** What is worth a line in a list of turns: with the share of the actor, which is 0 where only others were paid. */
export function told(frame: Pick<Frame, 'reasons' | 'actor'>, most: number): Share[] {
  const mine = new Map(shares(frame, frame.actor).map((share) => [share.reason, share]));
  return frame.reasons
    .map((reason) => mine.get(reason) ?? { reason, amount: 0, parts: [] })
    .filter(({ reason, amount }) => Math.abs(amount) >= 2 * LEAST || reason.account >= 0)
    .slice(0, most);
}

/** The frames up to `seq` that paid or charged `role` most in one part, with their largest reason. */
export function payers(frames: readonly Frame[], role: string, part: number, seq: number, most: number): Payer[] {
  return frames
    .slice(1, seq + 1)
    .map((frame) => {
      const of = ({ amounts }: Reason): number => amounts[role]?.[part] ?? 0;
      const [first] = frame.reasons.filter((reason) => of(reason) !== 0).sort((a, b) => Math.abs(of(b)) - Math.abs(of(a)));
      return { frame, amount: frame.parts[role]?.[part] ?? 0, text: first?.text ?? '' };
    })
    .filter(({ amount }) => amount !== 0)
    .sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount))
    .slice(0, most);
}

export interface Payer {
  frame: Frame;
  amount: number;
  text: string;
}

/** A day up to a frame: how the company's value changed, and what moved the team's reward most in that direction. */
export interface Digest {
  day: number;
  value: number;
  change: number;
  share: Share | undefined;
}

/** The first frame of the day of frame `at`; frame 0 belongs to none. */
function dawn(frames: readonly Frame[], at: number): number {
  let first = Math.max(at, 1);
  while (first > 1 && frames[first - 1]!.day === frames[at]!.day) first--;
  return first;
}

/** Change of the company's value from the morning to frame `at`, dollars. */
export const dayChange = (frames: readonly Frame[], at: number): number =>
  frames[at]!.kpis.value - frames[dawn(frames, at) - 1]!.kpis.value;

export function digest(frames: readonly Frame[], at: number): Digest {
  const change = dayChange(frames, at);
  const all = frames.slice(dawn(frames, at), at + 1).flatMap((frame) => shares(frame, NIGHT));
  const way = change < 0 ? -1 : 1;
  const share = all.reduce<Share | undefined>(
    (most, one) => (way * one.amount > way * (most?.amount ?? 0) ? one : most),
    undefined,
  );
  return { day: frames[at]!.day, value: frames[at]!.kpis.value, change, share };
}

/** The frame that paid least, or most; undefined before the first turn. */
export function extreme(frames: readonly Frame[], way: -1 | 1): number | undefined {
  let found: number | undefined;
  for (let index = 1; index < frames.length; index++)
    if (way * paid(frames[index]!) > way * (found === undefined ? 0 : paid(frames[found]!))) found = index;
  return found;
}

/** The role to look at in a frame: its actor, or whom the night paid or charged most. */
export function concerned(frame: Frame): string {
  if (frame.actor !== NIGHT) return frame.actor;
  const roles = Object.entries(frame.rewards).filter(([role]) => role !== 'customer');
  return roles.reduce((most, one) => (Math.abs(one[1]) > Math.abs(most[1]) ? one : most), ['', 0] as [string, number])[0];
}
