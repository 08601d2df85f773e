// The groups of a run as rows that say what was decided: where, what was played and what was best, and how much that matters.
import { type GroupPage, type GroupRow, type RunView } from '../api/client';
import { holdsGroup } from '../lib/exported';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { fixed, percent, signed } from '../lib/format';
import {
  actionText,
  bestOf,
  GROUP_FACETS,
  GROUP_SORTS,
  groupText,
  invalidOf,
  playedIn,
  regretOf,
  valueOf,
  whereOf,
} from '../lib/listing';
import { link } from '../lib/route';
import { ListPanel } from '../ui/Listing';

const PAGE = 60;
/** Groups that are fetched at once, the newest of a run that has more. */
const MOST = 5_000;

/** A run's groups, up to `MOST` of the newest; more are asked for by their iteration. */
function useGroups(
  name: string,
  run: RunView,
  iteration: string | null,
): { rows: GroupRow[] | null; error: string; all: boolean } {
  const all = run.info.groups <= MOST;
  const one = all ? null : iteration;
  const { value, error } = useFetched<GroupPage>(
    `runs/${encodeURIComponent(name)}/groups`,
    one ? { iteration: one, count: MOST } : { start: Math.max(0, run.info.groups - MOST), count: MOST },
    GROWING_MS,
  );
  return { rows: value?.rows ?? null, error, all: all || Boolean(one) };
}

export function Groups({ name, run, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const { rows: found, error, all } = useGroups(name, run, query.get('iteration'));
  return (
    <ListPanel
      title="Groups"
      one="group"
      found={found}
      error={error}
      query={query}
      facets={GROUP_FACETS}
      sorts={GROUP_SORTS}
      text={groupText}
      hint="action, name, task"
      size={PAGE}
      note={
        !all && (
          <p className="small dim">
            The newest {MOST} of {run.info.groups} groups. Choose an iteration in a curve for earlier ones.
          </p>
        )
      }
    >
      {(shown) => {
        // One axis for the page: how far the replies of a group lie from the mean of its legal ones.
        const reach = Math.max(1e-9, ...shown.flatMap((row) => apart(row).map((far) => Math.abs(far ?? 0))));
        return (
          <table className="cards groups">
            <thead>
              <tr>
                <th scope="col">decision</th>
                <th scope="col">best, and what was played</th>
                <th
                  scope="col"
                  title="Returns of all replies less the mean of the legal ones: dots are legal, crosses invalid, the ring was played"
                >
                  replies
                </th>
                {NUMBERS.map(({ title, meaning }) => (
                  <th scope="col" className="num" title={meaning} key={title}>
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
                <Row key={row.key} name={name} row={row} reach={reach} />
              ))}
            </tbody>
          </table>
        );
      }}
    </ListPanel>
  );
}

const NUMBERS: readonly { title: string; meaning: string; of: (row: GroupRow) => string; tone?: (row: GroupRow) => string }[] = [
  {
    title: 'value',
    meaning: 'Mean return of the legal replies, in scales',
    of: (row) => shownOr(valueOf(row), (value) => signed(value)),
  },
  { title: 'spread', meaning: 'Sample deviation of the legal returns', of: (row) => fixed(row.spread) },
  {
    title: 'regret',
    meaning: 'Return of the best legal reply less that of the one that was played',
    of: (row) => shownOr(regretOf(row), (value) => fixed(value)),
  },
  {
    title: 'invalid',
    meaning: 'Share of the replies that the environment could not execute',
    of: (row) => percent(invalidOf(row)),
    tone: (row) => (row.invalid ? 'bad' : 'dim'),
  },
];
const shownOr = (value: number | null, shown: (value: number) => string): string => (value === null ? '–' : shown(value));

function Row({ name, row, reach }: { name: string; row: GroupRow; reach: number }) {
  const best = bestOf(row);
  const action = best === null ? '' : (row.actions[best] ?? '');
  const played = playedIn(row);
  const invalid = row.invalid === row.size;
  return (
    <tr>
      <td>
        {holdsGroup(row.key) ? (
          <a href={link(['runs', name, 'group'], { key: row.key })} data-row title={row.key}>
            {whereOf(row)}
          </a>
        ) : (
          <span className="dim" title="Not in this file; the viewer shows it">
            {whereOf(row)}
          </span>
        )}
        <span className="small dim move">
          iteration {row.iteration} · {row.size} replies, {row.distinct} different · {row.origin || 'sampled'}
        </span>
        {!row.trained && <span className="tag">no signal</span>}
      </td>
      <td className="small">
        {invalid ? <span className="bad">all replies are invalid</span> : <b>{actionText(action) || '–'}</b>}
        {played && (
          <span className="dim move">
            {played === action && !invalid
              ? 'the best one was played'
              : `played: ${row.valid[row.chosen!] ? actionText(played) : 'an invalid reply'}`}
          </span>
        )}
      </td>
      <td>
        <Strip row={row} reach={reach} />
      </td>
      {NUMBERS.map(({ title, of, tone }) => (
        <td className={`num ${tone?.(row) ?? ''}`} key={title}>
          {of(row)}
        </td>
      ))}
    </tr>
  );
}

/** Returns less the mean of the legal ones. */
const apart = (row: GroupRow): (number | null)[] => {
  const middle = valueOf(row) ?? 0;
  return row.returns.map((ret) => (ret === null ? null : ret - middle));
};

function Strip({ row, reach }: { row: GroupRow; reach: number }) {
  const far = apart(row);
  const x = (value: number): number => 60 + (value / reach) * 54;
  const label = far.map((value, index) => (value === null ? 'none' : `${signed(value)}${row.valid[index] ? '' : ' invalid'}`));
  return (
    <svg viewBox="0 0 120 16" className="returns" role="img" aria-label={`Returns less the mean: ${label.join(', ')}`}>
      <line x1="60" x2="60" y1="0" y2="16" stroke="var(--line-2)" />
      {far.map((value, index) => {
        if (value === null) return null;
        const at = x(value);
        if (!row.valid[index]) return <path key={index} d={`M${at - 3},5l6,6m0,-6l-6,6`} stroke="var(--bad)" strokeWidth="1.6" />;
        return <circle key={index} cx={at} cy="8" r="3" fill="var(--info)" opacity="0.8" />;
      })}
      {row.chosen !== null && far[row.chosen] !== null && far[row.chosen] !== undefined && (
        <circle cx={x(far[row.chosen]!)} cy="8" r="5.5" fill="none" stroke="var(--accent)" strokeWidth="1.6" />
      )}
    </svg>
  );
}
