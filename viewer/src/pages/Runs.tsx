// All recorded runs, and some of them side by side: how they were configured differently, and what came of it.
import { useMemo, useState } from 'react';
import type { ComparisonInfo, AgainstView, NotesView, OutcomeView, OverviewView, RunInfo, RunView, Series } from '../api/client';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { duration, whole } from '../lib/format';
import { go, link } from '../lib/route';
import { titleOf } from '../lib/roles';
import { baselineOf, listed, modelName, newestJudged, NO_BASELINE, ORDERS, type Order } from '../lib/runs';
import { Star, Tags } from '../ui/Notes';
import { Plot, type Line } from '../ui/Plot';
import { Choice, Panel, Scroll, Verification } from '../ui/small';
import { Verdict, Word } from '../ui/Verdict';

const COLORS = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3'];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const COMPARED = ['reward', 'valid_rate', 'entropy', 'kl', 'frac_reward_zero_std', 'grad_norm'];

const HEADS: readonly (readonly [Order, string, boolean])[] = [
  ['name', 'name', false],
  ['status', 'status', false],
  ['outcome', 'outcome', false],
  ['env', 'environment', false],
  ['roles', 'roles', false],
  ['seconds', 'time', true],
  ['iteration', 'iteration', true],
  ['created', 'started (UTC)', false],
];
const STATUS: Record<string, string> = { running: 'accent', killed: 'bad' };

