// The live feed shows every turn; scrubbing to a turn shows exactly what is recorded of it; the keyboard moves.
import { api, assert, played, run } from './lib.mjs';

await run(async (open) => {
  const page = await open('/dashboard');
  const { frames } = await played();
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  await page.waitForFunction((last) => document.querySelector('.timeline input').value === String(last), frames.length - 1);
  const shown = async (seq) => {
    await slider.fill(String(seq));
    const frame = frames[seq];
    const text = await slider.getAttribute('aria-valuetext');
    assert.ok(text.startsWith(`Turn ${frame.turn + 1}, day ${frame.day + 1}, ${frame.phase}.`), text);
    assert.ok(text.endsWith(`Reward ${(frame.rewards[frame.actor] ?? 0).toFixed(2)}.`), text);
    const customers = await page.getByRole('region', { name: 'won' }).locator('h3 span').textContent();
    assert.equal(Number(customers), frame.kpis.customers, `customers at ${seq}`);
  };
  for (let seq = 1; seq < frames.length; seq += 7) await shown(seq);
  await shown(1);
  await page.locator('body').press('ArrowRight');
  assert.equal(await slider.inputValue(), '2');
  await page.locator('body').press('End');
  assert.equal(await slider.inputValue(), String(frames.length - 1));
  await page.locator('body').press('Home');
  assert.equal(await slider.inputValue(), '0');
  await page.locator('body').press('Space');
  await page.waitForFunction(() => Number(document.querySelector('.timeline input').value) > 2);

  // A company that is founded anew replaces the old one, turn by turn.
  await api('reset', { days: 2, seed: 1007, pace_s: 0, playing: true });
  await page.waitForFunction(() => document.querySelector('.timeline input').value === '28');
});
