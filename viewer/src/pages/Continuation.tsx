// What followed each reply of a recorded group: the same branches that the trainer scored, played again turn by turn.
import { useMemo, useState } from 'react';
import type { BranchTrace, GroupView, Traces, TraceTurn } from '../api/client';
import { useFetched } from '../lib/fetching';
import { dollars, fixed, replyTitle, words } from '../lib/format';
import { NIGHT, titleOf } from '../lib/roles';
import { deed, moved, perTurn, TURNS_PER_DAY } from '../lib/world';
import { GHOST_COLORS, Ghosts } from '../ui/Ghosts';
import { Choice, Panel, Pay, RoleBadge, Scroll } from '../ui/small';

export function Continuation({ name, group }: { name: string; group: GroupView }) {
  const [world, setWorld] = useState(group.worlds[0]!);
  const { value: traces, error } = useFetched<Traces>(`runs/${encodeURIComponent(name)}/branches`, { key: group.key, world });
  return (
    <Panel
      title="What would have happened"
      tools={<Choice label="world" value={world} options={group.worlds} onChange={(value) => setWorld(Number(value))} />}
    >
      {error && <p className="small dim">{error}</p>}
      {!error && !traces && <p className="empty">Playing the branches again…</p>}
      {traces && !error && <Futures key={`${traces.key} ${traces.world}`} group={group} traces={traces} />}
    </Panel>
  );
}

