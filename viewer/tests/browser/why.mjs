// Why is this reply's advantage high? One sentence at the top of its group, three clicks from the list of runs, with the true numbers.
import { api, assert, becomes, played, run } from './lib.mjs';

await played();
const rows = (await api('runs/office/groups?count=500')).rows;
const fates = (trace, name, after) =>
  trace.turns.some((turn) => turn.moves.some((move) => move.name === name && move.after === after));

await run(async (open) => {
  const page = await open('/runs');
  // 1: the run, 2: its groups, 3: the group.
  await page.getByRole('link', { name: 'office', exact: true }).click();
  await page.getByRole('button', { name: 'groups', exact: true }).click();
  await page.getByRole('region', { name: 'Groups', exact: true }).getByRole('link').first().click();
  const why = page.getByTestId('why');
  await why.waitFor();

  let causes = 0;
  for (const row of rows.filter((one) => one.distinct > 2 && one.trained).slice(0, 5)) {
    await page.evaluate((to) => (location.hash = to), `/runs/office/group?key=${encodeURIComponent(row.key)}`);
    await page.getByText(row.key, { exact: true }).waitFor();
    const glance = page.getByTestId('glance');
    // Every world has been played when nothing more is announced.
    await becomes(() => page.getByText(/playing world/).count(), 0);
    const said = await why.textContent();
    const group = await api(`runs/office/group?key=${encodeURIComponent(row.key)}`);
    const letter = async (side) => {
      const label = await glance
        .locator(`button[aria-pressed=true]`, { hasText: new RegExp(`^${side}$`) })
        .getAttribute('aria-label');
      return label.replace(/^Compare /, '').replace(/ as [AB]$/, '');
    };
    assert.ok(said.startsWith(await letter('A')), `${said} does not begin with the best reply`);
    const legal = group.replies.map((reply, index) => ({ reply, index })).filter(({ reply }) => reply.valid);
    const best = legal.sort((one, other) => other.reply.ret - one.reply.ret)[0];
    const other =
      group.chosen !== best.index && group.replies[group.chosen].key !== best.reply.key ? group.chosen : legal.at(-1).index;
    const better = best.reply.by_world.filter((value, world) => value > group.replies[other].by_world[world]).length;
    assert.ok(said.includes(`worth more in ${better} of ${group.worlds.length} worlds`), `${said}: ${better}`);

    // The deal that it names ends so often as it says, in the branches as the server plays them again.
    const named = /because (\w+) \(.*?\) (is won|is lost|churns) in (\d+) of (\d+) worlds.* other reply in (\d+) of/.exec(said);
    if (named) {
      const [, name, verb, first, worlds, second] = named;
      const counts = [0, 0];
      for (const world of group.worlds) {
        const found = await api(`runs/office/branches?key=${encodeURIComponent(row.key)}&world=${world}`);
        for (const [place, index] of [best.index, other].entries()) {
          const branch = found.replies.find((one) => group.replies[one.index].key === group.replies[index].key);
          counts[place] += fates(branch, name, verb.split(' ').at(-1).replace('churns', 'churned')) ? 1 : 0;
        }
      }
      assert.deepEqual([first, second, worlds], [...counts, group.worlds.length].map(String), said);
      causes += 1;
    }

    // Advantages descend, in the numbers that are recorded; the value is the sum of its terms.
    const shown = (await glance.locator('.ranking tbody td:nth-child(2) b').allTextContents()).map((text) =>
      Number(text.replace('−', '-')),
    );
    assert.ok(
      shown.every((value, place) => place === 0 || value <= shown[place - 1]),
      shown.join(),
    );
    assert.equal(shown[0], Number(Math.max(...group.replies.map(({ advantage }) => advantage)).toFixed(2)));
    const [company, own, value] = (await page.getByTestId('value').locator('b').allTextContents()).map((text) =>
      Number(text.replace('−', '-')),
    );
    assert.ok(
      Math.abs(company + own - value) < 0.0151 && Math.abs(value - best.reply.ret) < 0.0051,
      `${company} + ${own} = ${value}`,
    );
  }
  assert.ok(causes > 0, 'no sentence named a deal');

  // Another reply as B stands in the address, and a reload compares the same two.
  await page
    .getByRole('button', { name: /^Compare .* as B$/ })
    .last()
    .click();
  await page.waitForFunction(() => /[?&]b=\d+/.test(location.hash));
  const label = await page.locator('.ranking button[aria-pressed=true]', { hasText: /^B$/ }).getAttribute('aria-label');
  await page.reload();
  await becomes(() => page.locator('.ranking button[aria-pressed=true]', { hasText: /^B$/ }).getAttribute('aria-label'), label);
});
