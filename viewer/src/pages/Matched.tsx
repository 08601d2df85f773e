// A matched comparison: teams on the same held-out tasks, means and paired differences with their intervals.
import { useState } from 'react';
import type { ComparisonView } from '../api/client';
import { useFetched } from '../lib/fetching';
import { compact } from '../lib/format';
import { go, link } from '../lib/route';
import { Choice, Panel, Scroll } from '../ui/small';
import { ComparedTasks } from './ComparedTasks';
import { Verdict } from '../ui/Verdict';

export const COLORS = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3', '#b48cf0', '#f08a4b', '#9bcf5c', '#9aa3ba'];
const ALL = 'all';
const FIRST = ['company_value', 'reward', 'passed', 'assertion_rate', 'team_reward'];
const NOT_SHOWN = /^(wall_s|prompt_tokens|completion_tokens|decisions|turns)$|^(passed|total)\//;

interface Interval {
  mean: number | null;
  low: number | null;
  high: number | null;
}

export default function Matched({ name, query }: { name: string; query: URLSearchParams }) {
  const { value, error } = useFetched<ComparisonView>(`comparisons/${encodeURIComponent(name)}`);
  if (error) return <p className="empty bad">{error}</p>;
  if (!value) return <p className="empty">Loading…</p>;
  const metric = value.metrics.find((one) => one === (query.get('metric') ?? value.verdict?.metric)) ?? main(value);
  const featured = value.teams.find((one) => one === (query.get('team') ?? value.verdict?.featured)) ?? value.teams.at(-1)!;
  const change = (next: Record<string, string>): void => go(['comparisons', name], { metric, team: featured, ...next });
  const temperature = Number(value.settings.temperature ?? 0);
  return (
    <div className="stack">
      <div className="row spread">
        <h1>
          <a href={link(['runs'])}>Training</a> / {name}
        </h1>
        <span className="small dim">
          {value.tasks} matched tasks · {temperature === 0 ? 'greedy' : `temperature ${temperature}`} · 95 % intervals
          {value.failed > 0 && <span className="bad"> · {value.failed} episodes failed and are excluded with their pairs</span>}
        </span>
      </div>
      {value.verdict && <Verdict value={value.verdict} />}
      <ComparisonPanels value={value} metric={metric} featured={featured} change={change} />
      <ComparedTasks value={value} metric={metric} featured={featured} />
    </div>
  );
}

export function ComparisonPanels({
  value,
  metric,
  featured,
  change,
  fold = false,
}: {
  value: ComparisonView;
  metric: string;
  featured: string;
  change: (next: Record<string, string>) => void;
  /** Only the differences are open. */
  fold?: boolean;
}) {
  const rest = (
    <>
      <Panel
        title="What the teams reached"
        tools={<Choice label="metric" value={metric} options={value.metrics} onChange={(chosen) => change({ metric: chosen })} />}
      >
        <Whiskers
          label={`Mean ${metric} by team`}
          rows={value.teams.map((team, index) => ({
            name: team,
            color: COLORS[index % COLORS.length]!,
            ...mean(value, team, metric, ALL),
          }))}
        />
      </Panel>
      <Tests value={value} />
      <Means value={value} featured={featured} />
    </>
  );
  return (
    <>
      <Differences value={value} metric={metric} featured={featured} choose={(team) => change({ team })} />
      {fold ? (
        <details className="fold">
          <summary>What the teams reached, and all metrics</summary>
          <div className="stack">{rest}</div>
        </details>
      ) : (
        rest
      )}
    </>
  );
}

const main = (value: ComparisonView): string =>
  FIRST.find((one) => value.metrics.includes(one)) ?? value.metrics.find((one) => !NOT_SHOWN.test(one)) ?? value.metrics[0]!;

const NONE: Interval = { mean: null, low: null, high: null };

function mean(value: ComparisonView, team: string, metric: string, stratum: string): Interval {
  return value.means.find((row) => row.team === team && row.metric === metric && row.stratum === stratum) ?? NONE;
}

/** `first` minus `second`; the file holds each pair once. */
function difference(
  value: ComparisonView,
  first: string,
  second: string,
  metric: string,
  stratum: string,
): Interval & { n: number } {
  const of = (a: string, b: string) =>
    value.differences.find((row) => row.first === a && row.second === b && row.metric === metric && row.stratum === stratum);
  const direct = of(first, second);
  if (direct) return direct;
  const turned = of(second, first);
  const minus = (one: number | null): number | null => (one === null ? null : -one);
  return turned ? { mean: minus(turned.mean), low: minus(turned.high), high: minus(turned.low), n: turned.n } : { ...NONE, n: 0 };
}

const tone = ({ low, high }: Interval): string => (low !== null && low > 0 ? 'good' : high !== null && high < 0 ? 'bad' : '');
const text = ({ mean: middle, low, high }: Interval): string => {
  if (middle === null) return '–';
  return low === null || high === null
    ? `${compact(middle)} (no interval)`
    : `${compact(middle)} [${compact(low)}, ${compact(high)}]`;
};

