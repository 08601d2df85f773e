// A recorded episode turn by turn, of any workplace: who did what, what it paid, and what the workplace noted about it.
import { type EpisodeTurn, type EpisodeView, type GroupPage } from '../api/client';
import { useFetched, useRoles } from '../lib/fetching';
import { compact } from '../lib/format';
import { endOf, taskOf } from '../lib/listing';
import { link, refine } from '../lib/route';
import { Panel, Pay, RoleBadge, Scroll } from '../ui/small';
import { holdsGroup } from '../lib/exported';
import { Checked, Command, isCommand } from './Command';

export default function Episode({ name, query }: { name: string; query: URLSearchParams }) {
  const iteration = query.get('iteration') ?? '0';
  const { value, error } = useFetched<EpisodeView>(`runs/${encodeURIComponent(name)}/episode`, {
    iteration,
    episode: query.get('episode') ?? '',
  });
  // Turns are counted from 1, as the company's are.
  const open = Math.max(0, (Number(query.get('turn') ?? 1) || 1) - 1);
  const setOpen = (index: number): void => refine({ turn: index + 1 });
  // Attempts at the same task are one group, whose key is iteration, task and actor.
  const task = taskOf(query.get('episode') ?? '');
  const { value: groups } = useFetched<GroupPage>(value && !value.office ? `runs/${encodeURIComponent(name)}/groups` : null, {
    iteration,
    count: 500,
  });
  const others = groups?.rows.find((row) => row.key.split('/').slice(1, -1).join('/') === task);
  const known = useRoles(name);
  if (error) return <p className="empty bad">{error}</p>;
  if (!value || !known) return <p className="empty">Loading…</p>;
  const { row, turns } = value;
  const turn = turns[Math.min(open, turns.length - 1)];
  const shell = turns.some((one) => isCommand(one.facts));
  const moment = (one: EpisodeTurn | undefined) => ({
    run: name,
    it: row.iteration,
    ep: row.name,
    turn: typeof one?.facts.turn === 'number' ? one.facts.turn + 1 : null,
    role: one?.actor,
  });
  return (
    <div className="stack">
      <div className="row spread">
        <h1 style={{ fontSize: 16 }}>
          <a href={link(['runs', name], { view: 'episodes', iteration })}>{name}</a> / iteration {row.iteration} /{' '}
          <span className="mono">{row.name}</span>
        </h1>
        {others && (
          <a className="button" href={link(['runs', name, 'group'], { key: others.key })}>
            request and other attempts
          </a>
        )}
        {value.office && (
          <a className="button primary" href={link(['office'], { run: name, it: row.iteration, ep: row.name })}>
            ▶ Watch in the office
          </a>
        )}
      </div>
      {row.error && <p className="bad">{row.error}</p>}
      {shell && <Checked turns={turns} />}
      <div className="grid dash">
        <Panel title={`${turns.length} turns`} tools={<span className="small dim">ended: {endOf(row)}</span>}>
          {value.office && turns.length > 0 && (
            <p className="small dim">
              A reward counts until the next reply: that of a day&apos;s last one holds the night, which the office shows apart.
            </p>
          )}
          {!turns.length && <p className="empty">The turns of this episode were not recorded, only its figures.</p>}
          <Scroll label="Turns" max={640}>
            <table>
              <tbody>
                {turns.map((one, index) => (
                  <tr key={one.index} className={index === open ? 'selected' : ''}>
                    <td className="num dim">{one.index + 1}</td>
                    <td>
                      <RoleBadge role={one.actor} />
                    </td>
                    <td>
                      <button
                        type="button"
                        className="choose"
                        data-row
                        onClick={() => setOpen(index)}
                        aria-pressed={index === open}
                      >
                        {one.text.length > 160 ? `${one.text.slice(0, 160)}…` : one.text}
                      </button>
                      {!one.valid && <span className="tag bad">invalid</span>}
                    </td>
                    <td className="num small">
                      <Pay value={one.reward} />
                      {!value.office &&
                        paidToOthers(one).map(([role, amount]) => (
                          <span key={role} style={{ display: 'block' }}>
                            <span className="dim">{role}</span> <Pay value={amount} />
                          </span>
                        ))}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </Panel>
        <div className="stack">
          {turn && (
            <Panel title={`Turn ${turn.index + 1}`} tools={<span className="small mono dim">{turn.policy}</span>}>
              <div className="stack">
                {(turn.group !== null || value.office) && (
                  <p className="row small">
                    {turn.group !== null && holdsGroup(turn.group) && (
                      <a href={link(['runs', name, 'group'], { key: turn.group })}>the replies compared in this turn</a>
                    )}
                    {value.office && <a href={link(['office'], moment(turn))}>this turn in the office</a>}
                  </p>
                )}
                {turn.prompt !== null && !(shell && turn.index === 0) && (
                  <details open={!isCommand(turn.facts)}>
                    <summary className="small dim">what {turn.actor} read since its last reply</summary>
                    <pre className="block" tabIndex={0} aria-label="Request">
                      {turn.prompt}
                    </pre>
                  </details>
                )}
                {!isCommand(turn.facts) && (
                  <pre className="block" tabIndex={0} aria-label="Reply">
                    {turn.text}
                  </pre>
                )}
                <dl className="facts">
                  {Object.entries(turn.parts).map(([part, value]) => (
                    <div key={part} style={{ display: 'contents' }}>
                      <dt>{part}</dt>
                      <dd>
                        <Pay value={value} digits={3} />
                      </dd>
                    </div>
                  ))}
                  <dt>
                    <b>reward{value.office || turn.facts.command !== undefined ? '' : ` of ${turn.actor}`}</b>
                  </dt>
                  <dd>
                    <Pay value={turn.reward} digits={3} />
                  </dd>
                  {!value.office &&
                    paidToOthers(turn).map(([role, amount]) => (
                      <div key={role} style={{ display: 'contents' }}>
                        <dt>reward of {role}</dt>
                        <dd>
                          <Pay value={amount} digits={3} />
                        </dd>
                      </div>
                    ))}
                </dl>
                {isCommand(turn.facts) && (
                  <details>
                    <summary className="small dim">the reply as it was written</summary>
                    <pre className="block">{turn.text}</pre>
                  </details>
                )}
                {isCommand(turn.facts) ? (
                  <Command turn={turn} place={{ run: name, iteration: row.iteration, episode: row.name }} />
                ) : (
                  <Facts facts={worthSaying(turn)} />
                )}
              </div>
            </Panel>
          )}
          <Panel title="Figures at the end">
            <dl className="facts">
              {Object.entries(row.metrics).map(([metric, value]) => (
                <div key={metric} style={{ display: 'contents' }}>
                  <dt>{metric}</dt>
                  <dd>{compact(value)}</dd>
                </div>
              ))}
            </dl>
          </Panel>
        </div>
      </div>
    </div>
  );
}

const paidToOthers = (turn: EpisodeTurn): [string, number][] =>
  Object.entries(turn.rewards).filter(([role, amount]) => role !== turn.actor && amount !== 0);

/** What was noted of a turn besides what the page says already. */
function worthSaying(turn: EpisodeTurn): Record<string, unknown> {
  const { actor, turn: number, ...rest } = turn.facts;
  return actor === turn.actor && number === turn.index + 1 ? rest : turn.facts;
}

/** Long texts (commands, outputs) as blocks, the rest as a list. */
function Facts({ facts }: { facts: Record<string, unknown> }) {
  return (
    <>
      {Object.entries(facts).map(([name, value]) => {
        const text = typeof value === 'string' ? value : JSON.stringify(value, null, 1);
        if (text === '""' || text === '[]' || text === '') return null;
        return (
          <div key={name}>
            <h3>{name}</h3>
            {text.length > 60 || text.includes('\n') ? (
              <pre className="block" tabIndex={0} aria-label={name}>
                {text}
              </pre>
            ) : (
              <span className="mono">{text}</span>
            )}
          </div>
        );
      })}
    </>
  );
}
