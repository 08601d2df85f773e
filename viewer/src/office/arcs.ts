// Lines between people in 3D: how high they rise, and how far along each of their points is.
export const ARC_POINTS = 24;
/** Height at which a line begins and ends: that of a mouth. */
const MOUTH = 1.7;

export interface ArcPoint {
  x: number;
  /** Upwards. */
  y: number;
  z: number;
  /** Length of the line up to this point. */
  along: number;
}

/** Points of an arc from `a` to `b`, which are places on the plan; the farther apart they are, the higher it is. Units are tiles. */
export function arc(a: { x: number; y: number }, b: { x: number; y: number }): ArcPoint[] {
  const top = 2.2 + Math.hypot(b.x - a.x, b.y - a.y) * 0.18;
  const points: ArcPoint[] = [];
  for (let index = 0; index < ARC_POINTS; index++) {
    const t = index / (ARC_POINTS - 1);
    const x = a.x + (b.x - a.x) * t;
    const y = MOUTH + 4 * t * (1 - t) * (top - MOUTH);
    const z = a.y + (b.y - a.y) * t;
    const last = points.at(-1);
    points.push({ x, y, z, along: last ? last.along + Math.hypot(x - last.x, y - last.y, z - last.z) : 0 });
  }
  return points;
}