/** Means as dots on their intervals, on one scale. */
export function Whiskers({
  rows,
  label,
  zero = false,
}: {
  rows: readonly (Interval & { name: string; color: string; text?: string })[];
  label: string;
  zero?: boolean;
}) {
  const ends = rows.flatMap((row) => [row.low, row.high, row.mean]).filter((end): end is number => end !== null);
  if (zero) ends.push(0);
  const low = Math.min(...ends);
  const span = Math.max(...ends) - low || 1;
  const x = (value: number): number => 2 + ((value - low) / span) * 96;
  return (
    <div className="whiskers" role="table" aria-label={label}>
      {rows.map((row) => (
        <div key={row.name} role="row" className="line">
          <span role="rowheader" className="legend">
            <span>
              <i style={{ background: row.color }} />
              {row.name}
            </span>
          </span>
          <span role="presentation" className="whisker">
            {zero && <i className="zero" style={{ left: `${x(0)}%` }} />}
            {row.low !== null && row.high !== null && (
              <i
                className="span"
                style={{ left: `${x(row.low)}%`, width: `${x(row.high) - x(row.low)}%`, background: row.color }}
              />
            )}
            {row.mean !== null && <i className="point" style={{ left: `${x(row.mean)}%`, background: row.color }} />}
          </span>
          <span role="cell" className={`num small ${zero ? tone(row) : ''}`}>
            {row.text ?? text(row)}
          </span>
        </div>
      ))}
    </div>
  );
}

function Differences({
  value,
  metric,
  featured,
  choose,
}: {
  value: ComparisonView;
  metric: string;
  featured: string;
  choose: (team: string) => void;
}) {
  const others = value.teams.filter((team) => team !== featured);
  if (!others.length) return null;
  const color = (team: string): string => COLORS[value.teams.indexOf(team) % COLORS.length]!;
  return (
    <Panel
      title={`${metric}: ${featured} against the others`}
      tools={<Choice label="team" value={featured} options={value.teams} onChange={choose} />}
    >
      <div className="stack">
        <p className="small dim">
          Paired by task: both teams played the same tasks with the same luck. Green and red: the interval excludes 0.
        </p>
        <Whiskers
          zero
          label={`${featured} minus each other team, all tasks`}
          rows={others.map((team) => ({
            name: `against ${team}`,
            color: color(team),
            ...difference(value, featured, team, metric, ALL),
          }))}
        />
        <Scroll label="Differences by group of tasks">
          <table>
            <thead>
              <tr>
                <th scope="col">tasks</th>
                <th scope="col" className="num">
                  pairs
                </th>
                {others.map((team) => (
                  <th scope="col" className="num" key={team}>
                    against {team}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {value.strata.map((stratum) => (
                <tr key={stratum}>
                  <th scope="row">{stratum === ALL ? 'all' : stratum}</th>
                  <td className="num dim">{difference(value, featured, others[0]!, metric, stratum).n}</td>
                  {others.map((team) => {
                    const found = difference(value, featured, team, metric, stratum);
                    return (
                      <td key={team} className={`num ${tone(found)}`}>
                        {text(found)}
                      </td>
                    );
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </div>
    </Panel>
  );
}

function Tests({ value }: { value: ComparisonView }) {
  if (!value.mcnemar.length) return null;
  return (
    <Panel title="Passed or failed: McNemar's exact test">
      <Scroll label="McNemar's test">
        <table>
          <thead>
            <tr>
              <th scope="col">teams</th>
              <th scope="col">metric</th>
              {['only the first', 'only the second', 'both', 'neither', 'p'].map((head) => (
                <th scope="col" className="num" key={head}>
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {value.mcnemar.map((row) => (
              <tr key={`${row.first} ${row.second} ${row.metric}`}>
                <th scope="row">
                  {row.first}, {row.second}
                </th>
                <td className="mono">{row.metric}</td>
                <td className="num">{row.only_first}</td>
                <td className="num">{row.only_second}</td>
                <td className="num">{row.both}</td>
                <td className="num">{row.neither}</td>
                <td className="num">{compact(row.p)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Means({ value, featured }: { value: ComparisonView; featured: string }) {
  const [all, setAll] = useState(false);
  const teams = [featured, ...value.teams.filter((team) => team !== featured)];
  const metrics = value.metrics.filter((metric) => all || !NOT_SHOWN.test(metric));
  const hidden = value.metrics.length - metrics.length;
  return (
    <Panel
      title="All metrics"
      tools={
        <label className="row small">
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} />
          times, tokens and counts{hidden > 0 && ` (${hidden} more)`}
        </label>
      }
    >
      <p className="small dim">Mean over all tasks [95 % interval], and the smallest value.</p>
      <Scroll label="All metrics">
        <table>
          <thead>
            <tr>
              <th scope="col" className="sticky">
                metric
              </th>
              {teams.map((team) => (
                <th scope="col" className="num" key={team}>
                  {team}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {metrics.map((metric) => (
              <tr key={metric}>
                <th scope="row" className="mono sticky">
                  {metric}
                </th>
                {teams.map((team) => {
                  const found = value.means.find((row) => row.team === team && row.metric === metric && row.stratum === ALL);
                  return (
                    <td className="num" key={team}>
                      {text(found ?? NONE)}
                      <br />
                      <span className="small faint">min {compact(found?.minimum)}</span>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}
