// Who is where, as a pure function of timeline time: the same in every viewer, at every speed, and after every jump.
import type { Frame } from '../api/client';
import { ROLES } from '../lib/roles';
import { BESIDE, bfs, BOARD, COMMONS, SEAT_SHIFT, SEATS, type Tile } from './layout';

export type Activity = 'IDLE' | 'WORKING' | 'WALKING' | 'COLLABORATING';
export type Facing = 'down' | 'up' | 'left' | 'right';

export interface Pose {
  /** Tiles; the middle of a tile is at .5. */
  x: number;
  y: number;
  facing: Facing;
  activity: Activity;
  /** Whom one visits. */
  with: string;
}

interface Leg {
  /** Timeline time at which it begins. */
  start: number;
  path: readonly Tile[];
  /** What one does on arrival. */
  then: Activity;
  with: string;
}

/** Tiles per turn. A phase lasts 1 to 8 turns and most ways are 10 to 35 tiles, so people arrive within it. */
const PACE = 16;
/** Turns that a visit to a colleague lasts. */
const VISIT = 2;

const same = (a: Tile, b: Tile): boolean => a[0] === b[0] && a[1] === b[1];

/** Where the phase wants a role to be. */
function home(frame: Frame, role: string): { tile: Tile; then: Activity } {
  const work = SEATS[role]!;
  if (role === 'customer') return { tile: frame.phase === 'review' ? COMMONS[role]! : work, then: 'IDLE' };
  if (!frame.actor) return { tile: work, then: 'WORKING' };
  if (frame.phase === 'standup') return { tile: BOARD[role]!, then: 'COLLABORATING' };
  if (frame.phase === 'review') return { tile: COMMONS[role]!, then: 'COLLABORATING' };
  // One turn of planning is too short to move all: the roles that plan the company go to the board room.
  if (frame.phase === 'planning' && (role === 'ceo' || role === 'hr')) return { tile: BOARD[role]!, then: 'COLLABORATING' };
  return { tile: work, then: 'WORKING' };
}

/** The plan of all walks of a world; grows with it. */
export class Motion {
  private readonly legs: Record<string, Leg[]> = {};
  private readonly visits: Record<string, { until: number; tile: Tile; with: string }> = {};
  private readonly paths = new Map<string, readonly Tile[]>();
  private planned: readonly Frame[] = [];

  /** Take over the frames of a world; what is planned already is kept when they only grew. */
  follow(frames: readonly Frame[]): void {
    const last = this.planned.length - 1;
    if (last >= frames.length || (last >= 0 && frames[last] !== this.planned[last])) this.forget();
    for (let index = this.planned.length; index < frames.length; index++) this.plan(frames[index]!, index);
    this.planned = frames;
  }

  private forget(): void {
    for (const role of Object.keys(this.legs)) delete this.legs[role];
    for (const role of Object.keys(this.visits)) delete this.visits[role];
    this.planned = [];
  }

  private plan(frame: Frame, index: number): void {
    const { talk } = frame;
    if (talk && talk.sender !== talk.to && frame.phase === 'execution') {
      const spots = BESIDE[talk.to];
      const taken = Object.values(this.visits).filter((visit) => visit.until > index);
      const tile = spots?.find((spot) => !taken.some((visit) => same(visit.tile, spot)));
      if (tile) this.visits[talk.sender] = { until: index + VISIT + 1, tile, with: talk.to };
    }
    for (const { id } of ROLES) {
      const visit = this.visits[id];
      const visiting = visit !== undefined && visit.until > index;
      const wanted = visiting ? { tile: visit.tile, then: 'COLLABORATING' as const } : home(frame, id);
      const legs = (this.legs[id] ??= []);
      const current = legs.at(-1);
      if (!current) {
        legs.push({ start: -1e9, path: [wanted.tile], then: wanted.then, with: '' });
        continue;
      }
      const goal = current.path.at(-1)!;
      const partner = visiting ? visit.with : '';
      if (same(goal, wanted.tile) && current.then === wanted.then && current.with === partner) continue;
      const from = this.tileAt(current, index);
      legs.push({ start: index, path: this.way(from, wanted.tile), then: wanted.then, with: partner });
    }
  }

  private tileAt(leg: Leg, t: number): Tile {
    return leg.path[Math.min(leg.path.length - 1, Math.max(0, Math.round((t - leg.start) * PACE)))]!;
  }

  private way(from: Tile, to: Tile): readonly Tile[] {
    const key = `${from} ${to}`;
    let path = this.paths.get(key);
    if (!path) {
      path = bfs(from, to);
      if (!path.length) path = [to];
      this.paths.set(key, path);
    }
    return path;
  }

  /** Where `role` is at time `t`. */
  pose(role: string, t: number): Pose {
    const legs = this.legs[role];
    if (!legs?.length) {
      const [x, y] = SEATS[role] ?? [20, 20];
      return { x: x + 0.5, y: y + 0.5, facing: 'down', activity: 'IDLE', with: '' };
    }
    let low = 0;
    let high = legs.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (legs[middle]!.start <= t) low = middle;
      else high = middle - 1;
    }
    const leg = legs[low]!;
    const along = Math.max(0, (t - leg.start) * PACE);
    const end = leg.path.length - 1;
    if (along >= end) {
      const [tx, ty] = leg.path[end]!;
      const seated = leg.then === 'WORKING';
      const x = tx + (seated ? (SEAT_SHIFT[role] ?? 0) : 0);
      const y = ty + (seated ? 0.3 : 0);
      return { x: x + 0.5, y: y + 0.5, facing: 'down', activity: leg.then, with: leg.with };
    }
    const index = Math.floor(along);
    const part = along - index;
    const [ax, ay] = leg.path[index]!;
    const [bx, by] = leg.path[index + 1]!;
    const facing = bx > ax ? 'right' : bx < ax ? 'left' : by > ay ? 'down' : 'up';
    return { x: ax + (bx - ax) * part + 0.5, y: ay + (by - ay) * part + 0.5, facing, activity: 'WALKING', with: leg.with };
  }
}
