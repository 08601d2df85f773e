// A world as the pages hold it: frames, with what they omit filled in, so that any turn can be shown at once.
import type { Account, Feature, Floor, Frame, Frames, Move, Seats } from '../api/client';
import { words } from './format';
import { NIGHT } from './roles';

export interface World {
  seats: Seats;
  frames: Frame[];
  /** What is true after each frame; unchanged arrays are shared between neighbours. */
  accounts: Account[][];
  features: Feature[][];
  floors: (Floor | null)[];
}

/** The world after one message of the server; null when the message does not follow, and frames must be asked for again. */
export function extend(world: World | null, part: Frames): World | null {
  const { start } = part;
  if (start > (world?.frames.length ?? 0)) return null;
  const frames = world ? world.frames.slice(0, start) : [];
  const accounts = world ? world.accounts.slice(0, start) : [];
  const features = world ? world.features.slice(0, start) : [];
  const floors = world ? world.floors.slice(0, start) : [];
  let account = accounts.at(-1) ?? part.base.accounts;
  let feature = features.at(-1) ?? part.base.features;
  let floor = floors.at(-1) ?? part.base.floor;
  for (const frame of part.frames) {
    account = frame.accounts ?? account;
    feature = frame.features ?? feature;
    floor = frame.floor ?? floor;
    frames.push(frame);
    accounts.push(account);
    features.push(feature);
    floors.push(floor);
  }
  return { seats: part.seats, frames, accounts, features, floors };
}

/** Place of the penalty among the parts of a reward. */
const PENALTY = 4;
export const TURNS_PER_DAY = 14;
/** A day's turns and the night after them. */
export const FRAMES_PER_DAY = TURNS_PER_DAY + 1;

/** The frame in which turn `turn` of a world is played; a record may begin with turn `first`. */
export const frameOf = (turn: number, first: number): number =>
  turn - first + 1 + Math.floor(turn / TURNS_PER_DAY) - Math.floor(first / TURNS_PER_DAY);

/** The last frame of a world when all its turns are played; frame 0 is its beginning. */
export const lastFrame = ({ first, turns }: Pick<Seats, 'first' | 'turns'>): number => frameOf(first + turns, first) - 1;

/** One row per turn: that of the night where one followed, which is what the turn ended with. */
export const perTurn = <T extends { actor: string }>(rows: readonly T[]): T[] =>
  rows.filter((_, index) => rows[index + 1]?.actor !== NIGHT);

/** What a turn paid to its actor, and a night to the team: all but the customer, who is part of the world. */
export const paid = ({ actor, rewards }: Pick<Frame, 'actor' | 'rewards'>): number =>
  actor === NIGHT
    ? Object.entries(rewards).reduce((sum, [role, value]) => (role === 'customer' ? sum : sum + value), 0)
    : (rewards[actor] ?? 0);

/** What was done in a turn, in words. */
export function deed({ actor, valid, action, target }: Pick<Frame, 'actor' | 'valid' | 'action' | 'target'>): string {
  if (actor === NIGHT) return 'overnight';
  return valid ? `${words(action)} ${target}`.trim() : 'invalid reply';
}

/** Widths of the columns of deals: a stage without any is as narrow as its name, one with many has room for two in a row. */
export const boardColumns = (counts: readonly number[]): string =>
  counts.map((count) => (count ? `minmax(112px, ${count > MANY_DEALS ? 2 : 1}fr)` : '30px')).join(' ');
const MANY_DEALS = 3;

const REASONS: Record<Move['reason'], string> = {
  '': '',
  silence: 'no contact for ten days',
  deadline: 'its deadline passed',
  refused: 'it refused three times',
  unhappy: 'an unhappy customer',
};

/** What became of an account, in words. */
export const moved = ({ name, before, after, reason }: Move): string =>
  `${name}: ${before || 'arrives'} → ${after}${reason && ` (${REASONS[reason]})`}`;
export const isLoss = ({ after }: Move): boolean => after === 'lost' || after === 'churned';

/** The moves of one account up to frame `seq`, in order: how a deal came to be where it is. */
export const journey = (frames: readonly Frame[], account: number, seq: number): { frame: Frame; move: Move }[] =>
  frames.slice(0, seq + 1).flatMap((frame) => frame.moves.filter(({ id }) => id === account).map((move) => ({ frame, move })));

/** Roles that a turn or night charged, with how much (negative). */
export const penalties = (frame: Frame): [string, number][] =>
  Object.entries(frame.parts).flatMap(([role, line]) => ((line[PENALTY] ?? 0) < 0 ? [[role, line[PENALTY]!]] : []));

export type Jump = 'event' | 'deal' | 'penalty' | 'sign' | 'message' | 'large';
export const JUMPS: Record<Jump, string> = {
  event: 'company event',
  deal: 'deal won, lost or churned',
  penalty: 'rule broken (penalty)',
  sign: 'reward changes sign',
  message: 'message',
  large: 'large reward',
};
const ENDS = new Set(['won', 'lost', 'churned']);

/** Frames that a jump stops at. */
export function stops(frames: readonly Frame[], kind: Jump): number[] {
  const last: Record<string, number> = {};
  const sizes = frames.map((frame) => Math.abs(paid(frame))).sort((a, b) => b - a);
  const large = Math.max(sizes[Math.floor(sizes.length / 20)] ?? 0, 0.5);
  const found: number[] = [];
  frames.forEach((frame, index) => {
    const sign = Math.sign(Math.round(paid(frame) * 1e6));
    const turned = sign !== 0 && last[frame.actor] !== undefined && last[frame.actor] !== sign;
    if (sign !== 0) last[frame.actor] = sign;
    const hit = {
      event: frame.events.length > 0,
      deal: frame.moves.some((move) => ENDS.has(move.after) && move.before !== ''),
      penalty: penalties(frame).length > 0,
      sign: turned,
      message: frame.talk !== null,
      large: Math.abs(paid(frame)) >= large,
    }[kind];
    if (hit && index > 0) found.push(index);
  });
  return found;
}

/** Sums of the reward parts up to each frame: role -> part -> frame. */
export function cumulative(frames: readonly Frame[], roles: readonly string[], parts: number): Record<string, Float64Array[]> {
  const sums: Record<string, Float64Array[]> = {};
  for (const role of roles) sums[role] = Array.from({ length: parts }, () => new Float64Array(frames.length));
  frames.forEach((frame, index) => {
    for (const role of roles) {
      const line = frame.parts[role];
      for (let part = 0; part < parts; part++) {
        const lane = sums[role]![part]!;
        lane[index] = (index ? lane[index - 1]! : 0) + (line?.[part] ?? 0);
      }
    }
  });
  return sums;
}
