// What the customer says has a bubble over it in 2D and in 3D, stands in the inspector, and is talk in the feed; its seat is given when a
// company is founded.
import { api, assert, becomes, played, run } from './lib.mjs';

await api('reset', { scenario: 'churn', days: 4, seed: 1001, pace_s: 0, playing: true });
const { frames } = await played();
const pictures = process.env.PICTURES;
const asks = frames.find(({ actor, action, talk }) => actor === 'customer' && action === 'REQUEST_FEATURE' && talk);
const tells = frames.find(({ actor, action, talk }) => actor === 'customer' && action === 'GIVE_FEEDBACK' && talk);
assert.equal(asks?.talk.to, 'dev');
assert.equal(tells?.talk.to, 'sales');

await run(async (open) => {
  for (const stage of ['2d', '3d']) {
    const page = await open('/office', { stage });
    await page.locator('.stage[data-ready=true] canvas').first().waitFor();
    await page.locator('.who[data-role=customer] button').click();
    for (const { seq, talk } of [asks, tells]) {
      await page.getByRole('slider', { name: 'Turn', exact: true }).fill(String(seq));
      const bubble = page.locator('.who[data-role=customer] .bubble[data-age="0"]');
      await bubble.filter({ hasText: `to ${talk.to}: ${talk.text}` }).waitFor();
      await page.getByRole('complementary').getByText(`to ${talk.to}: “${talk.text}”`).first().waitFor();
      if (!pictures) continue;
      await page.waitForTimeout(2_000); // people walk, and the picture is drawn
      await page.screenshot({ path: `${pictures}/customer-${stage}-${talk.to}.png` });
    }
  }
  const page = await open('/dashboard');
  await page.getByRole('group', { name: 'Show' }).getByRole('button', { name: 'talk' }).click();
  await page.getByRole('slider', { name: 'Turn', exact: true }).fill(String(tells.seq));
  const newest = page.locator('.feed > li').first();
  await newest.getByText('Give feedback').waitFor();
  await newest.getByText(`to sales: “${tells.talk.text}”`).waitFor();

  const play = await open('/play');
  const customer = play.getByRole('combobox', { name: 'customer' });
  assert.equal(await customer.inputValue(), 'script');
  const offered = await customer.locator('option').allTextContents();
  assert.ok(!offered.includes('heuristic'), offered.join());
  await play.getByRole('button', { name: 'Start this company' }).click();
  await becomes(async () => (await api('config')).worlds[0].length, 1);
  assert.equal((await api('config')).worlds[0].seats.customer, undefined);
});