function Futures({ group, traces }: { group: GroupView; traces: Traces }) {
  const ranked = useMemo(() => [...traces.replies].sort((a, b) => b.value - a.value), [traces]);
  const [left, setLeft] = useState(ranked[0]!.index);
  const [right, setRight] = useState(ranked.at(-1)!.index);
  const [all, setAll] = useState(false);
  const longest = Math.max(...ranked.map((trace) => trace.turns.length));
  const [at, setAt] = useState(longest);
  const upTo = (ranked.find((trace) => trace.turns.length === longest) ?? ranked[0]!).turns.slice(0, at);
  const on = upTo.filter((turn) => turn.actor !== NIGHT).length;
  const night = upTo.at(-1)?.actor === NIGHT;
  const color = (trace: BranchTrace): string => GHOST_COLORS[ranked.indexOf(trace) % GHOST_COLORS.length]!;
  const first = ranked.find((trace) => trace.index === left) ?? ranked[0]!;
  const second = ranked.find((trace) => trace.index === right) ?? ranked.at(-1)!;
  const agree = ranked.every((trace) => trace.agrees);
  const head = (trace: BranchTrace): string =>
    trace.turns[0]?.valid ? words(replyTitle(group.replies[trace.index]!.text)) : 'unusable reply';
  return (
    <div className="stack" data-testid="futures">
      <p className="small" data-agrees={agree}>
        {agree ? (
          <span className="good">
            ✓ Played again: the value in this world is the recorded one for all {ranked.length} different replies.
          </span>
        ) : (
          <span className="bad">✗ Played again, some values differ from the record: the rules have changed since.</span>
        )}{' '}
        <span className="dim">
          {traces.stand_ins
            ? 'Imitations of the policies of that iteration continue.'
            : 'The scripted partners continue in all seats.'}
        </span>
      </p>
      <Ghosts
        label="Company value"
        start={traces.start}
        at={on}
        ghosts={ranked.map((trace) => ({
          name: head(trace),
          color: color(trace),
          values: perTurn(trace.turns).map((turn) => turn.value),
          strong: trace === first || trace === second,
        }))}
      />
      <label className="row small" style={{ flexWrap: 'nowrap' }}>
        <span className="nowrap dim">
          {on} {on === 1 ? 'turn' : 'turns'} on{night && ', and the night'}
        </span>
        <input
          type="range"
          min={1}
          max={longest}
          value={at}
          onChange={(event) => setAt(Number(event.target.value))}
          aria-label="Turns after the decision"
          aria-valuetext={`${on} turns after the decision${night ? ', and the night' : ''}`}
          className="grow"
        />
      </label>
      <Scroll label="What followed each reply">
        <table>
          <thead>
            <tr>
              <th scope="col">reply</th>
              <th scope="col">compare</th>
              <th scope="col" className="num">
                company value
              </th>
              <th scope="col" className="num">
                MRR
              </th>
              <th scope="col" className="num">
                deals won
              </th>
              <th scope="col" className="num">
                {titleOf(traces.actor)}&apos;s reward
              </th>
              <th scope="col" className="num" title="What the trainer compares, at the end of the branch">
                value
              </th>
            </tr>
          </thead>
          <tbody>
            {ranked.map((trace) => {
              const upTo = trace.turns.slice(0, at);
              const now = upTo.at(-1);
              return (
                <tr key={trace.index}>
                  <th scope="row">
                    <span className="legend">
                      <span>
                        <i style={{ background: color(trace) }} />
                        {head(trace)}
                      </span>
                      {group.chosen !== null && sameReply(group, trace.index, group.chosen) && (
                        <span className="tag accent">continued with</span>
                      )}
                    </span>
                  </th>
                  <td className="nowrap">
                    {(['A', 'B'] as const).map((side) => (
                      <button
                        key={side}
                        type="button"
                        className="letter"
                        aria-pressed={(side === 'A' ? first : second) === trace}
                        aria-label={`Show ${head(trace)} as ${side}`}
                        onClick={() => (side === 'A' ? setLeft : setRight)(trace.index)}
                      >
                        {side}
                      </button>
                    ))}
                  </td>
                  <td className="num">{dollars(now?.value ?? traces.start)}</td>
                  <td className="num">{dollars(now?.mrr ?? 0)}</td>
                  <td className="num">{upTo.reduce((sum, turn) => sum + won(turn), 0)}</td>
                  <td className="num">
                    <Pay value={upTo.reduce((sum, turn) => sum + turn.own, 0)} digits={1} />
                  </td>
                  <td className="num">{fixed(trace.value, 3)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
      <div className="row spread">
        <h3>Turn by turn</h3>
        <label className="row small">
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} /> also where both did the same
        </label>
      </div>
      <p className="small dim">Below what was done stands why it paid {titleOf(traces.actor)}.</p>
      <TurnByTurn first={first} second={second} turns={at} all={all} />
    </div>
  );
}

const sameReply = (group: GroupView, one: number, other: number): boolean =>
  one === other || (group.replies[one]!.key !== '' && group.replies[one]!.key === group.replies[other]!.key);
const won = (turn: TraceTurn): number => turn.moves.filter((move) => move.after === 'won').length;
const did = (turn: TraceTurn | undefined): string => (turn ? deed(turn) : 'over');

function TurnByTurn({ first, second, turns, all }: { first: BranchTrace; second: BranchTrace; turns: number; all: boolean }) {
  const rows = Array.from({ length: turns }, (_, index) => ({ a: first.turns[index], b: second.turns[index] })).filter(
    ({ a, b }) =>
      all ||
      did(a) !== did(b) ||
      Boolean(a?.moves.length) ||
      Boolean(b?.moves.length) ||
      Math.abs((a?.own ?? 0) - (b?.own ?? 0)) >= OTHERWISE_PAID,
  );
  if (!rows.length) return <p className="empty">The two did the same up to here.</p>;
  return (
    <Scroll label="The two branches turn by turn" max={420}>
      <table className="twoways">
        <thead>
          <tr>
            <th scope="col">turn</th>
            <th scope="col">role</th>
            <th scope="col">A</th>
            <th scope="col">B</th>
            <th scope="col" className="num" title="Company value of A minus that of B">
              A − B
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ a, b }) => {
            const turn = (a ?? b)!;
            const gap = a && b ? a.value - b.value : null;
            return (
              <tr key={turn.turn}>
                <td className="nowrap dim">
                  {turn.actor === NIGHT ? '' : turn.turn + 1}{' '}
                  <span className="faint">day {Math.floor(turn.turn / TURNS_PER_DAY) + 1}</span>
                </td>
                <td>
                  <RoleBadge role={turn.actor} />
                </td>
                <Done turn={a} />
                <Done turn={b} />
                <td className={`num ${gap === null || Math.abs(gap) < 0.5 ? 'dim' : gap > 0 ? 'good' : 'bad'}`}>
                  {gap === null ? '–' : Math.abs(gap) < 0.5 ? '0' : dollars(gap)}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

/** Difference in the judged role's reward from which two turns are shown although both did the same. */
const OTHERWISE_PAID = 0.25;
/** Most reasons that one turn of a branch shows. */
const REASONS = 3;

function Done({ turn }: { turn: TraceTurn | undefined }) {
  return (
    <td>
      <span className={turn?.valid === false ? 'bad' : ''}>{did(turn)}</span>{' '}
      {turn && (
        <span className="small">
          <Pay value={turn.paid} />
        </span>
      )}
      {turn?.moves
        .filter(({ name }) => !turn.reasons?.slice(0, REASONS).some(({ text }) => text.startsWith(`${name} `)))
        .map((move) => (
          <span className="small dim move" key={move.id}>
            {moved(move)}
          </span>
        ))}
      {turn?.reasons?.slice(0, REASONS).map(({ text, own }) => (
        <span className="small dim move" key={text}>
          <Pay value={own} digits={1} /> {text}
        </span>
      ))}
    </td>
  );
}
