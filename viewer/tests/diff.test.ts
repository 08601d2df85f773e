import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { ChangedFiles, EpisodeTurn } from '../src/api/client';
import { counts, kindOf, summary } from '../src/lib/diff';

const LINES = ['@@ -1,2 +1,3 @@', ' one', '-two', '+2', '+--three', '\\ No newline at end of file'];

describe('lines of a diff', () => {
  it('are distinguished by their first character', () => {
    expect(LINES.map(kindOf)).toEqual(['place', 'same', 'removed', 'added', 'added', 'remark']);
    expect(kindOf('')).toBe('same');
  });
  it('are counted', () => {
    expect(counts(LINES)).toEqual({ added: 2, removed: 1 });
    expect(summary(LINES, 0)).toBe('+2 −1');
    expect(summary(['+a'], 3)).toBe('+1 or more');
    expect(summary([], 0)).toBe('');
  });
});

const turn = (facts: Record<string, unknown>): EpisodeTurn => ({
  index: 1,
  actor: 'agent',
  policy: 'agent@0000',
  kind: 'act',
  text: '',
  valid: true,
  reward: 0,
  rewards: {},
  prompt: null,
  parts: {},
  facts: { turn: 2, observation: 'exit code: 0', command: 'ls', exit_code: 0, ...facts },
  group: null,
});
const CHANGED = { files: [{ path: 'a.txt', what: 'created', bytes: 2 }] };
const button = async (facts: Record<string, unknown>): Promise<boolean> => {
  const { Command } = await import('../src/pages/Command');
  const place = { run: 'r', iteration: 1, episode: 's00/t' };
  const page = renderToStaticMarkup(createElement(Command, { turn: turn(facts), place }));
  expect(page).toContain('exit code: 0');
  return page.includes('Show what changed');
};

describe('what a turn changed', () => {
  beforeEach(() => vi.resetModules());
  afterEach(() => {
    vi.unstubAllEnvs();
    vi.unstubAllGlobals();
  });
  it('is offered where files changed', async () => {
    expect(await button(CHANGED)).toBe(true);
    expect(await button({ files: [] })).toBe(false);
    expect(await button({})).toBe(false);
  });
  it('is not offered in a file that was exported, which has no server', async () => {
    vi.stubEnv('VITE_REPLAY', 'true');
    vi.stubGlobal('document', { getElementById: () => null });
    expect(await button(CHANGED)).toBe(false);
  });
  it('is shown with every line as it came, reachable by keyboard, and with the number of further ones', async () => {
    const { Diffs } = await import('../src/pages/WhatChanged');
    const changed: ChangedFiles = {
      files: [
        { path: 'a.txt', what: 'changed', lines: LINES, further: 7, note: '' },
        { path: 'b.png', what: 'created', lines: [], further: 0, note: 'It is binary, 3 bytes.' },
      ],
      further: 4,
    };
    const page = renderToStaticMarkup(createElement(Diffs, { changed }));
    const [pre] = /<pre.*?<\/pre>/s.exec(page) ?? [''];
    expect(pre.replace(/<[^>]*>/g, '')).toBe(LINES.map((line) => `${line}\n`).join(''));
    expect(pre).toContain('tabindex="0"');
    expect(pre).toContain('<span class="removed"><b>-</b>two\n</span><span class="added"><b>+</b>2\n</span>');
    expect(page.match(/<pre/g)).toHaveLength(1);
    for (const said of ['and 7 more lines', 'It is binary, 3 bytes.', 'and 4 more files', '+2 −1 or more'])
      expect(page).toContain(said);
  });
});
