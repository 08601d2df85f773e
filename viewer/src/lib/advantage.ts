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
  /** How much better than the mean each proposal is, beyond its standard error; null for a reply that was sampled. */
  gains: (number | null)[];
}

type Reply = Pick<GroupView['replies'][number], 'ret' | 'valid' | 'stop' | 'key' | 'by_world' | 'policy'>;

/** Put to the policy instead of sampled from it. */
export const isProposal = (reply: Pick<Reply, 'policy'>): boolean => reply.policy === 'proposal';

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

/** What a proposal is better than the mean of the legal sampled replies, less the standard error of that; at least 0. */
function gainOf(proposal: Reply, sampled: readonly Reply[]): number {
  if (!proposal.valid || !sampled.length) return 0;
  const apart = proposal.by_world.map((value, world) => value - average(sampled.map((reply) => reply.by_world[world]!)));
  const mean = average(apart);
  const variance = apart.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, apart.length - 1);
  const above = proposal.ret - average(sampled.map((reply) => reply.ret));
  return Math.max(0, above - Math.sqrt(variance / apart.length));
}

/**
 * Mean of the legal sampled replies, and sample deviation of all legal ones; an invalid reply is placed below the worst legal one,
 * and a proposal has its gain.
 */
export function arithmetic(replies: readonly Reply[], rule: GroupView['rule']): Arithmetic {
  const used = replies.map((reply) => reply.stop !== 'error');
  // A branch is one reply, which is legal or not; a whole episode counts as legal whatever it holds.
  const usable = replies.map((reply, index) => used[index]! && (reply.valid || reply.stop !== 'branch'));
  const legal = replies.map((reply, index) => usable[index]! && !isProposal(reply));
  const sampled = replies.filter((_, index) => legal[index]);
  const gains = replies.map((reply) => (isProposal(reply) ? gainOf(reply, sampled) : null));
  const returns = sampled.map((reply) => reply.ret);
  const all = replies.filter((_, index) => usable[index]).map((reply) => reply.ret);
  const count = returns.length;
  const mean = count ? returns.reduce((sum, value) => sum + value, 0) / count : NaN;
  const spread = count ? Math.max(...returns) - Math.min(...returns) : 0;
  const size = Math.max(0, ...returns.map(Math.abs));
  const equal = spread <= 1e-9 * size;
  const middle = all.length ? average(all) : NaN;
  const deviation = all.length > 1 ? Math.sqrt(all.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (all.length - 1)) : 0;
  const usual = replies.map((reply, index) => used[index]! && !isProposal(reply));
  const invalid = usual.some((one, index) => one && !legal[index]);
  const better = gains.some((gain) => (gain ?? 0) > 0);
  const kind = usual.filter(Boolean).length < 2 || !count ? 'dead' : !equal || better ? 'return' : invalid ? 'format' : 'dead';
  const nothing = replies.map(() => null);
  if (kind === 'dead') return { mean, deviation, reliability: null, kind, values: nothing, gains };
  const reliability = rule.shrink && kind === 'return' && !equal ? reliabilityOf(sampled) : null;
  if (reliability === 0 && !invalid && !better) return { mean, deviation, reliability, kind: 'dead', values: nothing, gains };
  const unit = rule.scale === 'std' ? deviation + rule.eps : 1;
  const values = replies.map((reply, index) => {
    if (kind !== 'return') return 0;
    return legal[index] ? ((reply.ret - mean) * (reliability ?? 1)) / unit : (gains[index] ?? 0) / unit;
  });
  const worst = Math.min(...values.filter((_, index) => legal[index]));
  const floor = Math.min(worst - rule.invalid_gap, rule.invalid_ceiling);
  return {
    mean,
    deviation,
    reliability,
    kind,
    gains,
    values: values
      .map((value, index) => (usual[index] && !legal[index] ? floor : value))
      .map((value) => (value < 0 ? value * rule.negative_weight : value)),
  };
}

/** True when the recorded advantage is the recomputed one, up to rounding. */
export const agrees = (recorded: number | null, computed: number | null): boolean =>
  recorded === null || computed === null
    ? recorded === computed
    : Math.abs(recorded - computed) <= 1e-6 * Math.max(1, Math.abs(recorded));
