import { PerspectiveCamera, Vector3 } from 'three';
import { describe, expect, it } from 'vitest';
import { corners, fit, type Point } from '../src/office/fit';
import { Pace } from '../src/office/pace';

describe('a camera that shows a box whole', () => {
  const box = corners([-20, 0, -17], [20, 2, 17]);
  it('cuts no corner, leaves the margin and no more', () => {
    for (const from of [
      [0, 31, 26.5],
      [20, 20, 20],
      [-5, 8, 30],
    ] as Point[])
      for (const aspect of [0.6, 1, 1.28, 1.55, 2.4]) {
        const { eye, target } = fit(box, { from, fov: 44, aspect, margin: 0.03 });
        const camera = new PerspectiveCamera(44, aspect, 0.5, 500);
        camera.position.set(...(eye as [number, number, number]));
        camera.lookAt(new Vector3(...target));
        camera.updateMatrixWorld();
        const seen = box.map((point) => new Vector3(...point).project(camera));
        const [x, y] = (['x', 'y'] as const).map((axis) => seen.map((point) => point[axis]));
        const most = Math.max(...[...x!, ...y!].map(Math.abs));
        expect(most, `${from} at ${aspect}`).toBeCloseTo(0.94, 4);
        // The other axis is in the middle.
        expect(Math.max(...x!) + Math.min(...x!)).toBeCloseTo(0, 4);
        expect(Math.max(...y!) + Math.min(...y!)).toBeCloseTo(0, 4);
        expect(target[1]).toBeCloseTo(0, 6);
      }
  });
});

describe('the pace of a stage', () => {
  /** Draw for a while at so many ms a frame; what was said, and after how many frames. */
  const draw = (pace: Pace, each: number, frames: number) => {
    const said: (string | number)[] = [];
    for (let frame = 0, now = 1e6; frame < frames; frame++) {
      const word = pace.next((now += each), frame > 0);
      if (word !== null) said.push(typeof word === 'number' ? Math.round(10 * word) / 10 : word);
    }
    return said;
  };
  it('keeps what is fast, gives up effects of what is slow, and offers another picture below 5 frames a second', () => {
    expect(draw(new Pace(false), 17, 500)).toEqual([]);
    expect(draw(new Pace(false), 100, 500)).toEqual(['plain']);
    expect(draw(new Pace(false), 400, 500)).toEqual(['plain', 2.5]);
    expect(draw(new Pace(true), 400, 500)).toEqual([2.5]);
    expect(draw(new Pace(true), 190, 500)).toEqual([]);
  });
  it('says so within a few seconds', () => {
    expect(draw(new Pace(false), 900, 11)).toEqual(['plain', 1.1]);
  });
  it('takes rest for no slowness', () => {
    const pace = new Pace(true);
    for (let now = 0; now < 1e6; now += 1000) expect(pace.next(now, false)).toBeNull();
    expect(draw(pace, 60_000, 50)).toEqual([]);
  });
});
