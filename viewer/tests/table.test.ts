import { expect, test } from 'vitest';
import type { EnvView, TableView, TurnPlayed } from '../src/api/client';
import { colorOf, meet } from '../src/lib/roles';
import { firstSeats, matching, payments, standing } from '../src/lib/table';

const env = (roles: string[], partner: string): EnvView => ({
  name: 'negotiation',
  description: '',
  roles,
  players: partner ? [partner] : [],
  partner,
  tasks: { train: 2 },
  options: {},
  max_turns: 8,
  max_new_tokens: 6,
});

test('the person sits in the first seat, and in all of them where no other player can', () => {
  expect(firstSeats(env(['buyer', 'seller'], 'fair'))).toEqual({ buyer: 'human', seller: 'fair' });
  expect(firstSeats(env(['buyer', 'seller'], ''))).toEqual({ buyer: 'human', seller: 'human' });
});

test('a turn shows what its own role was paid, 0 as well, and others that were paid something', () => {
  const turn = (rewards: Record<string, number>): TurnPlayed => ({
    index: 0,
    role: 'buyer',
    player: 'human',
    messages: [],
    fresh: true,
    reply: 'accept',
    valid: true,
    rewards,
  });
  expect(payments(turn({}))).toEqual([['buyer', 0]]);
  expect(payments(turn({ seller: -9, buyer: 6, judge: 0 }))).toEqual([
    ['buyer', 6],
    ['seller', -9],
  ]);
});

test('what was typed finds legal replies: those that begin with it come first', () => {
  const legal = ['offer 1', 'accept offer', 'Offer 12', 'refuse'];
  expect(matching(legal, ' offer 1')).toEqual(['offer 1', 'Offer 12']);
  expect(matching(legal, 'offer')).toEqual(['offer 1', 'Offer 12', 'accept offer']);
  expect(matching(legal, '')).toEqual(legal);
  expect(matching(legal, 'x')).toEqual([]);
});

test('the heading says whose turn it is, or how the episode ended', () => {
  const over = { asked: null, error: '', stop: 'done' } as TableView;
  expect(standing({ asked: { role: 'buyer' } } as TableView)).toBe('Turn of buyer');
  expect(standing(over)).toBe('The episode is over');
  expect(standing({ ...over, stop: 'max_turns' })).toBe('The episode is over: no turns are left');
  expect(standing({ ...over, stop: 'error', error: 'step raised ValueError' })).toBe('The episode failed');
});

test('roles of other environments have colours of their own, whatever page meets them first', () => {
  meet(['seller', 'buyer']);
  const colors = ['buyer', 'seller', 'judge'].map(colorOf);
  expect(new Set(colors).size).toBe(3);
  expect(['judge', 'seller', 'buyer'].map(colorOf)).toEqual([...colors].reverse());
});
