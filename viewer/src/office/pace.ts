// Whether a stage can afford what it draws, from how far apart the frames are that it draws one after the other.

/** Frames, or milliseconds of a few frames, after which it is decided. */
const FRAMES = 30;
const FEW = 5;
const LONG_MS = 2000;
/** A longer pause is that of a hidden tab. */
const HIDDEN_MS = 8000;
/** Slower than this, effects are given up. */
const SLOW_MS = 50;
/** Slower than this even without effects (fewer than 5 frames a second), the plain picture is offered. */
const TOO_SLOW_MS = 200;

export class Pace {
  private frames = 0;
  private spent = 0;
  private last = 0;
  private stage: 'whole' | 'plain' | 'offered';

  constructor(plain: boolean) {
    this.stage = plain ? 'plain' : 'whole';
  }

  /**
   * Take note of a frame drawn at `now`, ms; `steady`: the one before was drawn in the animation frame before.
   * @returns that effects should go, or the frames a second at which another picture should be offered; each once.
   */
  next(now: number, steady: boolean): 'plain' | number | null {
    const passed = now - this.last;
    this.last = now;
    if (!steady || passed > HIDDEN_MS || this.stage === 'offered') return null;
    this.frames += 1;
    this.spent += passed;
    if (this.frames < FRAMES && (this.frames < FEW || this.spent < LONG_MS)) return null;
    const each = this.spent / this.frames;
    this.frames = 0;
    this.spent = 0;
    if (this.stage === 'whole') {
      if (each <= SLOW_MS) return null;
      this.stage = 'plain';
      return 'plain';
    }
    if (each <= TOO_SLOW_MS) return null;
    this.stage = 'offered';
    return 1000 / each;
  }
}
