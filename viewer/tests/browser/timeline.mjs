// The live feed shows every turn; scrubbing to a turn shows exactly what is recorded of it; the keyboard moves.
import { api, assert, played, run } from './lib.mjs';

await run(async (open) => {
  const page = await open('/dashboard');
  const { frames } = await played();
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  await page.waitForFunction((last) => document.querySelector('.timeline input').value === String(last), frames.length - 1);
  const won = page.getByRole('region', { name: 'won' }).locator('h3 span');
  const shown = async (seq) => {
    await slider.fill(String(seq));
    const frame = frames[seq];
    // A page on a busy machine is a moment behind its slider.
    await page.waitForFunction(
      ([begin, end]) => {
        const text = document.querySelector('.timeline input').getAttribute('aria-valuetext');
        return text.startsWith(begin) && text.endsWith(end);
      },
      [
        `Turn ${frame.turn + 1}, day ${frame.day + 1}, ${frame.phase}.`,
        `Reward ${(frame.rewards[frame.actor] ?? 0).toFixed(2)}.`,
      ],
    );
    await won.filter({ hasText: new RegExp(`^${frame.kpis.customers}$`) }).waitFor();
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
