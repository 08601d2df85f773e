// What people say at a turn: the typed bubbles of both views.
import type { Frame } from '../api/client';
import { NIGHT, ROLES } from '../lib/roles';
import { deed, paid } from '../lib/world';

export type BubbleKind = 'action' | 'message' | 'reflect' | 'error';
export interface Bubble {
  role: string;
  kind: BubbleKind;
  head: string;
  text: string;
  pay: number;
}
export const BUBBLE_COLORS: Record<BubbleKind, { line: string; text: string }> = {
  action: { line: '#f2b84b', text: '#875500' },
  message: { line: '#5aa2f0', text: '#1d5fb0' },
  reflect: { line: '#b48cf0', text: '#6b3fc0' },
  error: { line: '#e2575f', text: '#b3283c' },
};
const SHOWN = 3;

/** The bubbles of the newest turns; an older one of the same role makes room. Reflections stand as long as their turn is shown. */
export function bubblesAt(frames: readonly Frame[], seq: number): (Bubble & { age: number })[] {
  const found: (Bubble & { age: number })[] = [];
  for (const [role, texts] of Object.entries(frames[seq]?.reflections ?? {}))
    found.push({ role, kind: 'reflect', head: 'reflects', text: texts[0] ?? '', pay: 0, age: 0 });
  for (let index = seq; index > Math.max(0, seq - SHOWN); index--) {
    const frame = frames[index];
    if (!frame || frame.actor === NIGHT || found.some((one) => one.role === frame.actor)) continue;
    const kind: BubbleKind = !frame.valid ? 'error' : frame.talk ? 'message' : 'action';
    const text = !frame.valid ? frame.why : frame.talk ? `to ${frame.talk.to}: ${frame.talk.text}` : frame.reasoning;
    found.push({
      role: frame.actor,
      kind,
      head: deed(frame),
      text,
      pay: paid(frame),
      age: seq - index,
    });
  }
  return found;
}

/** Who is spoken to: of a message to all, every colleague; the customer is not of the company. */
export const receivers = (talk: Frame['talk']): string[] =>
  !talk
    ? []
    : (talk.to === 'all' ? ROLES.map(({ id }) => id).filter((id) => id !== 'customer') : [talk.to]).filter(
        (id) => id !== talk.sender,
      );
