// What a turn leaves to see for a few turns: a signed deal, a customer who walks out, an event. Functions of timeline time alone.
import type { Frame, Move } from '../api/client';
import { bfs, EXIT, WAITING, type Tile } from './layout';
import type { Facing } from './motion';

/** Turns that a customer needs to the lobby's door. */
export const WALK_OUT = 3;
/** Turns that confetti falls. */
export const CONFETTI = 2;
/** Turns that a line stands in the banner, its own included. */
const STANDS = 3;
/** Customers who may walk out at once. */
export const LEAVERS = 3;

export interface Leaver {
  id: number;
  name: string;
  /** Tiles; the middle of a tile is at .5. */
  x: number;
  y: number;
  facing: Facing;
}

/** What happened in the last `turns` frames up to `seq`, the newest first, with its frame. */
function recent<T>(frames: readonly Frame[], seq: number, turns: number, of: (frame: Frame) => readonly T[]): [T, number][] {
  const found: [T, number][] = [];
  for (let index = seq; index > Math.max(0, seq - turns); index--)
    for (const one of frames[index] ? of(frames[index]!) : []) found.push([one, index]);
  return found;
}
const became =
  (stage: string) =>
  ({ moves }: Frame): Move[] =>
    moves.filter(({ after }) => after === stage);
const share = (start: number, t: number, turns: number): number => Math.max(0, Math.min(1, (t - start) / turns));

const ways = new Map<number, readonly Tile[]>();
function wayOut(id: number): readonly Tile[] {
  const place = id % WAITING.length;
  let way = ways.get(place);
  if (!way) ways.set(place, (way = bfs(WAITING[place]!, EXIT)));
  return way;
}

/** Customers who walk out at time `t` of frame `seq`. */
export function leavers(frames: readonly Frame[], seq: number, t: number): Leaver[] {
  return recent(frames, seq, WALK_OUT, became('churned'))
    .slice(0, LEAVERS)
    .map(([{ id, name }, start]) => {
      const way = wayOut(id);
      const along = share(start, t, WALK_OUT) * (way.length - 1);
      const index = Math.min(Math.floor(along), way.length - 2);
      const [ax, ay] = way[index]!;
      const [bx, by] = way[index + 1]!;
      const part = along - index;
      const facing = bx > ax ? 'right' : bx < ax ? 'left' : by > ay ? 'down' : 'up';
      return { id, name, x: ax + (bx - ax) * part + 0.5, y: ay + (by - ay) * part + 0.5, facing };
    });
}

/** How far the confetti of the newest signed deal has fallen at time `t`, 0 to 1; null without one. */
export function confetti(frames: readonly Frame[], seq: number, t: number): number | null {
  const [newest] = recent(frames, seq, CONFETTI, became('won'));
  return newest ? share(newest[1], t, CONFETTI) : null;
}

export interface News {
  key: string;
  kind: 'won' | 'churned' | 'event';
  /** Kind of the event, or the account's name. */
  name: string;
  /** Dollars a month; 0 of events. */
  price: number;
}

/** Lines of the banner in frame `seq`, the newest first. */
export function news(frames: readonly Frame[], seq: number): News[] {
  return recent(frames, seq, STANDS, (frame): Omit<News, 'key'>[] => [
    ...became('won')(frame).map(({ name, price }) => ({ kind: 'won' as const, name, price })),
    ...became('churned')(frame).map(({ name, price }) => ({ kind: 'churned' as const, name, price })),
    ...frame.events.map((name) => ({ kind: 'event' as const, name, price: 0 })),
  ]).map(([one, index]) => ({ ...one, key: `${index} ${one.kind} ${one.name}` }));
}
