import { describe, expect, it } from 'vitest';
import { ROLES } from '../src/lib/roles';
import { BESIDE, bfs, blocked, BOARD, COMMONS, SEATS, WAITING, wall, wallRectangles } from '../src/office/layout';
import { Motion } from '../src/office/motion';
import { frame } from './frames';

const PHASES = [
  ...Array<string>(3).fill('standup'),
  ...Array<string>(8).fill('execution'),
  ...Array<string>(2).fill('review'),
  'planning',
];
const frames = Array.from({ length: 120 }, (_, seq) =>
  frame(seq, {
    phase: PHASES[(seq + 13) % 14]!,
    actor: ROLES[seq % 7]!.id,
    talk: seq % 5 === 4 ? { sender: ROLES[seq % 6]!.id, to: ROLES[(seq + 2) % 6]!.id, text: 'x' } : null,
  }),
);

describe('the plan', () => {
  const spots = [
    ...Object.values(SEATS),
    ...Object.values(BOARD),
    ...Object.values(COMMONS),
    ...Object.values(BESIDE).flat(),
    ...WAITING,
  ];
  it('puts every spot on free floor, reachable from every other', () => {
    for (const [x, y] of spots) expect(blocked[y]?.[x], `${x},${y}`).toBe(false);
    for (const spot of spots) expect(bfs(spots[0]!, spot).length, String(spot)).toBeGreaterThan(0);
  });
  it('walks around walls and furniture', () => {
    const way = bfs(SEATS.ceo!, SEATS.customer!);
    for (const [x, y] of way) expect(blocked[y]![x]).toBe(false);
    for (let index = 1; index < way.length; index++)
      expect(Math.abs(way[index]![0] - way[index - 1]![0]) + Math.abs(way[index]![1] - way[index - 1]![1])).toBe(1);
  });
  it('covers the walls with rectangles exactly once', () => {
    const covered = wall.map((row) => row.map(() => 0));
    for (const [x, y, w, h] of wallRectangles())
      for (let b = y; b < y + h; b++) for (let a = x; a < x + w; a++) covered[b]![a]! += 1;
    expect(covered).toEqual(wall.map((row) => row.map(Number)));
  });
  it('gives no one the seat of another at a meeting', () => {
    for (const places of [SEATS, BOARD, COMMONS])
      expect(new Set(Object.values(places).map(String)).size).toBe(Object.keys(places).length);
  });
});

describe('motion', () => {
  it('is a function of time alone: grown or at once, in any order', () => {
    const grown = new Motion();
    for (let count = 1; count <= frames.length; count++) grown.follow(frames.slice(0, count));
    const atOnce = new Motion();
    atOnce.follow(frames);
    for (const t of [90.5, 3.2, 119.9, 0, 50.01, 14.7])
      for (const role of ROLES) expect(grown.pose(role.id, t)).toEqual(atOnce.pose(role.id, t));
  });
  it('never leaps: people walk tile by tile', () => {
    const motion = new Motion();
    motion.follow(frames);
    for (const role of ROLES)
      for (let t = 0; t < 119; t += 0.02) {
        const a = motion.pose(role.id, t);
        const b = motion.pose(role.id, t + 0.02);
        // 16 tiles a turn, and half a tile more when one sits down.
        expect(Math.hypot(a.x - b.x, a.y - b.y), `${role.id} at ${t}`).toBeLessThan(1.6);
      }
  });
  it('brings all to the standup and back to work', () => {
    const motion = new Motion();
    motion.follow(frames);
    expect(motion.pose('dev', 3.9)).toMatchObject({ x: BOARD.dev![0] + 0.5, y: BOARD.dev![1] + 0.5, activity: 'COLLABORATING' });
    expect(motion.pose('marketing', 10.9).activity).toBe('WORKING');
  });
  it('forgets what an undo took back', () => {
    const motion = new Motion();
    motion.follow(frames);
    const other = [...frames.slice(0, 40), frame(40, { phase: 'review' })];
    motion.follow(other);
    const fresh = new Motion();
    fresh.follow(other);
    for (const role of ROLES) expect(motion.pose(role.id, 40.9)).toEqual(fresh.pose(role.id, 40.9));
  });
});
