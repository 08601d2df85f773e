// One run: curves, health of its groups, what was sampled, how it was configured.
import { useMemo, useState } from 'react';
import { type RunView, type Series } from '../api/client';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { byMetric, chartsOf, TRAIN } from '../lib/curves';
import { compact } from '../lib/format';
import { isExport } from '../lib/exported';
import { go, link } from '../lib/route';
import { colorOf, titleOf } from '../lib/roles';
import { Plot, type Line } from '../ui/Plot';
import { Panel, RoleBadge, Scroll, Verification } from '../ui/small';
import { Actions } from './Actions';
import { Episodes } from './Episodes';
import { Groups } from './Groups';
import { Health } from './Health';
import { Overview } from './Overview';
import { flat } from './Runs';

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
          {run.info.groups} groups · {run.info.turns} turns · {run.info.adapters}{' '}
          {run.info.adapters === 1 ? 'adapter' : 'adapters'}
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
            id: role,
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
      <p className="small dim">Click on a curve: the groups of that iteration and role.</p>
      {!shown.length && <p className="empty">This run has recorded no training metrics.</p>}
      <div className="curves">
        {shown.map((chart) => (
          <Plot
            key={chart.metric}
            title={chart.title}
            lines={chart.lines}
            weight={weight}
            log={log}
            pick={(iteration, actor) => go(['runs', name], { view: 'groups', iteration, actor })}
          />
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
