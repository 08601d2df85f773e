// One run: curves, health of its groups, what was sampled, how it was configured.
import { useEffect, useMemo, useRef, useState } from 'react';
import { type ActionShare, type EpisodeRow, type GroupPage, type RunView, type Series } from '../api/client';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { byMetric } from '../lib/curves';
import { compact, dollars, fixed, percent, words } from '../lib/format';
import { go, link } from '../lib/route';
import { colorOf, ROLES, titleOf } from '../lib/roles';
import { useStore } from '../lib/store';
import { Plot, type Line } from '../ui/Plot';
import { Panel, RoleBadge, Scroll } from '../ui/small';
import { flat } from './Runs';

const MAIN = ['reward', 'reward_std', 'valid_rate', 'entropy', 'kl', 'frac_reward_zero_std', 'grad_norm', 'clip_ratio/region_mean', 'sampling/kl'] as const;
const TRAIN = 'train/';
const PAGE = 60;
type View = 'curves' | 'groups' | 'actions' | 'episodes' | 'config';
const VIEWS: readonly View[] = ['curves', 'groups', 'actions', 'episodes', 'config'];

export default function Run({ name, query }: { name: string; query: URLSearchParams }) {
  const { value: run, error } = useFetched<RunView>(`runs/${encodeURIComponent(name)}`, {}, GROWING_MS);
  const view = VIEWS.find((one) => one === query.get('view')) ?? 'curves';
  if (error) return <p className="empty bad">{error}</p>;
  if (!run) return <p className="empty">Loading…</p>;
  return (
    <div className="stack">
      <div className="row spread">
        <h1>
          <a href={link(['runs'])}>Training</a> / {name}
        </h1>
        <span className="small dim">
          iteration {run.info.last_iteration ?? '–'} · {run.info.groups} groups · {run.info.turns} turns · {run.info.adapters} adapters
        </span>
      </div>
      <div className="rolebar" role="group" aria-label="What to show">
        {VIEWS.map((one) => (
          <button type="button" key={one} aria-pressed={one === view} onClick={() => go(['runs', name], { view: one })}>
            {one}
          </button>
        ))}
      </div>
      {view === 'curves' && <Curves name={name} run={run} />}
      {view === 'groups' && <Groups name={name} run={run} query={query} />}
      {view === 'actions' && <Actions name={name} run={run} />}
      {view === 'episodes' && <Episodes name={name} run={run} query={query} />}
      {view === 'config' && <Configuration run={run} />}
    </div>
  );
}

function Curves({ name, run }: { name: string; run: RunView }) {
  const { value: series, error } = useFetched<Series[]>(`runs/${encodeURIComponent(name)}/metrics`, {}, GROWING_MS);
  const [weight, setWeight] = useState(0.5);
  const [log, setLog] = useState(false);
  const [all, setAll] = useState(false);
  const metrics = useMemo(() => byMetric((series ?? []).filter((one) => one.scope.startsWith(TRAIN))), [series]);
  const shown = useMemo(() => {
    const first = MAIN.filter((metric) => metrics.has(metric));
    const rest = [...metrics.keys()].filter((metric) => !first.includes(metric as (typeof MAIN)[number])).sort();
    return (all ? [...first, ...rest] : first).map((metric) => ({
      metric,
      lines: (metrics.get(metric) ?? []).map((one): Line => {
        const role = one.scope.slice(TRAIN.length);
        return { name: titleOf(role), color: colorOf(role), x: one.iterations, y: one.values };
      }),
    }));
  }, [metrics, all]);
  if (error) return <p className="empty bad">{error}</p>;
  if (!series) return <p className="empty">Loading…</p>;
  return (
    <>
      <Health metrics={metrics} run={run} />
      <div className="row spread">
        <p className="legend">
          {run.actors.map((role) => (
            <span key={role}>
              <i style={{ background: colorOf(role) }} />
              {titleOf(role)}
            </span>
          ))}
        </p>
        <span className="row">
          <label className="row small">
            smoothing
            <input type="range" min={0} max={0.95} step={0.05} value={weight} onChange={(event) => setWeight(Number(event.target.value))} />
          </label>
          <label className="row small">
            <input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} /> log scale
          </label>
          <label className="row small">
            <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} /> all {metrics.size}
          </label>
        </span>
      </div>
      {!shown.length && <p className="empty">This run has recorded no training metrics.</p>}
      <div className="curves">
        {shown.map((chart) => (
          <Plot key={chart.metric} title={chart.metric} lines={chart.lines} weight={weight} log={log} />
        ))}
      </div>
    </>
  );
}

