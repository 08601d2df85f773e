// A group at a glance: the sentence that says why the best reply is worth more, all replies by advantage on one axis, and the
// company of two of them in every world.
import { useEffect, useMemo, useState } from 'react';
import { get, type BranchTrace, type GroupView, type ReplyView, type Traces } from '../api/client';
import type { Arithmetic } from '../lib/advantage';
import { isExport } from '../lib/exported';
import { compact, dollars, fixed, percent, signed } from '../lib/format';
import { refine } from '../lib/route';
import { titleOf } from '../lib/roles';
import { perTurn } from '../lib/world';
import { firstDifference, firstPair, sentence, termsOf, titleOfReply, type Bundle, type Pair } from '../lib/why';
import { Panel, Scroll } from '../ui/small';

interface Played {
  pairs: Pair[];
  start: number;
  problem: string;
}
const NOTHING: Played = { pairs: [], start: 0, problem: '' };

/** The branches of two replies in every world of the group, world after world. */
function usePairs(name: string, group: GroupView, pair: readonly [number, number] | null): Played {
  const [played, setPlayed] = useState(NOTHING);
  const [a, b] = pair ?? [-1, -1];
  useEffect(() => {
    setPlayed(NOTHING);
    if (a < 0 || isExport || group.source !== 'branch') return;
    const control = new AbortController();
    const play = async (): Promise<void> => {
      for (const world of group.worlds) {
        const path = `runs/${encodeURIComponent(name)}/branches`;
        const query = { key: group.key, world, reply: [String(a), String(b)] };
        const { replies, start } = await get<Traces>(path, query, control.signal);
        const of = (index: number): BranchTrace | undefined => replies.find((one) => same(group, one.index, index));
        const [one, other] = [of(a), of(b)];
        if (control.signal.aborted) return;
        if (one && other) setPlayed((before) => ({ ...before, start, pairs: [...before.pairs, { world, a: one, b: other }] }));
      }
    };
    play().catch((error: unknown) => {
      if (!control.signal.aborted)
        setPlayed((before) => ({ ...before, problem: error instanceof Error ? error.message : String(error) }));
    });
    return () => control.abort();
  }, [name, group, a, b]);
  return played;
}

const same = (group: GroupView, one: number, other: number): boolean =>
  one === other || (group.replies[one]!.key !== '' && group.replies[one]!.key === group.replies[other]!.key);

export function Glance({
  name,
  group,
  order,
  result,
  query,
}: {
  name: string;
  group: GroupView;
  order: readonly Bundle[];
  result: Arithmetic;
  query: URLSearchParams;
}) {
  const first = useMemo(() => firstPair(group, order), [group, order]);
  const named = (side: 'a' | 'b', fallback: number): number => {
    const asked = Number(query.get(side)) - 1;
    return query.get(side) && group.replies[asked] ? asked : fallback;
  };
  const pair: [number, number] | null = first && [named('a', first[0]), named('b', first[1])];
  const played = usePairs(name, group, pair && pair[0] !== pair[1] ? pair : null);
  const branched = group.source === 'branch' && group.worlds.length > 0 && !isExport;
  const waiting = branched && pair !== null && !played.problem && played.pairs.length < group.worlds.length;
  const { day, turn } = group.facts as { day?: number; turn?: number };
  const where = [
    titleOf(group.actor),
    typeof day === 'number' ? `day ${day}` : '',
    typeof turn === 'number' ? `turn ${turn + 1}` : '',
  ].filter(Boolean);
  return (
    <Panel
      title={where.join(', ')}
      tools={
        waiting && (
          <span className="small dim" role="status">
            playing world {played.pairs.length + 1} of {group.worlds.length}…
          </span>
        )
      }
    >
      <div className="stack" data-testid="glance">
        <p className="whysaid" data-testid="why">
          {pair ? sentence(group, pair, played.pairs) : 'All replies do the same.'}
        </p>
        {result.kind === 'dead' && group.rule.estimator === 'group' && (
          <p className="small">No signal: the group was dropped from the update, so none of this was learned from.</p>
        )}
        {pair && group.terms && <Value group={group} reply={group.replies[pair[0]]!} />}
        <Ranking group={group} order={order} pair={pair} />
        {played.problem && <p className="small dim">{played.problem}</p>}
        {pair && played.pairs.length > 0 && <Worlds group={group} pair={pair} played={played} />}
      </div>
    </Panel>
  );
}

/** The value as the sum of its two terms, with the scales that make them comparable. */
function Value({ group, reply }: { group: GroupView; reply: ReplyView }) {
  const terms = group.terms!;
  const { outcome = 0, return: own = 0 } = reply.metrics;
  const { company, role, value } = termsOf(terms, { outcome, return: own });
  const office = group.env === 'office' || group.env === '';
  const amount = (number: number): string => (office ? dollars(number) : compact(number));
  return (
    <p className="small" data-testid="value">
      value of {titleOfReply(group, group.replies.indexOf(reply))} = {office ? 'company' : 'outcome'} {amount(outcome)} →{' '}
      <b>{fixed(company)}</b> + own reward {compact(own)} → <b>{fixed(role)}</b> = <b>{fixed(value)}</b>{' '}
      <span className="dim">
        (each ÷ {terms.turns} turns ÷ its scale, {amount(terms.outcome_scale)} and {compact(terms.return_scale)} a turn, ×{' '}
        {compact(terms.outcome_weight)} and {compact(terms.return_weight)})
      </span>
    </p>
  );
}

