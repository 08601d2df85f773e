// The K replies to one prompt, side by side: every token with its probability, the gate, the value in each world, and how the
// advantage follows from it.
import { useMemo, useState, type CSSProperties } from 'react';
import { type EpisodeRow, type EpisodeView, type GroupView, type ReplyView } from '../api/client';
import { arithmetic, type Arithmetic } from '../lib/advantage';
import { bundles, recomputed } from '../lib/why';
import { useFetched, useRoles } from '../lib/fetching';
import { compact, dollars, fixed, percent, signed } from '../lib/format';
import { holdsEpisode, holdsGroup, isExport } from '../lib/exported';
import { link } from '../lib/route';
import { Panel, RoleBadge } from '../ui/small';
import { Continuation } from './Continuation';
import { Glance } from './Glance';

export default function Group({ name, query }: { name: string; query: URLSearchParams }) {
  const id = query.get('key') ?? '';
  const { value: group, error } = useFetched<GroupView>(`runs/${encodeURIComponent(name)}/group`, { key: id });
  const known = useRoles(name);
  if (error) return <p className="empty bad">{error}</p>;
  if (!group || !known) return <p className="empty">Loading…</p>;
  return <Inspector key={group.key} name={name} group={group} query={query} />;
}

/** Records of before the configuration named the environment are the office's. */
const isOffice = (group: GroupView): boolean => group.env === 'office' || group.env === '';

const span = (turns: readonly number[]): string => {
  const [least, most] = [Math.min(...turns), Math.max(...turns)];
  return least === most ? `${most} ${most === 1 ? 'turn' : 'turns'}` : `${least} to ${most} turns`;
};

function Inspector({ name, group, query }: { name: string; group: GroupView; query: URLSearchParams }) {
  const [apart, setApart] = useState(false);
  const result = useMemo(() => arithmetic(group.replies, group.rule), [group]);
  const order = useMemo(() => bundles(group, result), [group, result]);
  const cards = useMemo(() => bundles(group, result, apart).map(({ members }) => members), [group, result, apart]);
  const recorded = group.replies.some((reply) => reply.advantage !== null);
  const same = recomputed(group, result);
  const values = group.replies.flatMap((reply) => reply.by_world);
  const range: [number, number] = [Math.min(...values), Math.max(...values)];
  const facts = group.facts as {
    day?: number;
    turn?: number;
    origin?: string;
    turns?: number | number[];
    metrics?: Record<string, number>;
  };
  // The episode's own count of turns, which is another than the company's where it begins later.
  const { value: episode } = useFetched<EpisodeView>(
    group.episode && holdsEpisode(group.iteration, group.episode) ? `runs/${encodeURIComponent(name)}/episode` : null,
    { iteration: group.iteration, episode: group.episode },
  );
  const found = episode?.turns.findIndex((turn) => turn.group === group.key) ?? -1;
  const step = found < 0 ? null : found + 1;
  const repeated = cards.length < group.replies.length;
  return (
    <div className="stack">
      <div className="row spread">
        <h1 style={{ fontSize: 16 }}>
          <a href={link(['runs', name], { view: 'groups', iteration: group.iteration })}>{name}</a> /{' '}
          <span className="mono">{group.key}</span>
        </h1>
        <span className="row">
          {group.episode && (
            <a
              className="button"
              href={link(['runs', name, 'episode'], { iteration: group.iteration, episode: group.episode, turn: step })}
            >
              its turn in the episode
            </a>
          )}
          {group.episode && isOffice(group) && typeof facts.turn === 'number' && (
            <a
              className="button"
              href={link(['office'], {
                run: name,
                it: group.iteration,
                ep: group.episode,
                turn: facts.turn + 1,
                role: group.actor,
              })}
            >
              in the office at this turn
            </a>
          )}
          {group.previous && holdsGroup(group.previous) && (
            <a className="button" href={link(['runs', name, 'group'], { key: group.previous })} rel="prev">
              ‹ previous
            </a>
          )}
          {group.next && holdsGroup(group.next) && (
            <a className="button" href={link(['runs', name, 'group'], { key: group.next })} rel="next">
              next ›
            </a>
          )}
        </span>
      </div>
      <Glance name={name} group={group} order={order} result={result} query={query} />
      <Checked group={group} recorded={recorded} same={same} dead={result.kind === 'dead'} />
      <details className="fold">
        <summary>Prompt, and where the advantage comes from</summary>
        <div
          className="grid"
          style={{ gridTemplateColumns: 'repeat(auto-fit, minmax(min(360px, 100%), 1fr))', alignItems: 'start' }}
        >
          <Panel
            title={<RoleBadge role={group.actor} person plain={!isOffice(group)} />}
            tools={<span className="small dim">{group.prompt_ids} prompt tokens</span>}
          >
            {group.prompt === null ? (
              <p className="empty">
                The tokenizer of this run&apos;s model is not on this machine, so the prompt cannot be read.{' '}
                <code className="mono">onthejob model fetch</code> brings it.
              </p>
            ) : (
              <pre className="block" tabIndex={0} aria-label="Prompt as the model read it">
                {group.prompt}
              </pre>
            )}
          </Panel>
          <Panel title="Where the advantage comes from">
            <Summary group={group} result={result} recorded={recorded} />
            <dl className="facts" style={{ marginTop: 10 }}>
              <dt>Decision</dt>
              <dd>
                {typeof facts.day === 'number' ? `day ${facts.day}, ` : ''}
                {typeof facts.turn === 'number' ? `turn ${facts.turn + 1}` : 'whole episode'} · iteration {group.iteration}
              </dd>
              <dt>Scored by</dt>
              <dd>
                {group.source || 'return'}
                {group.worlds.length > 0 && ` in ${group.worlds.length} worlds`}
                {typeof facts.turns === 'number' && ` of up to ${facts.turns} turns`}
                {Array.isArray(facts.turns) && ` of ${span(facts.turns)}`}
              </dd>
              {facts.metrics?.company_value !== undefined && (
                <>
                  <dt>Company value then</dt>
                  <dd>{dollars(facts.metrics.company_value)}</dd>
                </>
              )}
            </dl>
          </Panel>
        </div>
      </details>
      <div className="row spread">
        <h2>
          {group.replies.length} replies{repeated ? `, ${cards.length} different` : ''}
        </h2>
        <span className="row">
          <span className="legend small">
            token probability
            {[0.05, 0.5, 0.95].map((probability) => (
              <span key={probability}>
                <i style={{ background: tokenColor(Math.log(probability)) }} />
                {percent(probability)}
              </span>
            ))}
          </span>
          {group.replies.length > 1 && (
            <label className="row small">
              <input type="checkbox" checked={apart} onChange={(event) => setApart(event.target.checked)} /> show equal replies
              apart
            </label>
          )}
        </span>
      </div>
      <div className="replies">
        {cards.map((members) => (
          <Reply key={members.join(' ')} name={name} group={group} members={members} result={result} range={range} />
        ))}
      </div>
      {group.source === 'branch' && group.worlds.length > 0 && !isExport && isOffice(group) && (
        <Continuation key={group.key} name={name} group={group} />
      )}
    </div>
  );
}

