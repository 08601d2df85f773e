// The arithmetic of advantages, as the trainer does it (learn/advantage.py), so that it can be shown and checked.
import type { GroupView } from '../api/client';

export interface Arithmetic {
  mean: number;
  deviation: number;
  /** What each reply's advantage must be; null for a group that teaches nothing. */
  values: (number | null)[];
  kind: 'return' | 'format' | 'dead';
}

type Reply = Pick<GroupView['replies'][number], 'ret' | 'valid' | 'stop'>;

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
  if (kind === 'dead') return { mean, deviation, kind, values: replies.map(() => null) };
  const divisor = rule.scale === 'std' ? deviation + rule.eps : 1;
  const values = replies.map((reply, index) => (legal[index] ? (kind === 'return' ? (reply.ret - mean) / divisor : 0) : 0));
  const worst = Math.min(...values.filter((_, index) => legal[index]));
  const floor = Math.min(worst - rule.invalid_gap, rule.invalid_ceiling);
  return { mean, deviation, kind, values: values.map((value, index) => (used[index] && !legal[index] ? floor : value)) };
}

/** True when the recorded advantage is the recomputed one, up to rounding. */
export const agrees = (recorded: number | null, computed: number | null): boolean =>
  recorded === null || computed === null
    ? recorded === computed
    : Math.abs(recorded - computed) <= 1e-6 * Math.max(1, Math.abs(recorded));
