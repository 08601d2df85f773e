import { describe, expect, it } from 'vitest';
import type { World } from '../src/lib/world';
import { onDemand } from '../src/office/demand';
import type { StageHost } from '../src/office/stage';

/** A stage's host whose state can be changed, and animation frames that come when they are called. */
function bench() {
  const state = { t: 3, seq: 3, role: 'sales', calm: false, lively: false, view: 'a' };
  const world = { seats: { world: 'live', epoch: 0 }, frames: [1, 2, 3, 4] } as unknown as World;
  const host: StageHost = {
    world: () => world,
    seq: () => state.seq,
    time: () => state.t,
    selected: () => state.role,
    select: () => undefined,
    place: () => undefined,
    calm: () => state.calm,
    lively: () => state.lively,
  };
  let next: ((now: number) => void) | null = null;
  let now = 0;
  let drawn = 0;
  const demand = onDemand(
    host,
    () => state.view,
    () => (drawn += 1),
    {
      ask: (call) => ((next = call), 1),
      cancel: () => (next = null),
    },
  );
  /** How often the stage is drawn in this many frames at 60 a second. */
  const pass = (frames: number): number => {
    const before = drawn;
    for (let frame = 0; frame < frames; frame++) next?.((now += 1000 / 60));
    return drawn - before;
  };
  return { state, demand, pass };
}

describe('a stage that is drawn on demand', () => {
  it('rests while nothing changes', () => {
    const { pass } = bench();
    expect(pass(60)).toBeGreaterThan(0);
    expect(pass(600)).toBe(0);
  });
  it('is drawn when the moment, the role or the camera is another, and when it is asked to', () => {
    const { state, demand, pass } = bench();
    pass(60);
    for (const change of [
      () => (state.t += 0.01),
      () => (state.seq = 2),
      () => (state.role = 'hr'),
      () => (state.view = 'b'),
      demand.poke,
    ]) {
      change();
      const drawn = pass(60);
      expect(drawn).toBeGreaterThan(0);
      expect(drawn).toBeLessThan(6);
    }
  });
  it('is drawn in every frame while time runs', () => {
    const { state, pass } = bench();
    pass(60);
    let drawn = 0;
    for (let frame = 0; frame < 60; frame++) {
      state.t += 1 / 30;
      drawn += pass(1);
    }
    expect(drawn).toBe(60);
  });
  it('moves a few times a second while the company is at work, and not for readers who want no motion', () => {
    const { state, pass } = bench();
    state.lively = true;
    pass(60);
    const drawn = pass(600);
    expect(drawn).toBeGreaterThan(30);
    expect(drawn).toBeLessThan(150);
    state.calm = true;
    pass(60);
    expect(pass(600)).toBe(0);
  });
  it('ends', () => {
    const { state, demand, pass } = bench();
    demand.stop();
    state.seq = 1;
    expect(pass(60)).toBe(0);
  });
});
