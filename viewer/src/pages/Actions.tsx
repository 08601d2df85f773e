// How the choice of actions changes while a role is trained.
import { useMemo } from 'react';
import { type ActionShare, type RunView } from '../api/client';
import { useFetched } from '../lib/fetching';
import { percent, signed, words } from '../lib/format';
import { Panel, RoleBadge } from '../ui/small';

/** Percentage points; what rounds to none has no sign. */
const change = (share: number): string => (Math.round(100 * share) === 0 ? '0' : signed(100 * share, 0));

const HUES = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3', '#b48cf0', '#f08a4b', '#9bcf5c', '#7f88a6'];

/** Every role's actions at once: one stacked column per iteration, and a table of the first and the last. */
export function Actions({ name, run }: { name: string; run: RunView }) {
  const { value, error } = useFetched<ActionShare[]>(`runs/${encodeURIComponent(name)}/drift`);
  const shown = run.actors.filter((role) => value?.some(({ actor }) => actor === role));
  return (
    <>
      <h2 className="sr">Which actions are sampled</h2>
      {error && <p className="bad">{error}</p>}
      {!shown.length && !error && <p className="empty">{value ? 'No branch groups are recorded.' : 'Loading…'}</p>}
      <div className="actions">
        {shown.map((role) => (
          <OfRole key={role} role={role} all={value ?? []} />
        ))}
      </div>
    </>
  );
}

function OfRole({ role, all }: { role: string; all: readonly ActionShare[] }) {
  const mine = useMemo(() => all.filter((one) => one.actor === role), [all, role]);
  const iterations = [...new Set(mine.map((one) => one.iteration))];
  const totals = new Map<string, number>();
  for (const one of mine) totals.set(one.action, (totals.get(one.action) ?? 0) + one.share);
  const actions = [...totals].sort((a, b) => b[1] - a[1]).map(([action]) => action);
  const color = (action: string): string =>
    action === 'invalid' ? '#f0686f' : (HUES[actions.filter((one) => one !== 'invalid').indexOf(action) % HUES.length] ?? '#888');
  const share = new Map(mine.map((one) => [`${one.iteration} ${one.action}`, one.share]));
  const first = iterations[0];
  const last = iterations.at(-1);
  return (
    <Panel title={<RoleBadge role={role} />}>
      <svg
        viewBox={`0 0 ${iterations.length} 100`}
        preserveAspectRatio="none"
        style={{ width: '100%', height: 130, display: 'block' }}
        role="img"
        aria-label={`Shares of actions of ${role} over ${iterations.length} iterations; the table below has the first and the last`}
      >
        {iterations.map((iteration, column) => {
          let at = 0;
          return actions.map((action) => {
            const height = 100 * (share.get(`${iteration} ${action}`) ?? 0);
            const y = at;
            at += height;
            return height ? (
              <rect key={`${iteration} ${action}`} x={column + 0.04} width={0.92} y={y} height={height} fill={color(action)}>
                <title>{`iteration ${iteration}: ${action} ${percent(height / 100)}`}</title>
              </rect>
            ) : null;
          });
        })}
      </svg>
      <table className="shares" style={{ marginTop: 10 }}>
        <thead>
          <tr>
            <th scope="col">action</th>
            <th scope="col" className="num">
              iteration {first}
            </th>
            <th scope="col" className="num">
              iteration {last}
            </th>
            <th scope="col" className="num">
              change
            </th>
          </tr>
        </thead>
        <tbody>
          {actions.map((action) => {
            const before = share.get(`${first} ${action}`) ?? 0;
            const after = share.get(`${last} ${action}`) ?? 0;
            return (
              <tr key={action}>
                <th scope="row">
                  <span className="legend inline">
                    <i style={{ background: color(action) }} />
                    {words(action)}
                  </span>
                </th>
                <td className="num">{percent(before)}</td>
                <td className="num">{percent(after)}</td>
                <td className={`num ${after === before ? 'dim' : ''}`}>{change(after - before)} pp</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Panel>
  );
}
