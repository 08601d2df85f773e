// A run at a glance: whether training helped, how it went, and the groups that show most.
import { useState } from 'react';
import type { NotesView, OverviewView, RunView, Series } from '../api/client';
import { GROWING_MS, useFetched } from '../lib/fetching';
import { duration, fixed, percent } from '../lib/format';
import { holdsGroup } from '../lib/exported';
import { TRAIN } from '../lib/curves';
import { link } from '../lib/route';
import { modelName } from '../lib/runs';
import { colorOf, titleOf } from '../lib/roles';
import { NotesEditor } from '../ui/Notes';
import { Panel, RoleBadge, Sparkline } from '../ui/small';
import { Verdict } from '../ui/Verdict';

const TRENDS = [
  ['reward', 'mean value of the replies', (value: number) => fixed(value, 2)],
  ['valid_rate', 'valid replies', (value: number) => percent(value)],
  ['frac_reward_zero_std', 'groups without a signal', (value: number) => percent(value)],
] as const;

export function Overview({ name, run }: { name: string; run: RunView }) {
  const { value, error } = useFetched<OverviewView>(`runs/${encodeURIComponent(name)}/overview`, {}, GROWING_MS);
  const [written, setWritten] = useState<NotesView | null>(null);
  const { info } = run;
  const facts = [
    info.status,
    info.roles.map(titleOf).join(', '),
    modelName(info.model),
    `${duration(info.seconds)} of iterations`,
    (info.created_at ?? '').slice(0, 16).replace('T', ' '),
  ];
  return (
    <>
      <div className="row spread">
        <p className="small dim">{facts.filter(Boolean).join(' · ')}</p>
        <NotesEditor run={name} notes={written ?? info.notes} wrote={setWritten} />
      </div>
      {error && <p className="bad">{error}</p>}
      {value?.verdict && (
        <Verdict
          value={value.verdict}
          note={
            value.comparison ? (
              <>
                From the comparison <a href={link(['comparisons', value.comparison])}>{value.comparison}</a>.
              </>
            ) : (
              'From the newest evaluation on dev tasks while it was trained, against that of the start. A comparison on the test split is the result.'
            )
          }
        />
      )}
      {value && !value.verdict && (
        <Panel title="Did training help?">
          <p className="empty">
            Not compared yet. <code className="mono">onthejob compare START {name} --name first</code> plays held-out tasks with
            the adapters it started from and its own; the verdict then stands here.
          </p>
        </Panel>
      )}
      <Trends name={name} run={run} />
      {value && value.telling.length > 0 && (
        <Panel
          title="Groups that show most"
          tools={<span className="small dim">largest spread of value among valid replies</span>}
        >
          <ul className="telling">
            {value.telling.map((row) => (
              <li key={row.key}>
                <RoleBadge role={row.actor} />{' '}
                {holdsGroup(row.key) ? (
                  <a href={link(['runs', name, 'group'], { key: row.key })}>{row.best ? `${row.best} was best` : row.key}</a>
                ) : (
                  <span>{row.best ? `${row.best} was best` : row.key}</span>
                )}{' '}
                <span className="small dim">
                  iteration {row.iteration}
                  {row.day !== null && `, day ${row.day}`}, {row.distinct} different replies, spread {fixed(row.spread, 2)}
                  {row.invalid > 0 && `, ${row.invalid} invalid`}
                </span>
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </>
  );
}

function Trends({ name, run }: { name: string; run: RunView }) {
  const { value: series } = useFetched<Series[]>(
    `runs/${encodeURIComponent(name)}/metrics`,
    { metric: TRENDS.map(([metric]) => metric) },
    GROWING_MS,
  );
  if (!series || run.actors.length === 0) return null;
  return (
    <Panel title="How it went" tools={<a href={link(['runs', name], { view: 'curves' })}>all curves</a>}>
      <div className="trends">
        {TRENDS.map(([metric, title, shown]) => (
          <section key={metric} aria-label={title}>
            <h3>{title}</h3>
            {run.actors.map((role) => {
              const values = (series.find((one) => one.name === metric && one.scope === `${TRAIN}${role}`)?.values ?? []).filter(
                (value): value is number => value !== null,
              );
              if (!values.length) return null;
              return (
                <div className="trend" key={role}>
                  <span className="dim">{titleOf(role)}</span>
                  <Sparkline values={values} color={colorOf(role)} label={`${title} of ${titleOf(role)}`} />
                  <span className="num small">
                    {shown(values[0]!)} → {shown(values.at(-1)!)}
                  </span>
                </div>
              );
            })}
          </section>
        ))}
      </div>
    </Panel>
  );
}
