// A run of the office: what followed each reply turn by turn, and its episodes as an office; a shell's turns; matched comparisons.
import { api, assert, becomes, described, run } from './lib.mjs';

const row = (await api('runs/office/groups')).rows.find((one) => one.distinct > 2 && one.turn !== null);
const episodes = await api('runs/office/episodes');
const shells = await api('runs/claw/episodes');
const where = (one) => `iteration=${one.iteration}&episode=${encodeURIComponent(one.name)}`;
await run(async (open) => {
  const page = await open(`/runs/office/group?key=${encodeURIComponent(row.key)}`);
  const futures = page.getByTestId('futures');
  await futures.locator('[data-agrees=true]').waitFor();
  const world = Number(
    await page
      .locator('label', { hasText: /^world/ })
      .locator('select')
      .inputValue(),
  );
  const traces = await api(`runs/office/branches?key=${encodeURIComponent(row.key)}&world=${world}`);
  const best = [...traces.replies].sort((a, b) => b.value - a.value)[0];
  const first = futures.getByRole('region', { name: 'What followed each reply' }).locator('tbody tr').first();
  const dollars = (text) => Number(text.replace('−', '-').replace(/[$,]/g, '').replace(/k$/, 'e3').replace(/M$/, 'e6'));
  for (const at of [1, 7, best.turns.length]) {
    await page.getByLabel('Turns after the decision').fill(String(at));
    const shown = dollars(await first.locator('td').nth(1).textContent());
    const value = best.turns[at - 1].value;
    assert.ok(Math.abs(shown - value) <= Math.max(0.51, Math.abs(value) * 0.006), `${shown} for ${value} at ${at}`);
  }
  await futures.getByLabel('also where both did the same').check();
  const rows = futures.getByRole('region', { name: 'The two branches turn by turn' }).locator('tbody tr');
  await becomes(() => rows.count(), Math.max(...traces.replies.map((trace) => trace.turns.length)));

  for (const episode of [episodes.find((one) => one.iteration === 1), episodes.at(-1)]) {
    await page.evaluate((hash) => (location.hash = hash), `/runs/office/episode?${where(episode)}`);
    await page.getByText(episode.name, { exact: true }).waitFor();
    await page.getByRole('link', { name: /Watch in the office/ }).click();
    await page.locator('.stage[data-ready=true] canvas').waitFor();
    await page.locator('.timeline .from').getByText('recorded').waitFor();
    const { seats, frames } = await api(`runs/office/office?${where(episode)}`);
    const slider = page.getByRole('slider', { name: 'Turn', exact: true });
    await becomes(() => slider.getAttribute('max'), String(frames.length - 1));
    assert.equal(seats.turns, frames.filter((frame) => !['', 'night'].includes(frame.actor)).length);
    for (const seq of [1, Math.floor(frames.length / 2), frames.length - 1]) {
      await slider.fill(String(seq));
      const [begin, end] = described(frames[seq]);
      await becomes(async () => {
        const text = await slider.getAttribute('aria-valuetext');
        return [text.slice(0, begin.length), text.slice(-end.length)];
      }, [begin, end]);
    }
    await page.getByRole('button', { name: /back to the live company/ }).click();
    await becomes(() => page.locator('.timeline .from').count(), 0);
  }

  const solved = shells.find((one) => one.metrics.passed);
  const recorded = await api(`runs/claw/episode?${where(solved)}`);
  await page.evaluate((hash) => (location.hash = hash), `/runs/claw/episode?${where(solved)}`);
  const command = page.getByTestId('command');
  await command.waitFor();
  assert.equal((await command.getByLabel('Command').textContent()).trim(), recorded.turns[0].facts.command);
  assert.ok((await command.getByLabel('What the agent read').textContent()).length > 0);
  const changed = recorded.turns.flatMap((turn) => turn.facts.files ?? []);
  let seen = 0;
  for (let turn = 0; turn < recorded.turns.length; turn++) {
    await page.getByRole('region', { name: 'Turns' }).getByRole('button').nth(turn).click();
    seen += await command.locator('.changes li').count();
  }
  assert.equal(seen, changed.length);
  assert.ok(seen > 0);
  await command.getByText(`${recorded.turns.at(-1).facts.verdicts.length} of`).waitFor();

  // The commands are executed again for what a turn changed; each line of a diff is shown as it came.
  const writing = recorded.turns.find((turn) => turn.facts.files?.length);
  const told = await api(`runs/claw/files?${where(solved)}&turn=${writing.index}`);
  assert.deepEqual(
    told.files.map((file) => [file.path, file.what]),
    writing.facts.files.map((change) => [change.path, change.what]),
  );
  await page.getByRole('region', { name: 'Turns' }).getByRole('button').nth(writing.index).click();
  await command.getByRole('button', { name: 'Show what changed' }).press('Enter');
  const withLines = told.files.filter((file) => file.lines.length);
  assert.ok(withLines.length > 0);
  for (const file of withLines) {
    const shown = await command.getByLabel(`What changed in ${file.path}`, { exact: true }).textContent();
    assert.equal(shown, file.lines.map((line) => `${line}\n`).join(''));
  }

  const matched = await api('comparisons/matched');
  await page.evaluate(() => (location.hash = '/comparisons/matched?metric=company_value&team=expert'));
  const table = page.getByRole('region', { name: 'Differences by group of tasks' });
  await table.waitFor();
  await becomes(() => table.locator('tbody tr').count(), matched.strata.length);
  assert.equal((await page.locator('.whisker .span').count()) > 0, true);
  await page.locator('label', { hasText: /^team/ }).locator('select').selectOption('random');
  await page.getByRole('heading', { name: 'company_value: random against the others' }).waitFor();
});
