// axe-core finds no serious or critical violation on any page, in either theme.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { api, assert, played, run } from './lib.mjs';

await played();
const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const pages = [
  '/office',
  '/dashboard',
  '/play',
  '/race',
  '/runs',
  '/runs/first',
  '/runs/first?view=groups',
  `/runs/first/group?key=${encodeURIComponent('it0001/0/dev')}`,
  `/runs/office/group?key=${encodeURIComponent((await api('runs/office/groups')).rows.find((row) => row.distinct > 2).key)}`,
  ...(await api('runs/claw/episodes'))
    .filter((row) => row.metrics.passed)
    .slice(0, 1)
    .map((row) => `/runs/claw/episode?iteration=${row.iteration}&episode=${encodeURIComponent(row.name)}`),
  '/comparisons/matched',
];
await run(async (open) => {
  for (const hash of pages)
    for (const colorScheme of ['dark', 'light']) {
      const page = await open(hash, { colorScheme, reducedMotion: 'reduce' });
      await page.waitForTimeout(400);
      // evaluate is not bound by the page's policy, which forbids scripts that are not ours.
      await page.evaluate(axe);
      const found = await page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { resultTypes: ['violations'] });
        return violations
          .filter((one) => ['serious', 'critical'].includes(one.impact))
          .map(
            (one) =>
              `${one.id}: ${one.nodes
                .slice(0, 3)
                .map((node) => `${node.html.slice(0, 120)} ${node.any[0]?.message ?? ''}`)
                .join(' | ')}`,
          );
      });
      assert.deepEqual(found, [], `${hash} in ${colorScheme}`);
      await page.context().close();
    }
});
