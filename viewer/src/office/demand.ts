// Drawing on demand: a stage is drawn when something that it shows has changed, and rests otherwise.
import type { StageHost } from './stage';

/** Frames drawn after a change: the camera's view of one frame is what labels of the next are placed by. */
const AFTER = 3;
/** How often typing hands and lamps move while the company waits for a reply. */
const BEAT_MS = 250;

export interface Demand {
  /** Draw soon, whatever has changed. */
  poke: () => void;
  stop: () => void;
}

/** What a stage shows of its host, as a key: equal keys have equal pictures. */
export function pictureOf(host: StageHost, now: number): string {
  const world = host.world();
  const seats = world?.seats;
  const beat = host.lively() && !host.calm() ? Math.floor(now / BEAT_MS) : 0;
  return [
    seats?.world,
    seats?.epoch,
    world?.frames.length,
    host.seq(),
    host.time().toFixed(3),
    host.selected(),
    host.calm(),
    beat,
  ].join(' ');
}

/**
 * Call `draw` (`steady`: it was called in the animation frame before, too) in each animation frame in which the picture is another than the one before, and shortly after.
 * @param view what else the picture depends on, such as the camera.
 * @param frame asks for an animation frame, and gives a way to cancel it.
 */
export function onDemand(
  host: StageHost,
  view: () => string,
  draw: (now: number, steady: boolean) => void,
  frame: { ask: (next: (now: number) => void) => number; cancel: (handle: number) => void } = {
    ask: (next) => requestAnimationFrame(next),
    cancel: (handle) => cancelAnimationFrame(handle),
  },
): Demand {
  let drawn = '';
  let left = AFTER;
  let steady = false;
  const tick = (now: number): void => {
    const key = `${pictureOf(host, now)} ${view()}`;
    if (key !== drawn) {
      drawn = key;
      left = AFTER;
    }
    if (left > 0) {
      left -= 1;
      draw(now, steady);
      steady = true;
    } else steady = false;
    handle = frame.ask(tick);
  };
  let handle = frame.ask(tick);
  return {
    poke: () => {
      left = AFTER;
    },
    stop: () => frame.cancel(handle),
  };
}
