// The list of runs and a run's first page: the outcome is that of the record, found in one click; notes are kept over a reload.
import { api, assert, becomes, run } from './lib.mjs';

const rows = await api('runs');
const overview = await api('runs/office/overview');
await run(async (open) => {
  const page = await open('/runs');
  const table = page.getByRole('region', { name: 'Runs', exact: true });
  await becomes(() => table.getByRole('row').count(), rows.length + 1);
  assert.match(await table.getByRole('row', { name: /office/ }).innerText(), /better\s+\+.*against start/);
  // Found by a word of another column; the address keeps it.
  await page.getByRole('searchbox', { name: 'find' }).fill('claw');
  await becomes(() => table.getByRole('row').count(), rows.filter((row) => JSON.stringify(row).includes('claw')).length + 1);
  assert.match(page.url(), /find=claw/);
  await page.getByRole('searchbox', { name: 'find' }).fill('');
  await table.getByRole('button', { name: 'outcome' }).click();
  await becomes(async () => (await table.getByRole('row').nth(1).innerText()).includes('office'), true);
  // A star puts a run first, and outlives the page.
  await table.getByRole('button', { name: 'first is a baseline' }).click();
  await becomes(async () => (await table.getByRole('row').nth(1).innerText()).includes('first'), true);
  await becomes(async () => (await api('runs')).find((row) => row.name === 'first').notes.star, true);
  // The only starred run is the baseline: a run shows its paired difference where one comparison had both, else nothing.
  await table.getByRole('columnheader', { name: 'minus first' }).waitFor();
  const { office } = await api('runs/first/differences');
  await becomes(async () => (await table.getByRole('row', { name: /office/ }).innerText()).includes(office.text), true);
  assert.match(
    await table
      .getByRole('row', { name: /office/ })
      .getByRole('cell')
      .last()
      .innerText(),
    /^better\s+\+/,
  );
  assert.equal(await table.getByRole('row', { name: /claw/ }).getByRole('cell').last().innerText(), '–');
  assert.equal(await table.getByRole('row', { name: /first/ }).getByRole('cell').last().innerText(), 'baseline');
  await page.getByRole('combobox', { name: 'baseline' }).selectOption({ label: 'none' });
  await becomes(() => table.getByRole('columnheader', { name: 'minus first' }).count(), 0);

  await table.getByRole('link', { name: 'office', exact: true }).click();
  await page.getByRole('heading', { name: 'Did training help?' }).waitFor();
  const said = await page.locator('.verdict').innerText();
  for (const line of overview.verdict.lines)
    assert.ok(said.replace(/\s+/g, ' ').includes(line.text.replace(/\s+/g, ' ')), line.text);
  await page.getByRole('button', { name: 'add tags or a note' }).click();
  await page.getByRole('textbox', { name: 'tags, separated by commas' }).fill(`${'x'.repeat(41)}`);
  await page.getByText('A tag has at most 40 characters').waitFor();
  assert.ok(await page.getByRole('button', { name: 'Keep' }).isDisabled());
  await page.getByRole('textbox', { name: 'tags, separated by commas' }).fill('talk, slow');
  await page.getByRole('textbox', { name: 'note', exact: true }).fill('the one to show');
  await page.getByRole('button', { name: 'Keep' }).click();
  await page.getByText('the one to show').waitFor();
  await becomes(async () => (await api('runs')).find((row) => row.name === 'office').notes, {
    tags: ['talk', 'slow'],
    note: 'the one to show',
    star: false,
  });
  await page.reload();
  await page.getByText('the one to show').waitFor();
  // A phone has room for little, and a run's name is part of it.
  const narrow = await open('/runs', { width: 390, height: 844 });
  for (const { name } of rows) assert.ok(await narrow.getByRole('link', { name, exact: true }).first().isVisible(), name);
  await narrow.context().close();
  // The first telling group opens whole.
  await page.locator('.telling a').first().click();
  await page.getByRole('heading', { level: 1 }).waitFor();
  assert.match(page.url(), /runs\/office\/group\?key=/);
});