interface Strip {
  metric: string;
  label: string;
  tone: string;
  /** Value at which the colour is full. */
  full: number;
}
const STRIPS: readonly Strip[] = [
  { metric: 'frac_reward_zero_std', label: 'dead groups', tone: '#f0686f', full: 1 },
  { metric: 'kl', label: 'KL to start', tone: '#f2b84b', full: 0.5 },
  { metric: 'clip_ratio/region_mean', label: 'clipped', tone: '#b48cf0', full: 0.2 },
  { metric: 'sampling/kl', label: 'mismatch', tone: '#5aa2f0', full: 0.02 },
  { metric: 'skipped', label: 'skipped', tone: '#ee6fa3', full: 1 },
];

/** The worst value over roles, per iteration, as colour: the sicknesses of GRPO at a glance. */
function Health({ metrics, run }: { metrics: Map<string, Series[]>; run: RunView }) {
  return (
    <Panel title="Health" tools={<span className="small dim">worst role per iteration; the stronger the colour, the worse</span>}>
      <div className="health">
        {STRIPS.map((strip) => (
          <HealthLine key={strip.metric} strip={strip} series={metrics.get(strip.metric) ?? []} iterations={run.iterations} />
        ))}
      </div>
    </Panel>
  );
}

function HealthLine({ strip, series, iterations }: { strip: Strip; series: readonly Series[]; iterations: readonly number[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStore((state) => state.theme);
  const worst = useMemo(() => {
    const place = new Map(iterations.map((iteration, index) => [iteration, index]));
    const values: (number | null)[] = iterations.map(() => null);
    for (const one of series)
      one.iterations.forEach((iteration, index) => {
        const at = place.get(iteration);
        const value = one.values[index];
        if (at !== undefined && value !== null && value !== undefined) values[at] = Math.max(values[at] ?? -Infinity, value);
      });
    return values;
  }, [series, iterations]);
  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext('2d');
    if (!element || !pen) return;
    element.width = Math.max(1, worst.length);
    element.height = 1;
    const empty = getComputedStyle(element).getPropertyValue('--panel-2');
    worst.forEach((value, index) => {
      pen.globalAlpha = 1;
      pen.fillStyle = empty;
      pen.fillRect(index, 0, 1, 1);
      if (value === null) return;
      pen.globalAlpha = Math.min(1, Math.max(0, value) / strip.full);
      pen.fillStyle = strip.tone;
      pen.fillRect(index, 0, 1, 1);
    });
  }, [worst, strip, theme]);
  const known = worst.filter((value) => value !== null);
  const high = known.length ? Math.max(...known) : null;
  const text = `${strip.label}: newest ${compact(known.at(-1))}, highest ${compact(high)}`;
  return (
    <div className="line small">
      <span className="dim" title={strip.metric}>
        {strip.label} <b>{compact(known.at(-1))}</b>
      </span>
      <canvas ref={canvas} role="img" aria-label={text} title={text} style={{ imageRendering: 'pixelated' }} />
    </div>
  );
}

