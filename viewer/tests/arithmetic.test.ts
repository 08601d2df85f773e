import { describe, expect, it } from 'vitest';
import { agrees, arithmetic } from '../src/lib/advantage';
import { align, between, chartsOf, smooth, thin, worstOf } from '../src/lib/curves';

const rule = {
  scale: 'std',
  eps: 0.02,
  shrink: false,
  bound: null as number | null,
  invalid_gap: 0.5,
  invalid_ceiling: -1.5,
  negative_weight: 1,
  estimator: 'group',
};
const reply = (ret: number, valid = true, stop = 'branch') => ({ ret, valid, stop, key: String(ret), by_world: [ret] });
const branched = (...worlds: number[]) => ({
  ...reply(worlds.reduce((sum, value) => sum + value, 0) / worlds.length),
  key: String(worlds),
  by_world: worlds,
});

describe('advantages', () => {
  it('are (return - mean) / (sample deviation + eps) over the legal replies', () => {
    // Legal: 0.5, 1.5, 1.0; mean 1, sample deviation 0.5.
    const found = arithmetic([reply(0.5), reply(1.5), reply(9, false), reply(1)], rule);
    expect(found.mean).toBeCloseTo(1, 12);
    expect(found.deviation).toBeCloseTo(0.5, 12);
    expect(found.values[0]).toBeCloseTo(-0.5 / 0.52, 12);
    expect(found.values[3]).toBeCloseTo(0, 12);
    expect(found.values[2]).toBe(-1.5);
  });
  it('weigh less below 0 where the rule says so', () => {
    const found = arithmetic([reply(1), reply(3), reply(0, false)], { ...rule, scale: 'none', negative_weight: 0.5 });
    expect(found.values).toEqual([-0.5, 1, -0.75]);
  });
  it('are cut at the bound, before an invalid one is placed below them', () => {
    const found = arithmetic([reply(1), reply(2), reply(6), reply(0, false)], { ...rule, scale: 'none', bound: 1.5 });
    expect(found.values).toEqual([-1.5, -1, 1.5, -2]);
  });
  it('are only centred without a scale', () => {
    expect(arithmetic([reply(1), reply(3)], { ...rule, scale: 'none' }).values).toEqual([-1, 1]);
  });
  it('teach only the format when legal replies are equal', () => {
    const found = arithmetic([reply(2), reply(2), reply(0, false)], rule);
    expect([found.kind, found.values]).toEqual(['format', [0, 0, -1.5]]);
  });
  it('teach nothing when all are equal, or none is legal', () => {
    expect(arithmetic([reply(0.1 + 0.2), reply(0.3)], rule).kind).toBe('dead');
    expect(arithmetic([reply(1, false), reply(2, false)], rule).values).toEqual([null, null]);
  });
  it('count whole episodes as legal and leave our failures out', () => {
    const found = arithmetic([reply(1, false, 'done'), reply(3, true, 'done'), reply(0, true, 'error')], rule);
    expect(found.mean).toBe(2);
    expect(found.values[2]).toBe(0);
  });
  it('shrink by the share of the spread that is not luck', () => {
    // Means 2 and 4, spread 2; residuals +-1 after the worlds' means 2 and 4: noise 4 / (1 * 1) / 2 = 2.
    const noisy = arithmetic([branched(2, 2), branched(2, 6)], { ...rule, shrink: true });
    expect([noisy.reliability, noisy.kind, noisy.values]).toEqual([0, 'dead', [null, null]]);
    // Means 2 and 4, spread 2; residuals +-0.5: noise 1 / 2 = 0.5. Two equal replies count once, but have a part in the mean.
    const clear = arithmetic([branched(1, 3), branched(1, 3), branched(2, 6)], { ...rule, scale: 'none', shrink: true });
    expect(clear.reliability).toBeCloseTo(0.75, 12);
    expect(clear.values[2]).toBeCloseTo((4 - 8 / 3) * 0.75, 12);
  });
  it('agree up to rounding', () => {
    expect(agrees(1, 1 + 1e-9)).toBe(true);
    expect(agrees(1, 1.001)).toBe(false);
    expect(agrees(null, 0)).toBe(false);
  });
});

