// Where a camera has to stand so that a box fills its picture and no corner is cut.
export type Point = readonly [number, number, number];

const dot = (a: Point, b: Point): number => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a: Point, b: Point): Point => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const scaled = (a: Point, by: number): Point => [a[0] * by, a[1] * by, a[2] * by];
const sum = (...all: readonly Point[]): Point => [0, 1, 2].map((axis) => all.reduce((to, one) => to + one[axis]!, 0)) as never;
const unit = (a: Point): Point => scaled(a, 1 / Math.hypot(...a));

/** The corners of the box between two points. */
export const corners = (low: Point, high: Point): Point[] =>
  Array.from({ length: 8 }, (_, bits): Point => [
    bits & 1 ? high[0] : low[0],
    bits & 2 ? high[1] : low[1],
    bits & 4 ? high[2] : low[2],
  ]);

/**
 * The nearest place, in direction `from` of what it looks at, from which all `points` are seen; it looks at the floor (y = 0).
 * @param from from what is looked at to the eye, above the floor and not straight above.
 * @param fov vertical angle of the picture, degrees.
 * @param aspect width to height of the picture.
 * @param margin share of the picture that stays empty at each edge.
 */
export function fit(
  points: readonly Point[],
  { from, fov, aspect, margin }: { from: Point; fov: number; aspect: number; margin: number },
): { eye: Point; target: Point } {
  const back = unit(from);
  const right = unit(cross([0, 1, 0], back));
  const up = cross(back, right);
  const tall = Math.tan((fov * Math.PI) / 360) * (1 - 2 * margin);
  /** The distance at which both ends along an axis are just seen: nearer things take more of the picture. */
  const needed = (axis: Point, half: number): number => {
    const high = Math.max(...points.map((point) => dot(point, axis) + dot(point, back) * half));
    const low = Math.max(...points.map((point) => dot(point, back) * half - dot(point, axis)));
    return (high + low) / (2 * half);
  };
  const distance = Math.max(needed(right, tall * aspect), needed(up, tall));
  /** Where the eye has to be along an axis so that as much stays empty on either side. */
  const middle = (axis: Point): number => {
    let [low, high] = [-distance, distance];
    for (let halving = 0; halving < 50; halving++) {
      const at = (low + high) / 2;
      const seen = points.map((point) => (dot(point, axis) - at) / (distance - dot(point, back)));
      if (Math.max(...seen) + Math.min(...seen) > 0) low = at;
      else high = at;
    }
    return (low + high) / 2;
  };
  const eye = sum(scaled(right, middle(right)), scaled(up, middle(up)), scaled(back, distance));
  return { eye, target: sum(eye, scaled(back, -eye[1] / back[1])) };
}
