import { describe, expect, it } from 'vitest';
import type { Frame, Frames, Seats } from '../src/api/client';
import {
  boardColumns,
  cumulative,
  deed,
  extend,
  frameOf,
  journey,
  lastFrame,
  moved,
  paid,
  penalties,
  perTurn,
  stops,
} from '../src/lib/world';
import { frame } from './frames';

const seats = { world: 'live', epoch: 0, length: 0, seats: {}, days: 1 } as unknown as Seats;
const account = (name: string) => ({ id: 1, name }) as unknown as NonNullable<Frame['accounts']>[number];

const part = (start: number, frames: Frame[], names: string[] = []): Frames => ({
  seats,
  start,
  base: { accounts: names.map(account), features: [], floor: null },
  frames,
});

describe('extend', () => {
  it('fills in what frames omit', () => {
    const world = extend(
      null,
      part(0, [frame(0, { accounts: [account('a')] }), frame(1), frame(2, { accounts: [account('b')] }), frame(3)]),
    );
    expect(world?.accounts.map((list) => list[0]?.name)).toEqual(['a', 'a', 'b', 'b']);
  });
  it('appends, and replaces from where the server starts again', () => {
    const first = extend(null, part(0, [frame(0), frame(1), frame(2)]));
    const longer = extend(first, part(3, [frame(3)]));
    expect(longer?.frames).toHaveLength(4);
    const undone = extend(longer, part(2, [frame(2, { target: 'other' })]));
    expect(undone?.frames.map((one) => one.target)).toEqual(['', '', 'other']);
    expect(longer?.frames).toHaveLength(4);
  });
  it('refuses a gap', () => expect(extend(extend(null, part(0, [frame(0)])), part(5, [frame(5)]))).toBeNull());
  it('starts from the base when it has nothing', () => {
    expect(extend(null, part(0, [frame(0)], ['z']))?.accounts[0]?.[0]?.name).toBe('z');
  });
});

describe('stops', () => {
  const move = (before: string, after: string): Frame['moves'] => [{ id: 1, name: 'a', before, after, price: 1, reason: '' }];
  it('finds deals but not arrivals', () => {
    const frames = [
      frame(0),
      frame(1, { moves: move('', 'lead') }),
      frame(2, { moves: move('proposal', 'won') }),
      frame(3, { moves: move('won', 'churned') }),
    ];
    expect(stops(frames, 'deal')).toEqual([2, 3]);
  });
  it('finds penalties of any role, and changes of sign per role', () => {
    const frames = [
      frame(0),
      frame(1, { rewards: { sales: 1 } }),
      frame(2, { actor: 'dev', rewards: { dev: -1 }, parts: { dev: [0, 0, 0, 0, -1, 0] } }),
      frame(3, { rewards: { sales: 0 } }),
      frame(4, { rewards: { sales: -2 } }),
      frame(5, { actor: 'dev', rewards: { dev: -1 } }),
    ];
    expect(stops(frames, 'penalty')).toEqual([2]);
    expect(stops(frames, 'sign')).toEqual([4]);
  });
});

describe('nights', () => {
  const night = (seq: number, patch: Partial<Frame> = {}): Frame =>
    frame(seq, {
      actor: 'night',
      phase: 'night',
      turn: seq - 2,
      rewards: { sales: -2.5, ceo: -3, customer: -5 },
      parts: { sales: [-2, 0, 0, 0, -0.5, 0], ceo: [-3, 0, 0, 0, 0, 0] },
      ...patch,
    });
  it('have their place after the last turn of a day', () => {
    // Turn 0 is frame 1; the night of day 1 is frame 15, turn 14 frame 16.
    expect([0, 13, 14, 27, 28].map((turn) => frameOf(turn, 0))).toEqual([1, 14, 16, 29, 31]);
    expect(lastFrame({ first: 0, turns: 28 })).toBe(30);
    // A record that begins with turn 20 of the second day, and ends in the third.
    expect([20, 27, 28].map((turn) => frameOf(turn, 20))).toEqual([1, 8, 10]);
    expect(lastFrame({ first: 20, turns: 10 })).toBe(11);
    expect(lastFrame({ first: 14, turns: 14 })).toBe(15);
  });
  it('pay the team, and are no deed of a role', () => {
    expect(paid(night(15))).toBe(-5.5);
    expect(paid(frame(1, { rewards: { sales: 2, ceo: 1 } }))).toBe(2);
    expect(deed(night(15))).toBe('overnight');
    expect(deed(frame(1, { valid: false }))).toBe('invalid reply');
  });
  it('hold the penalties that a jump finds', () => {
    const frames = [frame(0), frame(1), night(2), frame(3)];
    expect(stops(frames, 'penalty')).toEqual([2]);
    expect(penalties(frames[2]!)).toEqual([['sales', -0.5]]);
  });
  it('replace the value of the turn before them in curves of turns', () => {
    expect(perTurn([frame(0), frame(1), night(2), frame(3)]).map(({ seq }) => seq)).toEqual([0, 2, 3]);
  });
  it('say who left and why', () => {
    const gone = { id: 1, name: 'Peak', before: 'demo', after: 'lost', price: 900, reason: 'silence' as const };
    expect(moved(gone)).toBe('Peak: demo → lost (no contact for ten days)');
    expect(moved({ ...gone, before: '', after: 'lead', reason: '' })).toBe('Peak: arrives → lead');
  });
});

it('sums reward parts up to each frame', () => {
  const frames = [frame(0), frame(1, { parts: { sales: [1, 2] } }), frame(2), frame(3, { parts: { sales: [-0.5, 0] } })];
  const sums = cumulative(frames, ['sales', 'dev'], 2);
  expect([...sums.sales![0]!]).toEqual([0, 1, 1, 0.5]);
  expect([...sums.sales![1]!]).toEqual([0, 2, 2, 2]);
  expect([...sums.dev![0]!]).toEqual([0, 0, 0, 0]);
});

describe('deals', () => {
  const move = (id: number, before: string, after: string) => ({
    id,
    name: `a${id}`,
    before,
    after,
    price: 700,
    reason: '' as const,
  });
  it('have the way up to the moment that is shown', () => {
    const frames = [
      frame(0),
      frame(1, { moves: [move(7, '', 'lead'), move(8, '', 'lead')] }),
      frame(2, { moves: [move(7, 'lead', 'qualified')] }),
      frame(3, { moves: [move(7, 'qualified', 'lost')] }),
    ];
    expect(journey(frames, 7, 2).map(({ frame: { seq }, move: { after } }) => [seq, after])).toEqual([
      [1, 'lead'],
      [2, 'qualified'],
    ]);
    expect(journey(frames, 9, 3)).toEqual([]);
  });
  it('stand in columns that are narrow without any and wide with many', () => {
    expect(boardColumns([0, 1, 9])).toBe('30px minmax(112px, 1fr) minmax(112px, 2fr)');
  });
});
