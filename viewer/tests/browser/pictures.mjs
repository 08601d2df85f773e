// The documentation's pictures: node pictures.mjs ADDRESS TOKEN FOLDER [NAME...]. Each page at 1366 and at 390 pixels.
import { join } from 'node:path';
import { address, api, played, run } from './lib.mjs';

const [folder, ...names] = process.argv.slice(4);
const company = { days: 30, pace_s: 0, playing: true };
const team = (player) => Object.fromEntries(['ceo', 'dev', 'marketing', 'sales', 'content', 'hr'].map((role) => [role, player]));
await api('reset', { ...company, scenario: 'viral', seed: 1001, seats: team('expert') });
const { frames } = await played();
const wins = frames.filter(({ moves }) => moves.some(({ after }) => after === 'won'));
const win = wins.at(Math.floor(wins.length / 2)) ?? frames.at(-1);
const moment = `turn=${win.turn + 1}&role=sales`;

const runs = await api('runs');
const named = (name) => runs.find((one) => one.name === name);
const groups = named('office') ? (await api('runs/office/groups')).rows : [];
const telling = [...groups].filter(({ trained }) => trained).sort((a, b) => b.spread - a.spread)[0];
const [episode] = named('office') ? await api('runs/office/episodes') : [];
const solved = named('claw') ? (await api('runs/claw/episodes')).find((row) => row.metrics.passed) : undefined;
const where = (row) => `iteration=${row.iteration}&episode=${encodeURIComponent(row.name)}`;

const startRace = async () => {
  for (const [index, player] of ['heuristic', 'expert'].entries())
    await api('reset', { ...company, world: `race-${index + 1}`, scenario: 'churn', seed: 1001, seats: team(player) });
  for (;;) {
    const { worlds } = await api('config');
    if (worlds.filter(({ world, done }) => world.startsWith('race') && done).length === 2) return;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
};
const starred = async () => {
  if (named('slow')) await api('runs/slow/notes', { tags: ['lower rate'], note: '', star: true });
};
const opened = async (page) => {
  await page.getByText(`· ${win.turn + 1}/`).waitFor();
  await page
    .getByRole('button', { name: /^Journey of / })
    .last()
    .click();
  await page.locator('.board').evaluate((one) => one.closest('.panel').scrollIntoView());
};
const tried = async (page) => {
  const button = page.getByRole('button', { name: /^Try (all )?\d/ });
  if (await button.isEnabled()) await button.click();
  await page.getByRole('region', { name: 'Branches' }).locator('li').nth(1).waitFor();
  await button.evaluate((one) => one.closest('.panel').scrollIntoView());
};

// Name, address, and what happens before the picture is taken.
const PICTURES = [
  ['office2d', `/office?${moment}`],
  ['office3d', `/office?${moment}`, undefined, '3d'],
  ['dashboard', `/dashboard?${moment}`],
  ['deals', `/dashboard?${moment}`, opened],
  ['playground', `/play?turn=${win.turn}&role=${win.actor}`],
  ['branches', `/play?turn=${win.turn}&role=${win.actor}`, tried],
  ['races', '/race'],
  ['race', '/race', undefined, '2d', startRace],
  ['runs', '/runs', undefined, '2d', starred],
  ['compared', '/runs?compare=quick,slow'],
  ['run', '/runs/quick'],
  ['training', '/runs/quick?view=curves'],
  ['groups', '/runs/office?view=groups&sort=spread'],
  ['actions', '/runs/office?view=actions'],
  ['episodes', '/runs/office?view=episodes'],
  ['config', '/runs/office?view=config'],
  ['group', `/runs/office/group?key=${encodeURIComponent(telling?.key ?? '')}`],
  ['episode', `/runs/office/episode?${episode ? where(episode) : ''}`],
  ['shell', `/runs/claw/episode?${solved ? where(solved) : ''}`],
  ['comparison', '/comparisons/kept-team'],
];

await run(async (open) => {
  for (const [name, hash, act, stage = '2d', before] of PICTURES) {
    if (names.length && !names.includes(name)) continue;
    await before?.();
    for (const width of [1366, 390]) {
      const narrow = width === 390;
      const page = await open(hash, {
        width,
        height: narrow ? 844 : 900,
        colorScheme: narrow ? 'light' : 'dark',
        stage,
        reducedMotion: 'reduce',
      });
      if (hash.startsWith('/office')) await page.locator('.stage[data-ready=true] canvas').waitFor();
      await page.waitForLoadState('networkidle');
      // Without a GPU the first frame of the office in 3D takes long.
      await page.waitForTimeout(stage === '3d' ? 25_000 : 1500);
      await act?.(page);
      await page.waitForTimeout(500);
      await page.screenshot({ path: join(folder, `${name}${narrow ? '-phone' : ''}.png`) });
      await page.context().close();
      console.error(name, width, address);
    }
  }
});
