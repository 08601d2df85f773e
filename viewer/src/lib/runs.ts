// The list of runs: searched and sorted as its address says.
import type { RunInfo } from '../api/client';

export const ORDERS = ['name', 'status', 'outcome', 'env', 'roles', 'seconds', 'iteration', 'created'] as const;
export type Order = (typeof ORDERS)[number];

const RANKS = ['better', 'no difference shown', 'worse', 'too few to say'];
const rank = (run: RunInfo): number => (run.outcome ? RANKS.indexOf(run.outcome.word) : RANKS.length);
const text = (first: string, second: string): number => first.localeCompare(second, 'en', { numeric: true });

const BY: Record<Order, (first: RunInfo, second: RunInfo) => number> = {
  name: (first, second) => text(first.name, second.name),
  status: (first, second) => text(first.status, second.status),
  outcome: (first, second) => rank(first) - rank(second),
  env: (first, second) => text(first.env, second.env),
  roles: (first, second) => text(first.roles.join(), second.roles.join()),
  seconds: (first, second) => second.seconds - first.seconds,
  iteration: (first, second) => (second.last_iteration ?? -1) - (first.last_iteration ?? -1),
  created: (first, second) => text(second.created_at ?? '', first.created_at ?? ''),
};

/** Every word must occur in a run's name, environment, model, roles, status, tags or note. */
export function found(run: RunInfo, search: string): boolean {
  const said = [run.name, run.env, run.model, run.status, run.outcome?.word ?? '', run.notes.note];
  const all = [...said, ...run.roles, ...run.notes.tags].join('\n').toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word));
}

/** Starred runs first, then by `order`, then by name. */
export function listed(runs: readonly RunInfo[], search: string, order: Order, turned: boolean): RunInfo[] {
  const sign = turned ? -1 : 1;
  return runs
    .filter((run) => found(run, search))
    .sort(
      (first, second) =>
        Number(second.notes.star) - Number(first.notes.star) || sign * BY[order](first, second) || text(first.name, second.name),
    );
}

/** Stands in the address for no baseline, where a starred run would be one. */
export const NO_BASELINE = '-';

/** The run that others are compared with: the one that the address names, else the only starred one; empty for none. */
export function baselineOf(runs: readonly RunInfo[], asked: string): string {
  if (asked === NO_BASELINE) return '';
  if (asked) return runs.some(({ name }) => name === asked) ? asked : '';
  const starred = runs.filter(({ notes }) => notes.star);
  return starred.length === 1 ? starred[0]!.name : '';
}

/** The run that began last among those of which an outcome is known. */
export const newestJudged = (runs: readonly RunInfo[]): RunInfo | undefined =>
  runs.filter(({ outcome }) => outcome).sort((a, b) => text(b.created_at ?? '', a.created_at ?? ''))[0];

/** Tags of a text in which they are separated by commas, each once. */
export const tagsOf = (text: string): string[] => [
  ...new Set(
    text
      .split(',')
      .map((tag) => tag.trim())
      .filter(Boolean),
  ),
];

/** The last folder of a model's path; a name of the Hub stays whole. */
export const modelName = (model: string): string => (model.startsWith('/') ? (model.split('/').at(-1) ?? model) : model);

/** Why the server would refuse these notes; empty where it takes them. The limits are those of `onthejob.record.notes`. */
export function refused(tags: readonly string[], note: string): string {
  if (tags.length > 20) return `A run has at most 20 tags, not ${tags.length}.`;
  const long = tags.find((tag) => tag.length > 40);
  if (long) return `A tag has at most 40 characters, “${long.slice(0, 12)}…” has ${long.length}.`;
  return note.length > 4_000 ? `A note has at most 4,000 characters, not ${note.length}.` : '';
}
