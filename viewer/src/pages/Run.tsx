// One run: curves, health of its groups, what was sampled, how it was configured.
import { useMemo, useState } from 'react';
import { type EpisodeRow, type GroupPage, type RunView, type Series } from '../api/client';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { byMetric, chartsOf, TRAIN } from '../lib/curves';
import { compact, dollars, fixed } from '../lib/format';
import { holdsEpisode, holdsGroup, isExport } from '../lib/exported';
import { go, link } from '../lib/route';
import { colorOf, titleOf } from '../lib/roles';
import { Plot, type Line } from '../ui/Plot';
import { Choice, Panel, RoleBadge, Scroll, Verification } from '../ui/small';
import { Actions } from './Actions';
import { Health } from './Health';
import { Overview } from './Overview';
import { flat } from './Runs';

const PAGE = 60;
type View = 'overview' | 'curves' | 'groups' | 'actions' | 'episodes' | 'config';
const VIEWS: readonly View[] = ['overview', 'curves', 'groups', 'actions', 'episodes', 'config'];

export default function Run({ name, query }: { name: string; query: URLSearchParams }) {
  const { value: run, error } = useFetched<RunView>(`runs/${encodeURIComponent(name)}`, {}, GROWING_MS);
  const view = VIEWS.find((one) => one === query.get('view')) ?? 'overview';
  if (error) return <p className="empty bad">{error}</p>;
  if (!run) return <p className="empty">Loading…</p>;
  return (
    <div className="stack">
      <div className="row spread">
        <h1>
          <a href={link(['runs'])}>Training</a> / {name} <Verification info={run.info} />
        </h1>
        <span className="row small dim">
          {run.info.env && <span className="mono">{run.info.env} ·</span>} iteration {run.info.last_iteration ?? '–'} ·{' '}
          {run.info.groups} groups · {run.info.turns} turns · {run.info.adapters} adapters
          {!isExport && (
            <a
              className="button"
              href={`./api/runs/${encodeURIComponent(name)}/export`}
              download
              title="Save this run as one file that opens without a server"
            >
              ⤓ save as one file
            </a>
          )}
        </span>
      </div>
      {run.damage.length > 0 && (
        <p className="small bad">
          Damaged and not shown:{' '}
          {run.damage.map(({ part, iteration }) => (iteration === null ? part : `${part} of iteration ${iteration}`)).join(', ')}
        </p>
      )}
      <div className="rolebar" role="group" aria-label="What to show">
        {VIEWS.map((one) => (
          <button type="button" key={one} aria-pressed={one === view} onClick={() => go(['runs', name], { view: one })}>
            {one}
          </button>
        ))}
      </div>
      {view === 'overview' && <Overview name={name} run={run} />}
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
  const shown = useMemo(
    () =>
      chartsOf(series ?? [], run.info.env, all).map(({ metric, title, series: found }) => ({
        metric,
        title,
        lines: found.map((one): Line => {
          const role = one.scope.startsWith(TRAIN) ? one.scope.slice(TRAIN.length) : '';
          return {
            name: role ? titleOf(role) : 'all roles',
            color: role ? colorOf(role) : '#9aa3ba',
            x: one.iterations,
            y: one.values,
          };
        }),
      })),
    [series, run.info.env, all],
  );
  const evaluated = useMemo(
    () =>
      (series ?? [])
        .filter((one) => one.scope === 'eval')
        .map((one) => ({
          title: one.name,
          lines: [{ name: 'evaluation', color: '#f2b84b', x: one.iterations, y: one.values }] satisfies Line[],
        })),
    [series],
  );
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
            <input
              type="range"
              min={0}
              max={0.95}
              step={0.05}
              value={weight}
              onChange={(event) => setWeight(Number(event.target.value))}
            />
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
          <Plot key={chart.metric} title={chart.title} lines={chart.lines} weight={weight} log={log} />
        ))}
      </div>
      {evaluated.length > 0 && (
        <>
          <h2>Evaluated on held-out tasks while training</h2>
          <div className="curves">
            {evaluated.map((chart) => (
              <Plot key={chart.title} title={chart.title} lines={chart.lines} weight={0} log={false} />
            ))}
          </div>
        </>
      )}
    </>
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
  const change = (next: Record<string, string | number>): void =>
    go(['runs', name], { view: 'groups', actor, iteration, start: 0, ...next });
  return (
    <Panel
      title={`Groups · ${page?.total ?? '…'}`}
      tools={
        <span className="row">
          <Choice
            label="role"
            value={actor}
            options={[['', 'all'], ...run.actors.map((role) => [role, titleOf(role)] as const)]}
            onChange={(value) => change({ actor: value })}
          />
          <Choice
            label="iteration"
            value={iteration}
            options={['all', ...run.iterations.map(String)]}
            onChange={(value) => change({ iteration: value })}
          />
        </span>
      }
    >
      {error && <p className="bad">{error}</p>}
      {page && !page.rows.length && <p className="empty">No group was recorded here. Choose another iteration or role.</p>}
      {page && page.rows.length > 0 && (
        <Scroll label="Groups">
          <table className="keyed groups">
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
                    {holdsGroup(row.key) ? (
                      <a href={link(['runs', name, 'group'], { key: row.key })} className="mono nowrap">
                        {row.key}
                      </a>
                    ) : (
                      <span className="mono dim nowrap" title="Not in this file; the viewer shows it">
                        {row.key}
                      </span>
                    )}{' '}
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

interface Figure {
  title: string;
  shown: (metrics: EpisodeRow['metrics']) => string;
}
/** Columns of the list: the office's two, or the rewards and up to three more that the environment reports. */
function figuresOf(rows: readonly EpisodeRow[]): Figure[] {
  if (rows.some((row) => typeof row.metrics.company_value === 'number'))
    return [
      {
        title: 'company value',
        shown: ({ company_value: value }) => (typeof value === 'number' ? dollars(value) : '–'),
      },
      { title: 'team reward', shown: (metrics) => compact(metrics.team_reward) },
    ];
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))].filter((name) => name !== 'turns');
  const rewards = names.filter((name) => /^reward(\/|$)/.test(name)).sort();
  const rest = names.filter((name) => !rewards.includes(name) && name !== 'invalid' && !name.includes('/')).sort();
  return [...rewards.slice(0, 5), ...rest.slice(0, 3), ...names.filter((name) => name === 'invalid')].map((title) => ({
    title,
    shown: (metrics) => compact(metrics[title]),
  }));
}

