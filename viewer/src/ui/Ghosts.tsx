// Futures of one decision as lines: what was before it in grey, and what followed each reply, from the same point.
import { useId } from 'react';
import { dollars } from '../lib/format';

export interface Ghost {
  name: string;
  color: string;
  /** After each turn from the decision on. */
  values: readonly number[];
  strong?: boolean;
}

export const GHOST_COLORS = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3', '#b48cf0', '#f08a4b', '#9bcf5c', '#9aa3ba'];

const WIDTH = 320;
const HEIGHT = 120;

export function Ghosts({
  ghosts,
  start,
  before = [],
  at,
  label,
}: {
  ghosts: readonly Ghost[];
  start: number;
  /** What was, up to the decision. */
  before?: readonly number[];
  /** Turns after the decision that are pointed at. */
  at?: number;
  label: string;
}) {
  const id = useId();
  const ahead = Math.max(1, ...ghosts.map((ghost) => ghost.values.length));
  const back = before.length;
  const all = [start, ...before, ...ghosts.flatMap((ghost) => ghost.values)];
  const low = Math.min(...all);
  const high = Math.max(...all);
  const x = (turn: number): number => ((turn + back) / (ahead + back)) * WIDTH;
  const y = (value: number): number => HEIGHT - 8 - ((value - low) / (high - low || 1)) * (HEIGHT - 16);
  const path = (points: readonly (readonly [number, number])[]): string =>
    `M${points.map(([turn, value]) => `${x(turn).toFixed(1)},${y(value).toFixed(1)}`).join('L')}`;
  const ends = ghosts.map((ghost) => `${ghost.name} ${dollars(ghost.values.at(-1) ?? start)}`).join(', ');
  return (
    <figure className="ghosts">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-labelledby={id}>
        <title id={id}>{`${label}: from ${dollars(start)}; after ${ahead} turns ${ends}`}</title>
        <line x1={x(0)} x2={x(0)} y1="0" y2={HEIGHT} stroke="var(--line-2)" vectorEffect="non-scaling-stroke" />
        {back > 0 && (
          <path
            d={path([...before.map((value, index) => [index - back, value] as const), [0, start]])}
            fill="none"
            stroke="var(--dim)"
            strokeWidth="1.6"
            vectorEffect="non-scaling-stroke"
          />
        )}
        {ghosts.map((ghost, index) => (
          <path
            key={`${ghost.name} ${index}`}
            d={path([[0, start], ...ghost.values.map((value, turn) => [turn + 1, value] as const)])}
            fill="none"
            stroke={ghost.color}
            strokeWidth={ghost.strong ? 2.4 : 1.2}
            strokeDasharray={ghost.strong ? undefined : '4 3'}
            opacity={ghost.strong ? 1 : 0.75}
            vectorEffect="non-scaling-stroke"
          />
        ))}
        {at !== undefined && (
          <line x1={x(at)} x2={x(at)} y1="0" y2={HEIGHT} stroke="var(--text)" opacity="0.6" vectorEffect="non-scaling-stroke" />
        )}
      </svg>
      <figcaption className="row spread small dim">
        <span>
          {dollars(low)} to {dollars(high)}
        </span>
        <span>
          {back > 0 ? `${back} turns before, ` : ''}
          {ahead} turns on
        </span>
      </figcaption>
    </figure>
  );
}
