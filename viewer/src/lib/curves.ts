// Learning curves: what is drawn of a series.
import type { Series } from '../api/client';

/** Exponential moving average without the bias of its start (as in TensorBoard); gaps stay gaps. weight in [0, 1). */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

export interface Column {
  x: number[];
  y: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

/** At most about `most` points: of each stretch the mean, with the lowest and highest value, so that no spike disappears. */
export function thin(x: readonly number[], y: readonly (number | null)[], most: number): Column {
  if (x.length <= most) return { x: [...x], y: [...y], low: [...y], high: [...y] };
  const size = Math.ceil(x.length / most);
  const column: Column = { x: [], y: [], low: [], high: [] };
  for (let start = 0; start < x.length; start += size) {
    let low = Infinity;
    let high = -Infinity;
    let sum = 0;
    let count = 0;
    for (let index = start; index < Math.min(start + size, x.length); index++) {
      const value = y[index];
      if (value === null || value === undefined) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
      sum += value;
      count += 1;
    }
    column.x.push(x[Math.min(start + Math.floor(size / 2), x.length - 1)]!);
    column.y.push(count ? sum / count : null);
    column.low.push(count ? low : null);
    column.high.push(count ? high : null);
  }
  return column;
}

/** The part of a series between two iterations, with one point more on each side so that lines run to the edges. */
export function between(x: readonly number[], y: readonly (number | null)[], range: readonly [number, number] | null) {
  if (!range) return { x, y };
  const after = (value: number): number => {
    let low = 0;
    let high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle]! < value) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const start = Math.max(0, after(range[0]) - 1);
  const end = Math.min(x.length, after(range[1]) + 2);
  return { x: x.slice(start, end), y: y.slice(start, end) };
}

/** At most about `most` values: of each stretch the highest, so that no bad moment disappears; the newest one is the last. */
export function worstOf(values: readonly (number | null)[], most: number): (number | null)[] {
  if (values.length <= most) return [...values];
  const size = Math.ceil(values.length / most);
  const found: (number | null)[] = [];
  for (let start = 0; start < values.length; start += size) {
    let high: number | null = null;
    for (const value of values.slice(start, start + size)) if (value !== null && (high === null || value > high)) high = value;
    found.push(high);
  }
  return found;
}

/** Several series on the union of their iterations, for one plot. */
export function align(series: readonly { x: number[]; y: (number | null)[] }[]): { x: number[]; ys: (number | null)[][] } {
  const x = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const place = new Map(x.map((value, index) => [value, index]));
  const ys = series.map((one) => {
    const lane: (number | null)[] = x.map(() => null);
    one.x.forEach((value, index) => {
      lane[place.get(value)!] = one.y[index] ?? null;
    });
    return lane;
  });
  return { x, ys };
}

export const byMetric = (series: readonly Series[]): Map<string, Series[]> => {
  const found = new Map<string, Series[]>();
  for (const one of series) found.set(one.name, [...(found.get(one.name) ?? []), one]);
  return found;
};

/** Scope prefix of training metrics, which a role follows. */
export const TRAIN = 'train/';
/** Drawn first: reward, KL, length and end of episodes per iteration, then what tells whether a run is healthy. */
const MAIN = [
  'reward',
  'kl',
  'mean_turns',
  'stop_done',
  'reward_std',
  'valid_rate',
  'completions/clipped_ratio',
  'entropy',
  'frac_reward_zero_std',
  'grad_norm',
  'clip_ratio/region_mean',
  'sampling/kl',
];

export interface Chart {
  metric: string;
  title: string;
  /** One per role, or one of the whole loop. */
  series: Series[];
}

/**
 * Charts of a run, the main ones first; `all` adds the other training metrics. Where whole episodes are compared, two metrics of
 * the loop are among them: `mean_turns` and `stop_done`, which is the share of `task_complete` in the claw.
 */
export function chartsOf(series: readonly Series[], env: string, all: boolean): Chart[] {
  const metrics = byMetric(series.filter((one) => one.scope.startsWith(TRAIN)));
  const ends = byMetric(series.filter((one) => one.scope === 'loop'));
  // Segments of branches have the length that was asked for, and no end of their own.
  if (ends.has('stop_done'))
    for (const metric of ['mean_turns', 'stop_done']) if (ends.has(metric)) metrics.set(metric, ends.get(metric)!);
  const first = MAIN.filter((metric) => metrics.has(metric));
  const rest = all ? [...metrics.keys()].filter((metric) => !first.includes(metric)).sort() : [];
  return [...first, ...rest].map((metric) => ({
    metric,
    title: metric === 'stop_done' && env === 'claw' ? 'task_complete (stop_done)' : metric,
    series: metrics.get(metric) ?? [],
  }));
}