export default function Runs({ query }: { query: URLSearchParams }) {
  const { value: runs, error, loading } = useFetched<RunInfo[]>('runs', {}, GROWING_MS);
  const [written, setWritten] = useState<Record<string, NotesView>>({});
  const chosen = useMemo(() => (query.get('compare') ?? '').split(',').filter(Boolean).slice(0, COLORS.length), [query]);
  const search = query.get('find') ?? '';
  const order = ORDERS.find((one) => one === query.get('sort')) ?? 'name';
  const turned = query.get('turned') === '1';
  const asked = query.get('baseline') ?? '';
  const change = (next: Record<string, string>): void =>
    go(['runs'], { compare: chosen.join(','), find: search, sort: order, turned: turned ? '1' : '', baseline: asked, ...next });
  const toggle = (name: string): void => {
    const next = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name].slice(-COLORS.length);
    change({ compare: next.join(',') });
  };
  const known = (runs ?? []).map((run) => ({ ...run, notes: written[run.name] ?? run.notes }));
  const rows = listed(known, search, order, turned);
  const baseline = baselineOf(known, asked);
  const { value: differences, loading: comparing } = useFetched<Record<string, AgainstView>>(
    baseline ? `runs/${encodeURIComponent(baseline)}/differences` : null,
    {},
    GROWING_MS,
  );
  return (
    <div className="stack">
      <h1 className="sr">Training</h1>
      <Panel
        title={`Runs · ${rows.length}`}
        tools={
          <span className="row small">
            <label className="row">
              find
              <input type="search" value={search} onChange={(event) => change({ find: event.target.value })} />
            </label>
            {known.length > 1 && (
              <Choice
                label="baseline"
                value={baseline || NO_BASELINE}
                options={[[NO_BASELINE, 'none'] as const, ...known.filter(({ error }) => !error).map(({ name }) => name)]}
                onChange={(name) => change({ baseline: name })}
              />
            )}
            <span className="dim">tick up to four to compare them</span>
          </span>
        }
      >
        {error && <p className="bad">{error}</p>}
        {loading && !runs && <p className="empty">Loading…</p>}
        {runs && !runs.length && (
          <p className="empty">
            No run is recorded here yet. <code className="mono">onthejob train --name first</code> makes one; then start the
            viewer with <code className="mono">onthejob view runs/first</code>.
          </p>
        )}
        {runs && runs.length > 0 && !rows.length && <p className="empty">No run contains “{search}”.</p>}
        {rows.length > 0 && (
          <Scroll label="Runs">
            <table className="runs">
              <thead>
                <tr>
                  <th scope="col">
                    <span className="sr">compare</span>
                  </th>
                  <th scope="col">
                    <span className="sr">baseline</span>
                  </th>
                  {HEADS.map(([key, title, number]) => (
                    <th
                      scope="col"
                      className={number ? 'num' : ''}
                      key={key}
                      aria-sort={key === order ? (turned ? 'descending' : 'ascending') : 'none'}
                    >
                      <button
                        type="button"
                        className="sort"
                        onClick={() => change({ sort: key, turned: key === order && !turned ? '1' : '' })}
                      >
                        {title}
                        {key === order && (turned ? ' ▴' : ' ▾')}
                      </button>
                    </th>
                  ))}
                  {baseline && <th scope="col">minus {baseline}</th>}
                </tr>
              </thead>
              <tbody>
                {rows.map((run) => (
                  <tr key={run.name}>
                    <td>
                      <input
                        type="checkbox"
                        checked={chosen.includes(run.name)}
                        onChange={() => toggle(run.name)}
                        aria-label={`Compare ${run.name}`}
                        disabled={Boolean(run.error)}
                      />
                    </td>
                    <td>
                      <Star
                        run={run.name}
                        notes={run.notes}
                        wrote={(notes) => setWritten((before) => ({ ...before, [run.name]: notes }))}
                      />
                    </td>
                    <td className="name">
                      {run.error ? (
                        <span title={run.error}>
                          {run.name} <span className="tag bad">cannot be read</span>{' '}
                          <span className="small bad">{run.error}</span>
                        </span>
                      ) : (
                        <>
                          <a href={link(['runs', run.name])}>{run.name}</a> <Verification info={run} /> <Tags notes={run.notes} />
                        </>
                      )}
                    </td>
                    <td>{!run.error && <span className={`tag ${STATUS[run.status] ?? ''}`}>{run.status}</span>}</td>
                    <td>{run.outcome ? <OutcomeCell outcome={run.outcome} /> : <span className="faint">–</span>}</td>
                    <td className="small mono">{run.env || '–'}</td>
                    <td className="small" title={run.roles.join(', ')}>
                      {run.roles.length > 3 ? `${run.roles.length} roles` : run.roles.join(', ') || '–'}
                      {run.model && <span className="dim model">{modelName(run.model)}</span>}
                    </td>
                    <td className="num nowrap">{duration(run.seconds)}</td>
                    <td className="num">{run.last_iteration ?? '–'}</td>
                    <td className="nowrap dim">{(run.created_at ?? '–').slice(0, 16).replace('T', ' ')}</td>
                    {baseline && (
                      <td>
                        <Difference
                          of={run.name}
                          from={baseline}
                          found={comparing ? undefined : (differences?.[run.name] ?? null)}
                        />
                      </td>
                    )}
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
        {baseline && differences && !comparing && !Object.keys(differences).length && (
          <p className="small dim">
            No run was compared with {baseline} on the same tasks.{' '}
            <code className="mono">onthejob compare {baseline} OTHER --name NAME</code> does it.
          </p>
        )}
      </Panel>
      {chosen.length > 0 ? <Comparison names={chosen} /> : <Newest run={newestJudged(known)?.name ?? ''} />}
      <Comparisons />
    </div>
  );
}

function OutcomeCell({ outcome }: { outcome: OutcomeView }) {
  const said = (
    <>
      {outcome.text} <span className="dim">{outcome.against}</span>
    </>
  );
  return (
    <span className="small" title={`${outcome.metric}, ${outcome.comparison || 'evaluations while it was trained'}`}>
      <Word word={outcome.word} /> {outcome.comparison ? <a href={link(['comparisons', outcome.comparison])}>{said}</a> : said}
    </span>
  );
}

/** A run less the baseline: only where both played the same tasks, since means over different tasks are not subtracted. */
function Difference({ of, from, found }: { of: string; from: string; found: AgainstView | null | undefined }) {
  if (of === from) return <span className="tag">baseline</span>;
  if (found === undefined) return <span className="faint">…</span>;
  if (found === null)
    return (
      <span className="faint" title={`Not compared with ${from} on the same tasks`}>
        –
      </span>
    );
  return (
    <span className="small" title={`${found.metric}, paired over ${found.tasks} tasks of the comparison ${found.comparison}`}>
      <Word word={found.word} /> <a href={link(['comparisons', found.comparison])}>{found.text}</a>
    </span>
  );
}

/** The verdict on the run that began last, while no runs are compared: the answer that most people come for. */
function Newest({ run }: { run: string }) {
  const { value, loading } = useFetched<OverviewView>(run ? `runs/${encodeURIComponent(run)}/overview` : null);
  if (!run || loading || !value?.verdict) return null;
  return (
    <Verdict
      value={value.verdict}
      title={`Newest outcome: ${run}`}
      note={
        <>
          {value.verdict.question} <a href={link(['runs', run])}>The run</a>
          {value.comparison && (
            <>
              {' '}
              and <a href={link(['comparisons', value.comparison])}>its comparison {value.comparison}</a>
            </>
          )}
          .
        </>
      }
    />
  );
}

/** What `onthejob compare --name` kept: teams on held-out tasks. */
function Comparisons() {
  const { value: found, error } = useFetched<ComparisonInfo[]>('comparisons', {}, GROWING_MS);
  return (
    <Panel title="Matched comparisons" tools={<span className="small dim">teams on the same held-out tasks</span>}>
      {error && <p className="bad">{error}</p>}
      {found && !found.length && (
        <p className="empty">
          None yet. <code className="mono">onthejob compare base first --name first</code> makes one.
        </p>
      )}
      {found && found.length > 0 && (
        <Scroll label="Matched comparisons">
          <table>
            <thead>
              <tr>
                <th scope="col">name</th>
                <th scope="col">teams</th>
                <th scope="col" className="num">
                  tasks
                </th>
              </tr>
            </thead>
            <tbody>
              {found.map((one) => (
                <tr key={one.name}>
                  <td>
                    {one.error ? (
                      <>
                        {one.name} <span className="tag bad">cannot be read</span> <span className="small bad">{one.error}</span>
                      </>
                    ) : (
                      <a href={link(['comparisons', one.name])}>{one.name}</a>
                    )}
                  </td>
                  <td className="small">{one.teams.join(', ')}</td>
                  <td className="num">{one.error ? '–' : whole(one.tasks)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

/** `a.b.c` -> value of every leaf. */
export function flat(value: unknown, prefix = ''): Map<string, string> {
  const found = new Map<string, string>();
  if (value !== null && typeof value === 'object' && !Array.isArray(value))
    for (const [key, item] of Object.entries(value))
      for (const [path, text] of flat(item, prefix ? `${prefix}.${key}` : key)) found.set(path, text);
  else found.set(prefix, JSON.stringify(value));
  return found;
}

function Comparison({ names }: { names: readonly string[] }) {
  const [chosen, setRole] = useState('');
  const [weight, setWeight] = useState(0.6);
  // Hooks cannot be called in a loop of changing length: four places, some empty.
  const views = [0, 1, 2, 3].map(
    (place) => useFetched<RunView>(names[place] ? `runs/${encodeURIComponent(names[place])}` : null).value,
  );
  // Of the roles that these runs trained; the office's salesman first, who is trained in most of them.
  const roles = [...new Set(views.slice(0, names.length).flatMap((view) => view?.actors ?? []))];
  const role = roles.includes(chosen) ? chosen : roles.includes('sales') ? 'sales' : (roles[0] ?? '');
  const series = [0, 1, 2, 3].map(
    (place) =>
      useFetched<Series[]>(names[place] && role ? `runs/${encodeURIComponent(names[place])}/metrics` : null, {
        scope: `train/${role}`,
        metric: COMPARED,
      }).value,
  );
  const charts = useMemo(
    () =>
      COMPARED.map((metric) => ({
        metric,
        lines: names.flatMap((name, place): Line[] => {
          const found = series[place]?.find((one) => one.name === metric);
          return found ? [{ name, color: COLORS[place]!, dash: DASHES[place]!, x: found.iterations, y: found.values }] : [];
        }),
      })).filter((chart) => chart.lines.length),
    [names, ...series],
  );
  const configs = names.map((_, place) => (views[place] ? flat(views[place].config) : new Map<string, string>()));
  const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))].sort();
  const different = keys.filter((key) => new Set(configs.map((config) => config.get(key))).size > 1);
  return (
    <>
      <Panel
        title="Compared"
        tools={
          <span className="row">
            <Choice label="role" value={role} options={roles.map((one) => [one, titleOf(one)] as const)} onChange={setRole} />
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
          </span>
        }
      >
        <p className="legend">
          {names.map((name, place) => (
            <span key={name}>
              <i style={{ background: COLORS[place] }} />
              {name}
            </span>
          ))}
        </p>
      </Panel>
      <div className="curves">
        {charts.map((chart) => (
          <Plot key={chart.metric} title={`${role} · ${chart.metric}`} lines={chart.lines} weight={weight} log={false} />
        ))}
      </div>
      {names.length > 1 && (
        <Panel title={`Configured differently · ${different.length}`}>
          <Scroll label="Differences of configuration">
            <table>
              <thead>
                <tr>
                  <th scope="col">option</th>
                  {names.map((name) => (
                    <th scope="col" key={name}>
                      {name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {different.map((key) => (
                  <tr key={key}>
                    <th scope="row" className="mono">
                      {key}
                    </th>
                    {configs.map((config, place) => (
                      <td className="mono" key={names[place]}>
                        {config.get(key) ?? <span className="faint">not set</span>}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
            {!different.length && <p className="empty">Nothing.</p>}
          </Scroll>
        </Panel>
      )}
    </>
  );
}
