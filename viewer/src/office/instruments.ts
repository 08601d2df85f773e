// The office's own instruments: what hangs on the walls and blinks in the racks shows the company's figures.
import type { Feature } from '../api/client';
import type { World } from '../lib/world';
import { INK, mk, rng } from './pix';

const CHART = [40, 26] as const;
const KANBAN = [44, 26] as const;
const RACK = [18, 34] as const;
export const INSTRUMENT_SIZE = { chart: CHART, kanban: KANBAN, rack: RACK } as const;

/** Revenue a month over the episode so far, as the wall's chart shows it. */
export function drawChart(
  pen: CanvasRenderingContext2D,
  world: World,
  seq: number,
  key: 'mrr' | 'pipeline',
  color: string,
): void {
  const [w, h] = CHART;
  pen.fillStyle = INK;
  pen.fillRect(0, 0, w, h);
  pen.fillStyle = '#2a2d3f';
  pen.fillRect(1, 1, w - 2, h - 2);
  pen.fillStyle = '#13283c';
  pen.fillRect(2, 2, w - 4, h - 4);
  pen.fillStyle = '#1f3a52';
  for (let y = 6; y < h - 3; y += 5) pen.fillRect(2, y, w - 4, 1);
  const columns = w - 6;
  const shown = world.frames.slice(0, seq + 1);
  const values = Array.from(
    { length: columns },
    (_, column) => shown[Math.floor((column / (columns - 1)) * (shown.length - 1))]?.kpis[key] ?? 0,
  );
  const high = Math.max(1, ...values);
  values.forEach((value, column) => {
    const size = Math.round((value / high) * (h - 9));
    pen.fillStyle = `${color}55`;
    pen.fillRect(3 + column, h - 3 - size, 1, size);
    pen.fillStyle = color;
    pen.fillRect(3 + column, h - 4 - size, 1, 1);
  });
}

/** Features as cards in three columns (not begun, in work, shipped); dots count the turns that are left. */
export function drawKanban(pen: CanvasRenderingContext2D, features: readonly Feature[]): void {
  const [w, h] = KANBAN;
  pen.fillStyle = INK;
  pen.fillRect(0, 0, w, h);
  pen.fillStyle = '#8b93a8';
  pen.fillRect(1, 1, w - 2, h - 2);
  pen.fillStyle = '#f3f5fa';
  pen.fillRect(2, 2, w - 4, h - 4);
  const columns: Feature[][] = [[], [], []];
  for (const feature of features) columns[feature.shipped >= 0 ? 2 : feature.left < feature.effort ? 1 : 0]!.push(feature);
  const colors = ['#b9c0d6', '#f2d06b', '#7fcf8f'];
  columns.forEach((cards, column) => {
    const x = 3 + column * 13;
    pen.fillStyle = '#9aa3ba';
    pen.fillRect(x, 3, 12, 1);
    cards.slice(0, 8).forEach((card, place) => {
      const cx = x + (place % 2) * 6;
      const cy = 5 + Math.floor(place / 2) * 5;
      pen.fillStyle = colors[column]!;
      pen.fillRect(cx, cy, 5, 4);
      pen.fillStyle = '#5a4a2a';
      if (column === 1) for (let dot = 0; dot < Math.min(4, Math.ceil(card.left)); dot++) pen.fillRect(cx + dot, cy + 2, 1, 1);
    });
  });
}

/** A rack whose lamps are green where the product is stable, amber and red where it is not. */
export function drawRack(pen: CanvasRenderingContext2D, stability: number, seed: number, beat: number): void {
  const [w, h] = RACK;
  pen.fillStyle = INK;
  pen.fillRect(0, 0, w, h);
  pen.fillStyle = '#2b2f42';
  pen.fillRect(1, 1, w - 2, h - 2);
  pen.fillStyle = '#454b68';
  pen.fillRect(1, 1, w - 2, 2);
  const random = rng(seed);
  for (let unit = 0; unit < 7; unit++) {
    const y = 4 + unit * 4;
    pen.fillStyle = '#171a27';
    pen.fillRect(3, y, 12, 3);
    pen.fillStyle = '#353b54';
    pen.fillRect(3, y, 12, 1);
    const luck = random();
    const blink = Math.floor(beat + luck * 7) % 5 === 0;
    pen.fillStyle =
      luck < stability ? (blink ? '#2b7f55' : '#58e0a0') : luck < stability + 0.22 ? '#f2b84b' : blink ? '#7a2630' : '#ff5c66';
    pen.fillRect(4, y + 1, 2, 1);
    pen.fillStyle = '#5aa2f0';
    if (!blink) pen.fillRect(8, y + 1, 1, 1);
    pen.fillStyle = '#2a3048';
    pen.fillRect(11, y + 1, 3, 1);
  }
}

export const surface = (kind: keyof typeof INSTRUMENT_SIZE): [HTMLCanvasElement, CanvasRenderingContext2D] =>
  mk(INSTRUMENT_SIZE[kind][0], INSTRUMENT_SIZE[kind][1]);
