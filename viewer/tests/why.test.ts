import { describe, expect, it } from 'vitest';
import type { BranchTrace, GroupView, Move, ReplyView, TraceTurn } from '../src/api/client';
import { arithmetic } from '../src/lib/advantage';
import { bundles, cause, firstDifference, firstPair, sentence, termsOf, titleOfReply, type Pair } from '../src/lib/why';

const move = (name: string, after: string, price = 1800): Move => ({ id: 1, name, before: 'demo', after, price, reason: '' });
const turn = (number: number, patch: Partial<TraceTurn> = {}): TraceTurn => ({
  turn: number,
  actor: 'sales',
  action: 'FOLLOW_UP',
  target: 'Echo',
  valid: true,
  paid: 0,
  own: 0,
  value: 100,
  mrr: 0,
  moves: [],
  ...patch,
});
const trace = (...turns: TraceTurn[]): BranchTrace => ({
  index: 0,
  outcome: 0,
  ret: 0,
  value: 0,
  recorded: 0,
  agrees: true,
  turns,
});
const pair = (world: number, a: BranchTrace, b: BranchTrace): Pair => ({ world, a, b });
const nothing = trace(turn(90), turn(91));

const reply = (text: string, ret: number, patch: Partial<ReplyView> = {}): ReplyView => ({
  text,
  valid: true,
  stop: 'branch',
  policy: 'p',
  temperature: 1,
  finish: 'stop',
  key: text,
  ids: [],
  pieces: null,
  logprobs: [],
  ret,
  rewards: [ret],
  metrics: { outcome: 0, return: 0 },
  advantage: null,
  by_world: [ret, ret],
  turns: [],
  ...patch,
});
const demo = '{"action_type":"RUN_DEMO","target":"Dune"}';
const qualify = '{"action_type":"QUALIFY_LEAD","target":"Echo"}';
const group = (replies: ReplyView[], patch: Partial<GroupView> = {}): GroupView =>
  ({
    key: 'k',
    env: 'office',
    actor: 'sales',
    source: 'branch',
    worlds: [1, 2],
    chosen: null,
    facts: {},
    replies,
    rule: {
      estimator: 'group',
      scale: 'std',
      eps: 0.02,
      shrink: false,
      bound: null,
      invalid_gap: 0.5,
      invalid_ceiling: -1.5,
      negative_weight: 1,
    },
    terms: { outcome_weight: 1, return_weight: 0.25, outcome_scale: 53.57, return_scale: 0.0546, turns: 140 },
    ...patch,
  }) as GroupView;

describe('the cause of a difference', () => {
  const won = (day: number) => trace(turn(90), turn((day - 1) * 14 + 3, { moves: [move('Dune', 'won')] }));
  it('is the deal that ends otherwise in most worlds, by its price', () => {
    const small = trace(turn(90), turn(100, { moves: [move('Echo', 'won', 50)] }));
    expect(cause([pair(1, won(9), small), pair(2, won(9), nothing), pair(3, won(11), won(9)), pair(4, nothing, nothing)])).toBe(
      'Dune ($1,800 a month) is won in 3 of 4 worlds, usually on day 9, and after the other reply in 1 of 4 worlds',
    );
  });
  it('is a customer that is kept, and not one that is lost', () => {
    const gone = trace(turn(90), turn(97, { actor: 'night', moves: [move('Gale', 'churned')] }));
    expect(cause([pair(1, nothing, gone), pair(2, gone, gone)])).toContain(
      'Gale ($1,800 a month) churns in 1 of 2 worlds, and after the other reply in 2',
    );
    expect(cause([pair(1, gone, nothing), pair(2, nothing, nothing)])).toBe('');
  });
  it('is an earlier deal where the same deals are won, then revenue, and nothing where nothing tells', () => {
    expect(cause([pair(1, won(9), won(12)), pair(2, won(9), won(10))])).toBe('Dune ($1,800 a month) is won 2.0 days earlier');
    const rich = trace(turn(90), turn(91, { mrr: 900 }));
    expect(cause([pair(1, rich, nothing), pair(2, nothing, nothing)])).toContain(
      'monthly revenue ends $450 higher on average, and is higher in 1 of 2',
    );
    expect(cause([pair(1, nothing, nothing)])).toBe('');
    expect(cause([])).toBe('');
  });
});

