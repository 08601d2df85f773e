// The group inspector shows all replies, and recomputes the recorded advantages from what it shows.
import { api, assert, becomes, run } from './lib.mjs';

await run(async (open) => {
  const page = await open(`/runs/first/group?key=${encodeURIComponent('it0001/0/dev')}`);
  // Two of the four replies are equal, and shown as one until asked for.
  await becomes(() => page.locator('.reply').count(), 3);
  await page.getByLabel('show equal replies apart').check();
  await becomes(() => page.locator('.reply').count(), 4);
  await becomes(() => page.locator('[data-agrees=true]').count(), 1);
  // Returns 0.5, 1.5 and 1.0 are legal: (1.5 - 1) / (0.5 + 0.02).
  await page.getByText('+0.9615').first().waitFor();
  await becomes(() => page.locator('.reply .tag.bad').count(), 1);
  await becomes(() => page.locator('.tokens').first().locator('span').count(), 2);
  await page.getByRole('link', { name: /next/ }).click();
  await page.getByText('No advantages are recorded').waitFor();
  // Branches whose advantages are shrunk by what the luck of their worlds explains, also to nothing.
  const seen = { agrees: 0, dead: 0 };
  for (const { key } of (await api('runs/office/groups')).rows) {
    await page.goto(page.url().replace(/#.*/, `#/runs/office/group?key=${encodeURIComponent(key)}`));
    await page.getByText(key, { exact: true }).waitFor();
    if (await page.getByText('so the group teaches nothing').count()) seen.dead += 1;
    else seen.agrees += await page.locator('[data-agrees=true]').first().count();
  }
  assert.ok(seen.agrees > 3 && seen.dead > 0, JSON.stringify(seen));
  assert.equal(seen.agrees + seen.dead, (await api('runs/office/groups')).rows.length);
});
