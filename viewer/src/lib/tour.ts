// The first visit: the captions under the stage, and whether the company may begin by itself.
import type { PlayerInfo, Seats } from '../api/client';
import { parse } from './route';

/** Of those who have never been here: what this is, what a good value is, what to click, where training is seen. */
export const CAPTIONS: readonly string[] = [
  'Seven roles run a company. Each turn one of them acts, and is paid for what its action does to the company.',
  'It begins with a value of $100k. After 30 days random play averages $116k, the scripted expert $327k.',
  'Click a person to see what they did and why it paid. The bars below lead to any turn.',
  'Training shows your runs: whether a team got better, and where. Playground lets you take a seat.',
];

const KEY = 'onthejob-tour';
const OVER = 'over';

/** The caption to show, kept over reloads: null where the tour was skipped or read to its end, -1 on a first visit. */
export function keptStep(): number | null {
  try {
    const kept = localStorage.getItem(KEY);
    if (kept === null) return -1;
    return /^\d$/.test(kept) && Number(kept) < CAPTIONS.length ? Number(kept) : null;
  } catch {
    // Where nothing is remembered, every visit would be the first one.
    return null;
  }
}

export function keepStep(step: number | null): void {
  try {
    localStorage.setItem(KEY, step === null ? OVER : String(step));
  } catch {
    // As above.
  }
}

/** Whether an address names a moment or a recorded episode; a role alone is no moment. */
export function namesMoment(hash: string): boolean {
  const { query } = parse(hash);
  return ['turn', 'night', 'run', 'ep'].some((name) => query.has(name));
}

/** Whether the company has not begun, and only scripted players sit in it: no person's turn is taken and nothing is spent. */
export function untouched(seats: Seats, frames: number, players: readonly Pick<PlayerInfo, 'name' | 'kind'>[]): boolean {
  const scripted = new Set(players.filter(({ kind }) => kind === 'scripted').map(({ name }) => name));
  const all = Object.values(seats.seats);
  return (
    frames <= 1 &&
    seats.first === 0 &&
    !seats.playing &&
    !seats.done &&
    !seats.error &&
    !seats.human &&
    all.length > 0 &&
    all.every((name) => scripted.has(name))
  );
}
