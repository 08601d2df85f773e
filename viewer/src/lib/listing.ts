// Lists that are searched, filtered with counts, and sorted: groups and episodes of a run.
import type { EpisodeRow, GroupRow } from '../api/client';
import { words } from './format';
import { companyOf } from './race';
import { titleOf } from './roles';

/** A property to filter by. */
export interface Facet<Row> {
  name: string;
  label: string;
  of: (row: Row) => string;
  /** How a value is shown. */
  shown?: (value: string) => string;
}
export interface Sort<Row> {
  name: string;
  label: string;
  /** The highest first; null is last. Without it the recorded order stays. */
  by: ((row: Row) => number | null) | null;
}
export interface Listed<Row> {
  rows: Row[];
  /** Facet -> its values with how many rows each would leave, the other filters and the search given. */
  counts: Record<string, [string, number][]>;
}

/** Rows that hold every word of the search and pass every filter, sorted. `chosen`: facet -> value, empty for all. */
export function listed<Row>(
  all: readonly Row[],
  {
    search,
    chosen,
    facets,
    sort,
    text,
  }: {
    search: string;
    chosen: Readonly<Record<string, string>>;
    facets: readonly Facet<Row>[];
    sort: Sort<Row> | undefined;
    text: (row: Row) => string;
  },
): Listed<Row> {
  const wanted = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = wanted.length ? all.filter((row) => wanted.every((word) => text(row).toLowerCase().includes(word))) : all;
  const passes = (row: Row, but = ''): boolean =>
    facets.every(({ name, of }) => name === but || !chosen[name] || of(row) === chosen[name]);
  const counts: Listed<Row>['counts'] = {};
  for (const { name, of } of facets) {
    const tally = new Map<string, number>();
    for (const row of all) tally.set(of(row), 0);
    for (const row of found) if (passes(row, name)) tally.set(of(row), tally.get(of(row))! + 1);
    counts[name] = [...tally].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }));
  }
  const rows = found.filter((row) => passes(row));
  const by = sort?.by;
  if (by) rows.sort((a, b) => (by(b) ?? -Infinity) - (by(a) ?? -Infinity) || 0);
  return { rows, counts };
}

/** Legal replies' returns. */
const legal = ({ returns, valid }: GroupRow): number[] =>
  returns.filter((ret, index): ret is number => ret !== null && Boolean(valid[index]));
const mean = (values: readonly number[]): number | null =>
  values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;

/** Mean value of the legal replies. */
export const valueOf = (row: GroupRow): number | null => mean(legal(row));
/** How much more the best legal reply is worth than the one that was played; null where none was played. */
export function regretOf(row: GroupRow): number | null {
  const played = row.chosen === null ? null : (row.returns[row.chosen] ?? null);
  const values = legal(row);
  return played === null || !values.length ? null : Math.max(0, Math.max(...values) - played);
}
export const invalidOf = ({ invalid, size }: GroupRow): number => (size ? invalid / size : 0);
export const playedIn = ({ chosen, actions }: GroupRow): string => (chosen === null ? '' : (actions[chosen] ?? ''));

/** The best legal reply's place; null where none is legal. */
export function bestOf({ returns, valid }: GroupRow): number | null {
  let best: number | null = null;
  returns.forEach((ret, index) => {
    if (ret !== null && valid[index] && (best === null || ret > (returns[best] ?? -Infinity))) best = index;
  });
  return best;
}

/** Where the decision was taken, in words: `Sales, day 7, turn 96`. Records count turns from 0. */
export function whereOf({ actor, day, turn, key }: Pick<GroupRow, 'actor' | 'day' | 'turn' | 'key'>): string {
  const place = [day !== null ? `day ${day}` : '', turn !== null ? `turn ${turn + 1}` : ''].filter(Boolean);
  // Attempts at whole episodes are named by their task.
  const task = place.length ? '' : key.split('/').slice(1, -1).join('/');
  return [titleOf(actor), ...place, task].filter(Boolean).join(', ');
}

/** RUN_DEMO Dune -> Run demo Dune */
export const actionText = (action: string): string => {
  const [type = '', ...rest] = action.split(' ');
  return [/^[A-Z_]+$/.test(type) ? words(type) : type, ...rest].join(' ');
};