describe('curves', () => {
  it('smooths without the bias of the start, and keeps gaps', () => {
    const found = smooth([4, null, 4, 8], 0.5);
    expect(found[0]).toBe(4);
    expect(found[1]).toBeNull();
    expect(found[2]).toBe(4);
    // Weights 1/8, 1/4, 1/2 of 7/8.
    expect(found[3]).toBeCloseTo((4 * 0.125 + 4 * 0.25 + 8 * 0.5) / 0.875, 12);
  });
  it('thins 100,000 points and loses no spike', () => {
    const y = Array.from({ length: 100_000 }, (_, index) => (index === 54_321 ? 1e6 : Math.sin(index)));
    const found = thin(
      y.map((_, index) => index),
      y,
      1500,
    );
    expect(found.x.length).toBeLessThanOrEqual(1500);
    expect(Math.max(...found.high.map((value) => value ?? 0))).toBe(1e6);
  });
  it('cuts a stretch out, with a point more on each side', () => {
    const x = Array.from({ length: 100 }, (_, index) => 2 * index);
    const found = between(x, x, [50, 61]);
    expect(found.x).toEqual([48, 50, 52, 54, 56, 58, 60, 62, 64]);
    expect(found.y).toEqual(found.x);
    expect(between(x, x, [-5, 1]).x).toEqual([0, 2, 4]);
    expect(between(x, x, null).x).toBe(x);
  });
  it('keeps the worst of every stretch', () => {
    const values = Array.from({ length: 10_001 }, (_, index) => (index === 7_777 ? 9 : index % 3 ? 0.5 : null));
    const found = worstOf(values, 2_000);
    expect(found.length).toBeLessThanOrEqual(2_000);
    expect(found.filter((value) => value === 9)).toHaveLength(1);
    expect(worstOf([null, null, null], 2)).toEqual([null, null]);
  });
  it('aligns series on the union of their iterations', () => {
    expect(
      align([
        { x: [1, 3], y: [10, 30] },
        { x: [2, 3], y: [5, null] },
      ]),
    ).toEqual({
      x: [1, 2, 3],
      ys: [
        [10, null, 30],
        [null, 5, null],
      ],
    });
  });
});

describe('charts of a run', () => {
  const one = (scope: string, name: string, values: number[]) => ({ scope, name, iterations: values.map((_, at) => at), values });
  const episodes = [
    one('loop', 'episodes', [32, 32]),
    one('loop', 'mean_turns', [12, 5]),
    one('loop', 'stop_done', [0, 0.975]),
    one('loop', 'stop_max_turns', [1, 0.025]),
    one('train/agent', 'kl', [0, 0.002]),
    one('train/agent', 'loss', [0, 0]),
    one('train/agent', 'reward', [0.3, 0.5]),
  ];
  it('begin with the table of a run: reward, KL, turns and the share of task_complete', () => {
    const found = chartsOf(episodes, 'claw', false);
    expect(found.map(({ title }) => title)).toEqual(['reward', 'kl', 'mean_turns', 'task_complete (stop_done)']);
    expect(found[3]?.series.map(({ values }) => values)).toEqual([[0, 0.975]]);
    expect(chartsOf(episodes, 'guess.py', true).map(({ title }) => title)).toEqual([
      'reward',
      'kl',
      'mean_turns',
      'stop_done',
      'loss',
    ]);
  });
  it('have no lengths of segments that are branched', () => {
    const branches = [one('loop', 'mean_turns', [14, 14]), one('loop', 'stop_branch', [1, 1]), ...episodes.slice(4)];
    expect(chartsOf(branches, 'office', false).map(({ metric }) => metric)).toEqual(['reward', 'kl']);
  });
});
