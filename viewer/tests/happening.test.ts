import { describe, expect, it } from 'vitest';
import type { Frame } from '../src/api/client';
import { CONFETTI, confetti, leavers, LEAVERS, news, WALK_OUT } from '../src/office/happening';
import { bfs, EXIT, WAITING } from '../src/office/layout';
import { frame } from './frames';

const move = (after: string, id = 4, name = 'Gale'): Frame['moves'][number] => ({
  id,
  name,
  before: 'won',
  after,
  price: 1800,
  reason: '',
});
const story = (at: number, patch: Partial<Frame>): Frame[] =>
  Array.from({ length: 12 }, (_, index) => frame(index, index === at ? patch : {}));

describe('a customer who churns', () => {
  const frames = story(4, { actor: 'night', moves: [move('churned'), move('lost', 5, 'Bolt')] });
  it('walks from a place of the lobby to its door, and is gone', () => {
    expect(leavers(frames, 3, 3.9)).toEqual([]);
    const [begun, ...others] = leavers(frames, 4, 4);
    expect(others).toEqual([]);
    const [x, y] = WAITING[4]!;
    expect(begun).toMatchObject({ name: 'Gale', x: x + 0.5, y: y + 0.5 });
    const [done] = leavers(frames, 4 + WALK_OUT - 1, 4 + WALK_OUT);
    expect(done).toMatchObject({ x: EXIT[0] + 0.5, y: EXIT[1] + 0.5 });
    expect(leavers(frames, 4 + WALK_OUT, 4 + WALK_OUT)).toEqual([]);
  });
  it('walks without a leap', () => {
    let before = leavers(frames, 4, 4)[0]!;
    for (let t = 4; t < 4 + WALK_OUT; t += 0.02) {
      const now = leavers(frames, Math.floor(t), t)[0]!;
      expect(Math.hypot(now.x - before.x, now.y - before.y)).toBeLessThan(0.5);
      before = now;
    }
  });
  it('finds a way from every place, and a few leave at once', () => {
    for (const place of WAITING) expect(bfs(place, EXIT).length).toBeGreaterThan(1);
    const many = story(4, { moves: [1, 2, 3, 4, 5].map((id) => move('churned', id, `c${id}`)) });
    expect(leavers(many, 4, 4.5)).toHaveLength(LEAVERS);
  });
});

describe('a signed deal', () => {
  const frames = story(4, { moves: [move('won')] });
  it('throws confetti for a while', () => {
    expect(confetti(frames, 3, 3.9)).toBeNull();
    expect(confetti(frames, 4, 4)).toBe(0);
    expect(confetti(frames, 4, 5)).toBe(1 / CONFETTI);
    expect(confetti(frames, 4 + CONFETTI, 4 + CONFETTI)).toBeNull();
  });
});

describe('the banner', () => {
  it('says what happened lately, the newest first', () => {
    const frames = story(4, { events: ['pr_crisis'], moves: [move('won'), move('lost', 9, 'Bolt')] });
    frames[5] = frame(5, { moves: [move('churned', 7, 'Arch')] });
    const told = (seq: number) => news(frames, seq).map(({ kind, name }) => `${kind} ${name}`);
    expect(told(3)).toEqual([]);
    expect(told(4)).toEqual(['won Gale', 'event pr_crisis']);
    expect(told(5)).toEqual(['churned Arch', 'won Gale', 'event pr_crisis']);
    expect(told(7)).toEqual(['churned Arch']);
    expect(told(8)).toEqual([]);
    expect(new Set(news(frames, 5).map(({ key }) => key)).size).toBe(3);
  });
});
