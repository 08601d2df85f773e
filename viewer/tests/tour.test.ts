import { describe, expect, it } from 'vitest';
import type { Seats } from '../src/api/client';
import { CAPTIONS, namesMoment, untouched } from '../src/lib/tour';

const players = [
  { name: 'heuristic', kind: 'scripted' },
  { name: 'expert', kind: 'scripted' },
  { name: 'office', kind: 'model' },
  { name: 'openai:gpt', kind: 'hosted' },
] as const;
const seats = (patch: Partial<Seats> = {}): Seats =>
  ({
    seats: { ceo: 'heuristic', dev: 'expert' },
    human: '',
    first: 0,
    playing: false,
    done: '',
    error: '',
    ...patch,
  }) as unknown as Seats;

describe('a first visit', () => {
  it('begins only a company of scripted players that has not begun', () => {
    expect(untouched(seats(), 1, players)).toBe(true);
    expect(untouched(seats(), 2, players)).toBe(false);
    for (const patch of [
      { human: 'sales' },
      { playing: true },
      { done: 'horizon' },
      { error: 'a provider failed' },
      { first: 14 },
      { seats: { ceo: 'heuristic', dev: 'openai:gpt' } },
      { seats: { ceo: 'heuristic', dev: 'office' } },
      { seats: { ceo: 'heuristic', dev: 'openai:http://127.0.0.1:1/v1' } },
      { seats: { ceo: 'heuristic', customer: 'base' } },
      { seats: {} },
    ] as Partial<Seats>[])
      expect(untouched(seats(patch), 1, players), JSON.stringify(patch)).toBe(false);
    expect(untouched(seats(), 1, []), 'no player is known').toBe(false);
  });
  it('keeps away from an address that names a moment', () => {
    for (const hash of ['#/office?turn=3', '#/office?night=2&role=dev', '#/office?run=r&it=0&ep=e'])
      expect(namesMoment(hash), hash).toBe(true);
    for (const hash of ['', '#/office', '#/office?role=dev', '#/office?jump=message'])
      expect(namesMoment(hash), hash).toBe(false);
  });
  it('has four captions that fit a line or two', () => {
    expect(CAPTIONS).toHaveLength(4);
    for (const text of CAPTIONS) expect(text.length).toBeLessThan(120);
  });
});
