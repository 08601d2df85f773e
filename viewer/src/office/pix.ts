// Procedural pixel art: everything is authored as code at 16 px per tile and shown at 2x (32 px world tiles). No art files, no
// licences: string drawings for people, rectangles for furniture, ramps of five hue-shifted steps for colour.
import type { Look } from '../lib/roles';

export const T = 16;
export const INK = '#1d1a2b';
type Ctx = CanvasRenderingContext2D;
export function mk(w: number, h: number): [HTMLCanvasElement, Ctx] {
  const c = document.createElement('canvas'); c.width = w; c.height = h;
  const x = c.getContext('2d', { willReadFrequently: true })!; x.imageSmoothingEnabled = false; return [c, x];
}
export function rng(seed: number) { let a = seed >>> 0; return () => { a = (a + 0x6d2b79f5) | 0; let t = Math.imul(a ^ (a >>> 15), 1 | a); t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t; return ((t ^ (t >>> 14)) >>> 0) / 4294967296; }; }
const R = (x: Ctx, X: number, Y: number, W: number, H: number, f: string) => { x.fillStyle = f; x.fillRect(X, Y, W, H); };
/** 1px outline around the alpha of a sprite: what makes code-drawn furniture look like one set. */
export function outline(c: HTMLCanvasElement, col = INK, bottom = true) {
  const x = c.getContext('2d')!; const { width: w, height: h } = c; const d = x.getImageData(0, 0, w, h); const a = (i: number, j: number) => i >= 0 && j >= 0 && i < w && j < h && d.data[(j * w + i) * 4 + 3]! > 127;
  x.fillStyle = col;
  for (let j = 0; j < h; j++) for (let i = 0; i < w; i++) if (!a(i, j) && (a(i - 1, j) || a(i + 1, j) || a(i, j + 1) || (bottom && a(i, j - 1)))) x.fillRect(i, j, 1, 1);
  return c;
}
// ---------- colour: ramps are made by hue-shifting (shadow -> violet, light -> yellow), 5 steps each
export function hsl(h: number, s: number, l: number) { return `hsl(${h} ${s}% ${l}%)`; }
type Ramp = [string, string, string, string, string];
export function ramp(h: number, s: number, l: number): Ramp {
  const toward = (h: number, t: number, k: number) => { const d = ((t - h + 540) % 360) - 180; return h + d * k; };
  return [hsl(toward(h, 260, 0.28), s * 0.9, l * 0.52), hsl(toward(h, 260, 0.14), s, l * 0.76), hsl(h, s, l), hsl(toward(h, 55, 0.12), s * 0.95, Math.min(94, l * 1.2)), hsl(toward(h, 55, 0.22), s * 0.85, Math.min(97, l * 1.4))];
}
// ---------- characters: 16x24 string art, three views, recoloured per role
const DOWN = [
'................','.....oooooo.....','...oohHHHhhoo...','..ohhHHHhhhhho..','..ohHHhhhhhhgo..','..ohhhhhhhhhgo..','..ohhshhhshhgo..','..ohssshssssgo..',
'..ohsesssseSgo..','..odsesssse1do..','..osrssssssrso..','...odssddssdo...','....ooosSooo....','...okcCttCcko...','..okccCttCccko..','..ockccttcckco..',
'..ockccctcckco..','..osokcccckoso..','...oookcckooo...'];
const UP = [
'................','.....oooooo.....','...oohHHHhhoo...','..ohhHHHhhhhho..','..ohHHhhhhhhgo..','..ohhhhhhhhhgo..','..ohhhhhhhhhgo..','..ohhhhhhhhggo..',
'..ohhhhhhhhggo..','..ogghhhhhgggo..','..oogghhhgggoo..','...ooogggoooo...','....ooosSooo....','...okcccccck....','..okccccccccko..','..ockccccccckco.',
'..ockcccccckco..','..osokcccckoso..','...oookcckooo...'];
const SIDE = [
'................','.....oooooo.....','...oohHHHhhoo...','..ohhHHHhhhhho..','..ohHHhhhhhhho..','..oghhhhhhhhho..','..ogghhhhhhsso..','..oggghhhhssso..',
'..oggghhhsseso..','..oggghdssseso..','...ogghdsssrso..','...oogodssssoo..','.....oodssoo....','....okccccco....','....okccCcto....','....okcCCcto....',
'....okcCCcco....','.....oksscco....','.....okkccko....'];
const LEGS: Record<string, readonly string[][]> = {
  down: [['....oppppppo....','....oppooppo....','....oppooppo....','....obbooBbo....','....oooooooo....'],
         ['....oppppppo....','....oppopqqo....','....oppoobbo....','....obboooo.....','....oooo........'],
         ['....oppppppo....','....oqqpoppo....','....obbooppo....','.....oooobbo....','........oooo....']],
  side: [['.....oppppo.....','.....oppppo.....','.....oppppo.....','.....obbbbo.....','.....oooooo.....'],
         ['.....oppppo.....','....oppppqqo....','...oppo.oqqo....','...obbo.obbbo...','...oooo.ooooo...'],
         ['.....oppppo.....','.....opppqo.....','.....oppqo......','.....obbbo......','.....ooooo......']],
};
LEGS.up = LEGS.down!;
export const SKIN: readonly [string, string, string][] = [['#f6d3b3', '#d69f80', '#eaa08c'], ['#d9a06e', '#ac7350', '#cb7c60'], ['#f0c193', '#c98d66', '#e08f72'], ['#8b5a3c', '#643d2d', '#8a4a3a']];
export const CW = 16, CH = 24;
export const FRAMES = ['down0', 'down1', 'down2', 'up0', 'up1', 'up2', 'side0', 'side1', 'side2', 'type0', 'type1', 'talk0', 'talk1'];
/** The frame of a person who stands or sits; `beat` 0 or 1 moves the hands of who acts. */
export const restingFrame = (activity: string, beat: number): string =>
  activity === 'WORKING' ? `type${beat}` : activity === 'COLLABORATING' ? `talk${beat}` : 'down0';
