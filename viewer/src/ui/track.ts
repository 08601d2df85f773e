// The picture of the timeline: days, nights, what every turn paid, and what became of deals.
import type { Frame, Seats } from '../api/client';
import { colorOf, NIGHT } from '../lib/roles';
import { frameOf, FRAMES_PER_DAY, isLoss, lastFrame, paid, TURNS_PER_DAY } from '../lib/world';

/** Rows of the picture, from the top: stops of the jump, what became of deals and events, bars, days. */
const MARKS = 6;
const ICONS = 9;
const RULER = 14;

interface Colors {
  line: string;
  text: string;
  dim: string;
  accent: string;
  good: string;
  bad: string;
  night: string;
}

function colorsOf(element: Element): Colors {
  const style = getComputedStyle(element);
  const of = (name: string): string => style.getPropertyValue(name);
  return {
    line: of('--line-2'),
    text: of('--text'),
    dim: of('--dim'),
    accent: of('--accent'),
    good: of('--good'),
    bad: of('--bad'),
    night: colorOf(NIGHT),
  };
}

/** Days with their numbers, and a tint under every night. */
function drawDays(
  pen: CanvasRenderingContext2D,
  { first, turns }: Pick<Seats, 'first' | 'turns'>,
  step: number,
  height: number,
  colors: Colors,
): void {
  const wide = FRAMES_PER_DAY * step;
  const every = wide >= 20 ? 1 : 5;
  pen.font = '10px system-ui, sans-serif';
  pen.textBaseline = 'middle';
  for (let day = Math.floor(first / TURNS_PER_DAY); day * TURNS_PER_DAY < first + turns; day++) {
    const from = day * TURNS_PER_DAY > first ? frameOf(day * TURNS_PER_DAY, first) * step : step;
    const night = frameOf((day + 1) * TURNS_PER_DAY - 1, first) + 1;
    pen.fillStyle = colors.line;
    pen.globalAlpha = (day + 1) % 5 ? 0.35 : 0.8;
    pen.fillRect(from, height - RULER, 1, RULER);
    pen.globalAlpha = 1;
    if ((day + 1) * TURNS_PER_DAY <= first + turns) {
      pen.fillStyle = colors.night;
      pen.globalAlpha = 0.22;
      pen.fillRect(night * step, 0, Math.max(step, 2), height);
      pen.globalAlpha = 1;
      pen.textAlign = 'center';
      if (wide >= 34) pen.fillText('☾', night * step - 4, height - RULER / 2);
    }
    if ((day + 1) % every === 0 || every === 1) {
      pen.fillStyle = colors.dim;
      pen.textAlign = 'left';
      pen.fillText(String(day + 1), from + 4, height - RULER / 2);
    }
  }
}

/** A sign above a turn: ▲ a deal was signed, ✕ a lead or customer left, ◆ something happened to the company. */
function drawSign(pen: CanvasRenderingContext2D, frame: Frame, x: number, colors: Colors): void {
  const y = MARKS + ICONS / 2;
  const won = frame.moves.some(({ before, after }) => after === 'won' && before !== '');
  pen.globalAlpha = 1;
  if (frame.moves.some(isLoss)) {
    pen.strokeStyle = colors.bad;
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(x - 3, y - 3);
    pen.lineTo(x + 3, y + 3);
    pen.moveTo(x + 3, y - 3);
    pen.lineTo(x - 3, y + 3);
    pen.stroke();
  } else if (won || frame.events.length) {
    pen.fillStyle = won ? colors.good : colors.accent;
    pen.beginPath();
    pen.moveTo(x, y - 3.5);
    pen.lineTo(x + 3.5, won ? y + 3 : y);
    if (!won) pen.lineTo(x, y + 3.5);
    pen.lineTo(x - 3.5, won ? y + 3 : y);
    pen.fill();
  }
}

/** The amount whose bar is as high as its room: few are larger, so that one bad night does not flatten a month. */
function tallness(values: readonly number[]): number {
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  return Math.max(sizes[Math.floor(0.985 * (sizes.length - 1))] ?? 0, 5);
}

/** One bar per turn and night: colour says who, height how much, direction whether it was good. */
export function draw(
  canvas: HTMLCanvasElement,
  frames: readonly Frame[],
  span: Pick<Seats, 'first' | 'turns'>,
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
  const colors = colorsOf(canvas);
  pen.scale(ratio, ratio);
  const step = width / (lastFrame(span) + 1);
  drawDays(pen, span, step, height, colors);
  const top = MARKS + ICONS;
  const bottom = height - RULER;
  const middle = top + 0.55 * (bottom - top);
  pen.fillStyle = colors.line;
  pen.fillRect(0, middle, width, 1);
  const values = frames.map(paid);
  const tallest = tallness(values);
  frames.forEach((frame, index) => {
    if (!index) return;
    const value = values[index]!;
    const room = value < 0 ? bottom - middle - 3 : middle - top - 2;
    const size = 2 + Math.sqrt(Math.min(Math.abs(value) / tallest, 1)) * (room - 2);
    pen.fillStyle = colorOf(frame.actor);
    pen.globalAlpha = index <= seq ? 1 : 0.45;
    const wide = Math.max(step - (step > 3 ? 0.6 : 0), 1);
    if (value < 0) pen.fillRect(index * step, middle + 1, wide, size);
    else pen.fillRect(index * step, middle - size, wide, size);
    drawSign(pen, frame, (index + 0.5) * step, colors);
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colors.accent;
  for (const mark of marks) {
    const x = (mark + 0.5) * step;
    pen.beginPath();
    pen.moveTo(x - 3, 0);
    pen.lineTo(x + 3, 0);
    pen.lineTo(x, 5);
    pen.fill();
  }
  pen.fillStyle = colors.text;
  pen.fillRect((seq + 0.5) * step - 1, 0, 2, height);
}
