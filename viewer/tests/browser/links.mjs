// From any number to its moment: curve, group, episode, office and back; lists by keyboard; a comparison's cell to its race.
import { api, assert, becomes, played, run } from './lib.mjs';

await played();
const rows = (await api('runs/office/groups?count=500')).rows;
const number = (text) => Number(text.replace('−', '-').replace(/[+%]/g, ''));

await run(async (open) => {
  const page = await open('/runs/office?view=curves');
  const hash = () => page.evaluate(() => decodeURIComponent(location.hash.replaceAll('+', ' ')));
  const groups = page.getByRole('region', { name: 'Groups', exact: true });

  // A click on a curve leads to the groups of that iteration and role.
  const plot = page.locator('.curve').first().locator('.u-over');
  const { width, height } = await plot.boundingBox();
  await plot.click({ position: { x: width - 12, y: height / 2 } });
  await groups.waitFor();
  const landed = new URLSearchParams((await hash()).split('?')[1]);
  assert.equal(landed.get('iteration'), '2');
  assert.ok(['dev', 'sales'].includes(landed.get('actor')), landed.get('actor'));
  const expected = rows.filter((row) => row.iteration === 2 && row.actor === landed.get('actor'));
  await becomes(() => groups.locator('tbody tr').count(), expected.length);

  // All iterations, by regret: the numbers descend, and the address holds the order.
  await page.evaluate(() => (location.hash = '/runs/office?view=groups'));
  await becomes(() => groups.locator('tbody tr').count(), rows.length);
  await page
    .locator('label', { hasText: /^order/ })
    .locator('select')
    .selectOption('regret');
  await becomes(hash, '#/runs/office?view=groups&sort=regret');
  const regrets = async () => (await groups.locator('tbody tr td:nth-child(6)').allTextContents()).map(number);
  await becomes(async () => {
    const found = (await regrets()).filter((one) => !Number.isNaN(one));
    return found.length > 3 && found.every((one, index) => index === 0 || one <= found[index - 1]);
  }, true);
  const refactors = rows.filter((row) => row.actor === 'dev' && row.actions.some((action) => action.includes('REFACTOR')));
  assert.ok(refactors.length > 2 && refactors.length < rows.length);
  await page.getByRole('searchbox', { name: 'Search' }).fill('refactor DEV');
  await becomes(() => groups.locator('tbody tr').count(), refactors.length);
  await page.reload();
  await becomes(() => groups.locator('tbody tr').count(), refactors.length);

  // By keyboard: j, j, k is the first row again; Enter opens it; there, j leads to the next group.
  await page.locator('body').press('j');
  await page.keyboard.press('j');
  await page.keyboard.press('k');
  const title = await groups.getByRole('link').first().getAttribute('title');
  await page.keyboard.press('Enter');
  await page.locator('h1').getByText(title).waitFor();

  // Group -> its turn in the episode -> the same group; group -> the office at this turn -> the same group.
  const row = rows.find(({ key }) => key === title);
  await page.getByRole('link', { name: 'its turn in the episode' }).click();
  await page.getByRole('heading', { name: /^Turn \d+$/ }).waitFor();
  const recorded = await api(`runs/office/episode?iteration=${row.iteration}&episode=${encodeURIComponent(row.episode)}`);
  const turn = recorded.turns.find((one) => one.group === row.key);
  assert.ok(turn, 'no turn of the episode knows the group');
  await page.getByRole('heading', { name: `Turn ${turn.index + 1}`, exact: true }).waitFor();
  await page.getByRole('link', { name: 'the replies compared in this turn' }).click();
  await page.locator('h1').getByText(title).waitFor();
  await page.getByRole('link', { name: 'in the office at this turn' }).click();
  await page.locator('.timeline .from').getByText(row.episode).waitFor();
  const said = () => page.getByRole('slider', { name: 'Turn', exact: true }).getAttribute('aria-valuetext');
  await becomes(async () => (await said()).split(',')[0], `Turn ${row.turn + 1}`);
  await page
    .locator('.timeline .from')
    .getByRole('link', { name: /replies compared in this turn/ })
    .click();
  await page.locator('h1').getByText(title).waitFor();

  // The claw's episodes have its own columns; an episode has its assertions in view, checked or crossed.
  await page.evaluate(() => (location.hash = '/runs/claw?view=episodes'));
  const episodes = page.getByRole('region', { name: 'Episodes', exact: true });
  const shells = await api('runs/claw/episodes');
  await becomes(() => episodes.getByText('✓ passed').count(), shells.filter(({ metrics }) => metrics.passed).length);
  await becomes(() => episodes.getByText('✗ not passed').count(), shells.filter(({ metrics }) => !metrics.passed).length);
  await episodes.getByText('✗ not passed').first().locator('xpath=ancestor::tr').getByRole('link').click();
  const failed = shells.find(({ metrics }) => !metrics.passed);
  const assertions = page.getByRole('region', { name: 'Assertions' }).last();
  await becomes(() => assertions.getByText('✗').count(), failed.metrics.assertions_total - failed.metrics.assertions_passed);

  // A comparison's cell starts the race of its two teams on its company.
  await page.evaluate(() => (location.hash = '/comparisons/matched'));
  const [task] = await api('comparisons/matched/tasks?metric=company_value');
  const line = page.getByRole('region', { name: 'Task by task' }).last().locator('tbody tr').first();
  const [, scenario, seed, days] = /^office-(.+)-(\d+)-d(\d+)$/.exec(task.task);
  await line.getByRole('link').first().click();
  await page.waitForFunction((last) => document.querySelector('main input[type=range]')?.value === last, String(days * 15));
  const worlds = (await api('config')).worlds.filter(({ world }) => world.startsWith('race'));
  assert.deepEqual(
    worlds.slice(0, 2).map((one) => [one.scenario, String(one.seed), String(one.days)]),
    [
      [scenario, seed, days],
      [scenario, seed, days],
    ],
  );
  // What the race shows at its end is what the comparison recorded.
  const shown = Number((await page.locator('.lane header b').first().textContent()).replace(/[$,k]/g, ''));
  const team = (await page.locator('.lane h2').first().textContent()).trim().split(/\s/)[0];
  assert.ok(Math.abs(shown * 1000 - task.values[team]) <= 51, `${team}: ${shown}k, recorded ${task.values[team]}`);
});