describe('a group in one sentence', () => {
  const better = reply(demo, 7.39, { metrics: { outcome: 50_300, return: 20.75 }, by_world: [8, 6] });
  const worse = reply(qualify, 5, { metrics: { outcome: 40_600, return: 20 }, by_world: [6, 6.5] });
  it('says by how much, why, and how often', () => {
    const dune = trace(turn(95), turn(115, { moves: [move('Dune', 'won')] }));
    const said = sentence(group([worse, better]), [1, 0], [pair(1, dune, nothing)]);
    expect(said).toBe(
      'Run demo Dune is worth $9,700 more than Qualify lead Echo because Dune ($1,800 a month) is won here, usually on day 9, and after the other reply not here; it is worth more in 1 of 2 worlds.',
    );
    // The other way round it is the same sentence: the better reply is its subject.
    expect(sentence(group([worse, better]), [0, 1], [pair(1, nothing, dune)])).toBe(said);
  });
  it('names the own reward where the company gains nothing by it', () => {
    const selfish = reply(demo, 1, { metrics: { outcome: 100, return: 30 }, by_world: [1, 1] });
    const generous = reply(qualify, 0.5, { metrics: { outcome: 900, return: 2 }, by_world: [0.5, 0.5] });
    expect(sentence(group([selfish, generous]), [0, 1], [])).toContain(
      'because sales earns +28.0 of own reward, while the company gains $800 less',
    );
  });
  it('needs no branches', () => {
    const attempts = [reply('ls', 1, { stop: 'done', by_world: [] }), reply('ls', 0, { stop: 'done', by_world: [] })];
    expect(sentence(group(attempts, { source: 'episodes', terms: null, env: 'claw' }), [0, 1], [])).toBe(
      'attempt 1 is worth 1.00 more than attempt 2.',
    );
  });
  it('has a value that is the sum of its terms', () => {
    const { terms } = group([better]);
    const found = termsOf(terms!, { outcome: 50_300, return: 20.75 });
    // 50,300 / 140 / 53.57 and 0.25 * 20.75 / 140 / 0.0546, by hand.
    expect(found.company).toBeCloseTo(6.707, 3);
    expect(found.role).toBeCloseTo(0.6786, 4);
    expect(found.value).toBeCloseTo(found.company + found.role, 12);
  });
});

describe('the order of replies', () => {
  it('is that of their advantages, equal ones in one line', () => {
    const invalid = reply('We sell.', 0, { valid: false, key: 'invalid' });
    const made = group([invalid, reply(qualify, 1), reply(demo, 3), reply(qualify, 1), reply('{"action_type":"FOLLOW_UP"}', 2)], {
      chosen: 3,
    });
    const order = bundles(made, arithmetic(made.replies, made.rule));
    expect(order.map(({ members }) => members)).toEqual([[2], [4], [1, 3], [0]]);
    expect(order.every(({ advantage }, index) => index === 0 || advantage! <= order[index - 1]!.advantage!)).toBe(true);
    expect(bundles(made, arithmetic(made.replies, made.rule), true)).toHaveLength(5);
    expect(firstPair(made, order)).toEqual([2, 1]);
    expect(firstPair({ ...made, chosen: 2 }, order)).toEqual([2, 1]);
    expect(titleOfReply(made, 0)).toBe('an invalid reply');
  });
  it('has no pair where all do the same', () => {
    const made = group([reply(demo, 1), reply(demo, 1)]);
    expect(firstPair(made, bundles(made, arithmetic(made.replies, made.rule)))).toBeNull();
  });
  it('finds the first turn after the decision that differs', () => {
    const other = trace(turn(90, { action: 'RUN_DEMO' }), turn(91), turn(92, { target: 'Dune' }));
    expect(firstDifference([pair(1, trace(turn(90), turn(91), turn(92)), other)])).toBe(93);
    expect(firstDifference([pair(1, nothing, nothing)])).toBeNull();
  });
});
