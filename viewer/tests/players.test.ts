import { describe, expect, it } from 'vitest';
import { isModelName, lacking, playsCustomer } from '../src/lib/players';

describe('models in the picker', () => {
  it('say what is missing, and nothing where it is fetched by itself', () => {
    const key = { what: 'ANTHROPIC_API_KEY', there: false };
    const package_ = { what: 'onthejob[bedrock]', there: false };
    expect(lacking({ ready: false, needs: [key] })).toBe('ANTHROPIC_API_KEY');
    expect(lacking({ ready: false, needs: [package_, { what: 'AWS credentials', there: null }] })).toBe('onthejob[bedrock]');
    expect(lacking({ ready: true, needs: [{ what: 'weights', there: false }] })).toBe('');
  });
  it('play the customer when they are hosted or a base', () => {
    const able = [
      { kind: 'model' as const, name: 'base' },
      { kind: 'model' as const, name: 'base:Qwen/Qwen3-0.6B' },
      { kind: 'hosted' as const, name: 'anthropic:claude-haiku-4-5' },
      { kind: 'model' as const, name: 'adapters/office' },
      { kind: 'scripted' as const, name: 'expert' },
    ].map(playsCustomer);
    expect(able).toEqual([true, true, true, false, false]);
  });
  it('take names of providers and of this machine', () => {
    for (const name of [
      'openai:http://127.0.0.1:8001/v1',
      'anthropic:claude-haiku-4-5',
      ' base:Qwen/Qwen3-0.6B ',
      'base:/models/mine',
    ])
      expect(isModelName(name), name).toBe(true);
    for (const name of ['', 'base', 'base:', 'openai: x', 'gpt-5', 'http://127.0.0.1'])
      expect(isModelName(name), name).toBe(false);
  });
});