/** Every different reply in one line, the highest advantage first; all values on one axis. */
function Ranking({ group, order, pair }: { group: GroupView; order: readonly Bundle[]; pair: readonly [number, number] | null }) {
  const reach = Math.max(1e-9, ...order.map(({ advantage }) => Math.abs(advantage ?? 0)));
  const values = group.replies.flatMap((reply) => (reply.by_world.length ? reply.by_world : [reply.ret]));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (value: number): number => 4 + ((value - low) / (high - low || 1)) * 192;
  const choose = (side: 'a' | 'b', index: number): void => refine({ [side]: index + 1 });
  return (
    <Scroll label="Replies by advantage">
      <table className="ranking">
        <thead>
          <tr>
            <th scope="col">reply</th>
            <th scope="col" className="num">
              advantage
            </th>
            <th scope="col" className="num" title="Probability of the whole reply when it was sampled">
              probability
            </th>
            <th scope="col">
              <span className="row spread axis">
                <span>{fixed(low, 1)}</span>
                <span>value{group.worlds.length > 1 ? ` in ${group.worlds.length} worlds` : ''}</span>
                <span>{fixed(high, 1)}</span>
              </span>
            </th>
            {pair && <th scope="col">compare</th>}
          </tr>
        </thead>
        <tbody>
          {order.map(({ members, advantage }) => {
            const index = members[0]!;
            const reply = group.replies[index]!;
            const chosen = group.chosen !== null && members.includes(group.chosen);
            const dots = reply.by_world.length ? reply.by_world : members.map((one) => group.replies[one]!.ret);
            const mean = dots.reduce((sum, value) => sum + value, 0) / dots.length;
            const text = reply.valid ? titleOfReply(group, index) : reply.text || 'an empty reply';
            const width = (Math.abs(advantage ?? 0) / reach) * 50;
            return (
              <tr key={index}>
                <th scope="row" className="what">
                  <span className={reply.valid ? 'good' : 'bad'} aria-hidden="true">
                    {reply.valid ? '●' : '✖'}
                  </span>{' '}
                  <span className="ellipsis" title={reply.text}>
                    {text}
                  </span>{' '}
                  {members.length > 1 && <span className="tag">×{members.length}</span>}{' '}
                  {!reply.valid && <span className="tag bad">invalid (not executed)</span>}{' '}
                  {chosen && <span className="tag accent">played</span>}
                </th>
                <td className="num nowrap">
                  <svg viewBox="0 0 100 10" preserveAspectRatio="none" className="adv" aria-hidden="true">
                    <line x1="50" x2="50" y1="0" y2="10" stroke="var(--line-2)" vectorEffect="non-scaling-stroke" />
                    <rect
                      x={(advantage ?? 0) < 0 ? 50 - width : 50}
                      width={width}
                      y="1"
                      height="8"
                      fill={(advantage ?? 0) < 0 ? 'var(--bad)' : 'var(--good)'}
                    />
                  </svg>{' '}
                  <b>{advantage === null ? '–' : signed(advantage)}</b>
                </td>
                <td className="num dim">
                  {reply.logprobs.length ? percent(Math.exp(reply.logprobs.reduce((sum, value) => sum + value, 0)), 1) : '–'}
                </td>
                <td>
                  <svg
                    viewBox="0 0 200 16"
                    preserveAspectRatio="none"
                    className="dots"
                    role="img"
                    aria-label={`Values ${dots.map((value) => fixed(value)).join(', ')}, mean ${fixed(mean)}`}
                  >
                    {low < 0 && high > 0 && <line x1={x(0)} x2={x(0)} y1="0" y2="16" stroke="var(--line-2)" />}
                    {dots.map((value, place) => (
                      <line
                        key={place}
                        x1={x(value)}
                        x2={x(value)}
                        y1="3"
                        y2="13"
                        stroke={reply.valid ? 'var(--info)' : 'var(--bad)'}
                        strokeWidth="2"
                        opacity="0.6"
                        vectorEffect="non-scaling-stroke"
                      />
                    ))}
                    <line
                      x1={x(mean)}
                      x2={x(mean)}
                      y1="0"
                      y2="16"
                      stroke="var(--accent)"
                      strokeWidth="3"
                      vectorEffect="non-scaling-stroke"
                    />
                  </svg>
                </td>
                {pair && (
                  <td className="nowrap">
                    {(['a', 'b'] as const).map((side, place) => (
                      <button
                        key={side}
                        type="button"
                        className="letter"
                        aria-pressed={members.includes(pair[place]!)}
                        aria-label={`Compare ${text} as ${side.toUpperCase()}`}
                        onClick={() => choose(side, index)}
                      >
                        {side.toUpperCase()}
                      </button>
                    ))}
                  </td>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

const A_COLOR = 'var(--info)';
const B_COLOR = 'var(--accent)';
const WIDTH = 640;
const HEIGHT = 150;

/** Company value after either reply: every world thin, the mean thick; and what A leads by at the end of each world. */
function Worlds({ group, pair, played }: { group: GroupView; pair: readonly [number, number]; played: Played }) {
  const { pairs, start } = played;
  const lines = pairs.map(({ a, b }) => ({
    a: perTurn(a.turns).map((turn) => turn.value),
    b: perTurn(b.turns).map((turn) => turn.value),
  }));
  const longest = Math.max(1, ...lines.flatMap(({ a, b }) => [a.length, b.length]));
  const all = [start, ...lines.flatMap(({ a, b }) => [...a, ...b])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (turn: number): number => (turn / longest) * WIDTH;
  const y = (value: number): number => HEIGHT - 6 - ((value - low) / (high - low || 1)) * (HEIGHT - 12);
  const path = (values: readonly number[]): string =>
    `M0,${y(start).toFixed(1)}${values.map((value, turn) => `L${x(turn + 1).toFixed(1)},${y(value).toFixed(1)}`).join('')}`;
  const mean = (side: 'a' | 'b'): number[] =>
    Array.from({ length: longest }, (_, turn) => {
      const values = lines.map((line) => line[side][turn] ?? line[side].at(-1) ?? start);
      return values.reduce((sum, value) => sum + value, 0) / values.length;
    });
  const turn = ((group.facts as { turn?: number }).turn ?? 0) + 1;
  const differs = firstDifference(pairs);
  const gaps = lines.map(({ a, b }) => (a.at(-1) ?? start) - (b.at(-1) ?? start));
  const ahead = gaps.filter((gap) => gap > 0).length;
  const reach = Math.max(1, ...gaps.map(Math.abs));
  const average = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  return (
    <figure className="pairs">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Company value over ${longest} turns in ${pairs.length} worlds, from ${dollars(low)} to ${dollars(high)}; at the end A leads by ${dollars(average)} on average`}
      >
        {lines.map(({ a, b }, index) => (
          <g key={pairs[index]!.world} fill="none" strokeWidth="1" opacity="0.35">
            <path d={path(a)} stroke={A_COLOR} vectorEffect="non-scaling-stroke" />
            <path d={path(b)} stroke={B_COLOR} vectorEffect="non-scaling-stroke" />
          </g>
        ))}
        <path d={path(mean('b'))} fill="none" stroke={B_COLOR} strokeWidth="3" vectorEffect="non-scaling-stroke" />
        <path d={path(mean('a'))} fill="none" stroke={A_COLOR} strokeWidth="3" vectorEffect="non-scaling-stroke" />
        {differs !== null && (
          <path d={`M${x(differs - turn)},${HEIGHT}l-5,-9h10z`} fill="var(--text)">
            <title>{`First difference after the decision: turn ${differs}`}</title>
          </path>
        )}
      </svg>
      <figcaption className="row spread small">
        <span className="legend">
          <span>
            <i style={{ background: A_COLOR }} />A {titleOfReply(group, pair[0])}
          </span>
          <span>
            <i style={{ background: B_COLOR }} />B {titleOfReply(group, pair[1])}
          </span>
        </span>
        <span className="dim">
          company value, turn {turn} to {turn + longest - 1}, {dollars(low)} to {dollars(high)}
          {differs !== null && ` · ▲ first difference after it: turn ${differs}`}
        </span>
      </figcaption>
      <svg
        viewBox="0 0 640 18"
        preserveAspectRatio="none"
        className="gaps"
        role="img"
        aria-label={`A less B at the end, by world: ${gaps.map((gap) => dollars(gap)).join(', ')}`}
      >
        <line x1="320" x2="320" y1="0" y2="18" stroke="var(--line-2)" vectorEffect="non-scaling-stroke" />
        {gaps.map((gap, index) => (
          <line
            key={pairs[index]!.world}
            x1={320 + (gap / reach) * 314}
            x2={320 + (gap / reach) * 314}
            y1="2"
            y2="16"
            stroke={gap > 0 ? A_COLOR : B_COLOR}
            strokeWidth="4"
            opacity="0.7"
            vectorEffect="non-scaling-stroke"
          />
        ))}
      </svg>
      <figcaption className="row spread small dim">
        <span>B ahead by {dollars(reach)}</span>
        <span>
          A less B at the end, one line a world: A ahead in {ahead} of {gaps.length}, mean {dollars(average)}
        </span>
        <span>A ahead by {dollars(reach)}</span>
      </figcaption>
    </figure>
  );
}