function Groups({ name, run, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const actor = query.get('actor') ?? '';
  const iteration = query.get('iteration') ?? String(run.info.last_iteration ?? '');
  const start = Number(query.get('start') ?? 0) || 0;
  const { value: page, error } = useFetched<GroupPage>(`runs/${encodeURIComponent(name)}/groups`, {
    actor: actor || null,
    iteration: iteration === 'all' ? null : iteration,
    start,
    count: PAGE,
  });
  const change = (next: Record<string, string | number>): void => go(['runs', name], { view: 'groups', actor, iteration, start: 0, ...next });
  return (
    <Panel
      title={`Groups · ${page?.total ?? '…'}`}
      tools={
        <span className="row">
          <label className="row small">
            role
            <select value={actor} onChange={(event) => change({ actor: event.target.value })}>
              <option value="">all</option>
              {run.actors.map((role) => (
                <option key={role} value={role}>
                  {titleOf(role)}
                </option>
              ))}
            </select>
          </label>
          <label className="row small">
            iteration
            <select value={iteration} onChange={(event) => change({ iteration: event.target.value })}>
              <option value="all">all</option>
              {run.iterations.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
        </span>
      }
    >
      {error && <p className="bad">{error}</p>}
      {page && !page.rows.length && <p className="empty">No group was recorded here. Choose another iteration or role.</p>}
      {page && page.rows.length > 0 && (
        <Scroll label="Groups">
          <table>
            <thead>
              <tr>
                <th scope="col">group</th>
                <th scope="col">role</th>
                <th scope="col">where</th>
                <th scope="col" className="num">
                  replies
                </th>
                <th scope="col" className="num">
                  distinct
                </th>
                <th scope="col" className="num">
                  invalid
                </th>
                <th scope="col" className="num">
                  spread
                </th>
                <th scope="col">best</th>
              </tr>
            </thead>
            <tbody>
              {page.rows.map((row) => (
                <tr key={row.key}>
                  <td>
                    <a href={link(['runs', name, 'group'], { key: row.key })} className="mono">
                      {row.key}
                    </a>{' '}
                    {!row.trained && <span className="tag bad">dead</span>}
                  </td>
                  <td>
                    <RoleBadge role={row.actor} />
                  </td>
                  <td className="nowrap dim">
                    {row.day !== null ? `day ${row.day}` : ''} {row.turn !== null ? `turn ${row.turn}` : ''} {row.origin}
                  </td>
                  <td className="num">{row.size}</td>
                  <td className="num">{row.distinct}</td>
                  <td className={`num ${row.invalid ? 'bad' : 'dim'}`}>{row.invalid}</td>
                  <td className="num">{fixed(row.spread, 3)}</td>
                  <td className="small mono">{row.best}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {page && page.total > PAGE && (
        <p className="row" style={{ marginTop: 8 }}>
          <button type="button" disabled={start === 0} onClick={() => change({ start: Math.max(0, start - PAGE) })}>
            ‹ before
          </button>
          <span className="dim small">
            {start + 1}–{Math.min(start + PAGE, page.total)} of {page.total}
          </span>
          <button type="button" disabled={start + PAGE >= page.total} onClick={() => change({ start: start + PAGE })}>
            after ›
          </button>
        </p>
      )}
    </Panel>
  );
}

const HUES = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3', '#b48cf0', '#f08a4b', '#9bcf5c', '#7f88a6'];

/** How the choice of actions drifts: one stacked column per iteration. */
function Actions({ name, run }: { name: string; run: RunView }) {
  const [role, setRole] = useState(run.actors[0] ?? 'sales');
  const { value, error } = useFetched<ActionShare[]>(`runs/${encodeURIComponent(name)}/drift`, { actor: role });
  const mine = useMemo(() => (value ?? []).filter((one) => one.actor === role), [value, role]);
  const iterations = [...new Set(mine.map((one) => one.iteration))];
  const totals = new Map<string, number>();
  for (const one of mine) totals.set(one.action, (totals.get(one.action) ?? 0) + one.share);
  const actions = [...totals].sort((a, b) => b[1] - a[1]).map(([action]) => action);
  const color = (action: string): string => (action === 'invalid' ? '#f0686f' : (HUES[actions.filter((one) => one !== 'invalid').indexOf(action) % HUES.length] ?? '#888'));
  const share = new Map(mine.map((one) => [`${one.iteration} ${one.action}`, one.share]));
  const first = iterations[0];
  const last = iterations.at(-1);
  return (
    <Panel
      title="Which actions are sampled"
      tools={
        <span className="rolebar" role="group" aria-label="Role">
          {run.actors.map((one) => (
            <button type="button" key={one} aria-pressed={one === role} onClick={() => setRole(one)}>
              {titleOf(one)}
            </button>
          ))}
        </span>
      }
    >
      {error && <p className="bad">{error}</p>}
      {!mine.length && <p className="empty">{value ? 'No branch groups of this role are recorded.' : 'Loading…'}</p>}
      {mine.length > 0 && (
        <>
          <svg viewBox={`0 0 ${iterations.length} 100`} preserveAspectRatio="none" style={{ width: '100%', height: 220, display: 'block' }} role="img" aria-label={`Shares of actions of ${role} over ${iterations.length} iterations; the table below has the first and the last`}>
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
          <table style={{ marginTop: 10 }}>
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
                    <th scope="row" className="legend">
                      <span>
                        <i style={{ background: color(action) }} />
                        {words(action)}
                      </span>
                    </th>
                    <td className="num">{percent(before)}</td>
                    <td className="num">{percent(after)}</td>
                    <td className={`num ${after > before ? 'good' : after < before ? 'bad' : 'dim'}`}>{fixed(100 * (after - before), 0)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </>
      )}
    </Panel>
  );
}

function Episodes({ name, run, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const iteration = query.get('iteration') ?? String(run.info.last_iteration ?? '');
  const { value: rows, error } = useFetched<EpisodeRow[]>(`runs/${encodeURIComponent(name)}/episodes`, { iteration: iteration === 'all' ? null : iteration });
  return (
    <Panel
      title={`Episodes · ${rows?.length ?? '…'}`}
      tools={
        <label className="row small">
          iteration
          <select value={iteration} onChange={(event) => go(['runs', name], { view: 'episodes', iteration: event.target.value })}>
            <option value="all">all</option>
            {run.iterations.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
      }
    >
      {error && <p className="bad">{error}</p>}
      {rows && !rows.length && <p className="empty">No episode was recorded in this iteration.</p>}
      {rows && rows.length > 0 && (
        <Scroll label="Episodes">
          <table>
            <thead>
              <tr>
                <th scope="col">episode</th>
                <th scope="col">ended</th>
                <th scope="col" className="num">
                  turns
                </th>
                <th scope="col" className="num">
                  company value
                </th>
                <th scope="col" className="num">
                  team reward
                </th>
                <th scope="col">who played</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={`${row.iteration} ${row.name}`}>
                  <td>
                    <a className="mono" href={link(['runs', name, 'episode'], { iteration: row.iteration, episode: row.name })}>
                      {row.name}
                    </a>
                  </td>
                  <td>{row.error ? <span className="bad">{row.error}</span> : row.stop}</td>
                  <td className="num">{row.turns || '–'}</td>
                  <td className="num">{typeof row.metrics.company_value === 'number' ? dollars(row.metrics.company_value) : '–'}</td>
                  <td className="num">{compact(row.metrics.team_reward)}</td>
                  <td className="small dim mono">{[...new Set(Object.values(row.policies))].join(', ')}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

function Configuration({ run }: { run: RunView }) {
  const leaves = [...flat(run.config)];
  return (
    <div className="grid" style={{ gridTemplateColumns: 'repeat(auto-fit, minmax(310px, 1fr))', alignItems: 'start' }}>
      <Panel title="Configuration">
        <Scroll label="Configuration" max={620}>
          <table>
            <tbody>
              {leaves.map(([key, value]) => (
                <tr key={key}>
                  <th scope="row" className="mono">
                    {key}
                  </th>
                  <td className="mono num">{value}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </Panel>
      <div className="stack">
        <Panel title="Scales of branch values">
          <table>
            <thead>
              <tr>
                <th scope="col">role</th>
                <th scope="col" className="num">
                  outcome, $ a turn
                </th>
                <th scope="col" className="num">
                  return a turn
                </th>
              </tr>
            </thead>
            <tbody>
              {ROLES.filter((role) => run.scales[role.id]).map((role) => (
                <tr key={role.id}>
                  <th scope="row">
                    <RoleBadge role={role.id} />
                  </th>
                  <td className="num">{compact(run.scales[role.id]?.outcome)}</td>
                  <td className="num">{compact(run.scales[role.id]?.return)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Panel>
        <Panel title={`Events · ${run.events.length}`}>
          <Scroll label="Events" max={330}>
            {!run.events.length && <p className="empty">Nothing out of the ordinary.</p>}
            <table>
              <tbody>
                {run.events.map((event, index) => (
                  <tr key={index}>
                    <td className="num">{event.iteration}</td>
                    <td>{event.kind}</td>
                    <td className="mono small">{JSON.stringify(event.payload)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </Panel>
      </div>
    </div>
  );
}
