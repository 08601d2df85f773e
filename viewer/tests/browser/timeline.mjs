// The live feed shows every turn; scrubbing to a turn shows exactly what is recorded of it; the keyboard moves.
import { api, assert, becomes, described, played, run } from './lib.mjs';

const team = ({ rewards }) => Object.entries(rewards).reduce((sum, [role, paid]) => (role === 'customer' ? sum : sum + paid), 0);
const sums = ({ amounts }) =>
  Object.fromEntries(Object.entries(amounts).map(([role, parts]) => [role, parts.reduce((sum, part) => sum + part, 0)]));

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
  const said = losses[0].reasons.find((reason) => reason.account === gone.id).text;
  assert.match(said, new RegExp(`^${gone.name} (churned|was lost) `));
  await feed.locator('.turn + .reasons').getByText(said).first().waitFor();
  const charged = frames.find((frame) => Object.values(frame.parts).some((line) => line[4] < 0));
  assert.ok(charged, 'no penalty in this company');
  await slider.fill('0');
  await page.getByLabel('What to jump to').selectOption('penalty');
  await page.getByRole('button', { name: 'Next rule broken (penalty)' }).click();
  await becomes(() => slider.inputValue(), String(charged.seq));
  const rule = charged.reasons.find((reason) => reason.cause === 'rule').text;
  await feed.locator('.feed > li').first().locator('[data-cause=rule]').getByText(rule).waitFor();

  // "What went wrong on day 12?" One choice goes to its end, where one sentence says it; the reasons there add up to the rewards.
  const worst = frames.filter((frame) => frame.actor === 'night').sort((a, b) => team(a) - team(b))[0];
  await page.getByLabel('Day', { exact: true }).selectOption(String(worst.day));
  await becomes(() => slider.inputValue(), String(worst.seq));
  const most = worst.reasons.map((reason) => [team({ rewards: sums(reason) }), reason.text]).sort((a, b) => a[0] - b[0])[0];
  await feed
    .locator(`[data-day="${worst.day + 1}"]`)
    .getByText(most[1])
    .waitFor();
  await slider.fill('1');
  await page.getByRole('button', { name: 'Biggest loss' }).click();
  const cost = (frame) => (frame.actor === 'night' ? team(frame) : (frame.rewards[frame.actor] ?? 0));
  const least = frames.slice(1).reduce((found, frame) => (cost(frame) < cost(found) ? frame : found));
  await becomes(() => slider.inputValue(), String(least.seq));
  await page.locator('.track input').hover({ position: { x: 30, y: 30 } });
  await page
    .locator('.hovercard')
    .getByText(/^Day 1 · /)
    .waitFor();

  // A company that is founded anew replaces the old one, turn by turn.
  await api('reset', { days: 2, seed: 1007, pace_s: 0, playing: true });
  await page.waitForFunction(() => document.querySelector('.timeline input').value === '30');
});
