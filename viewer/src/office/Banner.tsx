// What happened lately, over either stage: a line for each deal, loss and event, confetti over Sales, and a cloud over who leaves.
import { useMemo, type CSSProperties } from 'react';
import { dollars, words } from '../lib/format';
import { current, useStore } from '../lib/store';
import { news } from './happening';

const PIECES = 28;
const COLORS = ['#f2b84b', '#58c4a7', '#ee6fa3', '#5aa2f0', '#b48cf0', '#9bcf5c'];

/** Pieces that `--fallen`, 0 to 1, throws up and lets fall: no animation of its own, so that a stage at rest is at rest. */
export function Confetti() {
  return (
    <div className="confetti" aria-hidden="true">
      {Array.from({ length: PIECES }, (_, index) => {
        const luck = ((index * 61) % 97) / 97;
        const style = {
          '--across': `${(((index * 37) % PIECES) / (PIECES - 1) - 0.5) * 190}px`,
          '--up': `${-60 - luck * 110}px`,
          '--turns': `${(luck - 0.5) * 1400}deg`,
          background: COLORS[index % COLORS.length],
        };
        return <i key={index} style={style as CSSProperties} />;
      })}
    </div>
  );
}

export const Cloud = () => (
  <svg viewBox="0 0 24 16" width="34" height="23" aria-hidden="true" shapeRendering="crispEdges">
    <path fill="#4d4864" d="M8 1h8v2h3v2h3v2h2v5h-2v2H2v-2H0V7h2V5h3V3h3z" />
    <path fill="#a9a5bd" d="M9 3h6v2h3v2h3v2h1v2H2V8h3V5h4z" />
    <path fill="#7fb6ee" d="M6 14h1v2H6zm6 0h1v2h-1zm6 0h1v2h-1z" />
  </svg>
);

const Bell = () => (
  <svg className="bell" viewBox="0 0 16 16" width="18" height="18" aria-hidden="true">
    <path
      fill="#f2b84b"
      d="M8 1a1 1 0 0 1 1 1 4.6 4.6 0 0 1 3.6 4.5V10l1.6 2.2H1.8L3.4 10V6.5A4.6 4.6 0 0 1 7 2a1 1 0 0 1 1-1z"
    />
    <path fill="#f2b84b" d="M6.2 13.2h3.6a1.8 1.8 0 0 1-3.6 0z" />
  </svg>
);

/** Lines about what happened in the turns before. */
export function Banner() {
  const world = useStore(current);
  const seq = useStore((state) => state.seq);
  const effects = useStore((state) => state.config?.event_effects);
  const lines = useMemo(() => (world ? news(world.frames, seq) : []), [world, seq]);
  return (
    <ul className="lately" aria-label="What just happened">
      {lines.slice(0, 3).map(({ key, kind, name, price }) => (
        <li key={key} data-kind={kind}>
          {kind === 'won' ? <Bell /> : kind === 'churned' ? <Cloud /> : <b aria-hidden="true">◆</b>}
          <span>
            <b>{kind === 'event' ? words(name) : name}</b>{' '}
            {kind === 'won'
              ? `signed, ${dollars(price)} a month`
              : kind === 'churned'
                ? `left, ${dollars(price)} a month`
                : (effects?.[name] ?? '')}
          </span>
        </li>
      ))}
    </ul>
  );
}
