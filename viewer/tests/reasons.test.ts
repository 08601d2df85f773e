import { describe, expect, it } from 'vitest';
import type { Frame, Reason } from '../src/api/client';
import { concerned, dayChange, digest, extreme, payers, shares, told } from '../src/lib/reasons';
import { frame } from './frames';

const because = (text: string, amounts: Reason['amounts'], account = -1): Reason => ({ cause: 'deal', text, account, amounts });
const left = because(
  'Gale churned',
  { sales: [-3, -1.5, 0, 0, 0, 0], ceo: [-3, 0, 0, 0, 0, 0], customer: [-5, 0, 0, 0, 0, 0] },
  7,
);
const wages = because('Wages', { sales: [0, -0.5, 0, 0, 0, 0], ceo: [0, -1.25, 0, 0, 0, 0] });
const small = because('Visits', { marketing: [0, 0.01, 0, 0, 0, 0] });

const night = (seq: number, patch: Partial<Frame> = {}): Frame =>
  frame(seq, { actor: 'night', reasons: [left, wages, small], ...patch });

describe('shares', () => {
  it('are those of a role, the largest first, with the parts that are not 0', () => {
    expect(shares(night(1), 'ceo').map(({ reason, amount, parts }) => [reason.text, amount, parts])).toEqual([
      ['Gale churned', -3, [[0, -3]]],
      ['Wages', -1.25, [[1, -1.25]]],
    ]);
    expect(shares(night(1), 'hr')).toEqual([]);
  });
  it('of the night are the team’s, without the customer', () => {
    expect(shares(night(1), 'night').map(({ amount }) => amount)).toEqual([-7.5, -1.75, 0.01]);
  });
  it('that a list of turns shows are large, or about an account', () => {
    expect(told(night(1), 8).map(({ reason }) => reason.text)).toEqual(['Gale churned', 'Wages']);
    const refer = frame(1, {
      actor: 'customer',
      reasons: [because('Echo arrived', { marketing: [1.5, 0, 0, 0, 0, 0] }, 9), wages],
    });
    expect(told(refer, 8).map(({ reason, amount }) => [reason.text, amount])).toEqual([['Echo arrived', 0]]);
    expect(told(night(1), 1)).toHaveLength(1);
  });
});

describe('days', () => {
  const worth = (value: number): Frame['kpis'] => ({ value }) as Frame['kpis'];
  const frames = [
    frame(0, { kpis: worth(100), actor: '' }),
    frame(1, { kpis: worth(120), reasons: [because('Won', { sales: [10, 0, 0, 0, 0, 0] })] }),
    night(2, { kpis: worth(90), rewards: { sales: -5.1, ceo: -4.2, customer: -50 } }),
    frame(3, { kpis: worth(130), day: 1, rewards: { sales: 4 } }),
  ];
  it('change by the value from their morning on', () => {
    expect(frames.slice(1).map((_, index) => dayChange(frames, index + 1))).toEqual([20, -10, 40]);
  });
  it('are summed up by what moved the team most in the direction of the value', () => {
    expect(digest(frames, 1)).toMatchObject({ day: 0, value: 120, change: 20, share: { reason: { text: 'Won' }, amount: 10 } });
    expect(digest(frames, 2).share?.reason.text).toBe('Gale churned');
    expect(digest(frames, 3).share).toBeUndefined();
  });
  it('hold the frame that cost most and the one that paid most, and whom it concerns', () => {
    expect(extreme(frames, -1)).toBe(2);
    expect(extreme(frames, 1)).toBe(3);
    expect(extreme(frames.slice(0, 1), 1)).toBeUndefined();
    expect(concerned(frames[2]!)).toBe('sales');
    expect(concerned(frame(1, { actor: 'dev' }))).toBe('dev');
  });
});

describe('what paid a part', () => {
  const paidTo = (seq: number, amount: number): Frame =>
    night(seq, {
      parts: { sales: [amount, 0, 0, 0, 0, 0] },
      reasons: [wages, because(`of ${seq}`, { sales: [amount, 9, 0, 0, 0, 0] })],
    });
  it('is up to the moment that is shown, the largest first, with the reason of that part', () => {
    const frames = [frame(0), paidTo(1, -1), paidTo(2, 0), paidTo(3, -3), paidTo(4, 2), paidTo(5, 50)];
    expect(payers(frames, 'sales', 0, 4, 2).map(({ frame: { seq }, amount, text }) => [seq, amount, text])).toEqual([
      [3, -3, 'of 3'],
      [4, 2, 'of 4'],
    ]);
    expect(payers(frames, 'ceo', 0, 4, 2)).toEqual([]);
  });
});
