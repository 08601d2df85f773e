// Every page opens at both widths: no error, no request elsewhere, nothing wider than the window.
import { address, api, assert, played, run } from './lib.mjs';

await played();
for (const [index, team] of ['heuristic', 'expert'].entries())
  await api('reset', { world: `race-${index + 1}`, days: 3, pace_s: 0, playing: true, seats: { sales: team, dev: team } });
const group = encodeURIComponent('it0001/0/dev');
const branched = encodeURIComponent((await api('runs/office/groups')).rows.find((row) => row.distinct > 2).key);
const [played_] = await api('runs/office/episodes');
const solved = (await api('runs/claw/episodes')).find((row) => row.metrics.passed);
const where = (row) => `iteration=${row.iteration}&episode=${encodeURIComponent(row.name)}`;
const pages = [
  '/office',
  '/dashboard',
  '/play',
  '/race',
  '/runs',
  '/runs?compare=first',
  '/runs/first',
  '/runs/first?view=curves',
  '/runs/first?view=groups',
  '/runs/first?view=actions',
  '/runs/first?view=episodes',
  '/runs/first?view=config',
  `/runs/first/group?key=${group}`,
  `/runs/office/group?key=${branched}`,
  `/runs/office/episode?${where(played_)}`,
  `/runs/claw/episode?${where(solved)}`,
  '/comparisons/matched',
];
await run(async (open) => {
  for (const hash of pages)
    for (const width of [1366, 390]) {
      const page = await open(hash, { width, height: width === 390 ? 844 : 900, colorScheme: width === 390 ? 'light' : 'dark' });
      if (hash === '/office') await page.locator('.stage[data-ready=true] canvas').waitFor();
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(over <= 0, `${hash} at ${width} px is ${over} px too wide`);
      assert.equal(await page.locator('[role=alert]').count(), 0, `${hash} shows a problem`);
      await page.context().close();
    }
  // The first page is small: what comes before an engine is loaded.
  const page = await open('/dashboard');
  const bytes = await page.evaluate(() =>
    performance
      .getEntriesByType('resource')
      .filter((one) => one.name.includes('/assets/'))
      .reduce((sum, one) => sum + one.encodedBodySize, 0),
  );
  assert.ok(bytes > 0 && bytes <= 150_000, `the first page loads ${bytes} bytes from ${address}`);
});
