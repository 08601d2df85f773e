// The bar below every view of a world: where we are in it, and how to move. Live and recorded turns are the same.
import { useEffect, useMemo, useRef, useState } from 'react';
import { NIGHT, titleOf } from '../lib/roles';
import { isExport } from '../lib/exported';
import { current, jumpTo, seek, setJump, setSpeed, showRole, togglePlay, useStore } from '../lib/store';
import { concerned, dayChange, extreme, told } from '../lib/reasons';
import { dollars, words } from '../lib/format';
import { deed, isLoss, JUMPS, lastFrame, paid, stops, type Jump } from '../lib/world';
import type { Frame } from '../api/client';
import { FromRun } from './FromRun';
import { Because } from './Reasons';
import { Pay, RoleBadge } from './small';
import { draw } from './track';

const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32];

/** Days that have been played, with how the company's value changed in each: where to look. */
function Days({ frames, seq }: { frames: readonly Frame[]; seq: number }) {
  const days = useMemo(() => {
    const ends = new Map<number, number>();
    frames.forEach((frame, index) => index > 0 && ends.set(frame.day, index));
    return [...ends].map(([day, end]) => ({ day, end, change: dayChange(frames, end) }));
  }, [frames]);
  return (
    <select
      className="days"
      value={days.length ? frames[Math.max(seq, 1)]!.day : ''}
      disabled={!days.length}
      aria-label="Day"
      title="Go to the end of a day"
      onChange={(event) => seek(days.find(({ day }) => day === Number(event.target.value))!.end)}
    >
      {days.map(({ day, change }) => (
        <option key={day} value={day}>
          Day {day + 1} {change < 0 ? '▼' : '▲'} {dollars(Math.abs(change))}
        </option>
      ))}
    </select>
  );
}

/** What the pointer is over. */
function HoverCard({ frame, at }: { frame: Frame; at: number }) {
  return (
    <div className="hovercard" style={{ left: `clamp(0px, ${100 * at}% - 150px, 100% - 300px)` }} aria-hidden="true">
      <p className="row spread">
        <b>
          Day {frame.day + 1} · {frame.actor === NIGHT ? 'night' : `${frame.phase}, turn ${frame.turn + 1}`}
        </b>
        <Pay value={paid(frame)} />
      </p>
      {frame.actor !== NIGHT && (
        <p className="row small">
          <RoleBadge role={frame.actor} /> {deed(frame)}
        </p>
      )}
      {frame.events.map((event) => (
        <span key={event} className="tag accent">
          {words(event)}
        </span>
      ))}
      <ul className="reasons">
        {told(frame, 4).map((share) => (
          <Because key={share.reason.text} share={share} />
        ))}
      </ul>
    </div>
  );
}

export function describe(frame: Frame | undefined): string {
  if (!frame) return 'no turn yet';
  if (!frame.actor) return frame.turn < 0 ? 'The company starts.' : `The record begins after turn ${frame.turn + 1}.`;
  const reward = paid(frame).toFixed(2);
  if (frame.actor === NIGHT) {
    const gone = frame.moves.filter(isLoss).map(({ name, after }) => `${name} ${after}`);
    return `Night after day ${frame.day + 1}. ${gone.length ? `${gone.join(', ')}. ` : ''}Team reward ${reward}.`;
  }
  return `Turn ${frame.turn + 1}, day ${frame.day + 1}, ${frame.phase}. ${titleOf(frame.actor)}: ${deed(frame)}. Reward ${reward}.`;
}

