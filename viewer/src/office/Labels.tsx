// Names and bubbles above either stage, as ordinary elements: sharp at every zoom, selectable, read by screen readers.
import { forwardRef, useImperativeHandle, useMemo, useRef, type CSSProperties } from 'react';
import { ROLES } from '../lib/roles';
import { clock, current, setRole, useStore } from '../lib/store';
import { roleStyle } from '../ui/small';
import { thinkingText, useThinking } from '../ui/Connection';
import { BUBBLE_COLORS, bubblesAt } from './bubbles';
import { confetti, leavers } from './happening';
import { ZONES } from './layout';
import { Banner, Cloud, Confetti } from './Banner';
import type { Place } from './stage';

export interface LabelsHandle {
  place: (role: string, at: Place) => void;
}

/** Bubbles that would lie over each other are moved up; those at an edge are moved in. */
function spread(boxes: { bubble: HTMLElement; x: number; y: number }[], width: number): void {
  const placed: { left: number; right: number; top: number; bottom: number }[] = [];
  for (const { bubble, x, y } of [...boxes].sort((a, b) => b.y - a.y)) {
    const w = bubble.offsetWidth;
    const h = bubble.offsetHeight;
    const shift = Math.max(w / 2 + 4 - x, 0) + Math.min(width - 4 - w / 2 - x, 0);
    let bottom = Math.max(y, h + 4);
    for (let tries = 0; tries < 6; tries++) {
      const box = { left: x + shift - w / 2, right: x + shift + w / 2, top: bottom - h, bottom };
      const hit = placed.find(
        (one) => one.left < box.right && box.left < one.right && one.top < box.bottom && box.top < one.bottom,
      );
      if (!hit || hit.top - h < 4) break;
      bottom = hit.top - 6;
    }
    placed.push({ left: x + shift - w / 2, right: x + shift + w / 2, top: bottom - h, bottom });
    bubble.style.transform = `translate(calc(-50% + ${shift.toFixed(1)}px), ${(bottom - y).toFixed(1)}px)`;
  }
}

/** Names of people who stand together are put below each other. */
function stack(names: { name: HTMLElement; x: number; y: number }[]): void {
  const placed: { left: number; right: number; top: number; bottom: number }[] = [];
  for (const { name, x, y } of [...names].sort((a, b) => a.y - b.y)) {
    const w = name.offsetWidth;
    const h = name.offsetHeight;
    let top = y + 3;
    for (;;) {
      const box = { left: x - w / 2, right: x + w / 2, top, bottom: top + h };
      const hit = placed.find(
        (one) => one.left < box.right && box.left < one.right && one.top < box.bottom && box.top < one.bottom,
      );
      if (!hit) {
        placed.push(box);
        break;
      }
      top = hit.bottom + 1;
    }
    name.style.transform = `translate(-50%, ${(top - y).toFixed(1)}px)`;
  }
}

export const Labels = forwardRef<LabelsHandle>(function Labels(_, ref) {
  const world = useStore(current);
  const seq = useStore((state) => state.seq);
  const selected = useStore((state) => state.role);
  // Where all stand together, the role alone has to do as a name.
  const crowded = useStore((state) => ['standup', 'review'].includes(current(state)?.frames[state.seq]?.phase ?? ''));
  const thinking = useThinking();
  const follows = useStore((state) => state.follow);
  const layer = useRef<HTMLDivElement>(null);
  const elements = useRef<Record<string, HTMLDivElement | null>>({});
  const places = useRef<Record<string, Place>>({});
  const pending = useRef(0);
  const gone = useMemo(() => (world ? leavers(world.frames, seq, seq) : []), [world, seq]);
  const won = useMemo(() => (world ? confetti(world.frames, seq, seq) !== null : false), [world, seq]);
  const bubbles = useMemo(() => (world ? bubblesAt(world.frames, seq) : []), [world, seq]);

  useImperativeHandle(ref, () => ({
    place(role, at) {
      places.current[role] = at;
      const element = elements.current[role];
      if (!element) return;
      element.style.transform = `translate(${at.x.toFixed(1)}px, ${at.y.toFixed(1)}px)`;
      if (role.startsWith('leaver')) element.style.setProperty('--tall', `${at.tall.toFixed(1)}px`);
      element.style.visibility = at.hidden ? 'hidden' : 'visible';
      // All seven are placed in the same frame; bubbles are spread once after them.
      if (pending.current) return;
      pending.current = requestAnimationFrame(() => {
        pending.current = 0;
        const boxes = ROLES.flatMap((one) => {
          const bubble = elements.current[one.id]?.querySelector<HTMLElement>('.bubble');
          const where = places.current[one.id];
          if (!bubble || !where) return [];
          bubble.style.bottom = `${where.tall + 8}px`;
          return [{ bubble, x: where.x, y: where.y - where.tall - 8 }];
        });
        spread(boxes, layer.current?.clientWidth ?? 0);
        const names = ROLES.flatMap((one) => {
          const name = elements.current[one.id]?.querySelector<HTMLElement>('.name');
          const where = places.current[one.id];
          return name && where ? [{ name, x: where.x, y: where.y }] : [];
        });
        stack(names);
        const now = useStore.getState();
        const frames = current(now)?.frames;
        // Where no motion is wanted, the pieces hang where the turn ends.
        const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
        const fallen = frames ? confetti(frames, now.seq, calm ? now.seq + 1 : clock.t) : null;
        if (fallen !== null) layer.current?.style.setProperty('--fallen', fallen.toFixed(3));
      });
    },
  }));

  return (
    <div className="labels" ref={layer} data-crowded={crowded}>
      {ZONES.filter((zone) => zone.id !== 'hall').map((zone) => (
        <div
          key={zone.id}
          className="roomname"
          ref={(element) => {
            elements.current[`room ${zone.id}`] = element;
          }}
        >
          <span>{zone.name}</span>
        </div>
      ))}
      {ROLES.map((role) => {
        const bubble = bubbles.find((one) => one.role === role.id);
        const colors = bubble ? BUBBLE_COLORS[bubble.kind] : null;
        return (
          <div
            key={role.id}
            className="who"
            data-role={role.id}
            data-selected={selected === role.id}
            style={roleStyle(role.id)}
            ref={(element) => {
              elements.current[role.id] = element;
            }}
          >
            <button type="button" className="name" onClick={() => setRole(role.id)} aria-pressed={selected === role.id}>
              <span className="person">{role.person} · </span>
              {role.title}
            </button>
            {role.id === 'sales' && won && <Confetti />}
            {follows && thinking?.role === role.id && (
              <span className="thinking" role="status">
                … {thinkingText(thinking.seconds)}
              </span>
            )}
            {bubble && colors && (
              <div
                className="bubble"
                data-age={bubble.age}
                style={{ '--kind': colors.line, '--kind-text': colors.text, opacity: 1 - bubble.age * 0.07 } as CSSProperties}
              >
                <b>
                  <span className="pay">
                    <span className={bubble.pay < 0 ? 'minus' : 'plus'}>
                      {Math.abs(bubble.pay) < 0.005 ? '' : bubble.pay.toFixed(1)}
                    </span>
                  </span>
                  {bubble.head}
                </b>
                {bubble.text}
              </div>
            )}
          </div>
        );
      })}
      {gone.map(({ id, name }, index) => (
        <div
          key={id}
          className="leaver"
          ref={(element) => {
            elements.current[`leaver ${index}`] = element;
          }}
        >
          <Cloud />
          <span>{name} leaves</span>
        </div>
      ))}
      <Banner />
    </div>
  );
});
