// What would have happened: replies to one request, each stepped in forks of the company.
import { useMemo, useState } from 'react';
import { post, type Branches, type Frame, type PlayerInfo, type PromptView, type Suggestions } from '../api/client';
import { useFetched } from '../lib/fetching';
import { dollars, fixed, replyTitle, signed, trying } from '../lib/format';
import { titleOf } from '../lib/roles';
import { act, useStore } from '../lib/store';
import { perTurn } from '../lib/world';
import { GHOST_COLORS, Ghosts } from '../ui/Ghosts';
import { PlayerOptions } from '../ui/Players';
import { Panel, Scroll } from '../ui/small';

const NO_FRAMES: readonly Frame[] = [];

/** K replies from here, each stepped in forks of the company under the same luck. */
export function Alternatives({ seq, view, asked }: { seq: number; view: PromptView | null; asked: string }) {
  const { value: players } = useFetched<PlayerInfo[]>('models');
  const canChange = useStore((state) => state.canChange);
  const frames = useStore((state) => state.worlds.live?.frames) ?? NO_FRAMES;
  const [source, setSource] = useState('legal');
  const [count, setCount] = useState(8);
  const [worlds, setWorlds] = useState(4);
  const [result, setResult] = useState<Branches | null>(null);
  const [busy, setBusy] = useState(false);
  const run = async (): Promise<void> => {
    setBusy(true);
    let replies: string[] = (view?.legal ?? []).map((legal) => legal.text).slice(0, count);
    if (source !== 'legal') {
      const found = await act(post<'suggest', Suggestions>('suggest', { seq, player: source, count }));
      replies = found?.replies ?? [];
    }
    if (replies.length) setResult(await act(post<'branches', Branches>('branches', { seq, replies, worlds })));
    setBusy(false);
  };
  const ranked = useMemo(() => {
    if (!result) return [];
    return result.replies
      .map((reply, index) => ({ reply, index, times: result.replies.filter((other) => other.same_as === reply.same_as).length }))
      .filter(({ reply, index }) => reply.same_as === index)
      .sort((a, b) => b.reply.mean - a.reply.mean);
  }, [result]);
  // As many turns of the past as make a seventh of the picture.
  const before = useMemo(
    () =>
      result
        ? perTurn(frames.slice(0, result.seq))
            .slice(-Math.ceil(result.turns / 6))
            .map((frame) => frame.kpis.value)
        : [],
    [result, frames],
  );
  const means = ranked.map(({ reply }) => reply.mean);
  const low = Math.min(...means);
  const span = Math.max(...means) - low || 1;
  return (
    <Panel title="What would have happened">
      <div className="stack">
        <div className="row" style={{ alignItems: 'end' }}>
          <label className="field grow">
            replies from
            <select value={source} onChange={(event) => setSource(event.target.value)}>
              <option value="legal">the legal actions</option>
              <PlayerOptions players={players} />
            </select>
          </label>
          <label className="field">
            how many
            <input
              type="number"
              min={2}
              max={16}
              value={count}
              onChange={(event) => setCount(Math.max(2, Math.min(16, Number(event.target.value) || 2)))}
              style={{ width: 70 }}
            />
          </label>
          <label className="field">
            worlds
            <input
              type="number"
              min={1}
              max={32}
              value={worlds}
              onChange={(event) => setWorlds(Math.max(1, Math.min(32, Number(event.target.value) || 1)))}
              style={{ width: 70 }}
            />
          </label>
          <button
            type="button"
            onClick={() => void run()}
            disabled={!canChange || busy || !asked || (source === 'legal' && !view?.asked)}
          >
            {busy ? 'Playing…' : trying(count, source === 'legal' && view ? view.legal.length : null)}
          </button>
        </div>
        {source === 'legal' && view && !view.asked && asked && (
          <p className="small dim">It is {titleOf(asked)}’s turn: choose that role above.</p>
        )}
        {result && (
          <>
            <p className="small dim">
              {titleOf(result.role)}: {result.replies.length} replies, each played in {result.worlds.length} worlds and continued
              for {result.turns} turns by the heuristic in all seats. Lines: company value, mean over worlds. Bars: the gain, best
              reply first.
            </p>
            <Ghosts
              label="Company value"
              start={result.start}
              before={before}
              ghosts={ranked.slice(0, GHOST_COLORS.length).map(({ reply }, place) => ({
                name: replyTitle(reply.text),
                color: GHOST_COLORS[place]!,
                values: reply.values,
                strong: place === 0,
              }))}
            />
            <Scroll label="Branches, best first" max={380}>
              <ol className="bars">
                {ranked.map(({ reply, index, times }, place) => (
                  <li key={index}>
                    <div className="row spread small" style={{ flexWrap: 'nowrap' }}>
                      <span className="mono ellipsis" title={reply.text}>
                        <i className="swatch" style={{ background: GHOST_COLORS[place] ?? 'transparent' }} />
                        {replyTitle(reply.text)} {times > 1 && <span className="tag">×{times}</span>}{' '}
                        {!reply.valid && <span className="tag bad">invalid</span>}
                      </span>
                      <span className="nowrap">
                        {dollars(reply.mean)}{' '}
                        <b className={(reply.advantage ?? 0) >= 0 ? 'good' : 'bad'}>
                          {reply.advantage === null ? '' : signed(reply.advantage)}
                        </b>
                      </span>
                    </div>
                    <svg
                      viewBox="0 0 100 7"
                      preserveAspectRatio="none"
                      style={{ width: '100%', height: 7, display: 'block' }}
                      role="img"
                      aria-label={`Outcomes: ${reply.outcomes.map((value) => fixed(value, 0)).join(', ')} dollars`}
                    >
                      <rect width="100" height="7" fill="var(--bg-2)" />
                      <rect
                        width={4 + (96 * (reply.mean - low)) / span}
                        height="7"
                        fill={reply.valid ? 'var(--info)' : 'var(--bad)'}
                      />
                    </svg>
                  </li>
                ))}
              </ol>
            </Scroll>
          </>
        )}
      </div>
    </Panel>
  );
}