function Summary({ group, result, recorded }: { group: GroupView; result: Arithmetic; recorded: boolean }) {
  const { rule } = group;
  const legal = group.replies.filter((reply) => reply.valid || reply.stop !== 'branch').length;
  if (rule.estimator !== 'group')
    return (
      <p className="arith">
        {recorded ? 'Given by the function ' : 'Dropped from the update by the function '}
        <code className="mono">{rule.estimator}</code>
      </p>
    );
  if (result.kind === 'dead')
    return (
      <p className="arith">
        {result.reliability === null
          ? `All ${legal} legal replies are worth the same`
          : `The luck of ${group.worlds.length} worlds explains all of the difference between the ${legal} legal replies`}
        , so the group teaches nothing: it was dropped from the update.
      </p>
    );
  return (
    <>
      <div className="arith">
        <div>
          mean of {legal} legal returns = {fixed(result.mean, 4)}
        </div>
        <div>sample deviation = {fixed(result.deviation, 4)}</div>
        {result.reliability !== null && (
          <div>
            1 − noise of {group.worlds.length} worlds / spread = {fixed(result.reliability, 4)}
          </div>
        )}
        {result.kind === 'format' ? (
          <div>legal replies are equal: advantage 0</div>
        ) : (
          <div>
            {rule.scale === 'std'
              ? `advantage = (return − ${fixed(result.mean, 4)}) / (${fixed(result.deviation, 4)} + ${rule.eps})`
              : `advantage = return − ${fixed(result.mean, 4)}`}
            {result.reliability !== null && ` × ${fixed(result.reliability, 4)}`}
            {rule.bound !== null && `, cut at ±${rule.bound}`}
          </div>
        )}
        {legal < group.replies.length && (
          <div>
            invalid = min(worst legal − {rule.invalid_gap}, {compact(rule.invalid_ceiling)})
          </div>
        )}
        {rule.negative_weight !== 1 && <div>below 0: × {rule.negative_weight}</div>}
      </div>
    </>
  );
}

