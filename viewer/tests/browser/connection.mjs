// A lost connection keeps the picture and says so; a company that waits for a reply shows whose turn it is, and since when.
import { api, assert, becomes, played, run } from './lib.mjs';

const { frames } = await played();
await run(async (open) => {
  const page = await open('/runs');
  let down = false;
  const open_ = new Set();
  await page.routeWebSocket(/\/ws\/live/, (ws) => {
    if (down) {
      ws.close();
      return;
    }
    ws.connectToServer();
    open_.add(ws);
  });
  await page.evaluate(() => (location.hash = '/office?turn=31&role=dev'));
  await page.reload();
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  const at = frames.findIndex((frame) => frame.turn === 30 && frame.actor !== 'night');
  await becomes(() => slider.inputValue(), String(at));
  await page.locator('.stage[data-ready=true] canvas').waitFor();
  await page.getByText('paused', { exact: true }).waitFor();

  down = true;
  for (const ws of open_) await ws.close();
  const banner = page.locator('.banner');
  await banner.getByText('The server does not answer.').waitFor();
  await banner.getByText(/trying again in \d s/).waitFor();
  // The company is still there, and the timeline shows any of its moments.
  assert.equal(await page.locator('.stage canvas').count(), 1);
  assert.equal(await page.getByText('Waiting for the company').count(), 0);
  await slider.fill(String(at + 1));
  await becomes(() => slider.inputValue(), String(at + 1));

  // Back again, and at the same moment.
  await page.getByRole('button', { name: 'Try now' }).waitFor();
  down = false;
  await banner.waitFor({ state: 'detached' });
  await becomes(() => slider.getAttribute('max'), String(frames.length - 1));
  await becomes(() => slider.inputValue(), String(at + 1));

  // A company with a slow pace: whose turn it is stands at the head of the page and at the person.
  await api('reset', { seed: 1003, days: 3, pace_s: 60, playing: true });
  await page.locator('body').press('End');
  // One seat may have been asked since then; the first seconds of each are not shown.
  await page
    .locator('.pill')
    .filter({ hasText: /(CEO|Dev|Marketing|Sales|Content|HR|Customer) · \d+ s/ })
    .waitFor();
  await page
    .locator('.thinking')
    .filter({ hasText: /thinking \d+ s/ })
    .waitFor();
  await api('reconfigure', { playing: false });
  await becomes(() => page.locator('.thinking').count(), 0);
  await page.getByText('paused', { exact: true }).waitFor();
});
