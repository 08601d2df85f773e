// The arithmetic of advantages, as the trainer does it (learn/advantage.py), so that it can be shown and checked.
import type { GroupView } from '../api/client';

export interface Arithmetic {
  mean: number;
  deviation: number;
  /** Share of the spread that the worlds' noise does not explain; null where the rule does not ask for it. */
  reliability: number | null;
  /** What each reply's advantage must be; null for a group that teaches nothing. */
  values: (number | null)[];
  kind: 'return' | 'format' | 'dead';
}

type Reply = Pick<GroupView['replies'][number], 'ret' | 'valid' | 'stop' | 'key' | 'by_world'>;

const average = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/** As `reliability` of the trainer: distinct legal replies, with what they share in a world taken out first. */
function reliabilityOf(replies: readonly Reply[]): number {
  const rows = [...new Map(replies.map((reply) => [reply.key, reply.by_world])).values()];
  const worlds = rows[0]?.length ?? 0;
  if (rows.length < 2) return 0;
  if (worlds < 2) return 1;
  const means = rows.map(average);
  const grand = average(means);
  const spread = means.reduce((sum, mean) => sum + (mean - grand) ** 2, 0) / (rows.length - 1);
  if (spread <= 0) return 0;
  const luck = rows[0]!.map((_, world) => average(rows.map((row) => row[world]!)));
  const residual = rows.flatMap((row, index) => row.map((value, world) => value - luck[world]! - (means[index]! - grand)));
  const noise = residual.reduce((sum, value) => sum + value ** 2, 0) / ((rows.length - 1) * (worlds - 1)) / worlds;
  return Math.max(0, 1 - noise / spread);
}

/** Mean and sample deviation of the legal replies; an invalid one is placed below the worst legal one. */
export function arithmetic(replies: readonly Reply[], rule: GroupView['rule']): Arithmetic {
  const used = replies.map((reply) => reply.stop !== 'error');
  // A branch is one reply, which is legal or not; a whole episode counts as legal whatever it holds.
  const legal = replies.map((reply, index) => used[index]! && (reply.valid || reply.stop !== 'branch'));
  const returns = replies.filter((_, index) => legal[index]).map((reply) => reply.ret);
  const count = returns.length;
  const mean = count ? returns.reduce((sum, value) => sum + value, 0) / count : NaN;
  const spread = count ? Math.max(...returns) - Math.min(...returns) : 0;
  const size = Math.max(0, ...returns.map(Math.abs));
  const equal = spread <= 1e-9 * size;
  const deviation = count > 1 ? Math.sqrt(returns.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1)) : 0;
  const invalid = used.some((one, index) => one && !legal[index]);
  const kind = used.filter(Boolean).length < 2 || !count ? 'dead' : !equal ? 'return' : invalid ? 'format' : 'dead';
  const nothing = replies.map(() => null);
  if (kind === 'dead') return { mean, deviation, reliability: null, kind, values: nothing };
  const reliability = rule.shrink && kind === 'return' ? reliabilityOf(replies.filter((_, index) => legal[index])) : null;
  if (reliability === 0 && !invalid) return { mean, deviation, reliability, kind: 'dead', values: nothing };
  const factor = (reliability ?? 1) / (rule.scale === 'std' ? deviation + rule.eps : 1);
  const bound = rule.bound ?? Infinity;
  const values = replies.map((reply, index) =>
    legal[index] && kind === 'return' ? Math.max(-bound, Math.min(bound, (reply.ret - mean) * factor)) : 0,
  );
  const worst = Math.min(...values.filter((_, index) => legal[index]));
  const floor = Math.min(worst - rule.invalid_gap, rule.invalid_ceiling);
  return {
    mean,
    deviation,
    reliability,
    kind,
    values: values
      .map((value, index) => (used[index] && !legal[index] ? floor : value))
      .map((value) => (value < 0 ? value * rule.negative_weight : value)),
  };
}

/** True when the recorded advantage is the recomputed one, up to rounding. */
export const agrees = (recorded: number | null, computed: number | null): boolean =>
  recorded === null || computed === null
    ? recorded === computed
    : Math.abs(recorded - computed) <= 1e-6 * Math.max(1, Math.abs(recorded));
