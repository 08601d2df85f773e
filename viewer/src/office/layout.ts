// The office's plan: 40 x 34 tiles, nine rooms, furniture, seats, and paths between them. Both views draw from it.
import { T, mk, floorTiles, wallTiles, rng } from './pix';
export const W = 40, H = 34;
export type Zone = { id: string; name: string; x: number; y: number; w: number; h: number; floor: number; wall: number };
export const ZONES: Zone[] = [
  { id: 'ceo', name: 'CEO office', x: 1, y: 2, w: 10, h: 9, floor: 0, wall: 0 },
  { id: 'meet', name: 'Board room', x: 12, y: 2, w: 13, h: 9, floor: 1, wall: 1 },
  { id: 'dev', name: 'Dev lab', x: 26, y: 2, w: 13, h: 9, floor: 7, wall: 1 },
  { id: 'hall', name: 'Commons', x: 1, y: 13, w: 38, h: 9, floor: 0, wall: 0 },
  { id: 'marketing', name: 'Marketing', x: 1, y: 14, w: 12, h: 8, floor: 2, wall: 0 },
  { id: 'sales', name: 'Sales', x: 27, y: 14, w: 12, h: 8, floor: 3, wall: 0 },
  { id: 'content', name: 'Content studio', x: 1, y: 24, w: 12, h: 9, floor: 4, wall: 2 },
  { id: 'hr', name: 'People (HR)', x: 14, y: 24, w: 12, h: 9, floor: 5, wall: 0 },
  { id: 'lobby', name: 'Customer lobby', x: 27, y: 24, w: 12, h: 9, floor: 6, wall: 2 },
];
export const wall: boolean[][] = Array.from({ length: H }, () => Array(W).fill(false));
const rect = (x: number, y: number, w: number, h: number, v = true) => { for (let j = y; j < y + h; j++) for (let i = x; i < x + w; i++) wall[j]![i] = v; };
rect(0, 0, W, 2); rect(0, 0, 1, H); rect(W - 1, 0, 1, H); rect(0, H - 1, W, 1);
rect(0, 11, W, 2); rect(0, 22, W, 2);
rect(11, 0, 1, 13); rect(25, 0, 1, 13); rect(13, 22, 1, 12); rect(26, 22, 1, 12);
for (const [x, y] of [[5, 11], [17, 11], [31, 11], [6, 22], [19, 22], [32, 22]] as const) rect(x, y, 2, 2, false);
export type Item = { k: string; x: number; y: number; block?: [number, number, number, number]; flat?: boolean; onWall?: boolean };
export const ITEMS: Item[] = [
  { k: 'rug', x: 5.9, y: 9.4, flat: true }, { k: 'rug', x: 20, y: 20.2, flat: true },
  { k: 'desk', x: 6, y: 6, block: [5, 5, 2, 1] }, { k: 'shelf', x: 2.4, y: 3.3, block: [1, 2, 2, 1] }, { k: 'plant', x: 10, y: 3.4, block: [10, 2, 1, 1] }, { k: 'lamp', x: 1.7, y: 10.6, block: [1, 10, 1, 1] }, { k: 'cabinet', x: 9.9, y: 10.6, block: [9, 10, 1, 1] },
  { k: 'table', x: 18.5, y: 8.2, block: [16, 6, 5, 2] }, { k: 'plant', x: 12.7, y: 3.4, block: [12, 2, 1, 1] }, { k: 'plant', x: 24.3, y: 3.4, block: [24, 2, 1, 1] }, { k: 'cooler', x: 24.2, y: 10.4, block: [24, 10, 1, 1] },
  { k: 'rack', x: 27, y: 4.6, block: [26, 3, 1, 2] }, { k: 'rack', x: 28.15, y: 4.6, block: [27, 3, 1, 2] }, { k: 'rack', x: 29.4, y: 4.6, block: [29, 3, 1, 2] }, { k: 'desk', x: 33, y: 6.4, block: [32, 5, 2, 1] }, { k: 'desk', x: 36.6, y: 6.4, block: [35, 5, 3, 1] }, { k: 'plant', x: 38.2, y: 10.7, block: [38, 10, 1, 1] },
  { k: 'desk', x: 4, y: 17, block: [3, 16, 2, 1] }, { k: 'desk', x: 9, y: 17, block: [8, 16, 2, 1] }, { k: 'plant', x: 1.7, y: 14.6, block: [1, 14, 1, 1] }, { k: 'plant', x: 12.4, y: 21.6, block: [12, 21, 1, 1] },
  { k: 'counter', x: 21.6, y: 14.2, block: [20, 13, 3, 1] }, { k: 'coffee', x: 23.8, y: 14.2, block: [23, 13, 1, 1] }, { k: 'cooler', x: 15.6, y: 14.2, block: [15, 13, 1, 1] }, { k: 'sofa', x: 20, y: 18.4, block: [19, 17, 3, 1] }, { k: 'plant', x: 14.6, y: 21.6, block: [14, 21, 1, 1] }, { k: 'plant', x: 25.6, y: 21.6, block: [25, 21, 1, 1] },
  { k: 'desk', x: 30.6, y: 17, block: [30, 16, 2, 1] }, { k: 'desk', x: 35.6, y: 17, block: [35, 16, 2, 1] }, { k: 'cabinet', x: 38.2, y: 14.8, block: [38, 14, 1, 1] },
  { k: 'desk', x: 5, y: 28, block: [4, 27, 2, 1] }, { k: 'desk', x: 10, y: 28, block: [9, 27, 2, 1] }, { k: 'shelf', x: 2.3, y: 25.4, block: [1, 24, 2, 1] }, { k: 'shelf', x: 10.9, y: 25.4, block: [10, 24, 2, 1] }, { k: 'lamp', x: 1.7, y: 32.4, block: [1, 32, 1, 1] },
  { k: 'desk', x: 20, y: 28.4, block: [19, 27, 2, 1] }, { k: 'cabinet', x: 15, y: 25.3, block: [14, 24, 1, 1] }, { k: 'cabinet', x: 16.1, y: 25.3, block: [15, 24, 1, 1] }, { k: 'plant', x: 25.2, y: 25.4, block: [25, 24, 1, 1] }, { k: 'sofa', x: 17, y: 32.4, block: [16, 31, 3, 1] },
  { k: 'recept', x: 30.2, y: 28.6, block: [29, 27, 3, 1] }, { k: 'sofa', x: 36.6, y: 31.6, block: [35, 30, 3, 1] }, { k: 'plant', x: 38.2, y: 25.4, block: [38, 24, 1, 1] }, { k: 'plant', x: 27.8, y: 32.6, block: [27, 32, 1, 1] },
  ...[3.6, 8.2, 15, 22, 28, 33, 36.6].map((x) => ({ k: 'window', x, y: 1.9, onWall: true })),
  { k: 'chart', x: 18.5, y: 1.95, onWall: true }, { k: 'board', x: 9, y: 12.9, onWall: true }, { k: 'art', x: 3, y: 12.85, onWall: true }, { k: 'chart', x: 35.4, y: 12.95, onWall: true }, { k: 'art', x: 28.4, y: 12.85, onWall: true }, { k: 'board', x: 23.4, y: 23.95, onWall: true }, { k: 'art', x: 16.5, y: 23.85, onWall: true }, { k: 'art', x: 3.6, y: 23.85, onWall: true }, { k: 'window', x: 29.4, y: 23.9, onWall: true }, { k: 'window', x: 36.4, y: 23.9, onWall: true },
];
export type Tile = readonly [number, number];
/** Where each role works: the tile of the chair. */
export const SEATS: Record<string, Tile> = { ceo: [5, 4], dev: [32, 4], marketing: [3, 15], sales: [30, 15], content: [4, 26], hr: [19, 26], customer: [33, 29] };
/** Desks stand half a tile off the grid; who works sits before the middle of the desk. */
export const SEAT_SHIFT: Record<string, number> = { ceo: 0.5, dev: 0.5, marketing: 0.5, content: 0.5, hr: 0.5 };
/** Seats around the board room's table, one each. */
export const BOARD: Record<string, Tile> = { ceo: [17, 4], dev: [23, 5], marketing: [14, 5], sales: [20, 4], content: [15, 9], hr: [20, 9], customer: [33, 29] };
/** Places in the commons for the review. */
export const COMMONS: Record<string, Tile> = { ceo: [20, 15], dev: [24, 16], marketing: [15, 16], sales: [24, 19], content: [16, 19], hr: [20, 20], customer: [31, 26] };
/** Where a visitor stands next to a colleague's desk. */
export const BESIDE: Record<string, readonly Tile[]> = { ceo: [[7, 5], [4, 6], [8, 6]], dev: [[34, 5], [31, 6], [31, 4]], marketing: [[5, 16], [2, 17], [6, 15]], sales: [[29, 16], [32, 16], [29, 15]], content: [[6, 27], [3, 27], [6, 26]], hr: [[21, 27], [18, 27], [18, 26]], customer: [[32, 30], [34, 30], [34, 29]] };
/** Leads that wait in the lobby. */
export const WAITING: readonly Tile[] = [[28, 30], [30, 31], [35, 27], [37, 28], [29, 25], [32, 31], [37, 25], [28, 28], [34, 25], [38, 31]];
/** The lobby's door, through which a visitor leaves. */
export const EXIT: Tile = [32, 22];
export const blocked: boolean[][] = wall.map((r) => r.slice());
for (const i of ITEMS) if (i.block) { const [x, y, w, h] = i.block; for (let b = y; b < y + h; b++) for (let a = x; a < x + w; a++) blocked[b]![a] = true; }
/** The shortest way between two tiles, both included; empty when there is none. */
export function bfs(from: Tile, to: Tile): Tile[] {
  const key = (x: number, y: number): number => y * W + x;
  const before = new Int32Array(W * H).fill(-1);
  const queue = [key(from[0], from[1])];
  before[queue[0]!] = queue[0]!;
  for (let head = 0; head < queue.length; head++) {
    const cell = queue[head]!;
    const x = cell % W;
    const y = Math.floor(cell / W);
    if (x === to[0] && y === to[1]) {
      const way: Tile[] = [];
      let at = cell;
      while (before[at] !== at) {
        way.push([at % W, Math.floor(at / W)]);
        at = before[at]!;
      }
      way.push([from[0], from[1]]);
      return way.reverse();
    }
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]] as const) {
      const nx = x + dx;
      const ny = y + dy;
      if (nx < 0 || ny < 0 || nx >= W || ny >= H || before[key(nx, ny)]! >= 0) continue;
      if (blocked[ny]![nx] && !(nx === to[0] && ny === to[1])) continue;
      before[key(nx, ny)] = cell;
      queue.push(key(nx, ny));
    }
  }
  return [];
}
export function bake() { // floor + walls + contact shadows -> one 640x544 texture: no tile seams, one draw call
  const [c, x] = mk(W * T, H * T); const fl = floorTiles(), wl = wallTiles(); const r = rng(3);
  const at = (i: number, j: number) => i < 0 || j < 0 || i >= W || j >= H || wall[j]![i]!;
  x.fillStyle = '#14131c'; x.fillRect(0, 0, c.width, c.height);
  for (let j = 0; j < H; j++) for (let i = 0; i < W; i++) if (!at(i, j)) { let f = 0; for (const z of ZONES) if (i >= z.x && i < z.x + z.w && j >= z.y && j < z.y + z.h) f = z.floor; const v = f === 0 || f === 7 ? Math.floor(r() * 4) : (i + j) % 4; x.drawImage(fl, v * T, f * T, T, T, i * T, j * T, T, T); }
  for (const z of ZONES) if (['marketing', 'sales'].includes(z.id)) { x.strokeStyle = 'rgba(20,14,34,.28)'; x.lineWidth = 1; x.strokeRect(z.x * T + 0.5, z.y * T + 0.5, z.w * T - 1, z.h * T - 1); }
  for (let j = 0; j < H; j++) for (let i = 0; i < W; i++) if (at(i, j)) { const face = j + 1 < H && !at(i, j + 1); let s = 0; for (const z of ZONES) if (i >= z.x && i < z.x + z.w && j + 1 >= z.y && j + 1 < z.y + z.h) s = z.wall; x.drawImage(wl, face ? T : 0, s * T, T, T, i * T, j * T, T, T); }
  for (let j = 0; j < H; j++) for (let i = 0; i < W; i++) if (!at(i, j)) { // wall shadows
    if (at(i, j - 1)) { x.fillStyle = 'rgba(22,14,40,.34)'; x.fillRect(i * T, j * T, T, 3); x.fillStyle = 'rgba(22,14,40,.18)'; x.fillRect(i * T, j * T + 3, T, 3); }
    if (at(i - 1, j)) { x.fillStyle = 'rgba(22,14,40,.28)'; x.fillRect(i * T, j * T, 2, T); x.fillStyle = 'rgba(22,14,40,.14)'; x.fillRect(i * T + 2, j * T, 2, T); }
  }
  for (let j = 0; j < H; j++) for (let i = 0; i < W; i++) if (at(i, j)) { // trim line between cap and floor
    x.fillStyle = '#5a5078'; const face = !at(i, j + 1); if (!face) { if (!at(i + 1, j)) x.fillRect(i * T + 15, j * T, 1, T); if (!at(i - 1, j)) x.fillRect(i * T, j * T, 1, T); } if (!at(i, j - 1)) x.fillRect(i * T, j * T, T, 1);
  }
  return c;
}

/** Walls as few rectangles [x, y, width, height]: cubes per tile would show seams in 3D. */
export function wallRectangles(): [number, number, number, number][] {
  const used = wall.map((row) => row.map(() => false));
  const found: [number, number, number, number][] = [];
  for (let y = 0; y < H; y++)
    for (let x = 0; x < W; x++) {
      if (!wall[y]![x] || used[y]![x]) continue;
      let w = 0;
      while (x + w < W && wall[y]![x + w] && !used[y]![x + w]) w++;
      let h = 1;
      while (y + h < H && Array.from({ length: w }, (_, k) => wall[y + h]![x + k] && !used[y + h]![x + k]).every(Boolean)) h++;
      for (let b = 0; b < h; b++) for (let a = 0; a < w; a++) used[y + b]![x + a] = true;
      found.push([x, y, w, h]);
    }
  return found;
}