function Episodes({ name, run, query }: { name: string; run: RunView; query: URLSearchParams }) {
  const iteration = query.get('iteration') ?? String(run.info.last_iteration ?? '');
  const { value: rows, error } = useFetched<EpisodeRow[]>(`runs/${encodeURIComponent(name)}/episodes`, {
    iteration: iteration === 'all' ? null : iteration,
  });
  const figures = figuresOf(rows ?? []);
  return (
    <Panel
      title={`Episodes · ${rows?.length ?? '…'}`}
      tools={
        <Choice
          label="iteration"
          value={iteration}
          options={['all', ...run.iterations.map(String)]}
          onChange={(value) => go(['runs', name], { view: 'episodes', iteration: value })}
        />
      }
    >
      {error && <p className="bad">{error}</p>}
      {rows && !rows.length && <p className="empty">No episode was recorded in this iteration.</p>}
      {rows && rows.length > 0 && (
        <Scroll label="Episodes">
          <table className="keyed episodes">
            <thead>
              <tr>
                <th scope="col">episode</th>
                <th scope="col">ended</th>
                <th scope="col" className="num">
                  turns
                </th>
                {figures.map(({ title }) => (
                  <th scope="col" className="num" key={title}>
                    {title}
                  </th>
                ))}
                <th scope="col">who played</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={`${row.iteration} ${row.name}`}>
                  <td>
                    {holdsEpisode(row.iteration, row.name) ? (
                      <a
                        className="mono nowrap"
                        href={link(['runs', name, 'episode'], { iteration: row.iteration, episode: row.name })}
                      >
                        {row.name}
                      </a>
                    ) : (
                      <span className="mono dim" title="Not in this file; the viewer shows it">
                        {row.name}
                      </span>
                    )}
                  </td>
                  <td>{row.error ? <span className="bad">{row.error}</span> : row.stop}</td>
                  <td className="num">{row.turns || '–'}</td>
                  {figures.map(({ title, shown }) => (
                    <td className="num" key={title}>
                      {shown(row.metrics)}
                    </td>
                  ))}
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
          <table className="settings">
            <tbody>
              {leaves.map(([key, value]) => (
                <tr key={key}>
                  <th scope="row" className="mono">
                    {key.replaceAll('.', '.\u200b')}
                  </th>
                  <td className="mono num">{value}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </Panel>
      <div className="stack">
        {Object.keys(run.scales).length > 0 && (
          <Panel title="Scales of branch values">
            <table>
              <thead>
                <tr>
                  <th scope="col">role</th>
                  <th scope="col" className="num">
                    outcome{run.info.env === 'office' ? ', $' : ''} a turn
                  </th>
                  <th scope="col" className="num">
                    return a turn
                  </th>
                </tr>
              </thead>
              <tbody>
                {Object.entries(run.scales).map(([role, scale]) => (
                  <tr key={role}>
                    <th scope="row">
                      <RoleBadge role={role} />
                    </th>
                    <td className="num">{compact(scale.outcome)}</td>
                    <td className="num">{compact(scale.return)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Panel>
        )}
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
