// What happened, newest first: turns and nights with their reasons, under a line for each day.
import { useMemo, useState } from 'react';
import type { Frame } from '../api/client';
import { dollars, words } from '../lib/format';
import { digest, told } from '../lib/reasons';
import { NIGHT, titleOf } from '../lib/roles';
import { seek } from '../lib/store';
import { deed, isLoss, moved, paid, type World } from '../lib/world';
import { Because } from './Reasons';
import { Panel, Pay, RoleBadge, Scroll } from './small';

const FEED = 40;
/** Reasons that a night and a turn show; the inspector has all of them. */
const NIGHTLY = 8;
const PER_TURN = 3;
const KINDS = ['all', 'talk', 'events', 'deals', 'rules'] as const;
type Kind = (typeof KINDS)[number];

const NONE: Record<Kind, string> = {
  all: 'No turn yet.',
  talk: 'No messages yet.',
  events: 'No events yet.',
  deals: 'No deals yet.',
  rules: 'No rule has been broken yet.',
};

const HOLDS: Record<Kind, (frame: Frame) => boolean> = {
  all: () => true,
  talk: ({ talk }) => talk !== null,
  events: ({ events, notes }) => events.length + notes.length > 0,
  deals: ({ moves }) => moves.length > 0,
  rules: ({ reasons }) => reasons.some(({ cause }) => cause === 'rule'),
};

export function Feed({ world, seq, limit = FEED, max = 430 }: { world: World; seq: number; limit?: number; max?: number }) {
  const [kind, setKind] = useState<Kind>('all');
  const shown = useMemo(() => {
    const found: Frame[] = [];
    for (let index = seq; index > 0 && found.length < limit; index--) {
      const frame = world.frames[index]!;
      if (HOLDS[kind](frame)) found.push(frame);
    }
    return found;
  }, [world.frames, seq, kind, limit]);
  return (
    <Panel
      title="What happened"
      tools={
        <div className="rolebar" role="group" aria-label="Show">
          {KINDS.map((one) => (
            <button type="button" key={one} aria-pressed={kind === one} onClick={() => setKind(one)}>
              {one}
            </button>
          ))}
        </div>
      }
    >
      <Scroll label="Turns, newest first" max={max}>
        <ol className="feed">
          {shown.map((frame, place) => (
            <li key={frame.seq}>
              {frame.day !== shown[place - 1]?.day && <DayLine frames={world.frames} seq={seq} day={frame.day} />}
              <Entry frame={frame} />
            </li>
          ))}
        </ol>
        {!shown.length && <p className="empty">{NONE[kind]}</p>}
      </Scroll>
    </Panel>
  );
}

/** A day up to where the timeline stands: how the company's value changed, and what did most of it. */
function DayLine({ frames, seq, day }: { frames: readonly Frame[]; seq: number; day: number }) {
  const told = useMemo(() => {
    let end = seq;
    while (end > 1 && frames[end]!.day > day) end--;
    return digest(frames, end);
  }, [frames, seq, day]);
  const { value, change, share } = told;
  return (
    <div className="dayline" data-day={day + 1}>
      <p className="row spread">
        <b>Day {day + 1}</b>
        <span className="num">
          {dollars(value)}{' '}
          <span className={change < 0 ? 'bad' : 'good'}>
            {change < 0 ? '▼' : '▲'} {dollars(Math.abs(change))}
          </span>
        </span>
      </p>
      {share && (
        <p className="small dim">
          {share.reason.text} <Pay value={share.amount} /> for the team
        </p>
      )}
    </div>
  );
}

function Entry({ frame }: { frame: Frame }) {
  const night = frame.actor === NIGHT;
  const because = told(frame, night ? NIGHTLY : PER_TURN);
  const named = new Set(because.map(({ reason }) => reason.account));
  return (
    <>
      <button
        type="button"
        className="turn"
        onClick={() => seek(frame.seq)}
        title={night ? 'Go to this night' : `Go to turn ${frame.turn + 1}`}
      >
        <RoleBadge role={frame.actor} />
        <span className={`ellipsis ${frame.valid ? '' : 'bad'}`}>{night ? `after day ${frame.day + 1}` : deed(frame)}</span>
        <Pay value={paid(frame)} />
      </button>
      {frame.talk && (
        <span className="said">
          to {frame.talk.to}: “{frame.talk.text}”
        </span>
      )}
      {frame.why && <span className="small bad">{frame.why}</span>}
      {Object.keys(frame.reflections).length > 0 && (
        <span className="tag reflect" style={{ justifySelf: 'start' }}>
          {Object.keys(frame.reflections).map(titleOf).join(', ')}: reflection
        </span>
      )}
      {because.length > 0 && (
        <ul className="reasons" aria-label="What it was paid for">
          {because.map((share) => (
            <Because key={share.reason.text} share={share} />
          ))}
        </ul>
      )}
      {frame.moves
        .filter(({ id }) => !named.has(id))
        .map((move) => (
          <span className={`small ${isLoss(move) ? 'bad' : 'dim'}`} key={move.id}>
            {moved(move)}, {dollars(move.price)}/mo
          </span>
        ))}
      {frame.events.map((event) => (
        <span key={event} className="tag accent" style={{ justifySelf: 'start' }}>
          {words(event)}
        </span>
      ))}
      {frame.notes
        .filter((note) => !frame.events.some((event) => note === `event ${event}`))
        .map((note) => (
          <span key={note} className="small dim">
            {note}
          </span>
        ))}
    </>
  );
}