export function character(look: Look) {
  const [sheet, X] = mk(CW * FRAMES.length, CH);
  const hr = ramp(...look.hair), cr = ramp(...look.shirt), pr = ramp(...look.pants), [s, d, cheek] = SKIN[look.skin]!;
  const beanie = look.style === 'beanie' ? ramp(268, 34, 44) : null;
  const pal: Record<string, string> = { o: INK, h: hr[2], H: hr[3], g: hr[1], s, d, S: d, r: cheek, e: '#221c33', '1': '#221c33', c: cr[2], C: cr[3], k: cr[1], t: look.tie ?? cr[3], p: pr[2], q: pr[1], b: '#3a2e3f', B: '#4d3d4f' };
  const put = (ox: number, x: number, y: number, c: string) => { X.fillStyle = c; X.fillRect(ox + x, y, 1, 1); };
  FRAMES.forEach((f, i) => {
    const ox = i * CW; const n = Number(f.at(-1)); const typing = f.startsWith('type'), talking = f.startsWith('talk'); const view = typing || talking ? 'down' : f.slice(0, -1);
    const up = view === 'down' ? DOWN : view === 'up' ? UP : SIDE; const legs = LEGS[view]![typing || talking ? 0 : n]!;
    const bob = !typing && !talking && n > 0 ? 1 : 0;
    legs.forEach((row, y) => [...row].forEach((ch, x) => pal[ch] && put(ox, x, y + 19, pal[ch])));
    up.forEach((row, y) => [...row].forEach((ch, x) => { if (!pal[ch]) return; let col = pal[ch]!; if (beanie && y <= 5 && 'hHg'.includes(ch)) col = ch === 'h' ? beanie[2] : ch === 'H' ? beanie[3] : beanie[1]; put(ox, x, y + bob, col); }));
    const P = (x: number, y: number, c: string) => put(ox, x, y + bob, c);
    if (look.style === 'long' || look.style === 'bob') { const end = look.style === 'long' ? 14 : 11; for (let y = 8; y <= end; y++) { if (view !== 'side') { P(2, y, y === end ? INK : hr[2]); P(1, y, INK); P(13, y, y === end ? INK : hr[1]); P(14, y, INK); } if (view === 'up') for (let x = 3; x < 13; x++) P(x, y, y === end ? INK : x > 9 ? hr[1] : hr[2]); if (view === 'side') for (let x = 2; x < 6; x++) P(x, y, x === 2 || y === end ? INK : hr[x < 4 ? 1 : 2]); } }
    if (look.style === 'bun') { for (const x of [6, 7, 8, 9]) P(x, 0, INK); for (const x of [6, 7, 8, 9]) P(x, 1, hr[x < 8 ? 3 : 2]); P(5, 1, INK); P(10, 1, INK); }
    if (look.style === 'spiky') for (const x of [4, 7, 10]) { P(x, 1, hr[2]); P(x, 0, INK); P(x + 1, 1, INK); P(x - 1, 1, INK); }
    if (beanie) { for (let x = 3; x <= 12; x++) P(x, 5, x % 2 ? beanie[1] : beanie[0]); for (const x of [7, 8]) { P(x, 0, beanie[4]); P(x, 1, beanie[3]); } }
    if (look.acc === 'glasses' && view !== 'up') { const g = '#f4f0ff'; const at: number[][] = view === 'down' ? [[4, 8], [6, 8], [9, 8], [11, 8], [4, 9], [6, 9], [9, 9], [11, 9], [7, 8], [8, 8]] : [[10, 8], [12, 8], [9, 8]]; at.forEach(([x, y]) => P(x!, y!, g)); }
    if (look.acc === 'headphones' || look.acc === 'headset') { const hp = '#3c4460', hl = '#6d7ba6'; if (view === 'side') { for (const y of [7, 8, 9]) { P(6, y, hp); P(7, y, hl); } for (let y = 2; y < 7; y++) P(6, y, hp); } else { for (let y = 7; y <= 9; y++) { P(1, y, hp); P(2, y, hl); P(13, y, hl); P(14, y, hp); } for (let x = 4; x <= 11; x++) P(x, 1, hp); P(3, 2, hp); P(12, 2, hp); } if (look.acc === 'headset' && view === 'down') { P(3, 10, hp); P(4, 11, hp); P(5, 11, hl); } }
    if (look.acc === 'bag' && view !== 'side') { for (let k = 0; k < 5; k++) P(10 - k, 13 + k, '#6b4a3a'); P(11, 13, '#6b4a3a'); }
    if (talking) { // one hand raised next to the head, the other before the chest; on the next beat the arms change
      const X = (x: number): number => (n ? 15 - x : x);
      for (const x of [3, 12]) put(ox, x, 17, pal.k!);
      for (const [x, y] of [[13, 15], [14, 14], [15, 13], [15, 12], [15, 11], [15, 10], [14, 9], [13, 12]] as const) put(ox, X(x), y, INK);
      for (const [x, y] of [[12, 14], [13, 14], [13, 13], [14, 13], [14, 12]] as const) put(ox, X(x), y, pal.c!);
      for (const y of [10, 11]) put(ox, X(14), y, pal.s!);
      for (const [x, c] of [[4, pal.k], [5, pal.s], [6, pal.s], [7, pal.S]] as const) put(ox, X(x), 16, c!);
    }
    if (typing) { for (const [hx, dn] of [[4, n], [10, 1 - n]]) { put(ox, hx!, 16 + dn!, pal.s!); put(ox, hx! + 1, 16 + dn!, pal.s!); put(ox, hx!, 17 + dn!, pal.S!); put(ox, hx! + 1, 17 + dn!, pal.S!); } }
  });
  return sheet;
}
// ---------- floor tiles
export function floorTiles() { // 8 kinds x 4 variants
  const [c, x] = mk(T * 4, T * 8);
  const kinds: [number, number, number][] = [[30, 40, 52], [214, 20, 46], [338, 22, 50], [206, 34, 50], [266, 22, 52], [98, 20, 50], [34, 14, 74], [226, 16, 30]];
  kinds.forEach((k, row) => { const r = ramp(...k); const rnd = rng(row * 77 + 5);
    for (let v = 0; v < 4; v++) { const X = v * T, Y = row * T; R(x, X, Y, T, T, r[2]);
      if (row === 0) { // wood planks
        const base = hsl(28, 38, 50), seam = hsl(20, 36, 43), hi = hsl(32, 40, 54);
        for (let p = 0; p < 2; p++) { const y = Y + p * 8; R(x, X, y, T, 8, rnd() > 0.5 ? base : hsl(29, 38, 48)); R(x, X, y, T, 1, hi); R(x, X, y + 7, T, 1, seam); if (rnd() > 0.45) R(x, X + Math.floor(rnd() * 14) + 1, y, 1, 8, seam); for (let g2 = 0; g2 < 2; g2++) R(x, X + Math.floor(rnd() * 10), y + 2 + Math.floor(rnd() * 4), 3 + Math.floor(rnd() * 4), 1, hsl(26, 37, 46)); }
      } else if (row === 6) { // kitchen checker
        for (let a = 0; a < 2; a++) for (let b = 0; b < 2; b++) { const on = (a + b) % 2; R(x, X + a * 8, Y + b * 8, 8, 8, on ? r[2] : hsl(200, 16, 62)); R(x, X + a * 8, Y + b * 8, 8, 1, on ? r[3] : hsl(200, 16, 68)); R(x, X + a * 8, Y + b * 8 + 7, 8, 1, on ? r[1] : hsl(206, 16, 52)); }
      } else if (row === 7) { // raised server floor
        R(x, X, Y, T, 1, r[3]); R(x, X, Y, 1, T, r[3]); R(x, X, Y + 15, T, 1, r[0]); R(x, X + 15, Y, 1, T, r[0]); for (const a of [3, 12]) for (const b of [3, 12]) R(x, X + a, Y + b, 1, 1, r[0]); if (v === 1) for (let k2 = 5; k2 < 11; k2 += 2) R(x, X + 5, Y + k2, 6, 1, r[0]);
      } else { // carpet tiles: alternate direction of a 2-tone weave
        for (let j = 0; j < T; j += 2) for (let i = (j / 2) % 2 ? 2 : 0; i < T; i += 4) R(x, X + i, Y + j, 1, 1, hsl(k[0], k[1], k[2] - 2.5)); if (v % 2) R(x, X, Y, T, T, 'rgba(255,255,255,.028)');
        R(x, X, Y + 15, T, 1, hsl(k[0], k[1], k[2] - 3)); R(x, X + 15, Y, 1, T, hsl(k[0], k[1], k[2] - 3));
      }
    } });
  return c;
}
export function wallTiles() { // col 0 cap, 1 face; rows: wall colour schemes
  const [c, x] = mk(T * 2, T * 3); const schemes: [number, number, number][] = [[36, 24, 78], [214, 20, 62], [262, 16, 66]];
  schemes.forEach((k, i) => { const r = ramp(...k), Y = i * T; R(x, 0, Y, T, T, '#322c45'); R(x, 0, Y, T, 1, '#443c5c'); R(x, 0, Y + 15, T, 1, '#241f36');
    R(x, T, Y, T, T, r[2]); R(x, T, Y, T, 2, '#241f36'); R(x, T, Y + 2, T, 1, r[4]); R(x, T, Y + 3, T, 1, r[3]); R(x, T, Y + 10, T, 1, r[1]); R(x, T, Y + 11, T, 2, hsl(k[0], k[1], k[2] - 6)); R(x, T, Y + 13, T, 2, r[1]); R(x, T, Y + 15, T, 1, r[0]); });
  return c;
}
// ---------- furniture
const WOOD = ramp(26, 46, 42), DARK = ramp(24, 36, 28), WHITE = ramp(220, 14, 82), STEEL = ramp(218, 12, 50), GREEN = ramp(130, 42, 38);
type Draw = (x: Ctx) => void;
const F: Record<string, [number, number, Draw]> = {
  // desk seen from behind the sitter: top surface + front; monitor faces the sitter (down)
  desk: [36, 22, (x) => { R(x, 1, 7, 34, 8, WOOD[3]); R(x, 1, 7, 34, 1, WOOD[4]); R(x, 1, 14, 34, 2, WOOD[1]); R(x, 2, 16, 32, 5, WOOD[2]); R(x, 2, 16, 4, 5, WOOD[1]); R(x, 30, 16, 4, 5, WOOD[1]); R(x, 8, 17, 9, 3, WOOD[1]); R(x, 12, 18, 1, 1, WOOD[4]);
    R(x, 12, 4, 12, 8, '#aab2cb'); R(x, 12, 4, 12, 1, '#d6dbea'); R(x, 12, 11, 12, 1, '#7f88a6'); R(x, 17, 7, 2, 2, '#f4f6fc'); R(x, 27, 6, 6, 4, '#f3f1ea'); R(x, 28, 5, 6, 4, '#ffffff'); R(x, 29, 6, 4, 1, '#b9c0d6'); R(x, 4, 8, 3, 4, '#e2575f'); R(x, 4, 8, 3, 1, '#f7a48f'); R(x, 7, 9, 1, 2, '#e2575f'); }],
  screenOn: [12, 8, (x) => { R(x, 1, 1, 10, 6, '#16324a'); for (const [c, a, b, w] of [['#5fd0a8', 2, 2, 4], ['#f2d06b', 3, 3, 5], ['#6fb3f2', 3, 4, 3], ['#ee6fa3', 2, 5, 6]] as const) R(x, a, b, w, 1, c); }],
  chair: [14, 18, (x) => { const c = ramp(222, 18, 34); R(x, 2, 1, 10, 9, c[2]); R(x, 3, 2, 8, 2, c[3]); R(x, 2, 9, 10, 3, c[1]); R(x, 6, 12, 2, 3, '#3d3b4d'); R(x, 3, 15, 8, 1, '#3d3b4d'); }],
  plant: [16, 24, (x) => { R(x, 5, 16, 6, 6, '#b8694a'); R(x, 4, 15, 8, 2, '#d58a63'); R(x, 5, 21, 6, 1, '#8d4b38'); const r = rng(9); for (let i = 0; i < 26; i++) { const a = r() * 6.28, d = r() * 6.2; const X = 8 + Math.cos(a) * d, Y = 8 + Math.sin(a) * d * 1.05; R(x, Math.round(X) - 1, Math.round(Y) - 1, 3, 2, GREEN[i % 5 > 2 ? 3 : i % 2 ? 2 : 1]); } R(x, 6, 3, 2, 2, GREEN[4]); R(x, 10, 6, 2, 2, GREEN[4]); }],
  shelf: [32, 28, (x) => { R(x, 1, 1, 30, 26, DARK[2]); R(x, 1, 1, 30, 2, DARK[4]); const r = rng(4); for (const y of [4, 11, 18]) { R(x, 3, y, 26, 6, DARK[0]); let X = 3; while (X < 27) { const w = r() > 0.7 ? 3 : 2; const col = ['#d95d5d', '#5aa2f0', '#f2d06b', '#58c4a7', '#b48cf0', '#e8e0d0'][Math.floor(r() * 6)]!; if (r() > 0.14) { const hh = 4 + Math.floor(r() * 2); R(x, X, y + 6 - hh, w, hh, col); R(x, X, y + 6 - hh, 1, hh, 'rgba(255,255,255,.28)'); } X += w; } } R(x, 1, 25, 30, 2, DARK[1]); }],
  board: [34, 20, (x) => { R(x, 1, 1, 32, 17, STEEL[3]); R(x, 2, 2, 30, 15, '#f3f5fa'); const cols = ['#f2d06b', '#ee6fa3', '#7fd0f0', '#9bcf5c']; const r = rng(21); for (let k = 0; k < 4; k++) { R(x, 4 + k * 7, 3, 5, 1, '#9aa3ba'); for (let j = 0; j < 3; j++) if (r() > 0.25) R(x, 4 + k * 7, 5 + j * 4, 4, 3, cols[Math.floor(r() * 4)]!); } }],
  chart: [26, 18, (x) => { R(x, 1, 1, 24, 15, '#2a2d3f'); R(x, 2, 2, 22, 13, '#13283c'); const y = [11, 10, 10, 8, 9, 7, 5, 6, 4, 3]; y.forEach((v, i) => R(x, 4 + i * 2, v, 2, 1, '#5fd0a8')); for (let i = 0; i < 6; i++) R(x, 4 + i * 3, 14 - (i % 4), 2, i % 4, '#35618a'); }],
  sofa: [46, 22, (x) => { const c = ramp(14, 56, 52); R(x, 2, 2, 42, 9, c[1]); R(x, 2, 2, 42, 2, c[3]); R(x, 6, 10, 34, 7, c[2]); R(x, 6, 10, 34, 1, c[3]); R(x, 22, 10, 1, 7, c[1]); R(x, 1, 7, 6, 12, c[2]); R(x, 39, 7, 6, 12, c[2]); R(x, 1, 7, 6, 1, c[4]); R(x, 39, 7, 6, 1, c[4]); R(x, 6, 17, 34, 2, c[1]); R(x, 3, 19, 2, 2, DARK[1]); R(x, 41, 19, 2, 2, DARK[1]); }],
  rack: [18, 34, (x) => { R(x, 1, 1, 16, 32, '#2b2f42'); R(x, 1, 1, 16, 2, '#454b68'); for (let i = 0; i < 7; i++) { R(x, 3, 4 + i * 4, 12, 3, '#171a27'); R(x, 3, 4 + i * 4, 12, 1, '#353b54'); R(x, 4, 5 + i * 4, 1, 1, i % 3 ? '#58e0a0' : '#f2b84b'); R(x, 6, 5 + i * 4, 1, 1, '#5aa2f0'); R(x, 10, 5 + i * 4, 4, 1, '#2a3048'); } }],
  table: [66, 34, (x) => { R(x, 1, 3, 64, 22, WOOD[3]); R(x, 1, 3, 64, 1, WOOD[4]); R(x, 3, 5, 60, 1, '#d49a66'); R(x, 1, 24, 64, 3, WOOD[1]); R(x, 4, 27, 4, 6, DARK[1]); R(x, 58, 27, 4, 6, DARK[1]); for (const [a, b] of [[8, 8], [24, 8], [40, 8], [8, 16], [24, 16], [44, 16]] as const) { R(x, a, b, 9, 6, '#eef0f6'); R(x, a, b, 9, 1, '#fff'); R(x, a + 2, b + 2, 5, 1, '#aeb6cc'); R(x, a + 2, b + 4, 4, 1, '#aeb6cc'); } R(x, 54, 10, 5, 5, '#58c4a7'); R(x, 55, 11, 3, 2, '#8ae6cc'); }],
  coffee: [18, 26, (x) => { R(x, 1, 10, 16, 15, WHITE[2]); R(x, 1, 10, 16, 2, WHITE[4]); R(x, 1, 22, 16, 3, WHITE[0]); R(x, 4, 1, 9, 10, '#3a3f52'); R(x, 4, 1, 9, 2, '#5d6580'); R(x, 6, 5, 5, 4, '#1d2030'); R(x, 7, 7, 3, 2, '#f0eee6'); R(x, 11, 3, 1, 1, '#58e0a0'); R(x, 3, 14, 5, 6, WHITE[1]); R(x, 10, 14, 5, 6, WHITE[1]); }],
  counter: [48, 22, (x) => { R(x, 1, 4, 46, 6, '#cfd6e6'); R(x, 1, 4, 46, 1, '#f2f5fb'); R(x, 1, 10, 46, 11, WOOD[2]); for (let i = 0; i < 4; i++) { R(x, 3 + i * 11, 12, 9, 7, WOOD[3]); R(x, 10 + i * 11, 15, 1, 2, WOOD[0]); } R(x, 6, 2, 4, 5, '#d95d5d'); R(x, 30, 1, 8, 6, '#9fb4d0'); R(x, 31, 2, 6, 4, '#c9dcf2'); }],
  cooler: [12, 26, (x) => { R(x, 2, 10, 8, 15, WHITE[2]); R(x, 2, 10, 8, 2, WHITE[4]); R(x, 3, 1, 6, 9, '#8fd0f5'); R(x, 3, 1, 2, 9, '#d0f0ff'); R(x, 4, 14, 2, 2, '#d95d5d'); R(x, 7, 14, 2, 2, '#5aa2f0'); }],
  cabinet: [16, 24, (x) => { R(x, 1, 2, 14, 21, STEEL[3]); R(x, 1, 2, 14, 2, STEEL[4]); for (const y of [6, 12, 18]) { R(x, 3, y, 10, 4, STEEL[2]); R(x, 6, y + 1, 4, 1, STEEL[0]); } }],
  recept: [52, 26, (x) => { R(x, 1, 6, 50, 7, WOOD[4]); R(x, 1, 12, 50, 12, '#4a5fa8'); R(x, 1, 12, 50, 1, '#6d84d0'); for (let i = 0; i < 8; i++) R(x, 4 + i * 6, 15, 3, 7, '#415397'); R(x, 20, 16, 12, 5, '#f2d06b'); R(x, 22, 17, 3, 3, '#4a5fa8'); R(x, 27, 17, 3, 3, '#4a5fa8'); R(x, 6, 2, 9, 7, '#2a2d3f'); R(x, 36, 5, 5, 4, '#f3f5fa'); }],
  window: [28, 14, (x) => { R(x, 0, 0, 28, 14, '#6b5646'); R(x, 1, 1, 26, 12, '#9fd8f5'); R(x, 1, 8, 26, 5, '#c9ecfb'); for (const [a, w, h] of [[2, 4, 5], [7, 3, 7], [11, 5, 4], [17, 3, 6], [21, 5, 5]] as const) R(x, a, 13 - h, w, h, '#7aa3c9'); R(x, 13, 1, 2, 12, '#6b5646'); R(x, 3, 2, 2, 5, '#e9fbff'); R(x, 5, 2, 1, 3, '#e9fbff'); }],
  art: [14, 12, (x) => { R(x, 0, 0, 14, 12, '#c79a4b'); R(x, 1, 1, 12, 10, '#264a5e'); R(x, 1, 7, 12, 4, '#58c4a7'); R(x, 8, 2, 3, 3, '#f2d06b'); R(x, 3, 5, 5, 3, '#ee8f6b'); }],
  rug: [80, 48, (x) => { const c = ramp(352, 38, 46); R(x, 0, 0, 80, 48, c[1]); R(x, 2, 2, 76, 44, c[2]); R(x, 5, 5, 70, 38, c[1]); R(x, 6, 6, 68, 36, c[3]); for (let i = 0; i < 9; i++) for (let j = 0; j < 4; j++) { R(x, 11 + i * 7, 11 + j * 8, 3, 1, c[1]); R(x, 12 + i * 7, 10 + j * 8, 1, 3, c[1]); } }],
  lamp: [12, 30, (x) => { R(x, 5, 9, 2, 18, STEEL[1]); R(x, 2, 27, 8, 2, STEEL[0]); R(x, 1, 2, 10, 7, '#f7e0a0'); R(x, 2, 2, 8, 1, '#fff6d8'); R(x, 1, 8, 10, 1, '#d9b060'); }],
};
export const NO_OUTLINE = new Set(['rug', 'screenOn', 'window']);
export function furniture() { const out: Record<string, HTMLCanvasElement> = {}; for (const [k, [w, h, d]] of Object.entries(F)) { const [c, x] = mk(w, h); d(x); out[k] = NO_OUTLINE.has(k) ? c : outline(c); } return out; }
