// Frames for tests.
import type { Frame } from '../src/api/client';

export function frame(seq: number, patch: Partial<Frame> = {}): Frame {
  return {
    seq,
    step: seq,
    turn: seq - 1,
    day: 0,
    phase: 'execution',
    actor: 'sales',
    policy: 'p',
    text: '',
    action: 'X',
    target: '',
    reasoning: '',
    valid: true,
    why: '',
    changed: true,
    talk: null,
    notes: [],
    reflections: {},
    events: [],
    rewards: { sales: 0 },
    parts: {},
    reasons: [],
    moves: [],
    waiting: 'dev',
    accounts: null,
    features: null,
    floor: null,
    kpis: {} as Frame['kpis'],
    ...patch,
  };
}
