// A run of 100,000 iterations: its curves are drawn, followed by the pointer and zoomed without the page standing still.
import { api, assert, becomes, run } from './lib.mjs';

const POINTS = 100_000;
const series = await api('runs/long/metrics');
assert.ok(series.every((one) => one.values.length === POINTS) && series.length === 4);
await run(async (open) => {
  const page = await open('/runs/long?view=curves');
  const plots = page.locator('.plot canvas');
  await plots.first().waitFor();
  await becomes(() => plots.count(), 2);
  // Time on the processor, not on the wall: the machine may be busy with other things.
  const session = await page.context().newCDPSession(page);
  await session.send('Performance.enable', { timeDomain: 'threadTicks' });
  const spent = async () =>
    (await session.send('Performance.getMetrics')).metrics.find(({ name }) => name === 'TaskDuration').value * 1000;
  const over = page.locator('.u-over').first();
  const box = await over.boundingBox();
  const before = await spent();
  const MOVES = 60;
  for (let move = 0; move < MOVES; move++)
    await page.mouse.move(box.x + (box.width * (move + 1)) / (MOVES + 2), box.y + 40 + (move % 20));
  const perMove = ((await spent()) - before) / MOVES;
  await page
    .locator('figcaption', { hasText: /^\d+: / })
    .first()
    .waitFor();
  const zoomed = await spent();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.504, box.y + 60, { steps: 3 });
  await page.mouse.move(box.x + box.width * 0.51, box.y + 60, { steps: 3 });
  await page.mouse.up();
  // Closer in, every point is drawn: the pointer reads an iteration that thinning to 1,500 of 100,000 omits.
  const seen = new Set();
  for (let move = 0; move < 20; move++) {
    const said = await page.locator('figcaption').first().textContent();
    await page.mouse.move(box.x + (box.width * (move + 1)) / 22, box.y + 50);
    // On a busy machine the page follows later; it need not say something new at every move.
    await page
      .waitForFunction((old) => document.querySelector('figcaption')?.textContent !== old, said, { timeout: 1_000 })
      .catch(() => undefined);
    seen.add(Number(/^(\d+): /.exec(await page.locator('figcaption').first().textContent())?.[1]));
  }
  const perZoom = (await spent()) - zoomed;
  const gaps = [...seen].sort((a, b) => a - b);
  assert.ok(gaps.at(-1) - gaps[0] < 0.02 * POINTS, `the zoom shows ${gaps[0]} to ${gaps.at(-1)}`);
  assert.ok(new Set(gaps.map((one) => one % 67)).size > 5, `zooming in shows no more points: ${gaps}`);
  await page.mouse.dblclick(box.x + box.width / 2, box.y + 50);
  let last = 0;
  for (let move = 0; move < 150 && last <= 0.9 * POINTS; move++) {
    await page.mouse.move(box.x + box.width - 3 - (move % 5), box.y + 50);
    await page.waitForTimeout(100);
    last = Number(/^(\d+): /.exec(await page.locator('figcaption').first().textContent())?.[1]);
  }
  assert.ok(last > 0.9 * POINTS, `a double click does not show the whole run again: ${last}`);
  console.error(
    `100,000 points: ${perMove.toFixed(1)} ms of main thread a pointer move, ${perZoom.toFixed(0)} ms a zoom and 20 moves`,
  );
  assert.ok(perMove < 50, `${perMove} ms of main thread for a pointer move`);
  assert.ok(perZoom < 2_500, `${perZoom} ms of main thread for a zoom`);
});
