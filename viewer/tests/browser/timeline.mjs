// The live feed shows every turn; scrubbing to a turn shows exactly what is recorded of it; the keyboard moves.
import { api, assert, becomes, described, played, run } from './lib.mjs';

await run(async (open) => {
  const page = await open('/dashboard');
  let { frames } = await played();
  const slider = page.getByRole('slider', { name: 'Turn', exact: true });
  await page.waitForFunction((last) => document.querySelector('.timeline input').value === String(last), frames.length - 1);
  const won = page.getByRole('region', { name: 'won' }).locator('h3 span');
  const shown = async (seq) => {
    await slider.fill(String(seq));
    const frame = frames[seq];
    // A page on a busy machine is a moment behind its slider.
    await page.waitForFunction(([begin, end]) => {
      const text = document.querySelector('.timeline input').getAttribute('aria-valuetext');
      return text.startsWith(begin) && text.endsWith(end);
    }, described(frame));
    await won.filter({ hasText: new RegExp(`^${frame.kpis.customers}$`) }).waitFor();
  };
  for (let seq = 1; seq < frames.length; seq += 7) await shown(seq);
  for (const seq of frames.filter((frame) => frame.actor === 'night').map((frame) => frame.seq)) await shown(seq);

  await shown(1);
  await page.locator('body').press('ArrowRight');
  await becomes(() => slider.inputValue(), '2');
  await page.locator('body').press('End');
  await becomes(() => slider.inputValue(), String(frames.length - 1));
  await page.locator('body').press('Home');
  await becomes(() => slider.inputValue(), '0');
  await page.locator('body').press('Space');
  await page.waitForFunction(() => Number(document.querySelector('.timeline input').value) > 2);

  // Who left is counted, told in the feed, and found by the jump; where a penalty is found, it is seen.
  const seats = { sales: 'do-nothing' };
  await api('reset', { scenario: 'churn', days: 20, seed: 1007, seats, pace_s: 0, playing: true });
  ({ frames } = await played());
  await page.waitForFunction((last) => document.querySelector('.timeline input').value === String(last), frames.length - 1);
  const last = frames.at(-1).kpis;
  await slider.fill(String(frames.length - 1));
  await page.getByText(`lost ${last.lost} · churned ${last.churned}`, { exact: true }).waitFor();
  const losses = frames.filter((frame) => frame.moves.some((move) => ['lost', 'churned'].includes(move.after)));
  assert.ok(losses.length > 0, 'no account left in this company');
  const feed = page.getByRole('region', { name: 'Turns, newest first' });
  await slider.fill('0');
  await page.getByLabel('What to jump to').selectOption('deal');
  const found = [];
  const next = page.getByRole('button', { name: 'Next deal won, lost or churned' });
  while (await next.isEnabled()) {
    await next.click();
    found.push(Number(await slider.inputValue()));
  }
  for (const { seq } of losses) assert.ok(found.includes(seq), `the jump passes over frame ${seq}`);
  const gone = losses[0].moves.find((move) => ['lost', 'churned'].includes(move.after));
  await slider.fill(String(losses[0].seq));
  await feed.getByText(`${gone.name}: ${gone.before} → ${gone.after}`).waitFor();
  const charged = frames.find((frame) => Object.values(frame.parts).some((line) => line[4] < 0));
  assert.ok(charged, 'no penalty in this company');
  await slider.fill('0');
  await page.getByLabel('What to jump to').selectOption('penalty');
  await page.getByRole('button', { name: 'Next rule broken (penalty)' }).click();
  await becomes(() => slider.inputValue(), String(charged.seq));
  await feed.locator('li').first().getByText('penalty').waitFor();

  // A company that is founded anew replaces the old one, turn by turn.
  await api('reset', { days: 2, seed: 1007, pace_s: 0, playing: true });
  await page.waitForFunction(() => document.querySelector('.timeline input').value === '30');
});
