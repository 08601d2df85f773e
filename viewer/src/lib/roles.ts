// Who is who: one record per role gives its colour, its look in 2D and 3D, and its glyph (colour never stands alone).
export interface Look {
  skin: number;
  hair: readonly [number, number, number];
  shirt: readonly [number, number, number];
  pants: readonly [number, number, number];
  tie?: string;
  style: 'short' | 'long' | 'bun' | 'bob' | 'spiky' | 'beanie';
  acc?: 'glasses' | 'headset' | 'tie' | 'bag' | 'headphones';
}
export interface RoleInfo {
  id: string;
  person: string;
  title: string;
  glyph: string;
  color: string;
  look: Look;
}

const info = (id: string, person: string, title: string, glyph: string, color: string, look: Look): RoleInfo => ({
  id,
  person,
  title,
  glyph,
  color,
  look,
});

export const ROLES: readonly RoleInfo[] = [
  info('ceo', 'Jeeya', 'CEO', '◆', '#f2b84b', {
    skin: 1, hair: [280, 22, 16], shirt: [228, 28, 30], pants: [228, 26, 24], tie: '#d94f5c', style: 'long', acc: 'tie',
  }),
  info('dev', 'Alex', 'Dev', '⌘', '#58c4a7', {
    skin: 0, hair: [24, 60, 34], shirt: [160, 40, 38], pants: [220, 30, 34], style: 'spiky', acc: 'headphones',
  }),
  info('marketing', 'Jordan', 'Marketing', '✦', '#ee6fa3', {
    skin: 3, hair: [14, 34, 18], shirt: [334, 66, 58], pants: [250, 20, 38], style: 'bob',
  }),
  info('sales', 'Sam', 'Sales', '▲', '#5aa2f0', {
    skin: 2, hair: [40, 66, 52], shirt: [212, 62, 52], pants: [28, 26, 38], tie: '#f4f0ff', style: 'short', acc: 'headset',
  }),
  info('content', 'Casey', 'Content', '✎', '#b48cf0', {
    skin: 0, hair: [8, 66, 44], shirt: [268, 40, 60], pants: [210, 24, 40], tie: '#f2d06b', style: 'bun', acc: 'glasses',
  }),
  info('hr', 'Pat', 'HR', '●', '#9bcf5c', {
    skin: 3, hair: [230, 10, 62], shirt: [92, 38, 48], pants: [24, 22, 30], style: 'short', acc: 'glasses',
  }),
  info('customer', 'Oracle', 'Customer', '■', '#f08a4b', {
    skin: 1, hair: [26, 44, 24], shirt: [22, 74, 56], pants: [200, 22, 42], style: 'beanie', acc: 'bag',
  }),
];
export const ROLE: Readonly<Record<string, RoleInfo>> = Object.fromEntries(ROLES.map((role) => [role.id, role]));
/** Acts between two days in the frames of a company: it has no seat, and no person to draw. */
export const NIGHT = 'night';
const NIGHT_BADGE = { title: 'Night', glyph: '☾', color: '#8f9bff' };
const badge = (role: string): { title: string; glyph: string; color: string } | undefined =>
  role === NIGHT ? NIGHT_BADGE : ROLE[role];
const OTHERS = ['#5aa2f0', '#f2b84b', '#58c4a7', '#ee6fa3', '#b48cf0', '#9bcf5c', '#f08a4b', '#9aa3ba'] as const;
const met = new Map<string, string>();
/** Roles of other environments take the colours in the order in which a page meets them, so that no two of a few are alike. */
export function colorOf(role: string): string {
  const known = badge(role)?.color ?? met.get(role);
  if (known) return known;
  const next = OTHERS[met.size % OTHERS.length]!;
  met.set(role, next);
  return next;
}
/** Give these roles their colours by name, before a page meets them in any other order. */
export const meet = (roles: readonly string[]): void => [...roles].sort().forEach(colorOf);
export const titleOf = (role: string): string => badge(role)?.title ?? role;
/** Whose turn comes next, in words. */
export const turnOf = (waiting: string): string => (waiting ? `${titleOf(waiting)}’s turn` : 'the episode is over');
export const glyphOf = (role: string): string => badge(role)?.glyph ?? '›';
