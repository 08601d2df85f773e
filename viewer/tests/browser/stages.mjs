// 24 changes between 2D and 3D: one canvas at a time, nothing thrown, no drawing context lost.
import { assert, becomes, played, run } from './lib.mjs';

await played();
await run(async (open) => {
  const page = await open('/office?lowfx', { width: 800, height: 600 });
  await page.evaluate(() => {
    window.lost = 0;
    document.addEventListener('webglcontextlost', () => (window.lost += 1), true);
  });
  for (let change = 0; change < 24; change++) {
    const kind = change % 2 ? '2D' : '3D';
    await page.getByRole('button', { name: kind, exact: true }).click();
    await page.locator(`.stage[data-ready=true][aria-label$="${kind}"] canvas`).first().waitFor();
  }
  await becomes(() => page.locator('.stage canvas').count(), 1);
  assert.equal(await page.evaluate(() => window.lost), 0);
  // Clicking a name inspects the person.
  await page.locator('.who[data-role=hr] button').click();
  await page.getByRole('heading', { name: /Pat · HR/ }).waitFor();
  // The inspector names what the person is doing, and four figures of the company stand below it.
  await page
    .getByTestId('activity')
    .filter({ hasText: /^(IDLE|WORKING|WALKING|COLLABORATING)$/ })
    .waitFor();
  for (const figure of ['traffic', 'nps', 'pipeline', 'velocity'])
    assert.match(await page.getByTestId(figure).innerText(), /^[$−]*[\d.,]+[kM]?×?$/, figure);
});