/** Whether the record's advantages follow from its returns; said where that can be known. */
function Checked({ group, recorded, same, dead }: { group: GroupView; recorded: boolean; same: boolean; dead: boolean }) {
  if (group.rule.estimator !== 'group' || dead) return null;
  return (
    <p className="small" data-agrees={same}>
      {!recorded ? (
        <span className="bad">No advantages are recorded: the group was not trained on.</span>
      ) : same ? (
        <span className="good">✓ Recomputed here, and equal to what is recorded for all {group.replies.length} replies.</span>
      ) : (
        <span className="bad">✗ The recorded advantages are not what these numbers give.</span>
      )}
    </p>
  );
}

const tokenColor = (logprob: number): string => `hsl(${Math.round(130 * Math.exp(logprob))} 60% 52%)`;

function Reply({
  name,
  group,
  members,
  result,
  range,
}: {
  name: string;
  group: GroupView;
  members: readonly number[];
  result: Arithmetic;
  range: [number, number];
}) {
  const index = members[0]!;
  const reply = group.replies[index]!;
  const office = isOffice(group);
  const own = group.rule.estimator !== 'group';
  const advantage = reply.advantage ?? (own ? null : (result.values[index] ?? null));
  const tone = advantage === null || Math.abs(advantage) < 1e-9 ? 'var(--line-2)' : advantage > 0 ? 'var(--good)' : 'var(--bad)';
  const chosen = group.chosen !== null && members.includes(group.chosen);
  return (
    <article
      className={`reply ${chosen ? 'chosen' : ''}`}
      style={{ '--tone': tone } as CSSProperties}
      aria-label={`Reply ${index + 1}`}
    >
      <div className="row spread">
        <b>{members.length > 1 ? `${members.length} × the same` : `Reply ${index + 1}`}</b>
        <span className={`tag ${reply.valid ? 'good' : 'bad'}`}>{reply.valid ? 'legal' : 'invalid (not executed)'}</span>
      </div>
      <AdvantageBar value={advantage} />
      {chosen && (
        <span className="tag accent" style={{ justifySelf: 'start' }}>
          played
        </span>
      )}
      <Tokens reply={reply} />
      <div className="arith">
        {own ? (
          <>return {fixed(reply.ret, 4)}</>
        ) : reply.valid || reply.stop !== 'branch' ? (
          result.kind === 'return' ? (
            <>
              ({fixed(reply.ret, 4)} − {fixed(result.mean, 4)}){' '}
              {group.rule.scale === 'std' ? `/ ${fixed(result.deviation + group.rule.eps, 4)}` : ''}
              {result.reliability !== null && ` × ${fixed(result.reliability, 4)}`} ={' '}
              <b>{result.values[index] === null ? '–' : signed(result.values[index]!, 4)}</b>
            </>
          ) : (
            <>return {fixed(reply.ret, 4)}, as all legal ones</>
          )
        ) : (
          <>
            return {fixed(reply.ret, 4)}; placed at{' '}
            <b>{result.values[index] === null ? '–' : signed(result.values[index]!, 4)}</b>
          </>
        )}
      </div>
      {reply.by_world.length > 0 && <Worlds values={reply.by_world} worlds={group.worlds} range={range} />}
      <dl className="facts">
        {Object.entries(reply.metrics).map(([name, value]) => (
          <div key={name} style={{ display: 'contents' }}>
            <dt>
              {name === 'outcome'
                ? `${office ? 'company' : 'all roles'}, mean over worlds`
                : name === 'return'
                  ? 'own reward, mean over worlds'
                  : name}
            </dt>
            <dd>{name === 'outcome' && office ? dollars(value) : compact(value)}</dd>
          </div>
        ))}
        <dt>sampled by</dt>
        <dd className="mono">
          {reply.policy} at T={reply.temperature}
        </dd>
        <dt>probability of the reply</dt>
        <dd>{percent(Math.exp(reply.logprobs.reduce((sum, value) => sum + value, 0)), 1)}</dd>
      </dl>
      {(reply.turns.length > 0 || group.source === 'episodes') && <Turns name={name} group={group} reply={reply} index={index} />}
    </article>
  );
}

function AdvantageBar({ value }: { value: number | null }) {
  const shown = Math.max(-3, Math.min(3, value ?? 0));
  const x = 50 + (shown / 3) * 50;
  return (
    <div className="row" style={{ flexWrap: 'nowrap' }}>
      <svg viewBox="0 0 100 12" preserveAspectRatio="none" style={{ flex: 1, height: 12, minWidth: 60 }} aria-hidden="true">
        <rect width="100" height="12" fill="var(--bg-2)" rx="1" />
        <rect x={Math.min(50, x)} width={Math.abs(x - 50)} height="12" fill={shown >= 0 ? 'var(--good)' : 'var(--bad)'} />
        <line x1="50" x2="50" y1="0" y2="12" stroke="var(--text)" vectorEffect="non-scaling-stroke" />
      </svg>
      <span className="nowrap">
        advantage <b>{value === null ? '–' : signed(value, 3)}</b>
      </span>
    </div>
  );
}

