import { describe, expect, it } from 'vitest';
import { ROLES } from '../src/lib/roles';
import { stops } from '../src/lib/world';
import { arc, ARC_POINTS } from '../src/office/arcs';
import { bubblesAt, receivers } from '../src/office/bubbles';
import { Motion } from '../src/office/motion';
import { FRAMES, restingFrame } from '../src/office/pix';
import { frame } from './frames';

const talk = (sender: string, to: string) => ({ sender, to, text: 'x' });

describe('lines of messages', () => {
  it('go to each colleague of who speaks to all, and not to the customer', () => {
    expect(receivers(talk('ceo', 'all'))).toEqual(['dev', 'marketing', 'sales', 'content', 'hr']);
    expect(receivers(talk('hr', 'all'))).toEqual(['ceo', 'dev', 'marketing', 'sales', 'content']);
  });
  it('go from HR to whom HR speaks, and nowhere without a message', () => {
    expect(receivers(talk('hr', 'dev'))).toEqual(['dev']);
    expect(receivers(talk('hr', 'hr'))).toEqual([]);
    expect(receivers(null)).toEqual([]);
  });
  it('go from where the customer stands to whom it speaks, and to all of the company', () => {
    expect(receivers(talk('customer', 'dev'))).toEqual(['dev']);
    expect(receivers(talk('customer', 'sales'))).toEqual(['sales']);
    expect(receivers(talk('customer', 'all'))).toEqual(['ceo', 'dev', 'marketing', 'sales', 'content', 'hr']);
    const motion = new Motion();
    const asks = frame(1, { actor: 'customer', phase: 'standup', talk: talk('customer', 'dev') });
    motion.follow([frame(0, { actor: '', phase: 'standup' }), asks]);
    const [from, to] = [motion.pose('customer', 1.9), motion.pose('dev', 1.9)];
    const points = arc(from, to);
    expect(points[0]).toMatchObject({ x: from.x, z: from.y });
    expect(points.at(-1)).toMatchObject({ x: to.x, z: to.y });
    expect(points.at(-1)!.along).toBeGreaterThan(Math.hypot(to.x - from.x, to.y - from.y));
    expect(from.x).not.toBe(to.x);
  });
  it('rise from mouth to mouth and know how far along each point is', () => {
    const points = arc({ x: 2, y: 3 }, { x: 6, y: 6 });
    expect(points).toHaveLength(ARC_POINTS);
    expect(points[0]).toEqual({ x: 2, y: 1.7, z: 3, along: 0 });
    expect(points.at(-1)).toMatchObject({ x: 6, z: 6 });
    expect(points.at(-1)!.y).toBeCloseTo(1.7, 12);
    // 5 tiles apart on the plan, and longer over the top of 3.1.
    expect(Math.max(...points.map(({ y }) => y))).toBeGreaterThan(3);
    expect(points.at(-1)!.along).toBeGreaterThan(5);
    expect(points.at(-1)!.along).toBeLessThan(7);
    for (let index = 1; index < points.length; index++) expect(points[index]!.along).toBeGreaterThan(points[index - 1]!.along);
  });
});

describe('bubbles', () => {
  it('mark a reflection, and no reasoning, as one', () => {
    const frames = [
      frame(0),
      frame(1, { actor: 'dev', reasoning: 'Because.', reflections: {} }),
      frame(2, { actor: 'sales', reasoning: 'So.', reflections: { hr: ['Syncs work.', 'Plan: sync.'], sales: ['Demos help.'] } }),
    ];
    const kinds = Object.fromEntries(bubblesAt(frames, 2).map(({ role, kind, text }) => [role, [kind, text]]));
    expect(kinds).toEqual({ hr: ['reflect', 'Syncs work.'], sales: ['reflect', 'Demos help.'], dev: ['action', 'Because.'] });
    expect(bubblesAt(frames, 1).map(({ kind }) => kind)).toEqual(['action']);
    // A reflection is of its turn: the next one shows the deed again.
    expect(bubblesAt([...frames, frame(3, { actor: 'ceo' })], 3).map(({ kind }) => kind)).not.toContain('reflect');
  });
  it('of the customer are messages over the customer', () => {
    const asks = { actor: 'customer', policy: 'world', action: 'REQUEST_FEATURE' };
    const says = { actor: 'customer', policy: 'world', action: 'GIVE_FEEDBACK' };
    const frames = [
      frame(0),
      frame(1, { ...asks, talk: { sender: 'customer', to: 'dev', text: 'need sync' } }),
      frame(2, { actor: 'ceo' }),
      frame(3, { ...says, talk: { sender: 'customer', to: 'sales', text: 'unhappy Acme' } }),
    ];
    expect(bubblesAt(frames, 1)).toEqual([
      { role: 'customer', kind: 'message', head: 'Request feature', text: 'to dev: need sync', pay: 0, age: 0 },
    ]);
    expect(bubblesAt(frames, 3)[0]).toMatchObject({ role: 'customer', kind: 'message', text: 'to sales: unhappy Acme' });
    // What it does without a word is an action.
    expect(bubblesAt([frame(0), frame(1, { actor: 'customer' })], 1)[0]).toMatchObject({ role: 'customer', kind: 'action' });
    expect(stops(frames, 'message')).toEqual([1, 3]);
  });
  it('say message and error', () => {
    const frames = [frame(0), frame(1, { talk: talk('sales', 'dev') }), frame(2, { actor: 'dev', valid: false, why: 'No.' })];
    expect(bubblesAt(frames, 2).map(({ kind }) => kind)).toEqual(['error', 'message']);
  });
});

describe('states', () => {
  it('have a picture each', () => {
    const pictures = ['IDLE', 'WORKING', 'COLLABORATING'].map((activity) => restingFrame(activity, 0));
    expect(new Set(pictures).size).toBe(3);
    for (const activity of ['WORKING', 'COLLABORATING'])
      for (const beat of [0, 1]) expect(FRAMES).toContain(restingFrame(activity, beat));
  });
  it('of a standup are COLLABORATING, and name the colleague of a visit', () => {
    const motion = new Motion();
    const message = frame(8, { actor: 'sales', talk: talk('sales', 'content') });
    motion.follow([...Array.from({ length: 8 }, (_, seq) => frame(seq, { phase: seq < 4 ? 'standup' : 'execution' })), message]);
    expect(motion.pose('dev', 3.9)).toMatchObject({ activity: 'COLLABORATING', with: '' });
    expect(motion.pose('sales', 10.9)).toMatchObject({ activity: 'COLLABORATING', with: 'content' });
    for (const { id } of ROLES) expect(['IDLE', 'WORKING', 'COLLABORATING']).toContain(motion.pose(id, 10.9).activity);
  });
});
