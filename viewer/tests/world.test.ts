import { describe, expect, it } from 'vitest';
import type { Frame, Frames, Seats } from '../src/api/client';
import { cumulative, extend, stops } from '../src/lib/world';
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
  it('fills in what frames left out', () => {
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
  const move = (before: string, after: string): Frame['moves'] => [{ id: 1, name: 'a', before, after, price: 1 }];
  it('finds deals but not arrivals', () => {
    const frames = [
      frame(0),
      frame(1, { moves: move('', 'lead') }),
      frame(2, { moves: move('proposal', 'won') }),
      frame(3, { moves: move('won', 'churned') }),
    ];
    expect(stops(frames, 'deal')).toEqual([2, 3]);
  });
  it('finds penalties of anybody, and changes of sign per role', () => {
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

it('sums reward parts up to each frame', () => {
  const frames = [frame(0), frame(1, { parts: { sales: [1, 2] } }), frame(2), frame(3, { parts: { sales: [-0.5, 0] } })];
  const sums = cumulative(frames, ['sales', 'dev'], 2);
  expect([...sums.sales![0]!]).toEqual([0, 1, 1, 0.5]);
  expect([...sums.sales![1]!]).toEqual([0, 2, 2, 2]);
  expect([...sums.dev![0]!]).toEqual([0, 0, 0, 0]);
});
