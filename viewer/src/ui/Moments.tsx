// From a figure of the dashboard to the moments that made it: the turns and nights behind a reward, and the way of a deal.
import { useMemo } from 'react';
import type { Frame } from '../api/client';
import { payers } from '../lib/reasons';
import { NIGHT, titleOf } from '../lib/roles';
import { seek } from '../lib/store';
import { deed, journey, moved, type World } from '../lib/world';
import { Pay } from './small';

const SHOWN = 6;

/** The turns and nights that paid `role` most of one part. */
export function Payers({
  world,
  seq,
  role,
  part,
  name,
}: {
  world: World;
  seq: number;
  role: string;
  part: number;
  name: string;
}) {
  const all = useMemo(() => payers(world.frames, role, part, seq, SHOWN), [world.frames, role, part, seq]);
  return (
    <>
      <h3 className="moments-title">
        {titleOf(role)}, {name}: what paid most
      </h3>
      <ol className="moments" aria-label={`${titleOf(role)}, ${name}: what paid most`}>
        {all.map(({ frame, amount, text }) => (
          <li key={frame.seq}>
            <button type="button" onClick={() => seek(frame.seq)}>
              {frame.actor === NIGHT ? `Night ${frame.day + 1}` : `Turn ${frame.turn + 1}`}
            </button>
            <span>{text}</span>
            <Pay value={amount} />
          </li>
        ))}
      </ol>
    </>
  );
}

/** Who moved a deal, and by what. */
const author = (frame: Frame): string =>
  frame.actor === NIGHT ? 'overnight' : frame.actor ? `${titleOf(frame.actor)}: ${deed(frame)}` : 'a customer from the start';

/** How a deal came to be where it is. */
export function Journey({ world, seq, account }: { world: World; seq: number; account: number }) {
  const all = useMemo(() => journey(world.frames, account, seq), [world.frames, account, seq]);
  if (!all.length) return null;
  const { name } = all[0]!.move;
  return (
    <>
      <h3 className="moments-title">{name}: the way of this deal</h3>
      <ol className="moments" aria-label={`${name}: the way of this deal`}>
        {all.map(({ frame, move }) => (
          <li key={frame.seq}>
            <button type="button" onClick={() => seek(frame.seq)}>
              {frame.actor ? `Day ${frame.day + 1}` : 'Day 0'}
            </button>
            <span>{moved(move)}</span>
            <span className="dim">{author(frame)}</span>
          </li>
        ))}
      </ol>
    </>
  );
}
