import { describe, expect, it } from 'vitest';
import type { Frame } from '../src/api/client';
import { captionOf } from '../src/lib/photo';
import { frame } from './frames';

const kpis = { value: 107_800 } as Frame['kpis'];
const move = (before: string, after: string): Frame['moves'][number] => ({
  id: 1,
  name: 'Tide',
  before,
  after,
  price: 1800,
  reason: '',
});

describe('the caption of a picture', () => {
  it('says when, what and the value', () => {
    expect(captionOf(frame(3, { kpis, day: 2, action: 'SET_OKRS', target: 'growth', actor: 'ceo' }))).toEqual({
      when: 'Day 3, execution',
      what: 'CEO: Set OKRs growth',
      value: '$107.8k',
    });
  });
  it('names the deal that ended rather than the action, and no arrival', () => {
    expect(captionOf(frame(3, { kpis, moves: [move('', 'lead'), move('demo', 'won')] })).what).toBe('Tide: demo → won');
    expect(captionOf(frame(3, { kpis, moves: [move('', 'lead')], action: 'X' })).what).toMatch(/^Sales: /);
  });
  it('knows the night and the founding', () => {
    expect(captionOf(frame(3, { kpis, day: 1, actor: 'night' }))).toMatchObject({
      when: 'Day 2, night',
      what: 'The day is over',
    });
    expect(captionOf(frame(0, { kpis, actor: '', turn: -1 })).what).toBe('The company starts');
  });
});
