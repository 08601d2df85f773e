// What both stages are given and what they tell: labels and bubbles are one DOM layer above either canvas.
import type { World } from '../lib/world';

export interface Place {
  x: number;
  y: number;
  /** Height of the person in pixels; the bubble stands above it. */
  tall: number;
  hidden: boolean;
}

export interface StageHost {
  world: () => World | undefined;
  seq: () => number;
  time: () => number;
  selected: () => string;
  select: (role: string) => void;
  /** Called in every drawn frame, in CSS pixels of the stage. */
  place: (role: string, at: Place) => void;
  calm: () => boolean;
  /** The company is at work on a turn that has not arrived: what moves by itself may move. */
  lively: () => boolean;
  /** The picture cannot be drawn at more than so many frames a second. */
  slow?: (fps: number) => void;
}

export interface Stage {
  zoom: (factor: number) => void;
  reset: () => void;
  destroy: () => void;
}
