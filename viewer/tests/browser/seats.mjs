// A person plays environments of the user's own: guess.py to its end, and negotiation.py as the buyer, whose page never learns what the
// seller reads before the person asks for it after the end. Each is a server of its own: ADDRESS is that of the first.
import { address, api, assert, becomes, run, token } from './lib.mjs';

const { env } = await api('config');
const pictures = process.env.PICTURES;
const taken = async (page, name) => pictures && (await page.screenshot({ path: `${pictures}/${name}.png` }));

async function guess(open) {
  const page = await open('');
  await page.getByRole('heading', { name: 'guess' }).waitFor();
  assert.deepEqual(await page.getByRole('navigation').getByRole('link').allTextContents(), ['Play', 'Training']);
  await page.getByLabel('split').selectOption('dev');
  await page.getByLabel('task', { exact: true }).fill('2');
  await page.getByText('guess-dev-00001').waitFor();
  await taken(page, 'play-begin');
  await page.getByRole('button', { name: 'Begin' }).click();
  const asked = page.getByTestId('asked');
  await asked.getByText('Guess my number: 1 to 9. Digits only.').waitFor();
  const turns = page.getByLabel('Turns so far').locator('li');

  await page.getByLabel('reply as guesser').fill('a number');
  await page.getByRole('button', { name: 'Reply' }).click();
  await turns.nth(0).waitFor();
  await turns.nth(0).getByText('invalid').waitFor();
  await turns.nth(0).getByText('−0.20').waitFor();
  await asked.getByText('Not a number from 1 to 9.').waitFor();
  await taken(page, 'play-invalid');

  // Loaded again, the page continues with the same episode.
  await page.reload();
  await turns.nth(0).waitFor();
  await page.getByLabel('Legal replies').getByRole('button', { name: '5', exact: true }).click();
  await becomes(() => turns.count(), 2);
  const table = new URL(page.url()).hash.replace(/.*table=/, '');
  let now = await api(`tables/${table}`);
  if (now.asked) {
    await page.getByLabel('reply as guesser').fill(now.asked.legal.at(-1));
    await page.keyboard.press('Enter');
  }
  const end = page.getByTestId('end');
  await end.waitFor();
  now = await api(`tables/${table}`);
  assert.equal(now.asked, null);
  assert.equal(now.replies, now.turns.length);
  await becomes(() => turns.count(), now.turns.length);
  await end.getByText('invalid').waitFor();
  assert.equal(await end.getByRole('button').count(), 0, 'one seat has nothing more to show');
  await taken(page, 'play-end');
  await page.getByRole('button', { name: 'Next task' }).click();
  await asked.getByText('Guess my number').waitFor();
  await page.getByText('guess-dev-00002').waitFor();
  await becomes(() => turns.count(), 0);
}

async function negotiation(open) {
  // What the browser was sent, to look for what the seller reads.
  const sent = [];
  const page = await open('/env', { width: 390, height: 844 });
  page.on('response', async (response) => {
    if (response.url().includes('/api/tables')) sent.push(await response.text());
  });
  await becomes(() => page.locator('#seat-buyer').inputValue(), 'human');
  await becomes(() => page.locator('#seat-seller').inputValue(), 'easy');
  await page.getByRole('button', { name: 'Begin' }).click();
  const asked = page.getByTestId('asked');
  const end = page.getByTestId('end');
  await asked.waitFor();
  const turns = page.getByLabel('Turns so far').locator('li');
  await taken(page, 'play-buyer');
  for (let offer = 1; !(await end.isVisible()); offer++) {
    assert.equal(await asked.getAttribute('data-role'), 'buyer');
    await page.getByLabel('reply as buyer').fill(`offer ${offer}`);
    await page.getByRole('button', { name: 'Reply' }).click();
    await page.waitForFunction(
      (count) => document.querySelectorAll('.talk li').length === count || document.querySelector('.problem'),
      offer,
    );
    await asked.or(end).waitFor();
  }
  assert.equal(sent.join('').includes('Sell above'), false, 'the seller’s limit was sent');
  const mine = await turns.count();
  await taken(page, 'play-buyer-end');
  await page.getByRole('button', { name: /Show what all roles/ }).click();
  await page
    .getByText(/Sell above/)
    .first()
    .waitFor();
  assert.ok((await turns.count()) > mine);
  await taken(page, 'play-revealed');
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(over <= 0, `the page is ${over} px too wide`);

  // Both seats: the person plays them in turn.
  await page.locator('#seat-seller').selectOption('human');
  await page.getByRole('button', { name: 'Begin' }).click();
  await becomes(() => turns.count(), 0);
  const first = await asked.getAttribute('data-role');
  await page.getByLabel(`reply as ${first}`).fill('offer 9');
  await page.keyboard.press('Enter');
  await becomes(() => asked.getAttribute('data-role'), first === 'buyer' ? 'seller' : 'buyer');
  await page.getByLabel('Legal replies').getByRole('button', { name: 'accept' }).click();
  await end.getByText('deal').waitFor();
}

assert.ok(env, `${address} (${token.length}) plays no environment`);
await run({ guess, negotiation }[env.name]);