export function Timeline() {
  const world = useStore(current);
  const recorded = useStore((state) => state.recorded);
  const seq = useStore((state) => state.seq);
  const moving = useStore((state) => state.moving);
  const follow = useStore((state) => state.follow);
  const speed = useStore((state) => state.speed);
  const theme = useStore((state) => state.theme);
  const canChange = useStore((state) => state.canChange);
  const jump = useStore((state) => state.jump);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState<number | null>(null);
  const frames = world?.frames;
  const marks = useMemo(() => (frames ? stops(frames, jump) : []), [frames, jump]);
  const seats = world?.seats;
  const turns = seats?.turns ?? 0;

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (canvas.current && frames && seats) draw(canvas.current, frames, seats, seq, marks);
  }, [frames, turns, seq, marks, width, theme]);

  const frame = frames?.[seq];
  const over = hover === null ? undefined : frames?.[hover];
  const ends = useMemo(() => (frames ? { loss: extreme(frames, -1), gain: extreme(frames, 1) } : {}), [frames]);
  const toEnd = (at: number | undefined): void => {
    const found = at === undefined ? undefined : frames?.[at];
    if (!found) return;
    jumpTo(found.seq, 'large');
    if (concerned(found)) showRole(concerned(found));
  };
  const last = (frames?.length ?? 1) - 1;
  const previous = [...marks].reverse().find((mark) => mark < seq);
  const next = marks.find((mark) => mark > seq);
  const playing = moving || (follow && Boolean(world?.seats.playing));
  const done = world?.seats.done ?? '';
  const canPlay = seq < last || Boolean(done) || canChange;
  return (
    <footer className="timeline" aria-label="Timeline">
      <div className="track">
        <canvas ref={canvas} aria-hidden="true" />
        <input
          type="range"
          min={0}
          max={seats ? lastFrame(seats) : 0}
          value={seq}
          aria-label="Turn"
          aria-valuetext={describe(frame)}
          onChange={(event) => seek(Math.min(Number(event.target.value), last))}
          onPointerMove={(event) => {
            const box = event.currentTarget.getBoundingClientRect();
            const at = Math.floor(((event.clientX - box.left) / box.width) * (seats ? lastFrame(seats) + 1 : 1));
            setHover(event.pointerType === 'mouse' && at > 0 && at <= last ? at : null);
          }}
          onPointerLeave={() => setHover(null)}
        />
        <span className="ring" />
        {over && seats && <HoverCard frame={over} at={(over.seq + 0.5) / (lastFrame(seats) + 1)} />}
      </div>
      <div className="bar">
        <button
          type="button"
          onClick={togglePlay}
          disabled={!canPlay}
          aria-label={playing ? 'Pause' : 'Play'}
          title="Play or pause (space)"
        >
          {playing ? '❚❚' : '▶'}
        </button>
        <button
          type="button"
          onClick={() => seek(seq - 1)}
          disabled={seq === 0}
          aria-label="Previous turn"
          title="Previous turn (←)"
        >
          ‹
        </button>
        <button type="button" onClick={() => seek(seq + 1)} disabled={seq >= last} aria-label="Next turn" title="Next turn (→)">
          ›
        </button>
        <button
          type="button"
          className={follow ? 'quiet' : ''}
          onClick={() => seek(last)}
          disabled={follow}
          title="Go to the newest turn (End)"
        >
          <span className={follow ? 'good' : ''}>● {done ? 'end' : 'live'}</span>
        </button>
        {frames && <Days frames={frames} seq={seq} />}
        <label className="row wide">
          <span className="sr">Turns per second</span>
          <select value={speed} onChange={(event) => setSpeed(Number(event.target.value))} title="Turns per second">
            {SPEEDS.map((value) => (
              <option key={value} value={value}>
                {value}×
              </option>
            ))}
          </select>
        </label>
        <div className="row jump">
          <button
            type="button"
            disabled={previous === undefined}
            onClick={() => previous !== undefined && jumpTo(previous, jump)}
            aria-label={`Previous ${JUMPS[jump]}`}
            title="Previous ([)"
          >
            ⟨
          </button>
          <select
            value={jump}
            onChange={(event) => setJump(event.target.value as Jump)}
            aria-label="What to jump to"
            id="jump-kind"
          >
            {Object.entries(JUMPS).map(([kind, name]) => (
              <option key={kind} value={kind}>
                {name}
              </option>
            ))}
          </select>
          <button
            type="button"
            disabled={next === undefined}
            onClick={() => next !== undefined && jumpTo(next, jump)}
            aria-label={`Next ${JUMPS[jump]}`}
            title="Next (])"
          >
            ⟩
          </button>
          <span className="small dim nowrap">{marks.length}</span>
          <button
            type="button"
            className="bad"
            disabled={ends.loss === undefined}
            onClick={() => toEnd(ends.loss)}
            aria-label="Biggest loss"
            title="Go to the turn or night that cost most"
          >
            ▼
          </button>
          <button
            type="button"
            className="good"
            disabled={ends.gain === undefined}
            onClick={() => toEnd(ends.gain)}
            aria-label="Biggest gain"
            title="Go to the turn or night that paid most"
          >
            ▲
          </button>
        </div>
        {!isExport && !recorded && (
          <a
            className="button wide"
            href="./api/export"
            download
            title="Save this episode as one file that opens without a server"
          >
            ⤓ <span className="sr">Save as one file</span>
          </a>
        )}
        <div className="now">
          <span className="nowrap dim">
            {frame?.actor
              ? `Day ${frame.day + 1} · ${frame.phase} · ${frame.turn + 1}/${(seats?.first ?? 0) + turns}`
              : frame && frame.turn >= 0
                ? `Day ${frame.day + 1} · record begins`
                : 'Day 0'}
          </span>
          {frame?.actor && (
            <>
              <RoleBadge role={frame.actor} />
              <span className="ellipsis" title={frame.text || deed(frame)}>
                <span className={frame.valid ? '' : 'bad'}>{deed(frame)}</span>
              </span>
              <Pay value={paid(frame)} />
            </>
          )}
        </div>
      </div>
      <FromRun frame={frame} />
      <p className="sr" aria-live="polite">
        {playing ? '' : describe(frame)}
      </p>
    </footer>
  );
}