export const GROUP_FACETS: readonly Facet<GroupRow>[] = [
  { name: 'actor', label: 'role', of: (row) => row.actor, shown: titleOf },
  { name: 'iteration', label: 'iteration', of: (row) => String(row.iteration) },
  { name: 'signal', label: 'signal', of: (row) => (row.trained ? 'trained on' : 'no signal') },
  { name: 'replies', label: 'replies', of: (row) => (row.invalid ? 'some invalid' : 'all valid') },
  {
    name: 'action',
    label: 'best action',
    of: (row) => (row.actions[bestOf(row) ?? -1] ?? '–').split(' ')[0]!,
    shown: actionText,
  },
];
export const GROUP_SORTS: readonly Sort<GroupRow>[] = [
  { name: '', label: 'newest first', by: ({ iteration }) => iteration },
  { name: 'spread', label: 'spread', by: ({ spread }) => spread },
  { name: 'regret', label: 'regret', by: regretOf },
  { name: 'value', label: 'value', by: valueOf },
  { name: 'invalid', label: 'invalid share', by: invalidOf },
  { name: 'order', label: 'as recorded', by: null },
];
export const groupText = (row: GroupRow): string =>
  [row.key, whereOf(row), row.origin, ...row.actions, ...row.actions.map(actionText)].join(' ');

/** Metrics that say most about an episode, in this order; of others the rewards first. */
const TELLING = ['passed', 'company_value', 'reward', 'team_reward', 'assertion_rate'];
const PLUMBING = /^(turns|wall_s|clean_stop|restarts)$|\//;

/** Columns of a list of episodes: at most `most` metrics that these episodes have. */
export function columnsOf(rows: readonly EpisodeRow[], most = 6): string[] {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))];
  const telling = TELLING.filter((name) => names.includes(name));
  // The office has a dozen figures besides its value, which the episode's page shows.
  if (telling.includes('company_value'))
    return ['company_value', 'team_reward', 'deals_won', 'invalid'].filter((name) => names.includes(name));
  const rewards = names.filter((name) => /^reward[/_]/.test(name) && !telling.includes(name)).sort();
  const rest = names.filter((name) => !telling.includes(name) && !rewards.includes(name) && !PLUMBING.test(name)).sort();
  return [...telling, ...rewards.slice(0, 4), ...rest].slice(0, most);
}

/** How an episode ended, for the filter. */
export const endOf = ({ error, stop }: Pick<EpisodeRow, 'error' | 'stop'>): string =>
  error ? 'failed' : stop === 'max_turns' ? 'turn limit' : stop || '–';

/** s00/office-churn-100001-d30 -> churn · seed 100001 · 30 days; the name itself where it is of another kind. */
export function episodeTitle(name: string): string {
  const company = companyOf(taskOf(name));
  return company ? `${company.scenario} · seed ${company.seed} · ${company.days} days` : taskOf(name);
}
/** Episodes of one task differ in the number before it. */
export const taskOf = (name: string): string => name.replace(/^s\d+\//, '');

export const EPISODE_FACETS: readonly Facet<EpisodeRow>[] = [
  { name: 'iteration', label: 'iteration', of: (row) => String(row.iteration) },
  { name: 'end', label: 'ended', of: endOf },
  {
    name: 'passed',
    label: 'passed',
    of: ({ metrics: { passed } }) => (passed === undefined || passed === null ? '–' : passed >= 1 ? 'passed' : 'not passed'),
  },
];
export const episodeSorts = (columns: readonly string[]): readonly Sort<EpisodeRow>[] => [
  { name: '', label: 'newest first', by: ({ iteration }) => iteration },
  { name: 'order', label: 'as recorded', by: null },
  { name: 'turns', label: 'turns', by: ({ turns }) => turns },
  ...columns.map((name) => ({ name, label: name, by: (row: EpisodeRow) => row.metrics[name] ?? null })),
];
export const episodeText = (row: EpisodeRow): string =>
  [row.name, episodeTitle(row.name), endOf(row), ...Object.values(row.policies)].join(' ');
