import { expect, test } from 'vitest';
import { firstSentence, trying } from '../src/lib/format';

test('the button says how many replies it plays, and of how many actions', () => {
  expect(trying(8, null)).toBe('Try 8 replies');
  expect(trying(8, 12)).toBe('Try 8 of 12 actions');
  expect([trying(8, 8), trying(16, 8)]).toEqual(['Try all 8 actions', 'Try all 8 actions']);
});

test('a text in short is its first sentence', () => {
  expect(firstSentence('A rule was broken: 1.5 times. It costs.')).toBe('A rule was broken: 1.5 times.');
  expect(firstSentence('no full stop')).toBe('no full stop');
});