function Tokens({ reply }: { reply: ReplyView }) {
  const pieces = reply.pieces ?? [];
  if (!reply.logprobs.length) return <p className="tokens">{reply.text}</p>;
  return (
    <>
      <p className="tokens" role="group" aria-label={`Tokens: ${reply.text}`}>
        {reply.ids.map((id, place) => {
          const logprob = reply.logprobs[place] ?? 0;
          const text = pieces[place] ?? `#${id} `;
          return (
            <span
              key={place}
              style={{ borderBottomColor: tokenColor(logprob) }}
              title={`${JSON.stringify(text)} id ${id}, logprob ${logprob.toFixed(4)}, probability ${percent(Math.exp(logprob), 1)}`}
            >
              {text}
            </span>
          );
        })}
      </p>
      <details>
        <summary className="small dim">{reply.ids.length} tokens with log-probabilities</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">token</th>
              <th scope="col" className="num">
                id
              </th>
              <th scope="col" className="num">
                logprob
              </th>
              <th scope="col" className="num">
                p
              </th>
            </tr>
          </thead>
          <tbody>
            {reply.ids.map((id, place) => (
              <tr key={place}>
                <td className="mono">{pieces[place] === undefined ? '–' : JSON.stringify(pieces[place])}</td>
                <td className="num mono">{id}</td>
                <td className="num mono">{fixed(reply.logprobs[place] ?? 0, 4)}</td>
                <td className="num mono">{percent(Math.exp(reply.logprobs[place] ?? 0), 1)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </>
  );
}

/** What the reply was worth in each world: all replies of the group met the same luck. */
function Worlds({ values, worlds, range }: { values: readonly number[]; worlds: readonly number[]; range: [number, number] }) {
  const [low, high] = range;
  const span = high - low || 1;
  const x = (value: number): number => 4 + ((value - low) / span) * 192;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return (
    <figure>
      <svg
        viewBox="0 0 200 34"
        className="strip"
        role="img"
        aria-label={`Value in ${values.length} worlds, from ${fixed(Math.min(...values))} to ${fixed(Math.max(...values))}, mean ${fixed(mean, 3)}`}
      >
        {low < 0 && high > 0 && <line x1={x(0)} x2={x(0)} y1="2" y2="32" stroke="var(--line-2)" />}
        {values.map((value, index) => (
          <circle key={index} cx={x(value)} cy={9 + (index % 4) * 5.4} r="2.6" fill="var(--info)" opacity="0.75">
            <title>{`world ${worlds[index] ?? index}: ${fixed(value, 3)}`}</title>
          </circle>
        ))}
        <line x1={x(mean)} x2={x(mean)} y1="2" y2="32" stroke="var(--accent)" strokeWidth="2" />
      </svg>
      <figcaption className="small dim">
        value in {values.length} worlds: {fixed(Math.min(...values), 1)} to {fixed(Math.max(...values), 1)}, mean {fixed(mean, 3)}
      </figcaption>
    </figure>
  );
}

function Turns({ name, group, reply, index }: { name: string; group: GroupView; reply: ReplyView; index: number }) {
  // A group of whole episodes holds them in the order in which they were recorded; failed ones are in no group.
  const { value: rows } = useFetched<EpisodeRow[]>(`runs/${encodeURIComponent(name)}/episodes`, { iteration: group.iteration });
  const task = group.key.split('/').slice(1, -1).join('/');
  const episode = rows?.filter((row) => !row.error && group.actor in row.policies && row.name.replace(/^s\d+\//, '') === task)[
    index
  ];
  return (
    <>
      {episode && (
        <a href={link(['runs', name, 'episode'], { iteration: group.iteration, episode: episode.name })}>
          {group.env === 'claw'
            ? 'the episode, with commands, outputs and assertions'
            : 'the episode, with the turns of all roles'}
        </a>
      )}
      <details hidden={!reply.turns.length}>
        <summary className="small">
          {reply.turns.length} turns of {isOffice(group) ? 'the episode' : group.actor}
        </summary>
        <ol className="feed">
          {reply.turns.map((turn) => (
            <li key={turn.index}>
              <span className="row spread small">
                <span className="dim">
                  turn {turn.index + 1} {turn.kind !== 'act' && turn.kind}
                </span>
                <span className={turn.valid ? '' : 'bad'}>{turn.reward === null ? '–' : signed(turn.reward)}</span>
              </span>
              {turn.prompt !== null && turn.index > 0 && (
                <pre className="block" aria-label={`Turn ${turn.index + 1} reads`}>
                  {turn.prompt}
                </pre>
              )}
              <pre className="block said" aria-label={`Reply of turn ${turn.index + 1}`}>
                {turn.text}
              </pre>
            </li>
          ))}
        </ol>
      </details>
    </>
  );
}
