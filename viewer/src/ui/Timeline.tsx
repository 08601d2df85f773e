// The bar below every view of a world: where we are in it, and how to move. Live and recorded turns are the same.
import { useEffect, useMemo, useRef, useState } from 'react';
import { colorOf, NIGHT, titleOf } from '../lib/roles';
import { isExport } from '../lib/exported';
import { current, jumpTo, seek, setJump, setSpeed, togglePlay, useStore } from '../lib/store';
import { deed, frameOf, isLoss, JUMPS, lastFrame, paid, stops, TURNS_PER_DAY, type Jump } from '../lib/world';
import type { Frame, Seats } from '../api/client';
import { FromRun } from './FromRun';
import { Pay, RoleBadge } from './small';

const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32];

/** One bar per turn and night: colour says who, height how much, direction whether it was good. */
function draw(
  canvas: HTMLCanvasElement,
  frames: readonly Frame[],
  { first, turns }: Pick<Seats, 'first' | 'turns'>,
  seq: number,
  marks: readonly number[],
): void {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext('2d');
  if (!pen) return;
  const style = getComputedStyle(canvas);
  const line = style.getPropertyValue('--line-2');
  const text = style.getPropertyValue('--text');
  const accent = style.getPropertyValue('--accent');
  pen.scale(ratio, ratio);
  const step = width / (lastFrame({ first, turns }) + 1);
  const middle = height * 0.6;
  pen.fillStyle = line;
  for (let day = Math.ceil(first / TURNS_PER_DAY); day * TURNS_PER_DAY - first <= turns; day++) {
    const x = frameOf(day * TURNS_PER_DAY, first) * step;
    pen.globalAlpha = day % 5 ? 0.25 : 0.7;
    pen.fillRect(x, 0, 1, height);
  }
  pen.globalAlpha = 1;
  pen.fillRect(0, middle, width, 1);
  const scale = (value: number): number => Math.sqrt(Math.min(Math.abs(value), 25) / 25);
  frames.forEach((frame, index) => {
    if (!index) return;
    const value = paid(frame);
    const size = 3 + scale(value) * (value < 0 ? height - middle - 4 : middle - 9);
    pen.fillStyle = colorOf(frame.actor);
    pen.globalAlpha = index <= seq ? 1 : 0.45;
    const wide = Math.max(step - (step > 3 ? 0.6 : 0), 1);
    if (value < 0) pen.fillRect(index * step, middle + 1, wide, size);
    else pen.fillRect(index * step, middle - size, wide, size);
  });
  pen.globalAlpha = 1;
  pen.fillStyle = accent;
  for (const mark of marks) {
    const x = (mark + 0.5) * step;
    pen.beginPath();
    pen.moveTo(x - 3, 0);
    pen.lineTo(x + 3, 0);
    pen.lineTo(x, 5);
    pen.fill();
  }
  pen.fillStyle = text;
  pen.fillRect((seq + 0.5) * step - 1, 0, 2, height);
}

export function describe(frame: Frame | undefined): string {
  if (!frame) return 'no turn yet';
  if (!frame.actor) return frame.turn < 0 ? 'The company is founded.' : `The record begins after turn ${frame.turn + 1}.`;
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
        />
        <span className="ring" />
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
                : 'Founded'}
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
