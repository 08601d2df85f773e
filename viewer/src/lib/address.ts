// The moment that office, dashboard and playground show, as parameters of the address, and back.
import type { Frame, Seats } from '../api/client';
import { NIGHT, ROLE } from './roles';
import type { Query } from './route';
import { frameOf, JUMPS, TURNS_PER_DAY, type Jump } from './world';

/** Pages that show a moment of a world. */
export const MOMENT_PAGES: ReadonlySet<string> = new Set(['office', 'dashboard', 'play']);
export const FIRST_JUMP: Jump = 'deal';
/** Stands for a role where the office's inspector follows who acts. */
export const ACTING = 'acting';

/** A turn of the company counted from 1 (0: its beginning), or the night after a day counted from 1; neither follows the newest. */
export interface When {
  turn?: number;
  night?: number;
}
export interface Moment {
  /** An episode of a run; the live company without one. */
  recorded: { run: string; iteration: number; episode: string } | null;
  when: When;
  role: string | null;
  jump: Jump | null;
}

const count = (text: string | null): number | undefined => (text && /^\d{1,9}$/.test(text) ? Number(text) : undefined);

export function whenIn(query: URLSearchParams): When {
  const turn = count(query.get('turn'));
  const night = count(query.get('night'));
  return night !== undefined ? { night } : turn !== undefined ? { turn } : {};
}

/** What the parameters say; null where there are none, and everything stays as it is. */
export function momentOf(query: URLSearchParams): Moment | null {
  if (![...query.keys()].length) return null;
  const run = query.get('run');
  const iteration = count(query.get('it'));
  const episode = query.get('ep');
  const role = query.get('role');
  const jump = query.get('jump');
  return {
    recorded: run && episode && iteration !== undefined ? { run, iteration, episode } : null,
    when: whenIn(query),
    role: role && Object.hasOwn(ROLE, role) ? role : null,
    jump: jump && Object.hasOwn(JUMPS, jump) ? (jump as Jump) : null,
  };
}

export const queryOf = ({ recorded, when, role, jump }: Moment): Query => ({
  run: recorded?.run,
  it: recorded?.iteration,
  ep: recorded?.episode,
  turn: when.turn,
  night: when.night,
  role,
  jump: jump === FIRST_JUMP ? null : jump,
});

/** When a frame is. */
export const whenOf = ({ actor, turn, day }: Pick<Frame, 'actor' | 'turn' | 'day'>): When =>
  actor === NIGHT ? { night: day + 1 } : { turn: actor ? turn + 1 : 0 };

/** The frame at that time in a world that begins with turn `first`; null for the newest one. */
export function seqOf({ turn, night }: When, { first }: Pick<Seats, 'first'>): number | null {
  if (night !== undefined) return Math.max(0, frameOf(night * TURNS_PER_DAY, first) - 1);
  if (turn === undefined) return null;
  return turn <= first ? 0 : frameOf(turn - 1, first);
}
